"""Trainings of small transformers to their end, beside `plesio_planning.studies.time_to_train`.

A device is one thread of this machine; its peak is measured with large products of matrices. The utilisation is that
of one model on one device, and predicts, by ``6 N D / (G P u)``, what other sizes and two devices take for D tokens.
Then a training is killed again and again and goes on from its last state (`failing_runs`): what its steps, states and
returns took predicts its end, by the formula that the study has for failures.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch

from plesio.core.charts import Axis, LineChart
from plesio.core.units import counted, format_count, format_seconds, parse_count
from plesio.core.within import Within
from plesio.cost.goodput import Goodput, expected_goodput
from plesio.cost.reliability import best_interval_s
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.tasks.load import load_task
from plesio.tasks.task import Task, take_batch
from plesio_planning.measured.failing_runs import FailingRun, failure_gaps_s, run_with_failures
from plesio_planning.measured.ranks import Ranks, Times, timed
from plesio_planning.measured.real_gradients import flat_gradient, set_gradient
from plesio_planning.measured.twin import Twin, beside, lines_of
from plesio_planning.studies.measured import Measured

FOUND = ("mfu", "restart_s", "storage_bytes_per_s")
WIDTHS = (64, 96, 144, 192)
"""Widths of the models; the second is the one whose utilisation is measured."""
FAILING_WIDTH = 64
CONTEXT, BATCH, DEPTH = 64, 8, 2
TOKENS = 20_000.0
MTBF_S = 0.8
FAILING_S = 6.0
"""Work of a run that fails, about."""
INTERVALS = (1.0, 3.0)
"""Intervals between states, over the best."""
CALIBRATION_STEPS = 20
TRAINING, FAILING = "training (s)", "run with failures (s)"


def measure(
    twin: Twin,
    widths: Sequence[int] = WIDTHS,
    failing_s: float = FAILING_S,
    intervals: Sequence[float] = INTERVALS,
    /,
    *,
    tokens: Annotated[float, Within(5e3, 1e6)] = TOKENS,
    device_mtbf_s: Annotated[float, Within(0.3, 20)] = MTBF_S,
) -> Measured:
    """Measure four sizes on one device and on two, and runs that fail again and again; takes about a minute."""
    num_steps = max(3, round(tokens / (BATCH * CONTEXT)))
    tokens = float(num_steps * BATCH * CONTEXT)
    with Ranks(2) as ranks:
        twin.say("the peak of a device")
        peak = statistics.median(ranks.run(peak_flops_per_s))

        def work_s(width: int, num_devices: int, steps: int) -> float:
            times_s = ranks.times_s(step_times, num_devices=num_devices, width=width, num_steps=steps)
            return steps / num_devices * statistics.median(times_s)

        twin.say("a model's utilisation")
        # calibrated on one size and one device; all others are predictions
        steps_s = work_s(widths[1], 1, CALIBRATION_STEPS)
        flops = 6 * num_parameters(widths[1]) * CALIBRATION_STEPS * BATCH * CONTEXT
        utilisation = flops / (peak * steps_s)
        for num_devices in (1, 2):
            for width in widths:
                parameters = num_parameters(width)
                twin.say(f"{format_count(parameters)} parameters, {counted(num_devices, 'device')}")
                at_peak_s = 6 * parameters * tokens / (num_devices * peak)
                twin.predict(
                    TRAINING,
                    {"parameters": format_count(parameters), "devices": num_devices},
                    predicted=at_peak_s / utilisation,
                    measured=work_s(width, num_devices, num_steps),
                    baseline=at_peak_s,
                )
    failing = _failing(mtbf_s=device_mtbf_s, work_s=failing_s, intervals=intervals, on_step=twin.say)
    for modelled, run in failing:
        twin.predict(
            FAILING,
            {"a state every": format_seconds(modelled.interval_s)},
            predicted=modelled.total_s,
            measured=run.total_s,
            baseline=modelled.work_s,
        )
    modelled, run = failing[0]
    return twin.measured(
        "time-to-train",
        finding=f"At the utilisation of one model ({100 * utilisation:.0f} %) other sizes and two devices are off by "
        f"{twin.off(TRAINING):.0f} % (median), and runs that were killed "
        f"{sum(each.num_failures for _, each in failing)} times by {twin.off(FAILING):.0f} %: "
        f"{format_seconds(modelled.work_s)} of work became {format_seconds(run.total_s)}, modelled "
        f"{format_seconds(modelled.total_s)}.",
        setting=f"Transformers of {DEPTH} layers on stdlib_lm, {BATCH} windows of {CONTEXT} bytes a step and device, "
        f"{tokens:,.0f} tokens; a device is a thread with a peak of {peak / 1e9:.0f} GFLOP/s, two all-reduce over "
        f"loopback. Failures are {format_seconds(device_mtbf_s)} apart; a state took "
        f"{format_seconds(modelled.checkpoint_s)} and a return {format_seconds(modelled.restart_s)}. Baselines: the "
        "peak; no failures.",
        charts=[_chart(twin)],
    )


def _chart(twin: Twin) -> LineChart:
    lines = lines_of(twin.rows(TRAINING), along="parameters", by="devices", place=parse_count)
    return beside(
        {counted(int(devices), "device"): line for devices, line in lines.items()},
        title="Real trainings beside 6 N D over what devices do",
        caption="Time of a training by parameters, on one device and on two.",
        x=Axis(title="parameters", log=True),
        y=Axis(title="time (s)", log=True),
    )


def _task(width: int) -> Task:
    return load_task("stdlib_lm", width=width, depth=DEPTH, context=CONTEXT, corpus_bytes=200_000, batch_size=BATCH)


def num_parameters(width: int) -> int:
    model, _ = _task(width).build(0)
    return sum(one.numel() for one in model.parameters())


def peak_flops_per_s(group: TorchGroup, *, size: int = 512, repeats: int = 15) -> float:
    """Measure one thread's speed in products of square matrices; the others wait. The fastest counts."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(repeats):
        begun_s = time.monotonic()
        torch.mm(left, right)
        times.append(time.monotonic() - begun_s)
    return 2 * size**3 / min(times)


def step_times(group: TorchGroup, *, num_devices: int, width: int, num_steps: int) -> Times:
    """Train on the first ranks, each with windows of its own and the mean of all gradients; nothing on the others.

    Several devices do fewer steps than the ``num_steps`` of one, of more windows.
    """
    part = group.split([range(num_devices)])
    if part is None:
        return []
    training = TransformerTraining(width)
    numbers = iter(range(10**9))

    def step() -> None:
        training.step(next(numbers), exchange=part if num_devices > 1 else None)

    return timed(part, step, repeats=-(-num_steps // num_devices), warm_up=2)


class TransformerTraining:
    """A transformer and its optimizer: the work of runs that fail, too."""

    def __init__(self, width: int) -> None:
        self._task = _task(width)
        self._model, self._optimizer = self._task.build(0)
        self._samples = self._task.train_set()
        self._number = len(self._samples)  # type: ignore[arg-type]

    def step(self, number: int, *, exchange: TorchGroup | None = None) -> None:
        first = number * BATCH % (self._number - BATCH)
        self._optimizer.zero_grad()
        batch = take_batch(self._samples, list(range(first, first + BATCH)))
        self._task.loss(self._model, batch).backward()  # type: ignore[no-untyped-call]
        if exchange is not None:
            gradient = flat_gradient(self._model) / exchange.size
            exchange.all_reduce(gradient).wait()
            set_gradient(self._model, gradient)
        self._optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])


def _failing(
    *, mtbf_s: float, work_s: float, intervals: Sequence[float], on_step: Callable[[str], None]
) -> list[tuple[Goodput, FailingRun]]:
    """Run a training without failures, and with them, with states at several intervals."""
    run = partial(run_with_failures, TransformerTraining, arguments=(FAILING_WIDTH,))
    with tempfile.TemporaryDirectory(prefix="plesio-training-") as name:
        folder = Path(name)
        on_step("a training without failures")
        # times a step and a state, from which lengths and the best interval follow
        trial = run(num_steps=CALIBRATION_STEPS, steps_per_state=5, gaps_s=(), folder=folder / "trial")
        step_s = (trial.total_s - sum(trial.writes_s)) / CALIBRATION_STEPS
        num_steps = max(4, round(work_s / step_s))
        plain_s = run(num_steps=num_steps, steps_per_state=num_steps, gaps_s=(), folder=folder / "plain").total_s
        best_s = best_interval_s(checkpoint_s=statistics.median(trial.writes_s), mtbf_s=mtbf_s)
        found = []
        for number, factor in enumerate(intervals):
            steps = min(num_steps // 2, max(1, round(factor * best_s * num_steps / plain_s)))
            interval_s = steps * plain_s / num_steps
            on_step(f"a training that fails every {format_seconds(mtbf_s)}, a state every {format_seconds(interval_s)}")
            gaps_s = failure_gaps_s(mtbf_s, seed=number)
            own = folder / f"failing-{number}"
            failed = run(num_steps=num_steps, steps_per_state=steps, gaps_s=gaps_s, folder=own)
            # with this run's own costs, so that only the failures are predicted
            goodput = expected_goodput(
                plain_s,
                checkpoint_s=statistics.fmean(failed.writes_s),
                restart_s=statistics.fmean(failed.restarts_s or [0.0]),
                mtbf_s=mtbf_s,
                interval_s=interval_s,
            )
            found.append((goodput, failed))
    return found
