import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.sim.kernel import Kernel
from plesio.sim.pipeline import simulate_one_forward_one_backward

Order = list[tuple[str, int]]


def stage_order(stage: int, *, num_stages: int, num_microbatches: int) -> Order:
    """What a stage does, in turn, from the schedule's description: no more forwards under way than stages behind it."""
    order: Order = []
    forwards = backwards = 0
    while backwards < num_microbatches:
        if forwards < num_microbatches and forwards - backwards < num_stages - stage:
            order.append(("F", forwards))
            forwards += 1
        else:
            order.append(("B", backwards))
            backwards += 1
    return order


def pipeline_on_kernel(forward_s: Any, backward_s: Any, send_s: Any) -> dict[tuple[str, int, int], float]:
    """End of each (kind, stage, microbatch), from messages between stages."""
    kernel = Kernel()
    num_stages, num_microbatches = forward_s.shape
    orders = [stage_order(i, num_stages=num_stages, num_microbatches=num_microbatches) for i in range(num_stages)]
    there = {("F", 0, j) for j in range(num_microbatches)}
    ended: dict[tuple[str, int, int], float] = {}
    busy = [False] * num_stages

    def begin_next(stage: int) -> None:
        if busy[stage] or not orders[stage] or (orders[stage][0][0], stage, orders[stage][0][1]) not in there:
            return
        kind, j = orders[stage].pop(0)
        busy[stage] = True
        times_s = forward_s if kind == "F" else backward_s
        kernel.after(times_s[stage, j], lambda: end(kind, stage, j))

    def end(kind: str, stage: int, j: int) -> None:
        busy[stage] = False
        ended[kind, stage, j] = kernel.now_s
        if kind == "F" and stage == num_stages - 1:
            there.add(("B", stage, j))
        else:
            target = stage + (1 if kind == "F" else -1)
            if target >= 0:
                kernel.after(send_s[min(stage, target)], lambda: arrive(kind, target, j))
        begin_next(stage)

    def arrive(kind: str, stage: int, j: int) -> None:
        there.add((kind, stage, j))
        begin_next(stage)

    for stage in range(num_stages):
        begin_next(stage)
    kernel.run()
    return ended


@settings(deadline=None)  # the first call compiles
@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_pipeline_is_that_of_messages_to_the_bit(num_stages: int, num_microbatches: int, seed: int):
    random = np.random.default_rng(seed)
    forward_s, backward_s = random.exponential(1.0, (2, num_stages, num_microbatches))
    send_s = random.exponential(0.3, num_stages - 1)
    found = simulate_one_forward_one_backward(forward_s, backward_s, send_s=send_s)
    ended = pipeline_on_kernel(forward_s, backward_s, send_s)
    assert len(ended) == 2 * num_stages * num_microbatches
    for (kind, stage, j), end_s in ended.items():
        ends_s = found.forward_end_s if kind == "F" else found.backward_end_s
        assert ends_s[stage, j] == end_s


@pytest.mark.parametrize("num_stages", [1, 2, 4, 8])
@pytest.mark.parametrize("num_microbatches", [1, 3, 8, 32])
def test_equal_stages_give_the_closed_form(num_stages: int, num_microbatches: int):
    shape = (num_stages, num_microbatches)
    found = simulate_one_forward_one_backward(np.full(shape, 1.0), np.full(shape, 2.0))
    assert found.end_s == (num_microbatches + num_stages - 1) * 3.0
    assert found.bubble_share == pytest.approx((num_stages - 1) / (num_microbatches + num_stages - 1), abs=1e-15)


def test_one_microbatch_goes_there_and_back_over_every_border():
    found = simulate_one_forward_one_backward(np.ones((4, 1)), np.ones((4, 1)), send_s=[1.0, 2.0, 3.0])
    assert found.end_s == 2 * (4 + 6)


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "send_s"),
    [
        (np.ones((2, 2)), np.ones((2, 3)), 0.0),
        (np.ones(2), np.ones(2), 0.0),
        (-np.ones((2, 2)), np.ones((2, 2)), 0.0),
        (np.ones((2, 2)), np.ones((2, 2)), math.nan),
    ],
)
def test_impossible_arguments_are_refused(forward_s: Any, backward_s: Any, send_s: float):
    with pytest.raises(ValueError, match=r"microbatches|write seconds"):
        simulate_one_forward_one_backward(forward_s, backward_s, send_s=send_s)
