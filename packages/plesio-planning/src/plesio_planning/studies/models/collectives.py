"""Which all-reduce is the fastest, by the size of the message and the number of ranks.

Five algorithms in the Hockney model (`plesio.cost.hockney` has the assumptions, `plesio.cost.all_reduce` formulas and
sources). A ring sends least and waits most often, a tree the other way round; with ``h = ⌈log₂ n⌉`` they cross at
``αB((n-1) - h) / (h - (n-1)/n)``. A ring carries half of what its links could from ``nαB`` bytes on, which is what a
gradient's buckets are measured by (`studies.overlap`).

``docs/planning/studies/collectives.md`` has the model with its sources, its assumptions and its limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np

from plesio.core.charts import Axis, Chart, HeatMap, LineChart, Table
from plesio.core.errors import ArgumentError
from plesio.core.only_with import OnlyWith
from plesio.core.units import format_bytes, format_seconds
from plesio.core.within import BANDWIDTH, DURATION_OR_0, SIZE_OR_0, Within
from plesio.cost.collectives import (
    ALL_REDUCES,
    all_reduce_crossovers,
    bus_bytes_per_s,
    busiest_rank_bytes,
    bytes_sent_per_rank,
    hierarchical_all_reduce_s,
)
from plesio.cost.link import Link
from plesio.cost.selection import Crossover, fastest
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.study import Answer

Algorithm = Literal["ring", "halving-doubling", "double tree", "tree", "hierarchical"]

_HIERARCHICAL = OnlyWith("algorithms", "hierarchical")
_SIZES = tuple(float(size) for size in np.geomspace(1e3, 1e9, 49))
"""1 kB to 1 GB, eight a decade."""
_ROWS = (1e3, 100e3, 1e6, 10e6, 100e6, 1e9)
"""Sizes of the table."""
_OTHER_RANKS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 512, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLinks:
    """The links between the ranks.

    Attributes:
        latency_s: α, of a message between hosts.
        bytes_per_s: B, of one direction of a rank's own link.
        ranks_per_host: m.
        local_latency_s: α₁, of a message within a host.
        local_bytes_per_s: B₁, of a rank within its host.
    """

    latency_s: float
    bytes_per_s: float
    ranks_per_host: int
    local_latency_s: float
    local_bytes_per_s: float

    @property
    def link(self) -> Link:
        """The link between hosts, a rank's own."""
        return Link(latency_s=self.latency_s, bytes_per_s=self.bytes_per_s)

    @property
    def local(self) -> Link:
        """The link of a rank within its host."""
        return Link(latency_s=self.local_latency_s, bytes_per_s=self.local_bytes_per_s)

    def has(self, algorithm: str, *, num_ranks: int) -> bool:
        """Return True if the algorithm is possible there.

        Two levels are if there are several whole hosts of several ranks.
        """
        whole_hosts = num_ranks % self.ranks_per_host == 0 and num_ranks > self.ranks_per_host > 1
        return algorithm != "hierarchical" or whole_hosts

    def all_reduce_s(self, algorithm: str, num_bytes: float, *, num_ranks: int) -> float:
        """Return the seconds of an all-reduce."""
        if algorithm != "hierarchical":
            return ALL_REDUCES[algorithm](num_bytes, num_ranks=num_ranks, link=self.link)
        return hierarchical_all_reduce_s(
            num_bytes,
            num_hosts=num_ranks // self.ranks_per_host,
            ranks_per_host=self.ranks_per_host,
            local=self.local,
            link=replace(self.link, bytes_per_s=self.ranks_per_host * self.bytes_per_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives(Answer):
    """Times of the algorithms, and which is the fastest where.

    Attributes:
        num_ranks: n.
        message_bytes: The size that was asked for.
        links: Links between the ranks.
        at_s: Seconds for that size, by algorithm.
        latency_s: Seconds of an empty message, by algorithm.
        sizes_bytes: Sizes of ``by_size_s`` and ``fastest_of``.
        by_size_s: Seconds for each of these sizes, by algorithm.
        crossovers: Which of the algorithms for equal links is the fastest from which size on.
        ring_from_bytes: The size from which on a ring is faster than a tree, by number of ranks; 0 is always.
        half_bandwidth_bytes: The size from which on a ring uses half of its links' bandwidth: nαB.
        mean_sent_bytes: Bytes that a rank sends, on average over the ranks: the same with all algorithms.
        busiest_sent_bytes: Bytes of the rank that sends the most, by algorithm for equal links.
        fastest_of: Fastest algorithm by size, for each number of ranks of ``ring_from_bytes``.
    """

    unit: ClassVar[str] = "s"
    num_ranks: int
    message_bytes: float
    links: RankLinks
    at_s: Mapping[str, float]
    latency_s: Mapping[str, float]
    sizes_bytes: tuple[float, ...]
    by_size_s: Mapping[str, tuple[float, ...]]
    crossovers: tuple[Crossover, ...]
    ring_from_bytes: Mapping[int, float]
    half_bandwidth_bytes: float
    mean_sent_bytes: float
    busiest_sent_bytes: Mapping[str, float]
    fastest_of: Mapping[int, tuple[str, ...]]

    @property
    def fastest(self) -> str:
        """The fastest algorithm for the size that was asked for."""
        return fastest(self.at_s).algorithm

    @property
    def finding(self) -> str:
        """The fastest algorithm here; where ring and tree cross, and what buckets should be."""
        ring_from_bytes = self.ring_from_bytes[self.num_ranks]
        others = ", ".join(
            f"{name} {format_seconds(duration_s)}" for name, duration_s in self.at_s.items() if name != self.fastest
        )
        return (
            f"{self.num_ranks} ranks all-reduce {format_bytes(self.message_bytes)} the fastest by {self.fastest}: "
            f"{format_seconds(self.total)}{f' ({others})' if others else ''}. "
            f"A ring is faster than a tree {_from(ring_from_bytes)}, and uses half of its links' "
            f"bandwidth from {format_bytes(self.half_bandwidth_bytes)} on: buckets that are smaller pay for latency."
        )

    @property
    def total(self) -> float:
        """Seconds of the fastest."""
        return self.at_s[self.fastest]

    @property
    def parts(self) -> Mapping[str, float]:
        """The time of an empty message, and the rest."""
        latency_s = self.latency_s[self.fastest]
        return {"latency": latency_s, "bandwidth": self.total - latency_s}

    def tables(self) -> Sequence[Table]:
        """List times by size, bytes that ranks send, the fastest by size, and crossovers of ring and tree."""
        return [self._times(), self._sent(), self._selection(), self._crossings()]

    def _times(self) -> Table:
        sizes = sorted({*_ROWS, self.message_bytes})
        rows = []
        for size in sizes:
            times = {name: self.links.all_reduce_s(name, size, num_ranks=self.num_ranks) for name in self.at_s}
            cells = (format_seconds(duration_s) for duration_s in times.values())
            rows.append((format_bytes(size), *cells, fastest(times).algorithm))
        return Table(
            title=f"Time of an all-reduce of {self.num_ranks} ranks:",
            headers=("message", *self.at_s, "fastest"),
            rows=rows,
        )

    def _sent(self) -> Table:
        rows = [
            (name, format_bytes(self.mean_sent_bytes), format_bytes(busiest))
            for name, busiest in self.busiest_sent_bytes.items()
        ]
        return Table(
            title=f"What a rank sends for {format_bytes(self.message_bytes)}:",
            headers=("algorithm", "on average", "the busiest rank"),
            rows=rows,
        )

    def _selection(self) -> Table:
        rows = [(format_bytes(each.from_bytes), each.algorithm) for each in self.crossovers]
        return Table(title="Fastest of equal links:", headers=("from", "algorithm"), rows=rows)

    def _crossings(self) -> Table:
        rows = [(str(count), _from(size)) for count, size in self.ring_from_bytes.items()]
        return Table(title="Ring faster than tree:", headers=("ranks", "size"), rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Time and used bandwidth by size; who is the fastest; where ring and tree cross."""
        return [self._time_chart(), self._bandwidth_chart(), self._winners(), self._crossover_chart()]

    def _time_chart(self) -> LineChart:
        sizes_mb = [size / 1e6 for size in self.sizes_bytes]
        ring_from_bytes = self.ring_from_bytes[self.num_ranks]
        crosses = self.sizes_bytes[0] < ring_from_bytes < self.sizes_bytes[-1]
        return LineChart(
            slug="times",
            title=f"{self.fastest.capitalize()} takes {format_seconds(self.total)} for "
            f"{format_bytes(self.message_bytes)}; a ring beats a tree {_from(ring_from_bytes)}",
            caption=f"Time of an all-reduce of {self.num_ranks} ranks by size of the message.",
            x=Axis(title="message (MB)", log=True),
            y=Axis(title="time (ms)", log=True),
            series=lines_of(sizes_mb, {name: [1e3 * each for each in times] for name, times in self.by_size_s.items()}),
            marks={"ring = tree": ring_from_bytes / 1e6} if crosses else {},
        )

    def _bandwidth_chart(self) -> LineChart:
        """Draw the bandwidths of the algorithms that use nothing but these links."""
        used = {
            name: [
                100 * (bus_bytes_per_s(size, duration_s, num_ranks=self.num_ranks) / self.links.bytes_per_s)
                for size, duration_s in zip(self.sizes_bytes, times, strict=True)
            ]
            for name, times in self.by_size_s.items()
            if name != "hierarchical"
        }
        return LineChart(
            slug="bandwidth",
            title=f"A ring needs {format_bytes(self.half_bandwidth_bytes)} to use half of its links",
            caption="Bus bandwidth, 2(n-1)/n of the message over the time, as a share of what a rank's link can carry.",
            x=Axis(title="message (MB)", log=True),
            y=Axis(title="link's bandwidth used (%)"),
            series=lines_of([size / 1e6 for size in self.sizes_bytes], used),
            marks={"n α B": self.half_bandwidth_bytes / 1e6},
        )

    def _winners(self) -> HeatMap:
        names = list(dict.fromkeys(name for row in self.fastest_of.values() for name in row))
        return HeatMap(
            slug="winners",
            title=f"No one algorithm is the fastest everywhere: {', '.join(names)}"
            if len(names) > 1
            else f"{names[0].capitalize()} is the fastest everywhere",
            caption="The fastest all-reduce by number of ranks and size of the message.",
            x=Axis(title="message"),
            y=Axis(title="ranks"),
            columns=[format_bytes(size) for size in self.sizes_bytes[::2]],
            rows=[str(count) for count in self.fastest_of],
            values=[[names.index(name) for name in row[::2]] for row in self.fastest_of.values()],
            categories=names,
        )

    def _crossover_chart(self) -> LineChart:
        powers = [2**power for power in range(2, max(self.ring_from_bytes).bit_length() + 1)]
        links = self.links
        return LineChart(
            slug="crossovers",
            title="The more ranks, the larger a message has to be for a ring to pay",
            caption="Size from which on a ring is faster than a tree, by number of ranks.",
            x=Axis(title="ranks", log=True),
            y=Axis(title="message (MB)", log=True),
            series=lines_of(
                powers,
                {"ring = tree": [ring_tree_crossover_bytes(count, link=links.link) / 1e6 for count in powers]},
                dashed={
                    "half of a ring's bandwidth": [
                        count * links.latency_s * links.bytes_per_s / 1e6 for count in powers
                    ]
                },
            ),
        )


def _from(size: float) -> str:
    return f"from {format_bytes(size)} on" if size else "at every size"


def ring_tree_crossover_bytes(num_ranks: int, *, link: Link) -> float:
    """Return the size from which on a ring is faster than a tree: ``αB((n-1) - h) / (h - (n-1)/n)``, ``h = ⌈log₂ n⌉``.

    >>> round(ring_tree_crossover_bytes(256, link=Link(latency_s=10e-6, bytes_per_s=50e9)) / 1e6, 1)
    17.6

    Args:
        num_ranks: n; of 1 nobody waits for anything, and of 2 both are rings: 0.
        link: α and B.
    """
    height, others = (num_ranks - 1).bit_length(), num_ranks - 1
    if others <= height:
        return 0.0
    return link.latency_s * link.bytes_per_s * (others - height) / (height - others / num_ranks)


def collectives(
    *,
    num_ranks: Annotated[int, Within(2, 2**20)] = 256,
    message_bytes: Annotated[float, SIZE_OR_0] = 100e6,
    latency_s: Annotated[float, DURATION_OR_0] = 10e-6,
    bytes_per_s: Annotated[float, BANDWIDTH] = 50e9,
    ranks_per_host: Annotated[int, Within(1, 2**20), _HIERARCHICAL] = 8,
    local_latency_s: Annotated[float, DURATION_OR_0, _HIERARCHICAL] = 1e-6,
    local_bytes_per_s: Annotated[float, BANDWIDTH, _HIERARCHICAL] = 600e9,
    algorithms: tuple[Algorithm, ...] = get_args(Algorithm),
    other_ranks: Annotated[tuple[int, ...], Within(2, 2**20, fewest=0)] = _OTHER_RANKS,
) -> Collectives:
    """Compute the times of five all-reduces by size, and where they cross.

    >>> answer = collectives(algorithms=("ring", "halving-doubling", "tree"))
    >>> {name: f"{1e3 * duration_s:.2f} ms" for name, duration_s in answer.at_s.items()}
    {'ring': '9.08 ms', 'halving-doubling': '4.14 ms', 'tree': '32.16 ms'}
    >>> round(answer.ring_from_bytes[256] / 1e6, 1)
    17.6

    Args:
        num_ranks: Ranks that add up.
        message_bytes: Bytes that each of them has.
        latency_s: Latency of a message between hosts.
        bytes_per_s: Bandwidth of one direction of a rank's link; each rank has its own.
        ranks_per_host: Ranks of a host, for the hierarchical all-reduce; it is left out where hosts are not whole.
        local_latency_s: Latency of a message within a host.
        local_bytes_per_s: Bandwidth of one direction of a rank's link within its host.
        algorithms: Competing algorithms; ring and double tree are what NCCL has.
        other_ranks: Numbers of ranks for the pictures, beside the one above.
    """
    links = RankLinks(
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        ranks_per_host=ranks_per_host,
        local_latency_s=local_latency_s,
        local_bytes_per_s=local_bytes_per_s,
    )
    names = [name for name in algorithms if links.has(name, num_ranks=num_ranks)]
    equal = [name for name in algorithms if name in ALL_REDUCES]
    if not equal:
        raise ArgumentError(
            f"`algorithms` has none for equal links to compare with; write one of {', '.join(ALL_REDUCES)}"
        )
    counts = sorted({*other_ranks, num_ranks})
    return Collectives(
        num_ranks=num_ranks,
        message_bytes=message_bytes,
        links=links,
        at_s={name: links.all_reduce_s(name, message_bytes, num_ranks=num_ranks) for name in names},
        latency_s={name: links.all_reduce_s(name, 0.0, num_ranks=num_ranks) for name in names},
        sizes_bytes=_SIZES,
        by_size_s={
            name: tuple(links.all_reduce_s(name, size, num_ranks=num_ranks) for size in _SIZES) for name in names
        },
        crossovers=all_reduce_crossovers(num_ranks=num_ranks, link=links.link, algorithms=equal),
        ring_from_bytes={count: ring_tree_crossover_bytes(count, link=links.link) for count in counts},
        half_bandwidth_bytes=num_ranks * latency_s * bytes_per_s,
        mean_sent_bytes=bytes_sent_per_rank(message_bytes, num_ranks=num_ranks),
        busiest_sent_bytes={name: busiest_rank_bytes(name, message_bytes, num_ranks=num_ranks) for name in equal},
        fastest_of={count: _fastest_by_size(links, algorithms, num_ranks=count) for count in counts},
    )


def _fastest_by_size(links: RankLinks, algorithms: Sequence[str], *, num_ranks: int) -> tuple[str, ...]:
    names = [name for name in algorithms if links.has(name, num_ranks=num_ranks)]
    return tuple(
        fastest({name: links.all_reduce_s(name, size, num_ranks=num_ranks) for name in names}).algorithm
        for size in _SIZES
    )
