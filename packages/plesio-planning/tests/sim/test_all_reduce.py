import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.sim.kernel import Kernel
from plesio_planning.sim.all_reduce import hierarchical_all_reduce_s, ring_all_reduce_s, tree_all_reduce_s

# Sums of up to a few hundred terms in another order than the closed form's.
CLOSE = 1e-12


def ring_on_kernel(send_s: list[float], start_s: list[float], *, num_rounds: int) -> list[float]:
    """The ring as messages: a rank sends again when its last send is out and the part that it passes on has come."""
    kernel = Kernel()
    num_ranks = len(send_s)
    sends, received, ready_s = [0] * num_ranks, [0] * num_ranks, list(start_s)
    sending = [True] * num_ranks

    def pass_on(rank: int) -> None:
        if sending[rank] or received[rank] < sends[rank]:
            return
        ready_s[rank] = kernel.now_s
        if sends[rank] < num_rounds:
            sending[rank] = True
            kernel.after(send_s[rank], lambda: sent(rank))

    def sent(rank: int) -> None:
        sending[rank] = False
        sends[rank] += 1
        neighbour = (rank + 1) % num_ranks
        received[neighbour] += 1
        pass_on(rank)
        pass_on(neighbour)

    def start(rank: int) -> None:
        sending[rank] = False
        pass_on(rank)

    for rank in range(num_ranks):
        kernel.at(start_s[rank], lambda rank=rank: start(rank))
    kernel.run()
    return ready_s


def tree_on_kernel(send_s: list[float], start_s: list[float]) -> list[float]:
    """The tree as messages: each rank goes through its partners in turn; a transfer begins when both are there."""
    kernel = Kernel()
    num_ranks = len(send_s)
    distances = [2**level for level in range((num_ranks - 1).bit_length())]
    partners: list[list[int]] = [[] for _ in range(num_ranks)]
    for distance in distances + distances[::-1]:
        for child in range(distance, num_ranks, 2 * distance):
            partners[child].append(child - distance)
            partners[child - distance].append(child)
    waits_for: dict[int, int] = {}
    ready_s = list(start_s)

    def proceed(rank: int) -> None:
        ready_s[rank] = kernel.now_s
        if not partners[rank]:
            return
        partner = partners[rank].pop(0)
        waits_for[rank] = partner
        if waits_for.get(partner) == rank:
            del waits_for[rank], waits_for[partner]
            kernel.after(send_s[max(rank, partner)], lambda: (proceed(rank), proceed(partner)))  # type: ignore[func-returns-value,arg-type]

    for rank in range(num_ranks):
        kernel.at(start_s[rank], lambda rank=rank: proceed(rank))
    kernel.run()
    return ready_s


TIMES = st.floats(0.0, 10.0, allow_subnormal=False)
RANKS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=9)


@settings(deadline=None)  # the first call compiles
@given(RANKS)
def test_ring_is_that_of_messages_to_the_bit(ranks: Any):
    send_s, start_s = [list(column) for column in zip(*ranks, strict=True)]
    num_ranks = len(ranks)
    found = ring_all_reduce_s(0, num_ranks=num_ranks, latency_s=send_s, bytes_per_s=1.0, start_s=start_s)
    assert found.tolist() == ring_on_kernel(send_s, start_s, num_rounds=2 * (num_ranks - 1))


@settings(deadline=None)  # the first call compiles
@given(RANKS)
def test_tree_is_that_of_messages_to_the_bit(ranks: Any):
    send_s, start_s = [list(column) for column in zip(*ranks, strict=True)]
    found = tree_all_reduce_s(0, num_ranks=len(ranks), latency_s=send_s, bytes_per_s=1.0, start_s=start_s)
    assert found.tolist() == tree_on_kernel(send_s, start_s)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8, 100])
def test_equal_links_give_the_closed_forms(num_ranks: int):
    alpha_s, bytes_per_s, num_bytes = 2e-6, 1e9, 3e6
    ring_s = ring_all_reduce_s(num_bytes, num_ranks=num_ranks, latency_s=alpha_s, bytes_per_s=bytes_per_s)
    each_s = 2 * (num_ranks - 1) * (alpha_s + num_bytes / num_ranks / bytes_per_s)
    assert ring_s == pytest.approx(np.full(num_ranks, each_s), rel=CLOSE)
    tree_s = tree_all_reduce_s(num_bytes, num_ranks=num_ranks, latency_s=alpha_s, bytes_per_s=bytes_per_s)
    levels = math.ceil(math.log2(num_ranks))
    assert tree_s.max() == pytest.approx(2 * levels * (alpha_s + num_bytes / bytes_per_s), rel=CLOSE)


@pytest.mark.parametrize(("num_hosts", "ranks_per_host"), [(1, 1), (1, 4), (4, 1), (2, 2), (3, 5), (16, 8)])
def test_equal_links_give_the_hierarchical_closed_form(num_hosts: int, ranks_per_host: int):
    m, g, num_bytes = num_hosts, ranks_per_host, 3e6
    found = hierarchical_all_reduce_s(
        num_bytes,
        num_hosts=m,
        ranks_per_host=g,
        latency_s=2e-6,
        bytes_per_s=1e11,
        cross_latency_s=1e-5,
        cross_bytes_per_s=1e9,
    )
    expected = 2 * (g - 1) * (2e-6 + num_bytes / g / 1e11) + 2 * (m - 1) * (1e-5 + num_bytes / g / m / 1e9)
    assert found == pytest.approx(np.full((m, g), expected), rel=CLOSE)


@settings(deadline=None)  # the first call compiles
@given(st.integers(1, 3), st.integers(1, 3), st.data())
def test_hierarchy_is_its_three_phases_on_the_kernel(num_hosts: int, ranks_per_host: int, data: Any):
    size = num_hosts * ranks_per_host
    draw = [data.draw(st.lists(TIMES, min_size=size, max_size=size)) for _ in range(3)]
    local, cross, ready = [np.reshape(values, (num_hosts, ranks_per_host)) for values in draw]
    found = hierarchical_all_reduce_s(
        0,
        num_hosts=num_hosts,
        ranks_per_host=ranks_per_host,
        latency_s=local,
        bytes_per_s=1.0,
        cross_latency_s=cross,
        cross_bytes_per_s=1.0,
        start_s=ready,
    )

    def rings(send_s: Any, start_s: Any, num_rounds: int) -> Any:
        pairs = zip(send_s.tolist(), start_s.tolist(), strict=True)
        return np.array([ring_on_kernel(send, start, num_rounds=num_rounds) for send, start in pairs])

    ready = rings(local, ready, ranks_per_host - 1)
    ready = rings(cross.T, ready.T, 2 * (num_hosts - 1)).T
    assert (found == rings(local, ready, ranks_per_host - 1)).all()


def test_one_late_rank_is_paid_once_and_one_slow_link_every_round():
    late_s = ring_all_reduce_s(0, num_ranks=8, latency_s=1.0, bytes_per_s=1.0, start_s=[5.0] + [0.0] * 7)
    slow_s = ring_all_reduce_s(0, num_ranks=8, latency_s=[6.0] + [1.0] * 7, bytes_per_s=1.0)
    assert late_s.max() == 14 + 5
    # Its sends follow each other without a pause, and the last of them is passed on no further.
    assert slow_s.max() == 14 * 6.0


@pytest.mark.parametrize("all_reduce", [ring_all_reduce_s, tree_all_reduce_s])
@pytest.mark.parametrize(
    "wrong",
    [
        {"num_ranks": 0},
        {"latency_s": -1.0},
        {"bytes_per_s": 0.0},
        {"start_s": math.nan},
        {"latency_s": [1.0, math.nan]},
    ],
)
def test_impossible_arguments_are_refused(all_reduce: Any, wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=r"write|not a finite"):
        all_reduce(1.0, **({"num_ranks": 2, "latency_s": 0.0, "bytes_per_s": 1.0} | wrong))
