from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.sim.kernel import Kernel
from plesio_planning.sim.pipeline_schedules import (
    SCHEDULES,
    SPLIT,
    DeviceOperation,
    Execution,
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
            assert starts_s[DeviceOperation(kind, stage, j)] >= ends_s[DeviceOperation("forward", stage - 1, j)]
        if kind == "backward":
            behind = (
                DeviceOperation("forward", stage, j)
                if stage == stages - 1
                else DeviceOperation("backward", stage + 1, j)
            )
            assert starts_s[DeviceOperation(kind, stage, j)] >= ends_s[behind]
        if kind == "weights":
            assert starts_s[DeviceOperation(kind, stage, j)] >= ends_s[DeviceOperation("backward", stage, j)]
    for device in range(p):
        own = [one for one in done if one.device == device]
        assert all(one.end_s <= after.start_s for one, after in pairwise(own))


@sizes
def test_bubbles_are_the_published_ones(p: int, m: int):
    """Qi et al. 2023, Narayanan et al. 2021: of 1F1B's, ZB1P a third, ZB2P and ZBV none; interleaved a v-th."""
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


def on_kernel(
    orders: Sequence[Sequence[DeviceOperation]], durations_s: Mapping[str, Sequence[float]], *, send_s: float
) -> dict[DeviceOperation, float]:
    """When each operation ends if devices send each other messages."""
    kernel = Kernel()
    device_of = {operation.stage: device for device, order in enumerate(orders) for operation in order}
    last = max(device_of)
    left = [deque(order) for order in orders]
    busy = [False] * len(orders)
    inputs: set[DeviceOperation] = set()
    ended_s: dict[DeviceOperation, float] = {}

    def begin_next(device: int) -> None:
        if busy[device] or not left[device]:
            return
        first = left[device][0]
        if first not in inputs and (first.kind, first.stage) != ("forward", 0):
            return
        busy[device] = True
        left[device].popleft()
        kernel.after(durations_s[first.kind][first.stage], lambda: end(device, first))

    def end(device: int, done: DeviceOperation) -> None:
        kind, stage, j = done
        busy[device] = False
        ended_s[done] = kernel.now_s
        if kind == "forward":
            send(
                device,
                DeviceOperation("backward", last, j) if stage == last else DeviceOperation("forward", stage + 1, j),
            )
        elif kind == "backward":
            inputs.add(DeviceOperation("weights", stage, j))
            if stage > 0:
                send(device, DeviceOperation("backward", stage - 1, j))
        begin_next(device)

    def send(device: int, needed_by: DeviceOperation) -> None:
        target = device_of[needed_by.stage]
        if target == device:
            inputs.add(needed_by)
        else:
            kernel.after(send_s, lambda: arrive(target, needed_by))

    def arrive(device: int, needed_by: DeviceOperation) -> None:
        inputs.add(needed_by)
        begin_next(device)

    for device in range(len(orders)):
        begin_next(device)
    kernel.run()
    return ended_s


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(p=st.integers(1, 5), more=st.integers(0, 7), seed=st.integers(0, 2**32 - 1))
def test_any_times_give_what_messages_between_devices_give_to_the_bit(schedule: Schedule, p: int, more: int, seed: int):
    m = fewest_micro_batches(schedule, num_devices=p) + more * (p if schedule == "interleaved" else 1)
    stages = p * (2 if schedule in ("interleaved", "zbv") else 1)
    forward_s, backward_s, weights_s = np.random.default_rng(seed).exponential(1.0, (3, stages)).tolist()
    orders = operations(schedule, num_devices=p, num_micro_batches=m)
    found = execute(
        orders, forward_s=forward_s, backward_s=backward_s, weights_s=weights_s if schedule in SPLIT else (), send_s=0.3
    )
    durations_s = {"forward": forward_s, "backward": backward_s, "weights": weights_s}
    assert {one.operation: one.end_s for one in found.done} == on_kernel(orders, durations_s, send_s=0.3)


@given(st.integers(1, 6), st.integers(1, 9))
def test_1f1b_has_no_more_forwards_under_way_than_stages_behind(p: int, m: int):
    """Narayanan et al. 2019 (PipeDream-Flush), from its description."""
    for stage, order in enumerate(operations("1f1b", num_devices=p, num_micro_batches=m)):
        forwards = backwards = 0
        for kind, _, j in order:
            may_begin = forwards < m and forwards - backwards < p - stage
            assert (kind, j) == (("forward", forwards) if may_begin else ("backward", backwards))
            forwards += may_begin
            backwards += not may_begin


def test_one_micro_batch_goes_there_and_back_over_every_border():
    orders = operations("1f1b", num_devices=4, num_micro_batches=1)
    found = execute(orders, forward_s=[1.0] * 4, backward_s=[1.0] * 4, send_s=2.0)
    assert found.iteration_s == 2 * (4 + 3 * 2)


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
