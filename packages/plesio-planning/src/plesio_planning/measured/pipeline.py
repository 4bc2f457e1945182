"""A pipeline of processes that do a schedule's operations in its order, beside `plesio_planning.studies.pipeline`.

Every rank is a device. It does the operations that `plesio_planning.sim.pipeline_schedules` gives it, waits for what an
operation needs and sends on what it makes, point to point with Gloo. There are two kinds of stages. Two *compute*, one
for each core: layers whose forward and backward passes are torch's. Four *wait*, as a process does whose device
computes, so that the machine's cores are no part of it and every schedule can be tried. The stages are timed first,
with all ranks at work but nothing sent; the model gets these times and that of a message.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import nn

from plesio.core.charts import Axis
from plesio.core.units import format_seconds
from plesio.core.within import Within
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Ranks
from plesio_planning.measured.twin import Line, Twin, beside
from plesio_planning.sim.pipeline_schedules import (
    SCHEDULES,
    SPLIT,
    DeviceOperation,
    Execution,
    Schedule,
    chunks_of,
    devices_of_stages,
    execute,
    operations,
)
from plesio_planning.studies.measured import Measured

FOUND = ("send_s",)
COMPUTING, WAITING = 2, 4
"""Stages of either kind."""
WIDTH, DEPTH, BATCH = 512, 4, 256
"""A computing stage: width of its linear layers, how many, and rows of a micro-batch."""
WAITING_BATCH = 8
"""Rows that a waiting stage sends, few, for the machine's cores send for all."""
FORWARD_S = 0.01
"""Forward pass of a waiting stage; its backward pass takes twice as long."""
MICRO_BATCHES = (1, 2, 4, 8, 16)
REPEATS = 5
CALIBRATIONS = 15
CHUNKS = 2

Stage = Mapping[str, float]
"""Seconds of its operations, by kind."""


def measure(
    twin: Twin,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    schedules: Sequence[Schedule] = SCHEDULES,
    repeats: int = REPEATS,
    calibrations: int = CALIBRATIONS,
    /,
    *,
    pp: Annotated[int, Within(2, 6)] = WAITING,
    num_micro_batches: Annotated[int, Within(2, 32)] = MICRO_BATCHES[-1],
    forward_s: Annotated[float, Within(2e-3, 0.1)] = FORWARD_S,
) -> Measured:
    """Measure two stages that compute and four that wait; takes about a minute."""
    numbers = sorted({num_micro_batches, *(number for number in micro_batches if number < num_micro_batches)})
    lines: dict[str, Line] = {}
    simple: tuple[Schedule, ...] = ("gpipe", "1f1b")
    # stages that compute test the model on real work; stages that wait allow more of them
    for kind, count in (("computing", COMPUTING), ("waiting", pp)):
        own = {"kind": kind, "forward_s": forward_s}
        with Ranks(count) as ranks:
            twin.say(f"{count} {kind} stages by themselves")
            stages = ranks.run(calibrate_stage, repeats=calibrations, **own)
            send_s = statistics.median(ranks.run(message_times, kind=kind, repeats=calibrations)[0])
            # the other schedules only on stages that wait, which do not share cores
            chosen = [(name, number) for name in simple for number in numbers]
            if kind == "waiting":
                chosen += [(name, num_micro_batches) for name in schedules if name not in simple]
            for schedule, number in chosen:
                twin.say(f"{schedule}, {number} micro-batches, {count} {kind} stages")
                answers = ranks.run(run_pipeline, schedule=schedule, micro_batches=number, repeats=repeats, **own)
                modelled = _modelled(stages, schedule, number, send_s=send_s)
                setting = {"stages": f"{count} {kind}", "schedule": schedule, "micro-batches": number}
                found_s = _predict(twin, setting, modelled, answers)
                places, before, after = lines.setdefault(f"{count} {kind}, {schedule}", ([], [], []))
                lines[f"{count} {kind}, {schedule}"] = (
                    [*places, number],
                    [*before, 1e3 * modelled.iteration_s],
                    [*after, 1e3 * found_s],
                )
    worst = max(abs(one.error) for one in twin.rows("iteration (s)"))
    return twin.measured(
        "pipeline",
        finding=f"With measured times of stages the model is {twin.off('iteration (s)'):.1f} % off in an iteration's "
        f"time (median; {100 * worst:.1f} % at most) and {twin.off('bubble'):.1f} points in the bubble.",
        setting=f"{COMPUTING} processes that compute ({DEPTH} layers of {WIDTH}, {BATCH} rows a micro-batch) and "
        f"{pp} that wait ({format_seconds(forward_s)} forward, twice that backward), Gloo on loopback, one "
        f"thread each; medians of {repeats}, which vary by {twin.spread:.1f} %. The baseline has no bubble.",
        charts=[
            beside(
                {name: line for name, line in lines.items() if len(line[0]) > 1},
                title="An iteration of real pipelines beside the model's",
                caption="Iteration of pipelines of processes by number of micro-batches; medians.",
                x=Axis(title="micro-batches", log=True),
                y=Axis(title="time (ms)", log=True),
            )
        ],
        rivals="schedule",
    )


def _predict(
    twin: Twin,
    setting: Mapping[str, object],
    modelled: Execution,
    answers: Sequence[Sequence[tuple[float, float, float]]],
) -> float:
    """Predict an iteration and its bubble; return the seconds that it took."""
    of_repeats = list(zip(*answers, strict=True))
    iterations_s = [max(end - begin for begin, end, _ in of_all) for of_all in of_repeats]
    bubbles = [
        1 - statistics.fmean(busy for *_, busy in of_all) / iteration_s
        for of_all, iteration_s in zip(of_repeats, iterations_s, strict=True)
    ]
    found_s = twin.median(iterations_s)
    twin.predict(
        "iteration (s)",
        setting,
        predicted=modelled.iteration_s,
        measured=found_s,
        baseline=statistics.fmean(modelled.busy_s),
    )
    twin.predict(
        "bubble",
        setting,
        predicted=modelled.bubble_share,
        measured=statistics.median(bubbles),
        baseline=0.0,
        scale="points",
    )
    return found_s


def _modelled(stages: Sequence[Stage], schedule: Schedule, number: int, *, send_s: float) -> Execution:
    devices = devices_of_stages(schedule, num_devices=len(stages), num_chunks=CHUNKS)
    chunks = chunks_of(schedule, CHUNKS)
    suffix = "" if chunks == 1 else " of a part"

    def times_s(kind: str) -> list[float]:
        return [stages[device][kind + suffix] for device in devices]

    split = schedule in SPLIT
    return execute(
        operations(schedule, num_devices=len(stages), num_micro_batches=number, num_chunks=chunks),
        forward_s=times_s("forward"),
        backward_s=times_s("inputs" if split else "backward"),
        weights_s=times_s("weights") if split else (),
        send_s=send_s,
    )


class _Computing:
    """A stage whose passes are torch's."""

    def __init__(self) -> None:
        self._layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)))
        self._kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self.like = torch.zeros(BATCH, WIDTH)

    def forward(self, key: tuple[int, int], given: torch.Tensor) -> torch.Tensor:
        given = given.clone().requires_grad_()
        made: torch.Tensor = self._layers(given)
        self._kept[key] = given, made
        return made.detach()

    def backward(self, key: tuple[int, int], given: torch.Tensor) -> torch.Tensor:
        kept, made = self._kept.pop(key)
        made.backward(given)  # type: ignore[no-untyped-call]
        assert kept.grad is not None
        return kept.grad

    def weights(self, key: tuple[int, int]) -> None:
        raise AssertionError("computing stages do the gradients of weights with the others")


class _Waiting:
    """A stage that waits for a device, so to say."""

    def __init__(self, forward_s: float, *, split: bool) -> None:
        self._forward_s = forward_s
        self._backward_s = forward_s * (1 if split else 2)
        self.like = torch.zeros(WAITING_BATCH, WIDTH)

    def forward(self, key: tuple[int, int], given: torch.Tensor) -> torch.Tensor:
        time.sleep(self._forward_s)
        return self.like

    def backward(self, key: tuple[int, int], given: torch.Tensor) -> torch.Tensor:
        time.sleep(self._backward_s)
        return self.like

    def weights(self, key: tuple[int, int]) -> None:
        time.sleep(self._forward_s)


def _stage(kind: str, schedule: Schedule, *, forward_s: float) -> _Computing | _Waiting:
    if kind == "computing":
        return _Computing()
    return _Waiting(forward_s / chunks_of(schedule, CHUNKS), split=schedule in SPLIT)


def calibrate_stage(group: TorchGroup, *, kind: str, forward_s: float, repeats: int) -> dict[str, float]:
    """Return the seconds of a rank's operations by themselves, while all ranks do theirs; medians."""
    torch.manual_seed(group.rank)
    found: dict[str, float] = {}
    variants: list[tuple[str, Schedule]] = [("", "1f1b")]
    if kind == "waiting":
        variants += [(" of a part", "interleaved"), ("", "zb1p"), (" of a part", "zbv")]
    for suffix, schedule in variants:
        stage = _stage(kind, schedule, forward_s=forward_s)
        dist.barrier(group=group.process_group)
        times: dict[str, list[float]] = {}
        for number in range(repeats + 3):
            marks = [time.perf_counter()]
            made = stage.forward((0, number), stage.like)
            marks.append(time.perf_counter())
            stage.backward((0, number), made)
            marks.append(time.perf_counter())
            names = ["forward", "inputs" if schedule in SPLIT else "backward"]
            if schedule in SPLIT:
                stage.weights((0, number))
                marks.append(time.perf_counter())
                names.append("weights")
            if number >= 3:
                for name, begun_s, ended_s in zip(names, marks, marks[1:], strict=False):
                    times.setdefault(name, []).append(ended_s - begun_s)
        found |= {name + suffix: statistics.median(each) for name, each in times.items()}
    return found


def message_times(group: TorchGroup, *, kind: str, repeats: int) -> list[float]:
    """Return the seconds that a micro-batch takes from rank 0 to rank 1, half of there and back."""
    tensor = _stage(kind, "1f1b", forward_s=0.0).like
    times = []
    for _ in range(repeats):
        dist.barrier(group=group.process_group)
        begun_s = time.perf_counter()
        if group.rank == 0:
            dist.send(tensor, 1, group=group.process_group)
            dist.recv(tensor, 1, group=group.process_group)
        elif group.rank == 1:
            dist.recv(tensor, 0, group=group.process_group)
            dist.send(tensor, 0, group=group.process_group)
        times.append((time.perf_counter() - begun_s) / 2)
    return times


def run_pipeline(
    group: TorchGroup, *, kind: str, schedule: Schedule, micro_batches: int, forward_s: float, repeats: int
) -> list[tuple[float, float, float]]:
    """Do the schedule's operations of a rank.

    Returns:
        For each repeat when the first began and the last ended, and the seconds that they took in sum.
    """
    torch.manual_seed(group.rank)
    shape = {"num_devices": group.size, "num_chunks": CHUNKS}
    order = operations(schedule, num_micro_batches=micro_batches, **shape)[group.rank]
    stage = _stage(kind, schedule, forward_s=forward_s)
    device = _Device(group, stage, devices=devices_of_stages(schedule, **shape))
    times = []
    for _ in range(1 + repeats):
        dist.barrier(group=group.process_group)
        times.append(device.run(order))
    return times[1:]


class _Device:
    """A rank at work on its operations."""

    def __init__(self, group: TorchGroup, stage: _Computing | _Waiting, *, devices: Sequence[int]) -> None:
        self._group, self._stage, self._devices = group, stage, devices
        self._last = len(devices) - 1

    def run(self, order: Sequence[DeviceOperation]) -> tuple[float, float, float]:
        """Do all of them; begin, end, and seconds at work."""
        sends: list[Any] = []
        here: dict[DeviceOperation, torch.Tensor] = {}
        begun_s, busy_s = 0.0, 0.0
        for operation in order:
            given = self._input(operation, here)
            start_s = time.monotonic()
            begun_s = begun_s or start_s
            key = operation.stage, operation.micro_batch
            if operation.kind == "weights":
                self._stage.weights(key)
                busy_s += time.monotonic() - start_s
                continue
            work = self._stage.forward if operation.kind == "forward" else self._stage.backward
            made = work(key, given)
            busy_s += time.monotonic() - start_s
            after = self._after(operation)
            if after is not None and self._devices[after.stage] == self._group.rank:
                here[after] = made
            elif after is not None:
                target = self._devices[after.stage]
                sends.append((made, dist.isend(made, target, group=self._group.process_group, tag=self._tag(after))))
        ended_s = time.monotonic()
        for _, send in sends:
            send.wait()
        return begun_s, ended_s, busy_s

    def _input(self, operation: DeviceOperation, here: dict[DeviceOperation, torch.Tensor]) -> torch.Tensor:
        kind, stage, _ = operation
        if kind == "weights" or (kind == "forward" and stage == 0):
            return self._stage.like
        if operation in here:
            return here.pop(operation)
        source = self._devices[stage - 1 if kind == "forward" else stage + 1]
        given = torch.empty_like(self._stage.like)
        dist.recv(given, source, group=self._group.process_group, tag=self._tag(operation))
        return given

    def _after(self, operation: DeviceOperation) -> DeviceOperation | None:
        kind, stage, j = operation
        if kind == "forward":
            return (
                DeviceOperation("backward", stage, j)
                if stage == self._last
                else DeviceOperation("forward", stage + 1, j)
            )
        return DeviceOperation("backward", stage - 1, j) if stage > 0 else None

    def _tag(self, operation: DeviceOperation) -> int:
        kind, stage, j = operation
        return (j * (self._last + 1) + stage) * 2 + (kind == "backward")
