"""From measured pairs of hosts to a plan: which hosts are a rack, in which order a ring goes, and what it takes.

Theory. Pairs of hosts were measured one beside the other: a latency and a bandwidth in each direction. How near two
hosts are is how little slower the pair is than either of its hosts at its best,

    d(i, j) = max(ln(min(B_i, B_j) / B_ij), ⅓ ln(α_ij / max(α_i, α_j))),

with B_i and α_i the best that host i has with anyone. So a host with a slow interface is near to all hosts, and no rack
of its own; only a slow *way* makes hosts distant. Latencies scatter more than bandwidths: their cube root counts.

Racks are the clusters of an average linkage (Sokal & Michener 1958) cut at its widest gap: between the distance at
which the last hosts of a rack were joined and the one at which racks would be. The cut is made if, in bandwidth, ways
between racks are at least `RACK_FACTOR` slower than those within (or its cube in latency); otherwise all hosts
are one rack. Noise has no such gap: the averages over a cluster's pairs rise gradually.

A host that is alone in its rack cannot be told from one with a slow interface, and need not be, for nobody shares its
way out: it counts to the rack it is nearest to.

Between racks, messages share an *uplink*. Its bandwidth is measured with all pairs at once; else it is taken to be
what a pair had at best. Times are those of `plesio.cost.placement`: rounds of equal messages, each as long as its
slowest message, where messages on the same uplink have equal parts of it.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations, product
from typing import TYPE_CHECKING, Any

import numpy as np

from plesio.core.errors import ConfigError
from plesio.cost.all_reduce import ring_all_reduce_s
from plesio.cost.collectives import reduce_scatter_s
from plesio.cost.hockney import check_message, levels, point_to_point_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "RACK_FACTOR",
    "WORTHWHILE",
    "PairMatrix",
    "Plan",
    "Rows",
    "Topology",
    "plan",
    "racks_of",
    "ring_s",
    "slower_between",
]

RACK_FACTOR = 1.5
"""How much slower the ways between racks are than those within, at least."""
WORTHWHILE = 0.05
"""Share of its time that another order must save a ring; less may be the measurement's noise."""
MOST_ORDERS = 50_000
"""Up to so many orders all are tried."""

Rows = tuple[tuple[float, ...], ...]
"""From the host of the row to the host of the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMatrix:
    """What was measured between every two hosts, in both directions.

    Attributes:
        hosts: Their names.
        latency_s: Seconds of a small message from host i (row) to host j (column).
        bytes_per_s: Bandwidth from host i to host j. What stands in the diagonals means nothing.

    >>> two = PairMatrix(hosts=("a", "b"), latency_s=((0, 1e-4), (1e-4, 0)), bytes_per_s=((0, 1e9), (1e9, 0)))
    >>> two.num_hosts
    2
    """

    hosts: tuple[str, ...]
    latency_s: Rows
    bytes_per_s: Rows

    def __post_init__(self) -> None:
        count = len(self.hosts)
        if count < 2:
            raise ConfigError(f"pairs of {count} hosts; measure 2 or more")
        if len(set(self.hosts)) < count:
            raise ConfigError(f"hosts {', '.join(self.hosts)}: a name is there twice; give each its own")
        for what, rows, least in (("latency_s", self.latency_s, 0.0), ("bytes_per_s", self.bytes_per_s, None)):
            if len(rows) != count or any(len(row) != count for row in rows):
                raise ConfigError(f"{what} is not of {count} x {count} hosts; write a row and a column for each")
            for one, other in permutations(range(count), 2):
                value = rows[one][other]
                if not (math.isfinite(value) and (value > 0 or value == least)):
                    raise ConfigError(
                        f"{what} from {self.hosts[one]} to {self.hosts[other]} is {value}; "
                        f"write {'0 or more' if least == 0 else 'more than 0'}"
                    )

    @property
    def num_hosts(self) -> int:
        """How many hosts were measured."""
        return len(self.hosts)

    def best_bytes_per_s(self) -> tuple[float, ...]:
        """What each host has with anyone, in the slower direction: of its interface, if some way is no slower."""
        best = np.where(np.eye(self.num_hosts, dtype=bool), 0.0, _slower_direction(self)).max(axis=1)
        return tuple(map(float, best))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts, the racks they are in, and what the racks have between them.

    Attributes:
        matrix: Each pair alone.
        racks: The rack of each host, from 0 on.
        uplink_bytes_per_s: What each rack has to all others, for all its hosts together; infinite in a single rack.
    """

    matrix: PairMatrix
    racks: tuple[int, ...]
    uplink_bytes_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = set(self.racks)
        if len(self.racks) != self.matrix.num_hosts or numbers != set(range(len(numbers))):
            raise ConfigError(
                f"racks {list(self.racks)} of {self.matrix.num_hosts} hosts; write one for each host, counting from 0"
            )
        if len(self.uplink_bytes_per_s) != len(numbers) or not all(rate > 0 for rate in self.uplink_bytes_per_s):
            raise ConfigError(
                f"uplinks {list(self.uplink_bytes_per_s)} of {len(numbers)} racks; write one for each, more than 0"
            )

    @classmethod
    def of(cls, matrix: PairMatrix, *, racks: Sequence[int] | None = None) -> "Topology":
        """The topology as far as pairs that were measured alone tell: an uplink has what its best pair had.

        Args:
            matrix: Each pair alone.
            racks: The rack of each host; None is `racks_of`.
        """
        found = tuple(racks_of(matrix) if racks is None else racks)
        uplinks = [0.0] * len(set(found)) if len(set(found)) > 1 else [math.inf]
        for one, other in permutations(range(matrix.num_hosts), 2):
            if found[one] != found[other]:
                uplinks[found[one]] = max(uplinks[found[one]], matrix.bytes_per_s[one][other])
        return cls(matrix=matrix, racks=found, uplink_bytes_per_s=tuple(uplinks))

    @property
    def num_racks(self) -> int:
        """How many racks there are."""
        return len(self.uplink_bytes_per_s)

    def members(self, rack: int) -> tuple[int, ...]:
        """The hosts of a rack, in the order given."""
        return tuple(host for host, own in enumerate(self.racks) if own == rack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the hosts should exchange, and how long a synchronisation then takes. Hosts are numbers, as measured.

    Attributes:
        topology: What the plan is for.
        num_bytes: Of the tensor that is all-reduced, or of the parameters that servers hold.
        rank_order: The host of each rank. Racks follow each other, so a ring enters and leaves each once.
        leaders: Of each rack the host that stands for it where one does, with the best ways to other racks.
        shard_shares: Of each host's server, the share of the parameters; they add up to 1.
        given_ring_s: Seconds of a ring all-reduce in the order in which the hosts were given.
        planned_ring_s: In the planned order.
        leaders_s: Of two levels: a sum in each rack, an all-reduce among leaders, a broadcast in each rack.
        sharded_s: Of two levels where every host of a rack does a part of the exchange between racks; None if racks are
            not equally large.
        even_store_s: Of a push and a pull by all hosts, with as much of the parameters on each.
        planned_store_s: With the planned shares.
    """

    topology: Topology
    num_bytes: float
    rank_order: tuple[int, ...]
    leaders: tuple[int, ...]
    shard_shares: tuple[float, ...]
    given_ring_s: float
    planned_ring_s: float
    leaders_s: float
    sharded_s: float | None
    even_store_s: float
    planned_store_s: float

    @property
    def times_s(self) -> Mapping[str, float]:
        """Seconds of a synchronisation by way: ``ring``, ``leaders`` and, if possible, ``sharded``."""
        times = {"ring": self.planned_ring_s, "leaders": self.leaders_s}
        return times if self.sharded_s is None else {**times, "sharded": self.sharded_s}

    @property
    def way(self) -> str:
        """The fastest way; a ring unless another saves something worthwhile."""
        fastest = min(self.times_s, key=lambda name: self.times_s[name])
        return fastest if self.times_s[fastest] < (1 - WORTHWHILE) * self.planned_ring_s else "ring"

    @property
    def saving(self) -> float:
        """Share of the given ring's time that the plan saves."""
        return 1 - self.times_s[self.way] / self.given_ring_s if self.given_ring_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values, without the topology."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["topology"]
        return {**values, "way": self.way, "saving": self.saving}


def racks_of(matrix: PairMatrix, *, factor: float = RACK_FACTOR) -> tuple[int, ...]:
    """The rack of each host, counted in the order in which they appear; all 0 if the hosts are in one.

    Args:
        matrix: What was measured.
        factor: How much slower ways between racks must be than those within, more than 1.

    Raises:
        ConfigError: The factor is 1 or less.
    """
    if not factor > 1:
        raise ConfigError(f"racks that differ by a factor of {factor}; write more than 1, as in {RACK_FACTOR}")
    count = matrix.num_hosts
    if count == 2:
        return (0, 0)  # two hosts have one way, and no other to hold it against
    from scipy.cluster.hierarchy import fcluster, linkage  # half a second, which those who plan nothing need not wait
    from scipy.spatial.distance import squareform

    distances = _distances(matrix)
    merges = linkage(squareform(distances, checks=False), method="average")
    heights = merges[:, 2]
    gaps = np.diff(heights)
    widest = int(np.argmax(gaps))
    if gaps[widest] < math.log(factor):
        return (0,) * count
    labels = fcluster(merges, t=(heights[widest] + heights[widest + 1]) / 2, criterion="distance")
    return _with_company(labels.tolist(), distances)


def slower_between(matrix: PairMatrix, racks: Sequence[int], *, factor: float = RACK_FACTOR) -> bool:
    """Whether ways between these racks are slower than those within, by the criterion of `racks_of`, in the median."""
    distances = _distances(matrix)
    same = np.equal.outer(racks, racks)
    inside = distances[same & ~np.eye(len(racks), dtype=bool)]
    return bool(not same.all() and np.median(distances[~same]) - np.median(inside) >= math.log(factor))


def ring_s(topology: Topology, order: Sequence[int], num_bytes: float) -> float:
    """Seconds of a ring all-reduce of the hosts in this order: 2(n-1) rounds, each as long as its slowest message.

    On equal ways that nobody shares it is `plesio.cost.all_reduce.ring_all_reduce_s`.

    Raises:
        ConfigError: The order has not every host once, or the size is negative.
    """
    check_message(num_bytes, latency_s=0.0, bytes_per_s=1.0)
    count = topology.matrix.num_hosts
    if sorted(order) != list(range(count)):
        raise ConfigError(f"a ring of the hosts {list(order)}; write each of 0 to {count - 1} once")
    return 2 * (count - 1) * max(_message_times_s(topology, _ring(order), num_bytes / count))


def plan(found: Topology | PairMatrix, *, num_bytes: float) -> Plan:
    """The plan for these hosts.

    Args:
        found: The topology, or the pairs that it follows from (`Topology.of`).
        num_bytes: Of the tensor that is all-reduced.

    Raises:
        ConfigError: The size is negative.

    >>> from plesio.cost.topology import PairMatrix, plan
    >>> slow, fast = 25e6, 125e6  # hosts 0 and 2 are in one rack, 1 and 3 in another
    >>> rows = tuple(tuple(fast if (i - j) % 2 == 0 else slow for j in range(4)) for i in range(4))
    >>> pairs = PairMatrix(hosts=("a", "b", "c", "d"), latency_s=((1e-4,) * 4,) * 4, bytes_per_s=rows)
    >>> found = plan(pairs, num_bytes=25e6)
    >>> found.topology.racks, found.rank_order, f"{found.given_ring_s:.1f} s, {found.planned_ring_s:.1f} s"
    ((0, 1, 0, 1), (0, 2, 1, 3), '3.0 s, 1.5 s')
    """
    topology = found if isinstance(found, Topology) else Topology.of(found)
    given = tuple(range(topology.matrix.num_hosts))
    given_s = ring_s(topology, given, num_bytes)
    order, planned_s = given, given_s
    grouped = _grouped(topology)
    for candidate, least_saving in ((grouped, 0.0), (_best_order(topology, num_bytes), WORTHWHILE)):
        if (candidate_s := ring_s(topology, candidate, num_bytes)) <= (1 - least_saving) * planned_s:
            order, planned_s = candidate, candidate_s
    leaders = _leaders(topology)
    shares = _shard_shares(topology)
    even = (1 / len(given),) * len(given)
    even_s, planned_store_s = (_store_s(topology, one, num_bytes) for one in (even, shares))
    if planned_store_s >= (1 - WORTHWHILE) * even_s:
        shares, planned_store_s = even, even_s
    return Plan(
        topology=topology,
        num_bytes=num_bytes,
        rank_order=order,
        leaders=leaders,
        shard_shares=shares,
        given_ring_s=given_s,
        planned_ring_s=planned_s,
        leaders_s=_leaders_s(topology, leaders, num_bytes),
        sharded_s=_sharded_s(topology, order, num_bytes),
        even_store_s=even_s,
        planned_store_s=planned_store_s,
    )


def _slower_direction(matrix: PairMatrix) -> "NDArray[np.float64]":
    rates = np.array(matrix.bytes_per_s)
    return np.asarray(np.minimum(rates, rates.T))


def _distances(matrix: PairMatrix) -> "NDArray[np.float64]":
    same = np.eye(matrix.num_hosts, dtype=bool)
    rates = np.where(same, 0.0, _slower_direction(matrix))
    best = rates.max(axis=1)
    slower = np.log(np.minimum.outer(best, best) / np.where(same, 1.0, rates))
    latencies = np.array(matrix.latency_s)
    latencies = np.where(same, math.inf, np.maximum(latencies, latencies.T))
    least = latencies.min(axis=1)
    if least.min() > 0:
        later = np.log(np.where(same, 1.0, latencies) / np.maximum.outer(least, least)) / 3
        slower = np.maximum(slower, later)
    return np.asarray(np.where(same, 0.0, slower))


def _with_company(labels: Sequence[int], distances: "NDArray[np.float64]") -> tuple[int, ...]:
    """Racks of two hosts or more, from 0 on, and who was alone in the nearest of them."""
    racks = sorted(label for label in set(labels) if labels.count(label) > 1)
    if len(racks) < 2:
        return (0,) * len(labels)

    def distance(host: int, rack: int) -> float:
        return float(np.mean([distances[host, other] for other, label in enumerate(labels) if label == rack]))

    numbers: dict[int, int] = {}
    found = []
    for host, label in enumerate(labels):
        nearest_rack = label if label in racks else min(racks, key=lambda rack: distance(host, rack))
        found.append(numbers.setdefault(nearest_rack, len(numbers)))
    return tuple(found)


def _ring(order: Sequence[int]) -> list[tuple[int, int]]:
    return [*pairwise(order), (order[-1], order[0])]


def _message_times_s(topology: Topology, messages: Sequence[tuple[int, int]], num_bytes: float) -> list[float]:
    """Seconds of each of these messages, which are sent at the same time."""
    racks, uplinks, matrix = topology.racks, topology.uplink_bytes_per_s, topology.matrix
    leaving, entering = [0] * topology.num_racks, [0] * topology.num_racks
    for source, target in messages:
        if racks[source] != racks[target]:
            leaving[racks[source]] += 1
            entering[racks[target]] += 1
    times = []
    for source, target in messages:
        rate, (one, other) = matrix.bytes_per_s[source][target], (racks[source], racks[target])
        if one != other:
            rate = min(rate, uplinks[one] / leaving[one], uplinks[other] / entering[other])
        times.append(point_to_point_s(num_bytes, latency_s=matrix.latency_s[source][target], bytes_per_s=rate))
    return times


def _grouped(topology: Topology) -> tuple[int, ...]:
    """Rack by rack, and otherwise as given."""
    return tuple(host for rack in _racks_in_order(topology) for host in rack)


def _racks_in_order(topology: Topology) -> list[list[int]]:
    """As given, but the smallest rack last, as in a `plesio.cost.cluster.Cluster`."""
    racks = [list(topology.members(rack)) for rack in range(topology.num_racks)]
    sizes = [len(rack) for rack in racks]
    start = sizes.index(min(sizes)) + 1 if len(set(sizes)) > 1 else 0
    return racks[start:] + racks[:start]


def _best_order(topology: Topology, num_bytes: float) -> tuple[int, ...]:
    """Rack by rack, the smallest last; such that the slowest message, and then the sum of all, is least.

    Few orders are all tried; of many, from the given one on, a better neighbour is taken until there is none.
    """
    count = topology.matrix.num_hosts
    ways = list(permutations(range(count), 2))
    times = {ends: _message_times_s(topology, [ends], num_bytes / count)[0] for ends in ways}

    def cost(racks: Sequence[Sequence[int]]) -> tuple[float, float]:
        each = [times[ends] for ends in _ring([host for rack in racks for host in rack])]
        return max(each), math.fsum(each)

    racks = _racks_in_order(topology)
    num_orders = math.factorial(len(racks) - 1) * math.prod(math.factorial(len(rack)) for rack in racks)
    if num_orders <= MOST_ORDERS:
        racks = min(_all_orders(racks), key=cost)
    else:
        best, better = cost(racks), True
        while better:
            better = False
            for candidate in _neighbours(racks):
                if (found := cost(candidate)) < best:
                    racks, best, better = candidate, found, True
                    break
    return tuple(host for rack in racks for host in rack)


def _all_orders(racks: list[list[int]]) -> Iterator[list[list[int]]]:
    """All orders of the racks but the last, and of the hosts in each."""
    for others in permutations(racks[:-1]):
        for orders in product(*(permutations(rack) for rack in (*others, racks[-1]))):
            yield list(map(list, orders))


def _neighbours(racks: list[list[int]]) -> Iterator[list[list[int]]]:
    """Two racks but the last exchanged; or two hosts of a rack exchanged, or turned with all between them."""
    for one, other in combinations(range(len(racks) - 1), 2):
        yield [*racks[:one], racks[other], *racks[one + 1 : other], racks[one], *racks[other + 1 :]]
    for number, rack in enumerate(racks):
        for one, other in combinations(range(len(rack)), 2):
            middle = rack[one : other + 1]
            for part in ([middle[-1], *middle[1:-1], middle[0]], middle[::-1]):
                yield [*racks[:number], [*rack[:one], *part, *rack[other + 1 :]], *racks[number + 1 :]]


def _leaders(topology: Topology) -> tuple[int, ...]:
    """Of each rack the host whose ways to and from all other racks take the least time in all."""
    rates = topology.matrix.bytes_per_s

    def way_s_per_byte(host: int) -> float:
        others = [one for one, rack in enumerate(topology.racks) if rack != topology.racks[host]]
        return math.fsum(1 / rates[host][one] + 1 / rates[one][host] for one in others)

    return tuple(min(topology.members(rack), key=way_s_per_byte) for rack in range(topology.num_racks))


def _worst_way(topology: Topology, rack: int) -> dict[str, float]:
    """The largest latency and the least bandwidth in a rack."""
    pairs = list(permutations(topology.members(rack), 2))
    matrix = topology.matrix
    return {
        "latency_s": max((matrix.latency_s[one][other] for one, other in pairs), default=0.0),
        "bytes_per_s": min((matrix.bytes_per_s[one][other] for one, other in pairs), default=math.inf),
    }


def _leaders_s(topology: Topology, leaders: Sequence[int], num_bytes: float) -> float:
    """A ring all-reduce in each rack, one among the leaders, and a broadcast down a tree in each rack."""
    inside_s = 0.0
    for rack in range(topology.num_racks):
        size = len(topology.members(rack))
        if size > 1:
            way = _worst_way(topology, rack)
            sum_s = ring_all_reduce_s(num_bytes, num_ranks=size, **way)
            back_s = levels(size) * point_to_point_s(num_bytes, **way) if topology.num_racks > 1 else 0.0
            inside_s = max(inside_s, sum_s + back_s)
    count = topology.num_racks
    if count == 1:
        return inside_s
    return inside_s + 2 * (count - 1) * max(_message_times_s(topology, _ring(leaders), num_bytes / count))


def _sharded_s(topology: Topology, order: Sequence[int], num_bytes: float) -> float | None:
    """A reduce-scatter in each rack; each part all-reduced by the hosts that hold it; an all-gather in each rack.

    `plesio.cost.all_reduce.hierarchical_all_reduce_s` where all ways are alike.
    """
    count = topology.num_racks
    racks = [[host for host in order if topology.racks[host] == rack] for rack in range(count)]
    size = len(racks[0])
    if count == 1 or any(len(rack) != size for rack in racks):
        return None
    between = [ends for part in zip(*racks, strict=True) for ends in _ring(part)]
    between_s = 2 * (count - 1) * max(_message_times_s(topology, between, num_bytes / size / count))
    if size == 1:
        return between_s
    ways = [_worst_way(topology, rack) for rack in range(count)]
    return between_s + 2 * max(reduce_scatter_s(num_bytes, num_ranks=size, **way) for way in ways)


def _store_s(topology: Topology, shares: Sequence[float], num_bytes: float) -> float:
    """Seconds until every host has pushed to and pulled from the servers on all, which overlap.

    With n hosts, share w of host h: its server receives w S from the n-1 others and its worker receives (1-w) S from
    the other servers, in all (1 + (n-2) w) S; and sends as much. For even shares that is a ring's 2(n-1)/n S. A rack of
    m hosts with a share of W in all likewise receives (m + (n-2m) W) S from the others.
    """
    slopes, loads, rates = _store_loads(topology)
    latency_s = max(topology.matrix.latency_s[one][other] for one, other in permutations(range(len(shares)), 2))
    return 2 * latency_s + num_bytes * float(np.max((loads + slopes @ np.array(shares)) / rates))


def _store_loads(topology: Topology) -> "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]":
    """Of each host's interface, then of each uplink: bytes by host's share, bytes besides, both over S; bandwidth."""
    count = topology.matrix.num_hosts
    slopes, loads = [(count - 2) * np.eye(count)], [1.0] * count
    rates = list(topology.matrix.best_bytes_per_s())
    for rack, rate in enumerate(topology.uplink_bytes_per_s):
        if math.isfinite(rate):
            here = np.array(topology.racks) == rack
            slopes.append((count - 2 * here.sum()) * here[None, :])
            loads.append(float(here.sum()))
            rates.append(rate)
    return np.vstack(slopes), np.array(loads), np.array(rates)


def _shard_shares(topology: Topology) -> tuple[float, ...]:
    """The shares with which a push and a pull take least, and of those the most even: two linear programs."""
    from scipy.optimize import linprog

    slopes, loads, rates = _store_loads(topology)
    count = topology.matrix.num_hosts
    unit = rates / rates.max()
    loads, slopes = loads / unit, slopes / unit[:, None]
    shares_add_up = {"A_eq": [[1.0] * count + [0.0]], "b_eq": [1.0]}
    goal = [0.0] * count + [1.0]
    # the last variable is the time in the first program, and the largest share in the second
    least = linprog(goal, A_ub=np.hstack([slopes, -np.ones((len(loads), 1))]), b_ub=-loads, **shares_add_up)
    assert least.success, least.message
    within = np.hstack([slopes, np.zeros((len(loads), 1))])
    below = np.hstack([np.eye(count), -np.ones((count, 1))])
    limits = np.concatenate([least.fun * (1 + 1e-9) - loads, np.zeros(count)])
    even = linprog(goal, A_ub=np.vstack([within, below]), b_ub=limits, **shares_add_up)
    shares = (even if even.success else least).x[:count]
    return tuple(float(share) for share in shares / shares.sum())
