"""Which input a run's time depends on: a tornado, the bottleneck, and the best upgrade."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from plesio.cost.link import Link
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.training import Training

CHANGE = 0.2
"""Share by which an input is changed, down and up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The run's time and cost if one input is another.

    Attributes:
        low_s: Seconds of the run at 0.8 of it.
        high_s: Seconds of the run at 1.2 of it.
        low_cost: US dollars at 0.8 of it.
        high_cost: US dollars at 1.2 of it.
    """

    name: str
    low_s: float
    high_s: float
    low_cost: float
    high_cost: float

    @property
    def swing_s(self) -> float:
        """How far it moves the run's time."""
        return abs(self.high_s - self.low_s)

    @property
    def better(self) -> str:
        """Which way the input shortens the run."""
        return "more" if self.high_s < self.low_s else "less"

    @property
    def best_s(self) -> float:
        """Seconds of the run at the better of the two."""
        return min(self.low_s, self.high_s)


def tornado(training: Training) -> tuple[Sensitivity, ...]:
    """Move every input down and up by 20 %, the one that moves the run's time the most first.

    Those of the host are among them where something is in its memory.
    """
    rows = []
    in_host = training.layout.offload or training.layout.offload_activations
    for name, scale in (_INPUTS | _HOST_INPUTS if in_host else _INPUTS).items():
        low, high = scale(training, 1 - CHANGE), scale(training, 1 + CHANGE)
        rows.append(
            Sensitivity(name=name, low_s=low.total_s, high_s=high.total_s, low_cost=low.cost, high_cost=high.cost)
        )
    return tuple(sorted(rows, key=lambda row: (-row.swing_s, -abs(row.high_cost - row.low_cost))))


def bottleneck(training: Training) -> tuple[str, float]:
    """Return the largest part of the run's time, and its share."""
    name, seconds = max(training.parts.items(), key=lambda part: part[1])
    return name, seconds / training.total_s


def best_upgrade(rows: Sequence[Sensitivity]) -> Sensitivity:
    """Return the input of a tornado whose better end shortens the run the most."""
    return min(rows, key=lambda row: row.best_s)


def _with_machine(change: Callable[[Machine, float], Machine]) -> Callable[[Training, float], Training]:
    return lambda training, factor: training.again(machine=change(training.machine, factor))


def _peak(machine: Machine, factor: float) -> Machine:
    accelerator = machine.accelerator
    peaks = {precision: factor * peak for precision, peak in accelerator.flops_per_s.items()}
    return replace(machine, accelerator=replace(accelerator, flops_per_s=peaks))


def _memory_bandwidth(machine: Machine, factor: float) -> Machine:
    accelerator = machine.accelerator
    bandwidth = factor * accelerator.memory_bytes_per_s
    return replace(machine, accelerator=replace(accelerator, memory_bytes_per_s=bandwidth))


def _faster(link: Link, factor: float) -> Link:
    return replace(link, bytes_per_s=factor * link.bytes_per_s)


def _later(link: Link, factor: float) -> Link:
    return replace(link, latency_s=factor * link.latency_s)


def _condition(name: str) -> Callable[[Training, float], Training]:
    return lambda training, factor: training.again(
        conditions=replace(training.conditions, **{name: factor * getattr(training.conditions, name)})
    )


def _constant(name: str) -> Callable[[Training, float], Training]:
    return lambda training, factor: training.again(
        constants=replace(training.constants, **{name: factor * getattr(training.constants, name)})
    )


def _storage(training: Training, factor: float) -> Training:
    bandwidth = training.conditions.all_storage_bytes_per_s(training.machine.num_devices)
    return training.again(conditions=replace(training.conditions, storage_bytes_per_s=factor * bandwidth))


def _price(training: Training, factor: float) -> Training:
    price = training.conditions.price_of(training.machine.accelerator.price_per_h)
    return replace(training, conditions=replace(training.conditions, price_per_h=factor * price))


_INPUTS: dict[str, Callable[[Training, float], Training]] = {
    "peak FLOP/s": _with_machine(_peak),
    "memory bandwidth": _with_machine(_memory_bandwidth),
    "bandwidth in a host": _with_machine(
        lambda machine, factor: replace(machine, local=_faster(machine.local, factor))
    ),
    "bandwidth between hosts": _with_machine(
        lambda machine, factor: replace(machine, nic=_faster(machine.nic, factor))
    ),
    "latency": _with_machine(
        lambda machine, factor: replace(machine, local=_later(machine.local, factor), nic=_later(machine.nic, factor))
    ),
    "time between failures": _condition("device_mtbf_s"),
    "storage bandwidth": _storage,
    "restart": _condition("restart_s"),
    "price": _price,
}
_HOST_INPUTS = {
    "bandwidth to the host": _constant("host_link_bytes_per_s"),
    "bandwidth of the host's memory": _constant("host_bytes_per_s"),
}
