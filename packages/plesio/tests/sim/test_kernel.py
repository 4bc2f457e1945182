import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.sim.kernel import Cancellable, Kernel, Movable

MOMENTS = st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1.0 + 2**-52, 3.0]), st.integers(-2, 2))


@given(st.lists(st.tuples(MOMENTS, st.sampled_from(["plain", "cancellable", "cancelled"]))))
def test_events_happen_by_time_then_priority_then_scheduling_and_cancelled_ones_do_not(plan: Any):
    kernel = Kernel()
    happened: list[tuple[float, int, int]] = []
    expected = []
    for number, ((time_s, priority), kind) in enumerate(plan):
        key = (time_s, priority, number)
        action = partial(happened.append, key)
        alarm = Cancellable(action)
        kernel.at(time_s, action if kind == "plain" else alarm, priority=priority)
        if kind == "cancelled":
            alarm.cancel()
        else:
            expected.append(key)
    kernel.run()
    assert happened == sorted(expected)
    assert kernel.num_events == len(expected)


@given(st.lists(MOMENTS, min_size=1), st.integers(0, 60))
def test_what_an_action_schedules_keeps_the_order(delays: Any, num_more: int):
    """Every event schedules another; none is before one that has happened, and equal moments keep their order."""
    kernel = Kernel()
    happened: list[tuple[float, int, int]] = []
    scheduled = 0

    def schedule(index: int) -> None:
        nonlocal scheduled
        delay_s, priority = delays[index % len(delays)]
        scheduled += 1
        key = (kernel.now_s + delay_s, priority, scheduled)
        kernel.after(delay_s, lambda: act(key, index), priority=priority)

    def act(key: tuple[float, int, int], index: int) -> None:
        assert kernel.now_s == key[0]
        happened.append(key)
        if scheduled < len(delays) + num_more:
            schedule(index + 1)

    for index in range(len(delays)):
        schedule(index)
    kernel.run()
    assert len(happened) == scheduled == kernel.num_events
    for earlier, later in itertools.pairwise(happened):
        # A smaller key may come later only where the earlier event itself had scheduled it, at the same moment.
        assert earlier[0] <= later[0]
        assert earlier < later or later[2] > earlier[2]


@pytest.mark.parametrize("time_s", [0.5, -math.inf, math.inf, math.nan])
def test_an_impossible_moment_is_refused(time_s: float):
    kernel = Kernel()
    kernel.at(1.0, lambda: None)
    kernel.run()
    with pytest.raises(ValueError, match=r"now 1\.0 s"):
        kernel.at(time_s, lambda: None)
    with pytest.raises(ValueError, match=r"now 1\.0 s"):
        kernel.after(time_s - 1.0, lambda: None)
    assert not kernel.step()


def test_run_stops_at_the_last_event():
    kernel = Kernel()
    kernel.after(1.5, lambda: None)
    kernel.run()
    assert kernel.now_s == 1.5


def test_step_lets_one_event_happen_and_skips_cancelled_ones():
    kernel = Kernel()
    seen: list[str] = []
    alarm = Cancellable(lambda: seen.append("a"))
    kernel.after(1.0, alarm)
    alarm.cancel()
    kernel.after(2.0, lambda: seen.append("b"))
    assert kernel.step()
    assert (seen, kernel.now_s, kernel.num_events) == (["b"], 2.0, 1)
    assert not kernel.step()


def test_cancelling_what_has_happened_changes_nothing():
    kernel = Kernel()
    seen: list[int] = []
    alarm = Cancellable(lambda: seen.append(1))
    kernel.after(1.0, alarm)
    kernel.run()
    alarm.cancel()
    alarm.cancel()
    kernel.run()
    assert (seen, kernel.num_events) == ([1], 1)


def test_a_cancellable_action_happens_once_however_often_it_is_scheduled():
    kernel = Kernel()
    seen: list[float] = []
    alarm = Cancellable(lambda: seen.append(kernel.now_s))
    kernel.after(1.0, alarm)
    kernel.after(2.0, alarm)
    kernel.run()
    assert (seen, kernel.now_s, kernel.num_events) == ([1.0], 1.0, 1)


def test_what_is_cancelled_after_an_earlier_event_does_not_happen_either():
    kernel = Kernel()
    seen: list[int] = []
    alarm = Cancellable(lambda: seen.append(1))
    kernel.after(1.0, lambda: None)
    kernel.after(2.0, alarm)
    assert kernel.step()
    alarm.cancel()
    kernel.run()
    assert (seen, kernel.now_s, kernel.num_events) == ([], 1.0, 1)


@pytest.mark.parametrize("advance", [Kernel.step, Kernel.run])
def test_an_action_that_raises_does_not_stop_the_kernel(advance: Callable[[Kernel], Any]):
    kernel = Kernel()
    seen: list[int] = []

    def fail() -> None:
        raise RuntimeError("its own")

    kernel.after(1.0, fail)
    kernel.after(2.0, lambda: seen.append(kernel.num_events))
    with pytest.raises(RuntimeError, match="its own"):
        advance(kernel)
    assert (kernel.now_s, kernel.num_events) == (1.0, 1)
    advance(kernel)
    assert seen == [2]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.booleans()), max_size=40))
def test_moving_is_cancelling_and_scheduling_anew(plan: Any):
    """With four movable events and plain ones between them, the order, the moments and the count are the same."""

    def run(*, movable: bool) -> tuple[list[tuple[float, Any]], int]:
        kernel = Kernel()
        happened: list[tuple[float, Any]] = []
        ends = [Movable(lambda n=n: happened.append((kernel.now_s, n))) for n in range(4)]
        alarms: dict[int, Cancellable] = {}

        def move(number: int, delay_s: float) -> None:
            if movable:
                kernel.move(ends[number], delay_s)
                return
            if number in alarms:
                alarms[number].cancel()
            alarms[number] = Cancellable(lambda: happened.append((kernel.now_s, number)))
            kernel.after(delay_s, alarms[number])

        for index, (number, delay_s, at_once) in enumerate(plan):
            if at_once:
                move(number, delay_s)
            else:
                kernel.at(index / 8, lambda number=number, delay_s=delay_s: move(number, delay_s))
                kernel.at(index / 4, lambda index=index: happened.append((kernel.now_s, f"plain {index}")))
        kernel.step()
        kernel.run()
        return happened, kernel.num_events

    assert run(movable=True) == run(movable=False)


@pytest.mark.parametrize("delay_s", [-0.5, math.inf, math.nan])
def test_an_event_is_not_moved_to_an_impossible_moment(delay_s: float):
    kernel = Kernel()
    seen: list[float] = []
    end = Movable(lambda: seen.append(kernel.now_s))
    kernel.move(end, 1.0)
    with pytest.raises(ValueError, match="finite delay"):
        kernel.move(end, delay_s)
    kernel.run()
    assert seen == [1.0]
