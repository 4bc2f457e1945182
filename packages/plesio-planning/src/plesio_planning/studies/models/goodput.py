"""The share of a large machine's time that is work, when its devices fail.

The ways to go on, and what is simulated of them, are those of `plesio_planning.estimate.goodput_ways`.

The published figures are of Decoupled DiLoCo (arXiv 2604.21428), which simulates 1.2 million chips. How often a chip
fails there is not known. But a way that loses a time c at every failure has a goodput of ``1 / (1 + c / M)`` for
failures M apart, and a group of G is hit by one of G failures; so each figure says what c is, as a multiple of M.

``docs/planning/studies/goodput.md`` has the model with its sources, its assumptions and its limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.charts import Chart, Table
from plesio.core.errors import ArgumentError
from plesio.core.units import format_seconds
from plesio.core.within import DURATION_OR_0, Within
from plesio.cost.reliability import MOST_SLOWDOWN
from plesio_planning.estimate.goodput_charts import by_devices_chart, by_devices_table, percent, ways_chart, ways_table
from plesio_planning.estimate.goodput_ways import (
    EXCHANGE_S,
    NUM_GROUPS,
    RECONFIGURE_S,
    REPAIR_S,
    FailingDevices,
    WayToGoOn,
    ways_by_devices,
    ways_to_go_on,
)
from plesio_planning.estimate.training import DEVICE_MTBF_S
from plesio_planning.studies.study import Answer

_TIME = Within(1e-6, 1e12)
_PUBLISHED_DEVICES = 1_200_000
_PUBLISHED_SHARES = {"plain": 0.27, "elastic": 0.58, "local SGD, 8 groups": 0.88, "local SGD, 16 groups": 0.93}
_GROUPS = {"local SGD, 8 groups": 8, "local SGD, 16 groups": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsefulTime(Answer):
    """The uses of time of devices that fail.

    Attributes:
        num_devices: Devices of the machine that was asked for.
        mtbf_s: Mean seconds between two failures of that machine.
        ways: Every way to go on, on that machine.
        by_devices: Every way by number of devices, that machine's among them.
        published: Ways on as many devices as others have simulated; none where a replica does not fit there.
        published_mtbf_s: Mean seconds between two failures of such a machine.
    """

    unit: ClassVar[str] = "s"
    num_devices: int
    mtbf_s: float
    ways: tuple[WayToGoOn, ...]
    by_devices: Mapping[int, tuple[WayToGoOn, ...]]
    published: tuple[WayToGoOn, ...]
    published_mtbf_s: float

    @property
    def best(self) -> WayToGoOn:
        """The way with the most work."""
        return max(self.ways, key=lambda way: way.share)

    @property
    def finding(self) -> str:
        """How often the machine fails, and each way's share of work."""
        shares = ", ".join(f"{way.name} {percent(way.share)}" for way in self.ways)
        first, last = min(self.by_devices), max(self.by_devices)
        names = [max(self.by_devices[number], key=lambda way: way.share).name for number in (first, last)]
        found = (
            f"{self.num_devices:,} devices have a failure every {format_seconds(self.mtbf_s)}; of their time is work: "
            f"{shares}."
        )
        if first == last:
            return found
        return f"{found} Of {first:,} devices {names[0]} makes the most, of {last:,} {names[1]}."

    @property
    def total(self) -> float:
        """Seconds of the machine that a second of work takes, in the best way."""
        return sum(self.parts.values())

    @property
    def parts(self) -> Mapping[str, float]:
        """The uses of those seconds."""
        return {name: part / self.best.share for name, part in self.best.parts.items()}

    def tables(self) -> Sequence[Table]:
        """List the ways, numbers of devices, and others' published figures."""
        return [
            ways_table(self.ways, num_devices=self.num_devices),
            by_devices_table(self.by_devices),
            _published_table(self.published, mtbf_s=self.published_mtbf_s),
        ]

    def charts(self) -> Sequence[Chart]:
        """Draw work by number of devices, and the uses of time."""
        last = max(self.by_devices)
        best = max(self.by_devices[last], key=lambda way: way.share)
        title = f"{last:,} devices: {best.name} does work {percent(best.share)} of the time"
        return [by_devices_chart(self.by_devices, title=title), ways_chart(self.ways, num_devices=self.num_devices)]


def cost_of_a_failure(share: float, *, num_groups: int = 1) -> float:
    """Return the cost of a failure to the replicas that it hits, in mean times between failures of the whole machine.

    >>> round(cost_of_a_failure(0.27), 2), round(cost_of_a_failure(0.88, num_groups=8), 2)
    (2.7, 1.09)
    """
    return (1 / share - 1) * num_groups


def _published_table(ways: Sequence[WayToGoOn], *, mtbf_s: float) -> Table:
    """List published shares beside those of the same ways here, on as many devices; "–" where there is none."""
    here = {way.name: way.share for way in ways}
    rows = []
    for name, share in _PUBLISHED_SHARES.items():
        cost = cost_of_a_failure(share, num_groups=_GROUPS.get(name, 1))
        share_here = percent(here[name]) if name in here else "–"
        rows.append((name, f"{100 * share:.0f} %", share_here, f"{cost:.2f}", format_seconds(cost * mtbf_s)))
    from_8 = 1 / (1 + cost_of_a_failure(_PUBLISHED_SHARES["local SGD, 8 groups"], num_groups=8) / 16)
    rows.append(("16 groups, from the figure of 8", "93 %", f"{100 * from_8:.1f} %", "", ""))
    return Table(
        title=f"Against Decoupled DiLoCo's simulation of {_PUBLISHED_DEVICES:,} chips:",
        headers=("way", "published", "here", "a failure costs it, in times between failures", "at failures as here"),
        rows=rows,
    )


def goodput(
    *,
    num_devices: Annotated[int, Within(1, 10**8)] = 100_000,
    device_mtbf_s: Annotated[float, _TIME] = DEVICE_MTBF_S,
    checkpoint_s: Annotated[float, _TIME] = 3.0,
    restart_s: Annotated[float, DURATION_OR_0] = 600.0,
    repair_s: Annotated[float, DURATION_OR_0] = REPAIR_S,
    reconfigure_s: Annotated[float, DURATION_OR_0] = RECONFIGURE_S,
    replica_devices: Annotated[int, Within(1, 10**8)] = 128,
    num_groups: Annotated[tuple[int, ...], Within(1, 10**8)] = NUM_GROUPS,
    round_s: Annotated[float, _TIME] = 200.0,
    exchange_s: Annotated[float, DURATION_OR_0] = EXCHANGE_S,
    simulated_failures: Annotated[int, Within(100, 10**6)] = 20_000,
    seed: int = 0,
) -> UsefulTime:
    """Compare the ways to go on, on machines from a thousand to a million devices, and on a published one.

    >>> answer = goodput(num_devices=16_384, simulated_failures=2000)
    >>> [(way.name, round(100 * way.share)) for way in answer.ways][:3]
    [('plain', 71), ('checkpoint and restart', 93), ('elastic', 99)]

    Args:
        num_devices: Devices of the machine.
        device_mtbf_s: Mean time between failures of a device, with its share of host and network.
        checkpoint_s: Writing a state, or reading it.
        restart_s: Time from a failure until a run with spare hosts, or a group, goes on.
        repair_s: Time from a failure until the device is back, without spare hosts.
        reconfigure_s: Time that all replicas of an elastic run wait when one leaves or comes back.
        replica_devices: Devices of a replica, in every way; what is left over of whole replicas is idle.
        num_groups: Groups of local SGD, none of which waits for another; each has at least one replica.
        round_s: A group's steps between two exchanges.
        exchange_s: Part of an exchange that is not hidden.
        simulated_failures: Simulated for each way and machine.
        seed: Seed of the simulation.

    Raises:
        ConfigError: An input that is out of range, or failures so frequent that no way does any work.
    """
    if replica_devices > num_devices:
        raise ArgumentError(
            f"`replica_devices` is {replica_devices} of the {num_devices} of `num_devices`; "
            f"write at most {num_devices} for `replica_devices`"
        )
    devices = FailingDevices(
        device_mtbf_s=device_mtbf_s,
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
        repair_s=repair_s,
        reconfigure_s=reconfigure_s,
        replica_devices=replica_devices,
        round_s=round_s,
        exchange_s=exchange_s,
    )

    def ways(number: int, groups: Sequence[int]) -> tuple[WayToGoOn, ...]:
        return ways_to_go_on(devices, number, num_groups=groups, num_failures=simulated_failures, seed=seed)

    by_devices = ways_by_devices(lambda number: ways(number, num_groups), num_devices)
    answer = UsefulTime(
        num_devices=num_devices,
        mtbf_s=device_mtbf_s / num_devices,
        ways=by_devices[num_devices],
        by_devices=by_devices,
        published=ways(_PUBLISHED_DEVICES, (8, 16)),
        published_mtbf_s=device_mtbf_s / _PUBLISHED_DEVICES,
    )
    if answer.best.share < 1 / MOST_SLOWDOWN:
        raise ArgumentError(
            f"failures are {format_seconds(answer.mtbf_s)} apart on {num_devices:,} devices, so in no way is a "
            "hundredth of the time work; write a longer `device_mtbf_s`, a smaller `num_devices`, or a shorter "
            "`restart_s`, `repair_s`, `reconfigure_s` or `exchange_s`"
        )
    return answer
