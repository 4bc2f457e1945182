from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.sim.pipeline import simulate_one_forward_one_backward
from plesio.sim.pipeline_schedules import (
    SCHEDULES,
    SPLIT,
    Execution,
    Operation,
    Schedule,
    execute,
    fewest_micro_batches,
    operations,
)


def run(schedule: Schedule, p: int, m: int, *, chunks: int = 2) -> Execution:
    """Forward, backward and gradients of weights of a whole device take 1 s each."""
    stages = {"interleaved": chunks, "zbv": 2}.get(schedule, 1)
    split = schedule in SPLIT
    return execute(
        operations(schedule, num_devices=p, num_micro_batches=m, num_chunks=chunks),
        forward_s=[1 / stages] * p * stages,
        backward_s=[(1 if split else 2) / stages] * p * stages,
        weights_s=[1 / stages] * p * stages if split else (),
    )


sizes = pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 16), (8, 32)])


@sizes
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_everything_is_done_once_and_in_order(schedule: Schedule, p: int, m: int):
    done = run(schedule, p, m).done
    ends_s = {one.operation: one.end_s for one in done}
    stages = p * (2 if schedule in ("interleaved", "zbv") else 1)
    kinds = 3 if schedule in SPLIT else 2
    assert len(ends_s) == len(done) == kinds * stages * m
    starts_s = {one.operation: one.start_s for one in done}
    for kind, stage, j in ends_s:
        if kind == "forward" and stage > 0:
            assert starts_s[Operation(kind, stage, j)] >= ends_s[Operation("forward", stage - 1, j)]
        if kind == "backward":
            behind = Operation("forward", stage, j) if stage == stages - 1 else Operation("backward", stage + 1, j)
            assert starts_s[Operation(kind, stage, j)] >= ends_s[behind]
        if kind == "weights":
            assert starts_s[Operation(kind, stage, j)] >= ends_s[Operation("backward", stage, j)]
    for device in range(p):
        own = [one for one in done if one.device == device]
        assert all(one.end_s <= after.start_s for one, after in pairwise(own))


@sizes
def test_bubbles_are_the_published_ones(p: int, m: int):
    """shared/reference/published.md: relative to 1F1B's, ZB1P a third, ZB2P and ZBV none; interleaved a v-th."""
    bubble_s = {schedule: run(schedule, p, m).iteration_s - 3 * m for schedule in SCHEDULES}
    assert bubble_s["1f1b"] == bubble_s["gpipe"] == 3 * (p - 1)
    assert bubble_s["zb1p"] == p - 1
    assert bubble_s["zb2p"] == 0
    assert bubble_s["zbv"] == 0
    assert bubble_s["interleaved"] == pytest.approx(3 * (p - 1) / 2)
    assert run("interleaved", p, m, chunks=4).iteration_s - 3 * m == pytest.approx(3 * (p - 1) / 4)


@sizes
def test_memory_is_the_published_one(p: int, m: int):
    assert run("gpipe", p, m).most_held == (m,) * p
    assert run("1f1b", p, m).most_held == tuple(min(p - stage, m) for stage in range(p))
    assert max(run("zb1p", p, m).most_held) == p
    assert max(run("zb2p", p, m).most_held) == 2 * p - 1
    assert max(run("zbv", p, m).most_held) / 2 == p
    chunks = 2
    assert max(run("interleaved", p, m).most_held) / chunks == pytest.approx(p * (1 + (p - 1) / (p * chunks)))


@settings(deadline=None)  # the first call compiles
@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_1f1b_is_that_of_the_recurrence(p: int, m: int, seed: int):
    random = np.random.default_rng(seed)
    forward_s, backward_s = random.exponential(1.0, (2, p))
    send_s = float(random.exponential(0.3))
    by_stage = np.ones((1, m))
    expected = simulate_one_forward_one_backward(
        forward_s[:, None] * by_stage, backward_s[:, None] * by_stage, send_s=send_s
    )
    orders = operations("1f1b", num_devices=p, num_micro_batches=m)
    found = execute(orders, forward_s=list(forward_s), backward_s=list(backward_s), send_s=send_s)
    assert found.iteration_s == expected.end_s
    assert found.busy_s == pytest.approx(expected.busy_s)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_fewest_micro_batches_are_enough(schedule: Schedule):
    fewest = fewest_micro_batches(schedule, num_devices=4)
    assert run(schedule, 4, fewest).iteration_s >= 3 * fewest
    if fewest > 1:
        with pytest.raises(ConfigError, match="write"):
            run(schedule, 4, fewest - 1)


def test_a_number_that_cannot_be_interleaved_is_refused():
    with pytest.raises(ConfigError, match="10 micro-batches cannot be interleaved; write a multiple of 4"):
        operations("interleaved", num_devices=4, num_micro_batches=10)
