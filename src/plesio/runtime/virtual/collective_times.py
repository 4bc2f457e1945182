"""How long a collective takes on a cluster, as Gloo and NCCL do them for tensors that are not small: round a ring."""

from collections import Counter
from collections.abc import Sequence

from plesio.cost.cluster import Cluster

__all__ = ["broadcast_s", "ring_all_reduce_s"]


def ring_all_reduce_s(cluster: Cluster, ranks: Sequence[int], num_bytes: int) -> float:
    """Seconds of a ring all-reduce in the order of the ranks: ``2 (n-1)`` steps of an n-th of the tensor.

    A step is as slow as its slowest message. Messages of one step that go over the same link share it: those among the
    ranks of a host its local link, those that leave it the interface.
    """
    num_ranks = len(ranks)
    if num_ranks == 1:
        return 0.0
    hosts = [cluster.host_of(rank) for rank in ranks]
    paths = [cluster.path(source, target) for source, target in zip(hosts, [*hosts[1:], hosts[0]], strict=True)]
    load = Counter(link.name for path in paths for link in path)
    piece = num_bytes / num_ranks
    step_s = max(
        sum(link.latency_s for link in path) + max(piece * load[link.name] / link.bytes_per_s for link in path)
        for path in paths
    )
    return 2 * (num_ranks - 1) * step_s


def broadcast_s(cluster: Cluster, ranks: Sequence[int], num_bytes: int) -> float:
    """Seconds of a broadcast from the first rank down a binomial tree, each level over the slowest path there is."""
    hosts = sorted({cluster.host_of(rank) for rank in ranks})
    paths = [cluster.path(hosts[0], host) for host in hosts]
    latency_s = max(sum(link.latency_s for link in path) for path in paths)
    bytes_per_s = min(link.bytes_per_s for path in paths for link in path)
    return (len(ranks) - 1).bit_length() * (latency_s + num_bytes / bytes_per_s)
