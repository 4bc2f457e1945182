"""Pipeline schedules: in which order every device does its operations, and when, with any times of stages.

A device does its operations in a fixed order, and each begins as soon as the device is free and its input is there. A
stage's forward pass of a micro-batch needs that of the stage before; its backward pass that of the stage behind; the
gradient of its weights, where a schedule does that apart, its own backward pass only.

- ``gpipe``: all forwards, then all backwards (Huang et al. 2019).
- ``1f1b``: stage i of p does p-i forwards, then a backward and a forward in turn (Narayanan et al. 2021, section
  2.2.1).
- ``interleaved``: 1F1B where every device has v smaller stages, i, p+i, ... (the same, section 2.2.2).
- ``zb1p``, ``zb2p``: 1F1B whose gradients of weights wait for i and 2i more backwards, with so many more micro-batches
  on their way that no device waits (Qi et al. 2023, ZB-H1 and ZB-H2).
- ``zbv``: the same with two stages a device, i and 2p-1-i, so that the first and the last are on one (the same,
  section 6); what of it is not told there was found by hand for equal times of the three operations.

A device's iteration is from its first operation to the end of its last, and the slowest decides: with zero bubble,
devices begin the next iteration one after another, which needs an optimizer step that waits for nobody (the same,
section 4).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from plesio.core.errors import ConfigError

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb1p", "zb2p", "zbv"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
Kind = Literal["forward", "backward", "weights"]
SPLIT: tuple[Schedule, ...] = ("zb1p", "zb2p", "zbv")
"""Schedules that do the gradients of weights apart from those of activations."""


class DeviceOperation(NamedTuple):
    """An operation of a device."""

    kind: Kind
    stage: int
    micro_batch: int


class Executed(NamedTuple):
    """An operation and when it was done, in seconds."""

    device: int
    operation: DeviceOperation
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Execution:
    """The course of a schedule.

    Attributes:
        done: All operations, each device's in its order.
        busy_s: Seconds that each device computes.
        span_s: Seconds from each device's first operation to the end of its last.
        most_held: The largest number of stages' activations that each device holds at a time: a micro-batch's are there
            from the beginning of its forward pass until the gradients of the weights are done.
    """

    done: tuple[Executed, ...]
    busy_s: tuple[float, ...]
    span_s: tuple[float, ...]
    most_held: tuple[int, ...]

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration among others."""
        return max(self.span_s)

    @property
    def bubble_share(self) -> float:
        """Share of the devices' time in which they wait."""
        return 1.0 - sum(self.busy_s) / len(self.busy_s) / self.iteration_s


def fewest_micro_batches(schedule: Schedule, *, num_devices: int) -> int:
    """Return the micro-batches that a schedule needs at least; interleaving also needs a multiple of it."""
    return {"interleaved": num_devices, "zbv": max(1, 2 * num_devices - 1)}.get(schedule, 1)


def chunks_of(schedule: Schedule, num_chunks: int) -> int:
    """Return the stages of a device; ``num_chunks`` if interleaved."""
    return {"interleaved": num_chunks, "zbv": 2}.get(schedule, 1)


def devices_of_stages(schedule: Schedule, *, num_devices: int, num_chunks: int) -> list[int]:
    """Return the device of each stage."""
    if schedule == "zbv":
        return [*range(num_devices), *reversed(range(num_devices))]
    return list(range(num_devices)) * chunks_of(schedule, num_chunks)


def operations(
    schedule: Schedule, *, num_devices: int, num_micro_batches: int, num_chunks: int = 2
) -> tuple[tuple[DeviceOperation, ...], ...]:
    """Return each device's operations in their order.

    >>> for device in operations("1f1b", num_devices=2, num_micro_batches=2):
    ...     print(*(f"{kind[0].upper()}{micro_batch}" for kind, _, micro_batch in device))
    F0 F1 B0 B1
    F0 B0 F1 B1

    Args:
        schedule: Its name.
        num_devices: p.
        num_micro_batches: m.
        num_chunks: v, stages a device if interleaved.

    Raises:
        ConfigError: A schedule that has no order for these numbers.
    """
    if min(num_devices, num_micro_batches, num_chunks) < 1:
        raise ConfigError(
            f"{num_devices} stages, {num_micro_batches} micro-batches and {num_chunks} chunks; write 1 or more of each"
        )
    fewest = fewest_micro_batches(schedule, num_devices=num_devices)
    if schedule == "interleaved" and num_micro_batches % num_devices:
        raise ConfigError(f"{num_micro_batches} micro-batches cannot be interleaved; write a multiple of {num_devices}")
    if num_micro_batches < fewest:
        raise ConfigError(f"{schedule} with {num_micro_batches} micro-batches; write {fewest} or more")
    p, m = num_devices, num_micro_batches
    if schedule == "gpipe":
        return tuple((*_all("forward", device, m), *_all("backward", device, m)) for device in range(p))
    if schedule == "interleaved":
        return tuple(_interleaved(device, p, m, num_chunks) for device in range(p))
    if schedule == "zbv":
        return tuple(_v_shaped(device, p, m) for device in range(p))
    delays = {"1f1b": None, "zb1p": 1, "zb2p": 2}[schedule]
    return tuple(tuple(_one_forward_one_backward(device, p, m, delays)) for device in range(p))


def _all(kind: Kind, stage: int, num_micro_batches: int) -> Iterator[DeviceOperation]:
    return (DeviceOperation(kind, stage, j) for j in range(num_micro_batches))


def _one_forward_one_backward(device: int, p: int, m: int, delays: int | None) -> Iterator[DeviceOperation]:
    """Delay a device's gradients of weights by ``delays`` times its place backward passes."""
    ahead = 1 if delays is None else delays
    warm_up = min(ahead * (p - device) - (ahead - 1), m)
    yield from _all("forward", device, warm_up)
    behind = ahead * device
    for j in range(m):
        yield DeviceOperation("backward", device, j)
        if delays is not None and j >= behind:
            yield DeviceOperation("weights", device, j - behind)
        if warm_up + j < m:
            yield DeviceOperation("forward", device, warm_up + j)
    if delays is not None:
        yield from (DeviceOperation("weights", device, j) for j in range(max(0, m - behind), m))


def _interleaved(device: int, p: int, m: int, v: int) -> tuple[DeviceOperation, ...]:
    """Send groups of p micro-batches through a device's first stage, then its second, and so on; backwards likewise."""

    def place(number: int) -> tuple[int, int]:
        return number // p % v, number // (p * v) * p + number % p

    forwards = [DeviceOperation("forward", chunk * p + device, j) for chunk, j in map(place, range(m * v))]
    backwards = [DeviceOperation("backward", (v - 1 - chunk) * p + device, j) for chunk, j in map(place, range(m * v))]
    warm_up = min(2 * (p - 1 - device) + (v - 1) * p, m * v)
    turns = [one for pair in zip(forwards[warm_up:], backwards, strict=False) for one in pair]
    return (*forwards[:warm_up], *turns, *backwards[m * v - warm_up :])


def _v_shaped(device: int, p: int, m: int) -> tuple[DeviceOperation, ...]:
    down, up = device, 2 * p - 1 - device
    numbers: dict[tuple[Kind, int], int] = {}
    order: list[DeviceOperation] = []

    def do(*kinds: tuple[Kind, int]) -> None:
        for kind, stage in kinds:
            j = numbers.get((kind, stage), 0)
            if j < m:
                order.append(DeviceOperation(kind, stage, j))
                numbers[kind, stage] = j + 1

    def whole(stage: int) -> list[tuple[Kind, int]]:
        return [("backward", stage), ("weights", stage)]

    for _ in range(2 * (p - device) - 1):
        do(("forward", down))
    for _ in range(device):
        do(("forward", up), ("forward", down))
    for _ in range(p - device):
        do(("forward", up), *whole(up))
    while numbers["forward", up] < m:
        do(("forward", down), *whole(down), ("forward", up), *whole(up))
    for _ in range(device):  # from here on the gradients of weights fill what would be waiting
        do(("backward", down), ("backward", up))
    for _ in range(p - device):
        do(*whole(down))
    for stage in (up, down):
        for _ in range(m):
            do(("weights", stage))
    return tuple(order)


def execute(
    orders: Sequence[Iterable[DeviceOperation]],
    *,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weights_s: Sequence[float] = (),
    send_s: float = 0.0,
) -> Execution:
    """Do the operations as early as their order lets them.

    >>> orders = operations("1f1b", num_devices=4, num_micro_batches=8)
    >>> done = execute(orders, forward_s=[1.0] * 4, backward_s=[2.0] * 4)
    >>> done.iteration_s, round(done.bubble_share, 4), done.most_held  # (8 + 3) x 3; 3/11
    (33.0, 0.2727, (4, 3, 2, 1))

    Args:
        orders: Orders of each device, from `operations`.
        forward_s: Seconds of each stage's forward pass of a micro-batch.
        backward_s: Seconds of its backward pass; where the gradients of weights are done apart, without them.
        weights_s: Seconds of the gradients of its weights, where they are.
        send_s: Seconds from a stage to the next and back, if it is on another device. It keeps no device busy.
    """
    queues = [list(order) for order in orders]
    device_of = {operation.stage: device for device, queue in enumerate(queues) for operation in queue}
    last = max(device_of)
    durations_s = {"forward": forward_s, "backward": backward_s, "weights": weights_s}
    end_s: dict[DeviceOperation, float] = {}
    done: list[list[Executed]] = [[] for _ in queues]
    held, most_held = [0] * len(queues), [0] * len(queues)
    last_kind = "weights" if weights_s else "backward"

    def input_s(operation: DeviceOperation) -> float | None:
        """Return when the inputs of an operation are there; None if that is not known yet."""
        kind, stage, j = operation
        if kind == "weights" or (kind == "forward" and stage == 0):
            return 0.0
        if kind == "backward" and stage == last:
            return end_s.get(DeviceOperation("forward", stage, j))
        before = DeviceOperation(kind, stage - 1 if kind == "forward" else stage + 1, j)
        ended_s = end_s.get(before)
        if ended_s is None or device_of[before.stage] == device_of[stage]:
            return ended_s
        return ended_s + send_s

    ongoing = True
    # devices in turn, each as far as its inputs are known, until nothing moves
    while ongoing:
        ongoing = False
        for device, queue in enumerate(queues):
            free_s = done[device][-1].end_s if done[device] else 0.0
            for operation in queue[len(done[device]) :]:
                ready_s = input_s(operation)
                if ready_s is None:
                    break
                start_s = max(free_s, ready_s)
                free_s = end_s[operation] = start_s + durations_s[operation.kind][operation.stage]
                done[device].append(Executed(device, operation, start_s, free_s))
                # activations live from the forward pass to the last operation that reads them
                held[device] += (operation.kind == "forward") - (operation.kind == last_kind)
                most_held[device] = max(most_held[device], held[device])
                ongoing = True
    assert all(len(each) == len(queue) for each, queue in zip(done, queues, strict=True)), "an order that never ends"
    return Execution(
        done=tuple(one for each in done for one in each),
        busy_s=tuple(sum(one.end_s - one.start_s for one in each) for each in done),
        span_s=tuple(each[-1].end_s - each[0].start_s for each in done),
        most_held=tuple(most_held),
    )
