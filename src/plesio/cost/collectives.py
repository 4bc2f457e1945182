"""Times of collectives in the Hockney model: a message of S bytes takes α + S/B.

α is the latency of one step in seconds, B the bandwidth in bytes per second, n the number of ranks, S the bytes of one
rank's tensor. Reducing the bytes themselves is taken to be free. One rank alone, and nobody's zero bytes but the
latency, cost what the formulas say: 0 for n = 1.

Sources: Thakur, Rabenseifner & Gropp 2005 (ring, halving and doubling, binomial trees, all-to-all); Rabenseifner 2004;
Sanders, Speck & Träff 2009 (double tree); Patarasuk & Yuan 2009 (the ring's bandwidth is optimal).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plesio.cost.cluster import Cluster

__all__ = [
    "ALL_REDUCES",
    "Choice",
    "all_gather_s",
    "all_reduce_on",
    "all_to_all_s",
    "broadcast_on",
    "broadcast_s",
    "bus_bytes_per_s",
    "double_tree_all_reduce_s",
    "halving_doubling_all_reduce_s",
    "hierarchical_all_reduce_s",
    "parameter_server_s",
    "point_to_point_s",
    "reduce_scatter_s",
    "ring_all_reduce_s",
    "ring_bytes_sent",
    "select_all_reduce",
    "tree_all_reduce_s",
]


def point_to_point_s(num_bytes: float, *, latency_s: float, bytes_per_s: float) -> float:
    """One message: ``α + S/B`` (Hockney 1994)."""
    return latency_s + num_bytes / bytes_per_s


def ring_all_reduce_s(num_bytes: float, *, num_ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Reduce-scatter and all-gather round a ring: ``2 (n-1) (α + S/(nB))``; optimal in bandwidth."""
    steps = 2 * (num_ranks - 1)
    return steps * (latency_s + num_bytes / num_ranks / bytes_per_s)


def tree_all_reduce_s(num_bytes: float, *, num_ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Up a binomial tree and down again, the whole tensor at each level: ``2 ceil(log2 n) (α + S/B)``."""
    return 2 * _levels(num_ranks) * (latency_s + num_bytes / bytes_per_s)


def double_tree_all_reduce_s(num_bytes: float, *, num_ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Two trees with half of the tensor each, pipelined in blocks: ``4 ceil(log2 n) α + 2 S/B`` at large S.

    With the best number of blocks the time is ``2 S/B + 4 l α + 4 sqrt(2 l α S/B)`` for l = ceil(log2 n) levels, each
    inner node of one tree being a leaf of the other.
    """
    levels = _levels(num_ranks)
    transfer_s = num_bytes / bytes_per_s
    return (
        0.0
        if levels == 0
        else 2 * transfer_s + 4 * levels * latency_s + 4 * math.sqrt(2 * levels * latency_s * transfer_s)
    )


def halving_doubling_all_reduce_s(num_bytes: float, *, num_ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Recursive halving, then doubling: ``2 log2 n α + 2 (n-1)/n S/B`` for powers of two.

    Other n first fold the ranks beyond the largest power of two in, and tell them the result at the end: one more
    message of S each way (Rabenseifner 2004).
    """
    if num_ranks == 1:
        return 0.0
    power = 2 ** int(math.log2(num_ranks))
    core_s = 2 * math.log2(power) * latency_s + 2 * (power - 1) / power * num_bytes / bytes_per_s
    return core_s if power == num_ranks else core_s + 2 * (latency_s + num_bytes / bytes_per_s)


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm and its time."""

    algorithm: str
    duration_s: float


AllReduce = Callable[..., float]
ALL_REDUCES: dict[str, AllReduce] = {
    "ring": ring_all_reduce_s,
    "tree": tree_all_reduce_s,
    "double tree": double_tree_all_reduce_s,
    "halving-doubling": halving_doubling_all_reduce_s,
}


def select_all_reduce(num_bytes: float, *, num_ranks: int, latency_s: float, bytes_per_s: float) -> Choice:
    """The fastest algorithm for this size; the first of equals.

    >>> select_all_reduce(1e3, num_ranks=16, latency_s=50e-6, bytes_per_s=125e6).algorithm
    'halving-doubling'
    """
    times = {
        name: all_reduce_s(num_bytes, num_ranks=num_ranks, latency_s=latency_s, bytes_per_s=bytes_per_s)
        for name, all_reduce_s in ALL_REDUCES.items()
    }
    best = min(times, key=lambda name: times[name])
    return Choice(best, times[best])


def hierarchical_all_reduce_s(
    num_bytes: float,
    *,
    num_hosts: int,
    ranks_per_host: int,
    local_latency_s: float,
    local_bytes_per_s: float,
    latency_s: float,
    bytes_per_s: float,
) -> float:
    """Reduce-scatter in each host, ring among the hosts' ranks of equal number, all-gather in each host.

    All ranks of a host share its interface, so among hosts the tensor goes over it once: ``2 (m-1) α + 2 (m-1)/m S/B``
    for m hosts.
    """
    inside = {"num_ranks": ranks_per_host, "latency_s": local_latency_s, "bytes_per_s": local_bytes_per_s}
    among_s = ring_all_reduce_s(num_bytes, num_ranks=num_hosts, latency_s=latency_s, bytes_per_s=bytes_per_s)
    return reduce_scatter_s(num_bytes, **inside) + among_s + all_gather_s(num_bytes, **inside)  # type: ignore[arg-type]


def reduce_scatter_s(num_bytes: float, *, num_ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Ring: ``(n-1) (α + S/(nB))``, S the tensor that is reduced."""
    return (num_ranks - 1) * (latency_s + num_bytes / num_ranks / bytes_per_s)


def all_gather_s(num_bytes: float, *, num_ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Ring: ``(n-1) (α + S/(nB))``, S the tensor that is gathered."""
    return (num_ranks - 1) * (latency_s + num_bytes / num_ranks / bytes_per_s)


def all_to_all_s(num_bytes: float, *, num_ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Pairwise: ``(n-1) (α + S/(nB))``, S what one rank has for all."""
    return (num_ranks - 1) * (latency_s + num_bytes / num_ranks / bytes_per_s)


def broadcast_s(num_bytes: float, *, num_ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Down a binomial tree: ``ceil(log2 n) (α + S/B)``."""
    return _levels(num_ranks) * (latency_s + num_bytes / bytes_per_s)


def parameter_server_s(
    num_bytes: float, *, num_workers: int, num_servers: int, latency_s: float, bytes_per_s: float
) -> float:
    """All workers push to and pull from k servers at once: ``2 (α + S max(1, n/k) / B)``.

    Each server's interface carries n/k of the tensor each way, each worker's the whole (Li et al. 2014).
    """
    return 2 * (latency_s + num_bytes * max(1.0, num_workers / num_servers) / bytes_per_s)


def bus_bytes_per_s(num_bytes: float, duration_s: float, *, num_ranks: int) -> float:
    """Bandwidth of an all-reduce as nccl-tests report it: ``2 (n-1)/n S/t``, comparable to the links' own."""
    return 2 * (num_ranks - 1) / num_ranks * num_bytes / duration_s


def ring_bytes_sent(num_bytes: float, *, num_ranks: int) -> float:
    """Bytes that one rank of a ring all-reduce sends: ``2 (n-1)/n S``."""
    return 2 * (num_ranks - 1) / num_ranks * num_bytes


def _levels(num_ranks: int) -> int:
    return (num_ranks - 1).bit_length()


def all_reduce_on(cluster: Cluster, ranks: Sequence[int], num_bytes: int) -> float:
    """Seconds of a ring all-reduce in the order of the ranks.

    A step is as slow as its slowest message. Ranks of one host that send to its own share the local link; a host's
    interface and a rack's uplink each carry one of the ring's messages in each direction.
    """
    num_ranks = len(ranks)
    if num_ranks == 1:
        return 0.0
    hops = [(cluster.host_of(ranks[i]), cluster.host_of(ranks[(i + 1) % num_ranks])) for i in range(num_ranks)]
    load: dict[str, int] = {}
    for source, target in hops:
        for link in cluster.path(source, target):
            load[link.name] = load.get(link.name, 0) + 1
    piece = num_bytes / num_ranks
    step_s = max(
        sum(link.latency_s for link in path) + max(piece * load[link.name] / link.bytes_per_s for link in path)
        for path in (cluster.path(source, target) for source, target in hops)
    )
    return 2 * (num_ranks - 1) * step_s


def broadcast_on(cluster: Cluster, ranks: Sequence[int], num_bytes: int) -> float:
    """Seconds of a broadcast from the first rank, over the slowest path that it has."""
    hosts = sorted({cluster.host_of(rank) for rank in ranks})
    paths = [cluster.path(hosts[0], host) for host in hosts]
    latency_s = max(sum(link.latency_s for link in path) for path in paths)
    bytes_per_s = min(link.bytes_per_s for path in paths for link in path)
    return broadcast_s(num_bytes, num_ranks=len(ranks), latency_s=latency_s, bytes_per_s=bytes_per_s)
