"""Ways to deal with devices that fail, and the share of their time that is then work that counts.

Devices fail independently, so a machine of n fails every M_1/n. A run consists of whole data-parallel replicas; devices
that are left over are idle, in every way. ``docs/planning/studies/goodput.md`` has a table of the four ways:

- *plain* and *checkpoint and restart* save the state at the best interval (`best_interval_s`); a failure stops all,
  until the device is repaired, or with spare hosts until the run has been started anew.
- *elastic*: the other replicas go on without the one that lost a device (`plesio_planning.sim.replicas`).
- *local SGD*, M groups of as many replicas (give or take one): no group waits for another, so each is a run that fails
  M times less often, whose states are its rounds, and the share is the same for every group.

Shares are of simulated time (`plesio_planning.sim.checkpoints`), beside the closed form of Daly (2006) where there is
one. They count steps that are done, whatever those are worth.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plesio.core.checks import check_not_negative, check_positive
from plesio.cost.reliability import best_interval_s, cluster_mtbf_s, expected_slowdown
from plesio_planning.sim.checkpoints import CheckpointTimes, simulate_long_run
from plesio_planning.sim.replicas import simulate_replicas

DEVICE_NUMBERS = (1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
"""Machines that are compared: multiples of the usual replicas, so that what is seen is failures and not left-overs."""
NUM_GROUPS = (8, 16, 64)
NUM_FAILURES = 20_000
"""Failures that are simulated of each way and machine."""
REPAIR_S = 3600.0
"""Until a device is repaired: an assumption."""
RECONFIGURE_S = 30.0
"""Until replicas have gone on without one, or with one more: an assumption."""
EXCHANGE_S = 1.0
"""That a round's exchange is not hidden: an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingDevices:
    """How devices fail, and how long it takes to go on.

    Attributes:
        device_mtbf_s: M_1, mean seconds between failures of one device.
        checkpoint_s: Seconds to write a state, and to read it.
        restart_s: Seconds from a failure until a run with spare hosts reads its state, or a group its parameters.
        repair_s: Seconds from a failure until the device is repaired, where there are no spare hosts.
        reconfigure_s: Seconds that all replicas stand still when one leaves or comes back.
        replica_devices: Devices of a replica; what is left over of whole replicas is idle.
        round_s: Seconds of a group's steps between two exchanges.
        exchange_s: Seconds that a group stands still for an exchange.
    """

    device_mtbf_s: float
    checkpoint_s: float
    restart_s: float
    repair_s: float = REPAIR_S
    reconfigure_s: float = RECONFIGURE_S
    replica_devices: int
    round_s: float
    exchange_s: float = EXCHANGE_S

    def __post_init__(self) -> None:
        check_positive(device_mtbf_s=self.device_mtbf_s, checkpoint_s=self.checkpoint_s, round_s=self.round_s)
        check_not_negative(
            restart_s=self.restart_s,
            repair_s=self.repair_s,
            reconfigure_s=self.reconfigure_s,
            exchange_s=self.exchange_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WayToGoOn:
    """The use that a way makes of the devices' time.

    Attributes:
        name: ``plain``, ``checkpoint and restart``, ``elastic`` or ``local SGD, 8 groups``.
        parts: Shares of the time of all devices by what it goes into; they add up to 1. ``idle`` are devices that are
            left over of whole replicas, where there are any.
        work_ci95: Ends of the 95 % confidence interval of the share that is work.
        exact: Share that is work by closed form; NaN where there is none.
    """

    name: str
    parts: Mapping[str, float]
    work_ci95: tuple[float, float]
    exact: float

    @property
    def share(self) -> float:
        """Share of the time that is work which counts: the goodput."""
        return self.parts["work"]


def ways_to_go_on(
    devices: FailingDevices,
    num_devices: int,
    *,
    num_groups: Sequence[int] = NUM_GROUPS,
    num_failures: int = NUM_FAILURES,
    seed: int = 0,
) -> tuple[WayToGoOn, ...]:
    """Return every way on so many devices: plain, checkpoint and restart, elastic, local SGD by number of groups.

    Where there are too few devices for one replica, there is none.

    >>> devices = FailingDevices(
    ...     device_mtbf_s=1.8e8, checkpoint_s=3.0, restart_s=600.0, replica_devices=128, round_s=200.0
    ... )
    >>> [(way.name, round(way.share, 2)) for way in ways_to_go_on(devices, 100_000, num_groups=(8,))]
    [('plain', 0.13), ('checkpoint and restart', 0.67), ('elastic', 0.96), ('local SGD, 8 groups', 0.95)]

    Args:
        devices: How they fail.
        num_devices: n.
        num_groups: M, of local SGD, each once; those with less than a replica for each group are left out.
        num_failures: Failures that are simulated of each.
        seed: Seed of the simulation.
    """
    num_replicas = num_devices // devices.replica_devices
    if not num_replicas:
        return ()
    ways = _ways(devices, num_replicas, num_groups=num_groups, num_failures=num_failures, seed=seed)
    return tuple(_with_idle(way, 1 - num_replicas * devices.replica_devices / num_devices) for way in ways)


def ways_by_devices(
    ways: Callable[[int], tuple[WayToGoOn, ...]], num_devices: int
) -> Mapping[int, tuple[WayToGoOn, ...]]:
    """Every way on the machine that is asked for and on those of `DEVICE_NUMBERS` that a replica fits on, by size."""
    by_devices = {number: ways(number) for number in sorted({num_devices, *DEVICE_NUMBERS})}
    return {number: found for number, found in by_devices.items() if found}


def _ways(
    devices: FailingDevices, num_replicas: int, *, num_groups: Sequence[int], num_failures: int, seed: int
) -> Iterator[WayToGoOn]:
    mtbf_s = cluster_mtbf_s(part_mtbf_s=devices.device_mtbf_s, num_parts=num_replicas * devices.replica_devices)
    saved = {
        "interval_s": best_interval_s(checkpoint_s=devices.checkpoint_s, mtbf_s=mtbf_s),
        "checkpoint_s": devices.checkpoint_s,
        "mtbf_s": mtbf_s,
    }
    drawn = {"num_failures": num_failures, "seed": seed}
    yield _saved("plain", "states", saved | {"restart_s": devices.repair_s + devices.checkpoint_s}, drawn)
    back = saved | {"restart_s": devices.restart_s + devices.checkpoint_s}
    yield _saved("checkpoint and restart", "states", back, drawn)
    yield _elastic(devices, num_replicas, drawn=drawn)
    for groups in dict.fromkeys(num_groups):
        if groups <= num_replicas:
            rounds = {
                "interval_s": devices.round_s,
                "checkpoint_s": devices.exchange_s,
                "mtbf_s": groups * mtbf_s,
                "restart_s": devices.restart_s,
            }
            name = f"local SGD, {groups} group{'s' if groups > 1 else ''}"
            yield _saved(name, "exchanges", rounds, drawn)


def _elastic(devices: FailingDevices, num_replicas: int, *, drawn: Mapping[str, int]) -> WayToGoOn:
    run = simulate_replicas(
        num_replicas=num_replicas,
        replica_mtbf_s=cluster_mtbf_s(part_mtbf_s=devices.device_mtbf_s, num_parts=devices.replica_devices),
        away_s=devices.repair_s,
        reconfigure_s=devices.reconfigure_s,
        num_failures=drawn["num_failures"],
        seed=drawn["seed"],
    )
    parts = {"work": run.work, "restarts": run.waiting, "replicas away": run.away}
    return WayToGoOn(name="elastic", parts=parts, work_ci95=run.work_ci95, exact=math.nan)


def _saved(name: str, writing: str, times: Mapping[str, float], drawn: Mapping[str, int]) -> WayToGoOn:
    run = simulate_long_run(CheckpointTimes(**times), **drawn)
    parts = {"work": run.work, writing: run.writing, "lost work": run.lost, "restarts": run.restarts}
    return WayToGoOn(name=name, parts=parts, work_ci95=run.work_ci95, exact=1 / expected_slowdown(**times))


def _with_idle(way: WayToGoOn, idle: float) -> WayToGoOn:
    """Return the way among all devices of a machine, of which this share is idle."""
    if not idle:
        return way
    low, high = way.work_ci95
    return replace(
        way,
        parts={**{part: (1 - idle) * share for part, share in way.parts.items()}, "idle": idle},
        work_ci95=((1 - idle) * low, (1 - idle) * high),
        exact=(1 - idle) * way.exact,
    )
