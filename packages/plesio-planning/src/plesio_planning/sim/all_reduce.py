"""All-reduce send by send: when every rank has the sum, if ranks begin at different times and links differ.

Theory of operation. A send of S bytes over a link takes ``α + S/B`` (Hockney 1994) and keeps the sender's port busy for
as long; a rank sends and receives at the same time, one message each. So the time at which a rank is ready for its next
send is a maximum of sums (see `plesio_planning.sim.recurrences`):

    ring     ready'[r] = max(ready[r] + c[r], ready[r-1] + c[r-1])      c[r] = α[r] + S/(n B[r]), link r -> r+1
    tree     ready'[child] = ready'[parent] = max(ready[child], ready[parent]) + α + S/B     the child's link, both ways

With equal links and starts these are the closed forms ``2(n-1)(α + S/(nB))`` (Patarasuk & Yuan 2009) and
``2⌈log₂ n⌉(α + S/B)`` (a reduce and a broadcast on a binomial tree, Thakur et al. 2005). They leave out the cost of a
late rank or a slow link: a ring is as slow as its slowest link, but a late start is paid once, not every round.

Arithmetic on the values takes no time here, and messages do not share links.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plesio.sim.compiled import compiled

Times = NDArray[np.float64]


def ring_all_reduce_s(
    num_bytes: float, *, num_ranks: int, latency_s: ArrayLike, bytes_per_s: ArrayLike, start_s: ArrayLike = 0.0
) -> Times:
    """Return the virtual seconds at which each rank has the sum, by a ring: a reduce-scatter and an all-gather.

    >>> ring_all_reduce_s(4e6, num_ranks=4, latency_s=0.0, bytes_per_s=1e9)  # 6 rounds of 1 ms
    array([0.006, 0.006, 0.006, 0.006])

    Args:
        num_bytes: S, of the whole tensor.
        num_ranks: n.
        latency_s: α of the link from rank r to r+1, one for all or one each.
        bytes_per_s: B of that link, one for all or one each.
        start_s: When each rank is ready, one for all or one each.

    Raises:
        ValueError: Sizes or times that cannot be.
    """
    ready_s = _starts(start_s, (1, num_ranks))
    _ring(ready_s, num_bytes, latency_s, bytes_per_s, num_passes=2)
    return ready_s.reshape(num_ranks)


def tree_all_reduce_s(
    num_bytes: float, *, num_ranks: int, latency_s: ArrayLike, bytes_per_s: ArrayLike, start_s: ArrayLike = 0.0
) -> Times:
    """Virtual seconds at which each rank has the sum, by a reduce to rank 0 and a broadcast on a binomial tree.

    >>> tree_all_reduce_s(8.0, num_ranks=3, latency_s=1.0, bytes_per_s=math.inf)  # one level more than two ranks need
    array([4., 4., 3.])

    Args:
        num_bytes: S, of the whole tensor.
        num_ranks: n, any number.
        latency_s: α of the link between a rank and its parent, one for all or one each (rank 0's is not used).
        bytes_per_s: B of that link, one for all or one each.
        start_s: When each rank is ready, one for all or one each.

    Raises:
        ValueError: Sizes or times that cannot be.
    """
    ready_s = _starts(start_s, (num_ranks,))
    _tree(ready_s, _send_times(num_bytes, latency_s, bytes_per_s, shape=(num_ranks,)))
    return ready_s


def hierarchical_all_reduce_s(
    num_bytes: float,
    *,
    num_hosts: int,
    ranks_per_host: int,
    latency_s: ArrayLike,
    bytes_per_s: ArrayLike,
    cross_latency_s: ArrayLike,
    cross_bytes_per_s: ArrayLike,
    start_s: ArrayLike = 0.0,
) -> Times:
    """Return the virtual seconds at which each rank has the sum, (hosts, ranks of a host).

    A reduce-scatter on every host's ring; an all-reduce of each part on the ring of the ranks that hold it, one a host;
    an all-gather on every host's ring (Jia et al. 2018). With equal links and starts, m hosts of g ranks:
    ``2(g-1)(α + S/(gB)) + 2(m-1)(α' + S/(gmB'))``.

    Args:
        num_bytes: S, of the whole tensor.
        num_hosts: m.
        ranks_per_host: g.
        latency_s: α within a host, from a rank to the next; one for all or (hosts, ranks of a host).
        bytes_per_s: B within a host; as ``latency_s``.
        cross_latency_s: α' from a rank to its like on the next host; as ``latency_s``.
        cross_bytes_per_s: B' of one rank; where g ranks share a network interface, a g-th of it.
        start_s: When each rank is ready; as ``latency_s``.

    Raises:
        ValueError: Sizes or times that cannot be.
    """
    ready_s = _starts(start_s, (num_hosts, ranks_per_host))
    ready_s = _ring(ready_s, num_bytes, latency_s, bytes_per_s, num_passes=1)
    cross = [
        np.broadcast_to(np.asarray(value, float), ready_s.shape).T for value in (cross_latency_s, cross_bytes_per_s)
    ]
    part_bytes = num_bytes / ranks_per_host
    ready_s = _ring(np.ascontiguousarray(ready_s.T), part_bytes, *cross, num_passes=2)
    return _ring(np.ascontiguousarray(ready_s.T), num_bytes, latency_s, bytes_per_s, num_passes=1)


def _ring(ready_s: Times, num_bytes: float, latency_s: ArrayLike, bytes_per_s: ArrayLike, *, num_passes: int) -> Times:
    """Simulate rings side by side, (rings, ranks), each passing parts of the tensor ``n-1`` times on for each pass."""
    num_ranks = ready_s.shape[1]
    send_s = _send_times(num_bytes / num_ranks, latency_s, bytes_per_s, shape=ready_s.shape)
    _ring_rounds(ready_s, send_s, num_passes * (num_ranks - 1))
    return ready_s


def _starts(start_s: ArrayLike, shape: tuple[int, ...]) -> Times:
    if min(shape) < 1:
        raise ValueError(f"{shape} ranks; write 1 or more")
    starts_s = np.array(np.broadcast_to(np.asarray(start_s, float), shape), order="C")
    if not np.isfinite(starts_s).all():
        raise ValueError("a start is not a finite number of seconds")
    return starts_s


def _send_times(num_bytes: float, latency_s: ArrayLike, bytes_per_s: ArrayLike, *, shape: tuple[int, ...]) -> Times:
    latencies_s, bandwidths = np.asarray(latency_s, float), np.asarray(bytes_per_s, float)
    if not (0 <= num_bytes < math.inf and (latencies_s >= 0).all() and (bandwidths > 0).all()):
        raise ValueError(
            f"{num_bytes} bytes, latency {latencies_s} s, {bandwidths} bytes per second; "
            "write bytes and latencies of 0 or more and bandwidths above 0"
        )
    return np.ascontiguousarray(np.broadcast_to(latencies_s + num_bytes / bandwidths, shape))


@compiled
def _ring_rounds(ready_s: Times, send_s: Times, num_rounds: int) -> None:
    num_rings, num_ranks = ready_s.shape
    sent_s = np.empty(num_ranks)
    for ring in range(num_rings):
        ready, send = ready_s[ring], send_s[ring]
        for _ in range(num_rounds):
            for r in range(num_ranks):
                sent_s[r] = ready[r] + send[r]
            ready[0] = max(sent_s[0], sent_s[num_ranks - 1])
            for r in range(1, num_ranks):
                ready[r] = max(sent_s[r], sent_s[r - 1])


@compiled
def _tree(ready_s: Times, send_s: Times) -> None:
    num_ranks = ready_s.size
    distance = 1
    while distance < num_ranks:
        for child in range(distance, num_ranks, 2 * distance):
            parent = child - distance
            ready_s[parent] = ready_s[child] = max(ready_s[parent], ready_s[child]) + send_s[child]
        distance *= 2
    while distance > 1:
        distance //= 2
        for child in range(distance, num_ranks, 2 * distance):
            parent = child - distance
            ready_s[parent] = ready_s[child] = max(ready_s[parent], ready_s[child]) + send_s[child]
