"""A topology made a plan: in which order hosts exchange, who stands for a rack, and how long it takes.

A synchronisation goes by a ring of all hosts, by two levels in which a leader stands for each rack, or by two levels in
which every host of a rack does a part of the exchange between racks. Times are those of `plesio.cost.placement`: rounds
of equal messages, each as long as its slowest message, where messages on the same uplink have equal parts of it. For a
store the plan says what share of the parameters each host's server holds.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from plesio.core.extras import require
from plesio.cost.all_reduce import ring_all_reduce_s
from plesio.cost.collectives import reduce_scatter_s
from plesio.cost.hockney import levels, point_to_point_s
from plesio.cost.link import Link
from plesio.cost.ring_order import best_order, grouped_order, message_times_s, ring_messages, ring_s
from plesio.cost.topology import PairMatrix, Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORTHWHILE = 0.05
"""Share of its time that another order must save a ring; less may be the measurement's noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the hosts should exchange, and how long a synchronisation then takes. Hosts are numbers, as measured.

    Attributes:
        topology: Topology of the plan.
        num_bytes: Bytes of the tensor that is all-reduced, or of the parameters that servers hold.
        rank_order: The host of each rank. Racks follow each other, so a ring enters and leaves each once.
        leaders: The host that stands for each rack where one does, with the best ways to other racks.
        shard_shares: Share of the parameters on each host's server; they add up to 1.
        given_ring_s: Seconds of a ring all-reduce in the order in which the hosts were given.
        planned_ring_s: Seconds in the planned order.
        leaders_s: Seconds of two levels: a sum in each rack, an all-reduce among leaders, a broadcast in each rack.
        sharded_s: Seconds of two levels where every host of a rack does a part of the exchange between racks; None if
            racks are not equally large.
        even_store_s: Seconds of a push and a pull by all hosts, with as much of the parameters on each.
        planned_store_s: Seconds with the planned shares.
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
        """Return a dictionary of JSON values, without the topology."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["topology"]
        return {**values, "way": self.way, "saving": self.saving}


def plan(found: Topology | PairMatrix, *, num_bytes: float) -> Plan:
    """Plan the exchanges of these hosts: a topology, or the pairs that it follows from (`Topology.of`).

    >>> from plesio.cost.topology import PairMatrix
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
    grouped = grouped_order(topology)
    # an order by racks costs nothing; one found by search must be worth its oddity
    for candidate, least_saving in ((grouped, 0.0), (best_order(topology, num_bytes), WORTHWHILE)):
        if (candidate_s := ring_s(topology, candidate, num_bytes)) <= (1 - least_saving) * planned_s:
            order, planned_s = candidate, candidate_s
    leaders = _leaders(topology)
    shares = _shard_shares(topology)
    # likewise uneven shards only where they pay
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


def _leaders(topology: Topology) -> tuple[int, ...]:
    """Return the host of each rack whose ways to and from all other racks take the least time in all."""
    rates = topology.matrix.bytes_per_s

    def way_s_per_byte(host: int) -> float:
        others = [one for one, rack in enumerate(topology.racks) if rack != topology.racks[host]]
        return math.fsum(1 / rates[host][one] + 1 / rates[one][host] for one in others)

    return tuple(min(topology.members(rack), key=way_s_per_byte) for rack in range(topology.num_racks))


def _worst_way(topology: Topology, rack: int) -> Link:
    """Return the largest latency and the least bandwidth in a rack of two hosts or more."""
    pairs = list(permutations(topology.members(rack), 2))
    matrix = topology.matrix
    return Link(
        latency_s=max((matrix.latency_s[one][other] for one, other in pairs)),
        bytes_per_s=min((matrix.bytes_per_s[one][other] for one, other in pairs)),
    )


def _leaders_s(topology: Topology, leaders: Sequence[int], num_bytes: float) -> float:
    """Return the seconds of a ring all-reduce in each rack, one among the leaders, and a broadcast in each rack."""
    inside_s = 0.0
    for rack in range(topology.num_racks):
        size = len(topology.members(rack))
        if size > 1:
            way = _worst_way(topology, rack)
            sum_s = ring_all_reduce_s(num_bytes, num_ranks=size, link=way)
            back_s = levels(size) * point_to_point_s(num_bytes, link=way) if topology.num_racks > 1 else 0.0
            inside_s = max(inside_s, sum_s + back_s)
    count = topology.num_racks
    if count == 1:
        return inside_s
    return inside_s + 2 * (count - 1) * max(message_times_s(topology, ring_messages(leaders), num_bytes / count))


def _sharded_s(topology: Topology, order: Sequence[int], num_bytes: float) -> float | None:
    """Return the seconds of a reduce-scatter in each rack, all-reduces of the parts, and an all-gather in each rack.

    Each part is all-reduced by the hosts that hold it. The result is `plesio.cost.all_reduce.hierarchical_all_reduce_s`
    where all ways are alike.
    """
    count = topology.num_racks
    racks = [[host for host in order if topology.racks[host] == rack] for rack in range(count)]
    size = len(racks[0])
    if count == 1 or any(len(rack) != size for rack in racks):
        return None
    between = [ends for part in zip(*racks, strict=True) for ends in ring_messages(part)]
    between_s = 2 * (count - 1) * max(message_times_s(topology, between, num_bytes / size / count))
    if size == 1:
        return between_s
    ways = [_worst_way(topology, rack) for rack in range(count)]
    return between_s + 2 * max(reduce_scatter_s(num_bytes, num_ranks=size, link=way) for way in ways)


def _store_s(topology: Topology, shares: Sequence[float], num_bytes: float) -> float:
    """Return the seconds until every host has pushed to and pulled from the servers on all, which overlap.

    With n hosts, share w of host h: its server receives w S from the n-1 others and its worker receives (1-w) S from
    the other servers, in all (1 + (n-2) w) S; and sends as much. For even shares that is a ring's 2(n-1)/n S. A rack of
    m hosts with a share of W in all likewise receives (m + (n-2m) W) S from the others.
    """
    slopes, loads, rates = _store_loads(topology)
    latency_s = max(topology.matrix.latency_s[one][other] for one, other in permutations(range(len(shares)), 2))
    return 2 * latency_s + num_bytes * float(np.max((loads + slopes @ np.array(shares)) / rates))


def _store_loads(topology: Topology) -> "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]":
    """Return bytes by host's share, bytes besides, both over S, and bandwidth: each interface's, then each uplink's."""
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
    """Return the shares for the fastest push and pull, and among those the most even: two linear programs."""
    require("sim", "A plan of exchanges")
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
