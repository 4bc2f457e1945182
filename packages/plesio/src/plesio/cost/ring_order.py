"""The order in which hosts form a ring: how long each order takes, and the best one.

A ring's rounds take as long as their slowest message, and messages on the same uplink have equal parts of it, as in
`plesio.cost.placement`. A ring that enters and leaves each rack once has the least on the uplinks, so only orders that
keep racks together are tried.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product

from plesio.core.errors import ConfigError
from plesio.cost.hockney import check_message, point_to_point_s
from plesio.cost.link import Link
from plesio.cost.topology import Topology

MOST_ORDERS = 50_000
"""Up to so many orders all are tried."""


def ring_s(topology: Topology, order: Sequence[int], num_bytes: float) -> float:
    """Return the seconds of a ring all-reduce of the hosts in this order: 2(n-1) rounds of their slowest message.

    On equal ways that are not shared it is `plesio.cost.all_reduce.ring_all_reduce_s`. Raises `ConfigError` if the
    order has not every host once, or the size is negative.
    """
    check_message(num_bytes)
    count = topology.matrix.num_hosts
    if sorted(order) != list(range(count)):
        raise ConfigError(f"a ring of the hosts {list(order)}; write each of 0 to {count - 1} once")
    return 2 * (count - 1) * max(message_times_s(topology, ring_messages(order), num_bytes / count))


def ring_messages(order: Sequence[int]) -> list[tuple[int, int]]:
    """Return the sender and the receiver of each message in a ring of this order."""
    return [*pairwise(order), (order[-1], order[0])]


def message_times_s(topology: Topology, messages: Sequence[tuple[int, int]], num_bytes: float) -> list[float]:
    """Return the seconds of each of these messages, which are sent at the same time."""
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
        times.append(
            point_to_point_s(num_bytes, link=Link(latency_s=matrix.latency_s[source][target], bytes_per_s=rate))
        )
    return times


def grouped_order(topology: Topology) -> tuple[int, ...]:
    """Order the hosts rack by rack, and otherwise as given."""
    return tuple(host for rack in _racks_in_order(topology) for host in rack)


def best_order(topology: Topology, num_bytes: float) -> tuple[int, ...]:
    """Order hosts by rack, the smallest last, such that the slowest message, and then the sum of all, is least.

    Few orders are all tried; of many, from the given one on, a better neighbour is taken until there is none.
    """
    count = topology.matrix.num_hosts
    ways = list(permutations(range(count), 2))
    times = {ends: message_times_s(topology, [ends], num_bytes / count)[0] for ends in ways}

    def cost(racks: Sequence[Sequence[int]]) -> tuple[float, float]:
        each = [times[ends] for ends in ring_messages([host for rack in racks for host in rack])]
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


def _racks_in_order(topology: Topology) -> list[list[int]]:
    """Return the racks in the given order, but with the smallest one last, as in a `plesio.cost.cluster.Cluster`."""
    racks = [list(topology.members(rack)) for rack in range(topology.num_racks)]
    sizes = [len(rack) for rack in racks]
    start = sizes.index(min(sizes)) + 1 if len(set(sizes)) > 1 else 0
    return racks[start:] + racks[:start]


def _all_orders(racks: list[list[int]]) -> Iterator[list[list[int]]]:
    """Return all orders of the racks but the last, and of the hosts in each."""
    for others in permutations(racks[:-1]):
        for orders in product(*(permutations(rack) for rack in (*others, racks[-1]))):
            yield list(map(list, orders))


def _neighbours(racks: list[list[int]]) -> Iterator[list[list[int]]]:
    """Exchange two racks but the last, or two hosts of a rack, or turn two with all between them."""
    for one, other in combinations(range(len(racks) - 1), 2):
        yield [*racks[:one], racks[other], *racks[one + 1 : other], racks[one], *racks[other + 1 :]]
    for number, rack in enumerate(racks):
        for one, other in combinations(range(len(rack)), 2):
            middle = rack[one : other + 1]
            for part in ([middle[-1], *middle[1:-1], middle[0]], middle[::-1]):
                yield [*racks[:number], [*rack[:one], *part, *rack[other + 1 :]], *racks[number + 1 :]]
