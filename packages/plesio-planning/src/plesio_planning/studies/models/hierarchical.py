"""Savings of an all-reduce in two levels over a flat one, by hosts, network interfaces (NICs), groups and messages.

N hosts of m ranks, n = Nm, and r NICs a host (*rails*: each joins the hosts among themselves), in the Hockney model:

    flat ring           2(n-1)(α + S/(nB))           one ring crosses each host's border once, so it uses one NIC
    r flat rings        2(n-1)(α + S/(nrB))          each with an r-th of the message, side by side
    hierarchical        2(m-1)(α₁ + S/(mB₁)) + 2(N-1)(α + S/(NrB))        reduce-scatter, all-reduce, all-gather
    flat tree           2⌈log₂ n⌉(α + S/B)
    tree of trees       2⌈log₂ m⌉(α₁ + S/B₁) + 2⌈log₂ N⌉(α + S/B)        one rank of a host talks to the others

The slowest link sets a ring's pace in every round. **Groups** of g ranks that are a part of a host have ``min(r, g)``
NICs in use. Groups of several hosts have rings across hosts at both levels: α and B in the first, and in the second
every rank of a host at its share of the NICs, ``r/m B``.

``docs/planning/studies/hierarchical.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Table
from plesio.core.errors import ArgumentError
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.core.within import BANDWIDTH, DURATION_OR_0, SIZE, Within
from plesio.cost.collectives import (
    all_gather_s,
    hierarchical_all_reduce_s,
    reduce_scatter_s,
    ring_all_reduce_s,
    tree_all_reduce_s,
)
from plesio.cost.link import Link
from plesio.cost.selection import fastest
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.study import Answer

_SIZES = tuple(float(size) for size in np.geomspace(1e3, 10e9, 57))
_SMALL_BYTES = 100e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Hosts alike, and the links in them and between them.

    Attributes:
        num_hosts: N.
        ranks_per_host: m.
        nics_per_host: r.
        bytes_per_s: B, of one direction of a NIC.
        latency_s: α.
        local_bytes_per_s: B₁, of one direction of a rank's link in its host.
        local_latency_s: α₁.
    """

    num_hosts: int
    ranks_per_host: int
    nics_per_host: int
    bytes_per_s: float
    latency_s: float
    local_bytes_per_s: float
    local_latency_s: float

    @property
    def link(self) -> Link:
        """The link of a NIC."""
        return Link(latency_s=self.latency_s, bytes_per_s=self.bytes_per_s)

    @property
    def local(self) -> Link:
        """The link of a rank in its host."""
        return Link(latency_s=self.local_latency_s, bytes_per_s=self.local_bytes_per_s)

    @property
    def num_ranks(self) -> int:
        """Ranks, over all hosts."""
        return self.num_hosts * self.ranks_per_host

    def times_s(self, num_bytes: float) -> dict[str, float]:
        """Return the seconds of an all-reduce, by algorithm."""
        between, inside = self.link, self.local
        rings = replace(between, bytes_per_s=self.nics_per_host * self.bytes_per_s)
        return {
            "hierarchical": self.grouped_s(num_bytes, group=self.ranks_per_host),
            "flat ring": ring_all_reduce_s(num_bytes, num_ranks=self.num_ranks, link=between),
            "a flat ring for each NIC": ring_all_reduce_s(num_bytes, num_ranks=self.num_ranks, link=rings),
            "flat tree": tree_all_reduce_s(num_bytes, num_ranks=self.num_ranks, link=between),
            "tree of trees": tree_all_reduce_s(num_bytes, num_ranks=self.ranks_per_host, link=inside)
            + tree_all_reduce_s(num_bytes, num_ranks=self.num_hosts, link=between),
        }

    def parts_s(self, num_bytes: float) -> dict[str, float]:
        """Return the seconds of the hierarchical all-reduce's three parts."""
        inside = self.local
        return {
            "reduce-scatter in hosts": reduce_scatter_s(num_bytes, num_ranks=self.ranks_per_host, link=inside),
            "all-reduce between hosts": ring_all_reduce_s(
                num_bytes,
                num_ranks=self.num_hosts,
                link=replace(self.link, bytes_per_s=self.nics_per_host * self.bytes_per_s),
            ),
            "all-gather in hosts": all_gather_s(num_bytes, num_ranks=self.ranks_per_host, link=inside),
        }

    def groups(self) -> tuple[int, ...]:
        """Return the sizes of a group that are a part of a host or whole hosts, rising, from 1 to all ranks."""
        parts = [size for size in range(1, self.ranks_per_host) if self.ranks_per_host % size == 0]
        wholes = [size * self.ranks_per_host for size in range(1, self.num_hosts + 1) if self.num_hosts % size == 0]
        return (*parts, *wholes)

    def grouped_s(self, num_bytes: float, *, group: int) -> float:
        """Return the seconds of the all-reduce in two levels, the first of which has groups of this size."""
        inside = group <= self.ranks_per_host
        # in groups of several hosts every rank of a host is in another ring of the second level
        nics = min(self.nics_per_host, group) if inside else group * self.nics_per_host / self.ranks_per_host
        return hierarchical_all_reduce_s(
            num_bytes,
            num_hosts=self.num_ranks // group,
            ranks_per_host=group,
            local=self.local if inside else self.link,
            link=replace(self.link, bytes_per_s=nics * self.bytes_per_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLevels(Answer):
    """Two levels beside one.

    Attributes:
        hosts: Hosts that were asked for.
        message_bytes: The size that was asked for.
        times_s: Seconds by algorithm.
        small_times_s: Seconds by algorithm for 100 kB.
        parts_s: Seconds of the hierarchical all-reduce's parts.
        by_nics: Seconds by algorithm, for numbers of NICs a host.
        parts_by_nics: Parts of the hierarchical all-reduce, for the same numbers.
        by_hosts: Seconds by algorithm, for numbers of hosts.
        by_size: Seconds by algorithm, for sizes of the message.
        by_group: Seconds by ranks of a group of the first level.
        small_by_group: The same for 100 kB.
        best_group: Ranks of the group that is the fastest for the size that was asked for.
        small_best_group: The same for 100 kB.
        faster_between_bytes: Range of sizes in which the hierarchical all-reduce is faster than each other algorithm;
            0 to infinity is always.
    """

    unit: ClassVar[str] = "s"
    hosts: Hosts
    message_bytes: float
    times_s: Mapping[str, float]
    small_times_s: Mapping[str, float]
    parts_s: Mapping[str, float]
    by_nics: Mapping[int, Mapping[str, float]]
    parts_by_nics: Mapping[int, Mapping[str, float]]
    by_hosts: Mapping[int, Mapping[str, float]]
    by_size: Mapping[float, Mapping[str, float]]
    by_group: Mapping[int, float]
    small_by_group: Mapping[int, float]
    best_group: int
    small_best_group: int
    faster_between_bytes: Mapping[str, tuple[float, float]]

    @property
    def finding(self) -> str:
        """The savings of two levels, and the cases without any."""
        flat_s, rails_s = self.times_s["flat ring"], self.times_s["a flat ring for each NIC"]
        small = fastest(self.small_times_s)
        return (
            f"Over {self.hosts.num_hosts} hosts of {counted(self.hosts.ranks_per_host, 'rank')} and "
            f"{counted(self.hosts.nics_per_host, 'NIC')}, two levels take {format_seconds(self.total)} for "
            f"{format_bytes(self.message_bytes)}, "
            f"{flat_s / self.total:.3g} times as fast as a flat ring and {rails_s / self.total:.3g} times as a flat "
            f"ring for each NIC. The best groups are of {counted(self.best_group, 'rank')}. For 100 kB "
            f"{small.algorithm} is the "
            f"fastest: {format_seconds(small.duration_s)} against {format_seconds(self.small_times_s['hierarchical'])}."
        )

    @property
    def total(self) -> float:
        """Seconds in two levels."""
        return self.times_s["hierarchical"]

    @property
    def parts(self) -> Mapping[str, float]:
        """The time in hosts, between them, and in hosts again."""
        return self.parts_s

    def tables(self) -> Sequence[Table]:
        """Make the tables by NICs, hosts, and groups, and from which size on it pays."""
        groups = [
            (str(group), format_seconds(duration_s), format_seconds(self.small_by_group[group]))
            for group, duration_s in self.by_group.items()
        ]
        pays = [(name, _between(*sizes)) for name, sizes in self.faster_between_bytes.items()]
        return [
            _times_table("By NICs of a host:", "NICs", self.by_nics),
            _times_table("By number of hosts:", "hosts", self.by_hosts),
            Table(
                title="By ranks of a group of the first level:",
                headers=("ranks", format_bytes(self.message_bytes), format_bytes(_SMALL_BYTES)),
                rows=groups,
            ),
            Table(title="When two levels are faster:", headers=("than", "size"), rows=pays),
        ]

    def charts(self) -> Sequence[Chart]:
        """Draw the charts by hosts, NICs, groups and sizes."""
        return [self._hosts_chart(), self._nics_chart(), self._groups_chart(), self._sizes_chart()]

    def _hosts_chart(self) -> LineChart:
        hosts = list(self.by_hosts)
        names = ("hierarchical", "flat ring", "a flat ring for each NIC", "flat tree")
        lines = {name: [1e3 * by[name] for by in self.by_hosts.values()] for name in names}
        one_nic = [replace(self.hosts, num_hosts=number, nics_per_host=1) for number in hosts]
        dashed = {
            "hierarchical, one NIC a host": [1e3 * each.times_s(self.message_bytes)["hierarchical"] for each in one_nic]
        }
        return LineChart(
            slug="hosts",
            title=f"At {self.hosts.num_hosts} hosts two levels are "
            f"{self.times_s['flat ring'] / self.total:.3g} times as fast as a flat ring",
            caption=f"Time of an all-reduce of {format_bytes(self.message_bytes)} by number of hosts.",
            x=Axis(title="hosts", log=True),
            y=Axis(title="time (ms)", log=True),
            series=lines_of(hosts, lines, dashed=dashed if self.hosts.nics_per_host > 1 else {}),
        )

    def _nics_chart(self) -> BarChart:
        most = max(self.parts_by_nics)
        first, last = (math.fsum(self.parts_by_nics[number].values()) for number in (1, most))
        return BarChart(
            slug="nics",
            title=f"{most} NICs instead of one make two levels {first / last:.3g} times as fast",
            caption=f"What two levels spend on {format_bytes(self.message_bytes)}, by NICs of a host.",
            axis=Axis(title="time (ms)"),
            rows=[f"{number} NIC{'s' if number > 1 else ''}" for number in self.parts_by_nics],
            parts={part: [1e3 * parts[part] for parts in self.parts_by_nics.values()] for part in self.parts_s},
        )

    def _groups_chart(self) -> LineChart:
        return LineChart(
            slug="groups",
            title=f"Groups of {counted(self.best_group, 'rank')} are the best for {format_bytes(self.message_bytes)}, "
            f"of {self.small_best_group} for 100 kB",
            caption="Time in two levels by ranks of a group of the first level, over the best group's; 1 and all ranks "
            "are a flat ring.",
            x=Axis(title="ranks of a group", log=True),
            y=Axis(title="time over the best"),
            series=lines_of(
                self.by_group,
                {
                    format_bytes(size): [each / min(times.values()) for each in times.values()]
                    for size, times in ((self.message_bytes, self.by_group), (_SMALL_BYTES, self.small_by_group))
                },
            ),
            marks={"a host": self.hosts.ranks_per_host},
        )

    def _sizes_chart(self) -> LineChart:
        sizes_mb = [size / 1e6 for size in self.by_size]
        sizes_bytes = self.faster_between_bytes["tree of trees"]
        return LineChart(
            slug="sizes",
            title=f"Two levels of rings are faster than two of trees {_between(*sizes_bytes)}",
            caption="Time of an all-reduce by size of the message.",
            x=Axis(title="message (MB)", log=True),
            y=Axis(title="time (ms)", log=True),
            series=lines_of(
                sizes_mb, {name: [1e3 * by[name] for by in self.by_size.values()] for name in self.times_s}
            ),
            marks={"rings = trees": sizes_bytes[0] / 1e6} if 0 < sizes_bytes[0] < math.inf else {},
        )


def _between(low: float, high: float) -> str:
    if low == high:
        return "at no size"
    if high == math.inf:
        return f"from {format_bytes(low)} on" if low else "at every size"
    return f"up to {format_bytes(high)}"


def _times_table(title: str, what: str, by_number: Mapping[int, Mapping[str, float]]) -> Table:
    names = list(next(iter(by_number.values())))
    rows = [(str(number), *(format_seconds(times[name]) for name in names)) for number, times in by_number.items()]
    return Table(title=title, headers=(what, *names), rows=rows)


def hierarchical(
    *,
    num_hosts: Annotated[int, Within(2, 2**16)] = 32,
    ranks_per_host: Annotated[int, Within(1, 1024)] = 8,
    nics_per_host: Annotated[int, Within(1, 1024)] = 8,
    message_bytes: Annotated[float, SIZE] = 700e6,
    bytes_per_s: Annotated[float, BANDWIDTH] = 25e9,
    latency_s: Annotated[float, DURATION_OR_0] = 10e-6,
    local_bytes_per_s: Annotated[float, BANDWIDTH] = 600e9,
    local_latency_s: Annotated[float, DURATION_OR_0] = 1e-6,
) -> TwoLevels:
    """Compute the time of an all-reduce in two levels, beside flat ones.

    >>> answer = hierarchical()
    >>> f"{1e3 * answer.total:.2f} ms", round(answer.times_s["flat ring"] / answer.total, 1), answer.best_group
    ('9.46 ms', 6.4, 8)
    >>> f"{1e3 * hierarchical(nics_per_host=1).total:.1f} ms"
    '56.9 ms'

    Args:
        num_hosts: Hosts.
        ranks_per_host: Ranks of each.
        nics_per_host: NICs of each, up to one for each rank; each joins it to all other hosts.
        message_bytes: Bytes that each rank has to add up with the others.
        bytes_per_s: Bandwidth of one direction of a NIC.
        latency_s: Latency of a message between hosts.
        local_bytes_per_s: Bandwidth of one direction of a rank's link within its host.
        local_latency_s: Latency of a message within a host.
    """
    if nics_per_host > ranks_per_host:
        raise ArgumentError(
            f"`nics_per_host` is {nics_per_host} and `ranks_per_host` is {ranks_per_host}; "
            f"write 1 to {ranks_per_host} for `nics_per_host`"
        )
    hosts = Hosts(
        num_hosts=num_hosts,
        ranks_per_host=ranks_per_host,
        nics_per_host=nics_per_host,
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        local_bytes_per_s=local_bytes_per_s,
        local_latency_s=local_latency_s,
    )
    railed = [replace(hosts, nics_per_host=number) for number in _powers(1, ranks_per_host, nics_per_host)]
    by_group = {group: hosts.grouped_s(message_bytes, group=group) for group in hosts.groups()}
    small_by_group = {group: hosts.grouped_s(_SMALL_BYTES, group=group) for group in hosts.groups()}
    times_s = hosts.times_s(message_bytes)
    return TwoLevels(
        hosts=hosts,
        message_bytes=message_bytes,
        times_s=times_s,
        small_times_s=hosts.times_s(_SMALL_BYTES),
        parts_s=hosts.parts_s(message_bytes),
        by_nics={each.nics_per_host: each.times_s(message_bytes) for each in railed},
        parts_by_nics={each.nics_per_host: each.parts_s(message_bytes) for each in railed},
        by_hosts={
            number: replace(hosts, num_hosts=number).times_s(message_bytes)
            for number in _powers(2, max(256, num_hosts), num_hosts)
        },
        by_size={size: hosts.times_s(size) for size in _SIZES},
        by_group=by_group,
        small_by_group=small_by_group,
        best_group=min(by_group, key=by_group.__getitem__),
        small_best_group=min(small_by_group, key=small_by_group.__getitem__),
        faster_between_bytes={name: _faster_between_bytes(hosts, name) for name in times_s if name != "hierarchical"},
    )


def _powers(first: int, last: int, also: int) -> list[int]:
    """Return powers of two from ``first`` to ``last``, the last, and one more."""
    powers = (1 << power for power in range(last.bit_length()))
    return sorted({*(power for power in powers if first <= power <= last), last, also})


def _faster_between_bytes(hosts: Hosts, other: str) -> tuple[float, float]:
    """Return where two straight lines cross: all of these times are latencies and seconds per byte."""
    empty, one_gb = hosts.times_s(0.0), hosts.times_s(1e9)
    saved_s = empty[other] - empty["hierarchical"]
    saved_s_per_byte = (one_gb[other] - one_gb["hierarchical"] - saved_s) / 1e9
    if saved_s_per_byte == 0 or (saved_s > 0) == (saved_s_per_byte > 0):
        return (0.0 if saved_s > 0 else math.inf), math.inf
    crossing = -saved_s / saved_s_per_byte
    return (0.0, crossing) if saved_s > 0 else (crossing, math.inf)
