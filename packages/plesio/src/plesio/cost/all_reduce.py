"""Times of an all-reduce by its algorithms. `plesio.cost.selection` says which is the fastest.

In the Hockney model (`plesio.cost.hockney`): ``num_ranks`` n, of which there may be any number, ``num_bytes`` S, and a
``link`` of latency α and bandwidth B. All raise `ConfigError` where one of them is out of range.

No algorithm can take less than ``2(n-1)/n S/B`` (Patarasuk & Yuan 2009) or ``⌈log₂ n⌉ α``; a ring reaches the first
bound and is far from the second, a tree is the other way round, and halving-doubling comes close to both. The model
leaves out the network's shape, for which `plesio.cost.placement` counts who shares which link.
"""

import math
from typing import Literal

from plesio.core.errors import ConfigError, nearest
from plesio.cost.hockney import check_message, check_ranks, levels
from plesio.cost.link import Link


def ring_all_reduce_s(num_bytes: float, *, num_ranks: int, link: Link) -> float:
    """Return seconds for a ring: reduce-scatter, then all-gather, ``2(n-1)(α + S/(nB))`` (Patarasuk & Yuan 2009).

    >>> ring_all_reduce_s(700e6, num_ranks=256, link=Link(latency_s=10e-6, bytes_per_s=25e9))
    0.06088125
    """
    check_message(num_bytes)
    check_ranks(num_ranks)
    return 2 * (num_ranks - 1) * (link.latency_s + num_bytes / num_ranks / link.bytes_per_s)


def tree_all_reduce_s(num_bytes: float, *, num_ranks: int, link: Link) -> float:
    """Return the seconds for a binomial tree: reduce to a root, then broadcast, whole tensors at a time.

    ``2 ⌈log₂ n⌉ (α + S/B)`` (Thakur et al. 2005).

    >>> round(tree_all_reduce_s(1e6, num_ranks=256, link=Link(latency_s=10e-6, bytes_per_s=50e9)), 9)
    0.00048
    """
    check_message(num_bytes)
    check_ranks(num_ranks)
    return 2 * levels(num_ranks) * (link.latency_s + num_bytes / link.bytes_per_s)


def double_tree_all_reduce_s(num_bytes: float, *, num_ranks: int, link: Link) -> float:
    """Return the seconds for two binary trees, each pipelining a half of the tensor: reduce, then broadcast.

    An inner rank of one tree is a leaf of the other, so both its ports are always busy, and each edge is used in every
    other round. With k packets a tree and ``h = ⌈log₂ n⌉`` levels, one way takes ``2(h+k-1)(α + S/(2kB))``; the best
    ``k = √((h-1) S / (2αB))``, at least 1 and not rounded, gives ``(√(S/B) + √(2(h-1)α))²`` (Sanders, Speck & Träff
    2009).

    >>> round(double_tree_all_reduce_s(1e9, num_ranks=256, link=Link(latency_s=10e-6, bytes_per_s=50e9)), 4)
    0.047
    """
    check_message(num_bytes)
    check_ranks(num_ranks)
    if num_ranks == 1:
        return 0.0
    below = levels(num_ranks) - 1
    wire_s = num_bytes / link.bytes_per_s
    if below * wire_s <= 2 * link.latency_s:  # one packet a tree
        return 2 * (below + 1) * (2 * link.latency_s + wire_s)
    return 2 * (wire_s + 2 * below * link.latency_s + 2 * math.sqrt(2 * below * link.latency_s * wire_s))


def halving_doubling_all_reduce_s(num_bytes: float, *, num_ranks: int, link: Link) -> float:
    """Return the seconds for recursive halving (reduce-scatter) and doubling (all-gather), Rabenseifner's algorithm.

    ``2 log₂ n α + 2 (n-1)/n S/B`` for a power of two. Otherwise the ranks beyond the largest power of two n' first hand
    their tensor to a partner and get the result from it in the end: ``2 log₂ n' α + 2 (n'-1)/n' S/B + 2 (α + S/B)``
    (Rabenseifner 2004; Thakur et al. 2005).

    >>> round(halving_doubling_all_reduce_s(100e6, num_ranks=256, link=Link(latency_s=10e-6, bytes_per_s=50e9)), 6)
    0.004144
    """
    check_message(num_bytes)
    check_ranks(num_ranks)
    rounds = num_ranks.bit_length() - 1
    power = 1 << rounds
    duration_s = 2 * rounds * link.latency_s + 2 * (power - 1) / power * num_bytes / link.bytes_per_s
    if power < num_ranks:
        duration_s += 2 * (link.latency_s + num_bytes / link.bytes_per_s)
    return duration_s


def hierarchical_all_reduce_s(
    num_bytes: float,
    *,
    num_hosts: int,
    ranks_per_host: int,
    local: Link,
    link: Link,
) -> float:
    """Return seconds for two levels: reduce-scatter in each host, all-reduce between hosts, all-gather in each host.

    ``2(m-1)(α₁ + S/(m B₁)) + 2(N-1)(α₂ + S/(N B₂))`` with rings on N hosts of m ranks: between hosts each rank reduces
    its own m-th of the tensor, all m at the same time, over the interface that they share (Jia et al. 2018, where
    only one rank of a host is at work between hosts). ``local`` is a rank's link in its host (α₁, B₁), ``link`` a
    host's to the others, all its NICs together (α₂, B₂).

    >>> hosts = dict(num_hosts=32, ranks_per_host=8, local=Link(latency_s=1e-6, bytes_per_s=600e9))
    >>> nic = Link(latency_s=10e-6, bytes_per_s=25e9)
    >>> round(hierarchical_all_reduce_s(700e6, **hosts, link=nic), 4)  # a NIC a host
    0.0569
    >>> a_nic_a_gpu = Link(latency_s=10e-6, bytes_per_s=8 * 25e9)
    >>> round(hierarchical_all_reduce_s(700e6, **hosts, link=a_nic_a_gpu), 5)
    0.00946
    """
    inside_s = ring_all_reduce_s(num_bytes, num_ranks=ranks_per_host, link=local)
    between_s = ring_all_reduce_s(num_bytes, num_ranks=num_hosts, link=link)
    return inside_s + between_s


def nccl_all_reduce_s(
    num_bytes: float,
    *,
    num_hosts: int,
    ranks_per_host: int,
    algorithm: Literal["ring", "tree"],
    local_latency_s: float,
    link: Link,
) -> float:
    """Seconds by NCCL's own cost model: the latencies of the steps one after the other, plus bytes over bandwidth.

    With N hosts of m ranks, ``n = N m``, latency α₁ inside and α₂ between hosts, and bus bandwidth B:

    - ring: 2(n-1) steps, of which a part of the tensor crosses hosts in at most ``c = min(2N, 2(n-1))`` (0 if N = 1):
      ``(2(n-1) - c) α₁ + c α₂ + 2(n-1)/n S/B``;
    - tree: a chain in each host and a double tree between: ``2(m-1) α₁ + 2 ⌈log₂ N⌉ α₂ + 2 S/B``.

    It differs from the Hockney formulas in that slow steps between hosts and fast ones inside are added up and not all
    counted as slow, and that pipelining is free. (After NCCL 2, src/graph/tuning.cc; rounding log₂ N up and the bound
    on c are ours.)
    """
    check_message(num_bytes)
    if not 0 <= local_latency_s < math.inf:
        raise ConfigError(f"a latency of {local_latency_s} s; write 0 or more")
    check_ranks(min(num_hosts, ranks_per_host))
    num_ranks = num_hosts * ranks_per_host
    if num_ranks == 1:
        return 0.0
    wire_s = 2 * num_bytes / link.bytes_per_s
    if algorithm == "tree":
        return 2 * (ranks_per_host - 1) * local_latency_s + 2 * levels(num_hosts) * link.latency_s + wire_s
    steps = 2 * (num_ranks - 1)
    crossing = min(2 * num_hosts, steps) if num_hosts > 1 else 0
    return (steps - crossing) * local_latency_s + crossing * link.latency_s + wire_s * (num_ranks - 1) / num_ranks


def busiest_rank_bytes(algorithm: str, num_bytes: float, *, num_ranks: int) -> float:
    """Bytes that the rank which sends the most puts on the wire; the mean is `bytes_sent_per_rank` for all of them.

    Ring: ``2(n-1)/n S``. Tree: ``⌈log₂ n⌉ S``, by the root. Double tree: ``min(2, n/2) S``, by a rank with two children
        in one tree. Halving-doubling: ``2(n'-1)/n' S``, and S more for a partner if n is no power of two.

    >>> [busiest_rank_bytes(name, 1.0, num_ranks=8) for name in ("ring", "tree", "double tree")]
    [1.75, 3.0, 2.0]

    Raises:
        ConfigError: No such algorithm, or fewer than 1 rank.
    """
    check_ranks(num_ranks)
    if num_ranks == 1:
        return 0.0
    power = 1 << (num_ranks.bit_length() - 1)
    tensors = {
        "ring": 2 * (num_ranks - 1) / num_ranks,
        "halving-doubling": 2 * (power - 1) / power + (power < num_ranks),
        "double tree": min(2.0, num_ranks / 2),
        "tree": float(levels(num_ranks)),
    }
    if algorithm not in tensors:
        raise ConfigError(f'unknown all-reduce "{algorithm}"; {nearest(algorithm, tensors)}')
    return tensors[algorithm] * num_bytes
