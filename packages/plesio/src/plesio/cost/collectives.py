"""Times of collectives and of the parameter server, bytes on the wire, and bus bandwidth.

All that there is on collectives can be imported from here; all-reduce is in `plesio.cost.all_reduce` (formulas),
`plesio.cost.selection` (which is the fastest) and `plesio.cost.placement` (on a cluster).

In the Hockney model (`plesio.cost.hockney`): ``num_ranks`` n, of which there may be any number, ``num_bytes`` S, and a
``link`` of latency α and bandwidth B. All raise `ConfigError` where one of them is out of range. Throughout, S is the
size of the whole tensor: what a rank holds after an all-gather, before a reduce-scatter, and before an all-to-all; as
nccl-tests count it.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from plesio.core.errors import ConfigError, nearest
from plesio.cost.all_reduce import (
    busiest_rank_bytes,
    double_tree_all_reduce_s,
    halving_doubling_all_reduce_s,
    hierarchical_all_reduce_s,
    nccl_all_reduce_s,
    ring_all_reduce_s,
    tree_all_reduce_s,
)
from plesio.cost.hockney import check_message, check_ranks, levels, point_to_point_s
from plesio.cost.link import Link
from plesio.cost.placement import (
    all_reduce_on,
    all_reduce_times_on,
    broadcast_on,
    bucket_all_reduce_on,
    select_all_reduce_on,
)
from plesio.cost.selection import ALL_REDUCES, Choice, Crossover, all_reduce_crossovers, select_all_reduce

__all__ = [
    "ALL_REDUCES",
    "Choice",
    "Crossover",
    "all_gather_s",
    "all_reduce_crossovers",
    "all_reduce_on",
    "all_reduce_times_on",
    "all_to_all_s",
    "broadcast_on",
    "broadcast_s",
    "bucket_all_reduce_on",
    "bus_bytes_per_s",
    "busiest_rank_bytes",
    "bytes_sent_per_rank",
    "double_tree_all_reduce_s",
    "gloo_framing_bytes",
    "halving_doubling_all_reduce_s",
    "hierarchical_all_reduce_s",
    "nccl_all_reduce_s",
    "parameter_server_one_way_s",
    "parameter_server_s",
    "point_to_point_s",
    "reduce_scatter_s",
    "ring_all_reduce_s",
    "select_all_reduce",
    "select_all_reduce_on",
    "tree_all_reduce_s",
    "unequal_all_to_all_s",
]


def all_gather_s(num_bytes: float, *, num_ranks: int, link: Link) -> float:
    """Return the seconds until every rank has all parts, by a ring: ``(n-1)(α + S/(nB))`` (Thakur et al. 2005).

    >>> all_gather_s(4e6, num_ranks=4, link=Link(latency_s=0, bytes_per_s=1e9))
    0.003
    """
    check_message(num_bytes)
    check_ranks(num_ranks)
    return (num_ranks - 1) * (link.latency_s + num_bytes / num_ranks / link.bytes_per_s)


def reduce_scatter_s(num_bytes: float, *, num_ranks: int, link: Link) -> float:
    """Return the seconds until every rank has its part of the sum, by a ring: an all-gather, backwards.

    ``(n-1)(α + S/(nB))`` (Thakur et al. 2005, pairwise exchange, which takes as long).

    >>> reduce_scatter_s(4e6, num_ranks=4, link=Link(latency_s=0, bytes_per_s=1e9))
    0.003
    """
    return all_gather_s(num_bytes, num_ranks=num_ranks, link=link)


def all_to_all_s(num_bytes: float, *, num_ranks: int, link: Link) -> float:
    """Return the seconds until every rank has its part of every other's tensor: in round k, rank r sends to r+k.

    ``(n-1)(α + S/(nB))`` (Thakur et al. 2005, pairwise exchange). Not ``n²``: ranks send side by side. For
    equal parts; for others see `unequal_all_to_all_s`.

    >>> all_to_all_s(4e6, num_ranks=4, link=Link(latency_s=0, bytes_per_s=1e9))
    0.003
    """
    return all_gather_s(num_bytes, num_ranks=num_ranks, link=link)


def unequal_all_to_all_s(
    sent_bytes: Sequence[Sequence[float]] | NDArray[np.float64],
    *,
    link: Link,
    duplex: float = 1.0,
) -> float:
    """Seconds for an all-to-all with parts of any sizes, as a mixture of experts sends them: the busiest rank decides.

    ``(n-1) α + max(what a rank sends, what one receives)/B``: messages of any sizes can be put into rounds in which
    the busiest port never waits (König 1916; Birkhoff 1946). With equal parts it is `all_to_all_s`. If a port cannot
    send all the time that it receives, the smaller of the two counts in part as well.

    >>> unequal_all_to_all_s([[0, 1e6], [3e6, 0]], link=Link(latency_s=0, bytes_per_s=1e9))
    0.003

    Args:
        sent_bytes: Bytes from each rank (rows) to each; what a rank has for itself counts for nothing.
        link: α and B.
        duplex: Share of the smaller of what a port sends and receives that the other hides; 1 is full duplex.

    Raises:
        ConfigError: Something that is no square of numbers of 0 or more, or an argument that is out of range.
    """
    sent = np.array(sent_bytes, dtype=np.float64)
    if sent.ndim != 2 or sent.shape[0] != sent.shape[1] or not (sent >= 0).all():
        raise ConfigError(f"bytes of shape {sent.shape}; write a row and a column of 0 or more for each rank")
    np.fill_diagonal(sent, 0.0)
    if not 0 <= duplex <= 1:
        raise ConfigError(f"duplex is {duplex:g}; write 0 (one way at a time) to 1 (both at once)")
    out, into = sent.sum(axis=1), sent.sum(axis=0)
    busiest = float((np.maximum(out, into) + (1 - duplex) * np.minimum(out, into)).max())
    check_message(busiest)
    return (len(sent) - 1) * link.latency_s + busiest / link.bytes_per_s


def broadcast_s(num_bytes: float, *, num_ranks: int, link: Link) -> float:
    """Return the seconds until every rank has the root's tensor, by the faster of two ways (Thakur et al. 2005).

    - Binomial tree, for small tensors: ``⌈log₂ n⌉ (α + S/B)``.
    - Scatter by a binomial tree, then a ring all-gather (van de Geijn), for large ones:
      ``(⌈log₂ n⌉ + n-1) α + 2 (n-1)/n S/B``.

    >>> broadcast_s(1e9, num_ranks=8, link=Link(latency_s=0, bytes_per_s=1e9))  # the second way
    1.75
    """
    gather_s = all_gather_s(num_bytes, num_ranks=num_ranks, link=link)
    tree_s = levels(num_ranks) * (link.latency_s + num_bytes / link.bytes_per_s)
    scatter_s = levels(num_ranks) * link.latency_s + (num_ranks - 1) / num_ranks * num_bytes / link.bytes_per_s
    return min(tree_s, scatter_s + gather_s)


def parameter_server_one_way_s(num_bytes: float, *, num_workers: int, num_servers: int, link: Link) -> float:
    """Return seconds until n workers have all pushed to, or all pulled from, a parameter server of k equal shards.

    ``max(n, k) (α + S/(kB))``: each worker sends to each server ``S/k`` bytes, a server receives from one worker at a
    time. The n x k messages can be scheduled in ``max(n, k)`` rounds, since a bipartite graph's edges can be coloured
    with as many colours as its largest degree (König 1916). Its part ``max(n/k, 1) S/B`` is bandwidth: one server is a
    hub, and n servers (one on every host) carry what a ring carries (Li et al. 2014). Servers have links of their own.
    """
    if min(num_workers, num_servers) < 1:
        raise ConfigError(f"{num_workers} workers and {num_servers} servers; write 1 or more of each")
    message_s = point_to_point_s(num_bytes / num_servers, link=link)
    return max(num_workers, num_servers) * message_s


def parameter_server_s(num_bytes: float, *, num_workers: int, num_servers: int, link: Link) -> float:
    """Return the seconds for n workers to push their updates and then pull the parameters: two times one way.

    One worker alone still talks to the servers, so it does not take no time, unlike a collective's.

    >>> parameter_server_s(700e6, num_workers=256, num_servers=16, link=Link(latency_s=0, bytes_per_s=100e9))
    0.224
    """
    return 2 * parameter_server_one_way_s(num_bytes, num_workers=num_workers, num_servers=num_servers, link=link)


_PASSES: Mapping[str, int] = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}
"""How often every rank sends ``(n-1)/n`` of the tensor."""


def bytes_sent_per_rank(num_bytes: float, *, num_ranks: int, collective: str = "all_reduce") -> float:
    """Return the bytes on the wire per rank, on average over the ranks.

    ``(n-1)/n S`` for a reduce-scatter, an all-gather and an all-to-all; twice that for an all-reduce, whether by ring,
    tree, double tree, halving-doubling or hierarchy: all of them send ``2(n-1)S`` bytes in total. They differ in the
    busiest rank's share (`plesio.cost.all_reduce.busiest_rank_bytes`).

    >>> bytes_sent_per_rank(8e6, num_ranks=8)
    14000000.0

    Raises:
        ConfigError: An unknown collective, or an argument that is out of range.
    """
    check_ranks(num_ranks)
    if collective not in _PASSES:
        raise ConfigError(f'unknown collective "{collective}"; {nearest(collective, _PASSES)}')
    return _PASSES[collective] * (num_ranks - 1) * num_bytes / num_ranks


_GLOO_MESSAGE_BYTES = 144
"""Three heads of 48 bytes: the sender has something, the receiver is ready, and the message."""
_GLOO_SEGMENT_BYTES = 1 << 20
_GLOO_ELEMENT_BYTES = 4


def gloo_framing_bytes(num_bytes: float, *, num_ranks: int, collective: str = "all_reduce") -> float:
    """Return the bytes of Gloo's own that a rank sends in a collective, on average over the ranks.

    An all-reduce is a ring in which each rank's part goes in segments of 1 MiB at most, at least two; none of them is
    empty. The other collectives send ``n-1`` messages, an all-gather each of them in two (Gloo's sources; measured at
    2 to 4 ranks and 16 bytes to 6 MB).

    >>> gloo_framing_bytes(16, num_ranks=2), gloo_framing_bytes(6e6, num_ranks=2), gloo_framing_bytes(16, num_ranks=4)
    (576.0, 864.0, 864.0)
    """
    if collective == "all_reduce":
        segments = max(2, math.ceil(num_bytes / num_ranks / _GLOO_SEGMENT_BYTES))
        filled = min(1.0, num_bytes / _GLOO_ELEMENT_BYTES / (num_ranks * segments))
        return _GLOO_MESSAGE_BYTES * 2 * (num_ranks - 1) * segments * filled
    messages = {"all_gather": 2 * (num_ranks - 1), "broadcast": (num_ranks - 1) / num_ranks}
    return _GLOO_MESSAGE_BYTES * messages.get(collective, num_ranks - 1)


def bus_bytes_per_s(num_bytes: float, duration_s: float, *, num_ranks: int, collective: str = "all_reduce") -> float:
    """Return the bandwidth at which each rank's link was used; it does not depend on n where links are the limit.

    What each rank sends over the time: the *algorithm bandwidth* S/t, times ``2(n-1)/n`` for an all-reduce and
    ``(n-1)/n`` for the others (nccl-tests, doc/PERFORMANCE.md).

    >>> bus_bytes_per_s(8e9, 0.1, num_ranks=8)
    140000000000.0

    Args:
        num_bytes: S.
        duration_s: t, seconds, more than 0.
        num_ranks: n.
        collective: A name that `bytes_sent_per_rank` takes.

    Raises:
        ConfigError: An unknown collective, or an argument that is out of range.
    """
    if not duration_s > 0:
        raise ConfigError(f"a collective in {duration_s} s has no bandwidth; write more than 0")
    return bytes_sent_per_rank(num_bytes, num_ranks=num_ranks, collective=collective) / duration_s
