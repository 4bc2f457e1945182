import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.sim.kernel import Event, Kernel


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 1.5, 2.0]), st.integers(-1, 1)), max_size=30))
def test_events_happen_by_time_then_priority_then_order_of_scheduling(plan: list[tuple[float, int]]):
    kernel = Kernel()
    seen: list[tuple[float, int, int]] = []

    def note(number: int) -> Callable[[], None]:
        return lambda: seen.append((kernel.now_s, plan[number][1], number))

    for number, (time_s, priority) in enumerate(plan):
        kernel.at(time_s, note(number), priority=priority)
    kernel.run()
    assert seen == sorted((time_s, priority, number) for number, (time_s, priority) in enumerate(plan))
    assert kernel.num_events == len(plan)


def test_what_an_event_schedules_for_now_happens_after_what_was_scheduled_for_now():
    kernel, seen = Kernel(), []
    kernel.at(1.0, lambda: (seen.append("a"), kernel.after(0.0, lambda: seen.append("c"))))
    kernel.at(1.0, lambda: seen.append("b"))
    kernel.run()
    assert seen == ["a", "b", "c"]


@given(st.sets(st.integers(0, 19)))
def test_cancelled_events_do_not_happen(cancelled: set[int]):
    kernel, seen = Kernel(), []
    events: list[Event] = [kernel.at(float(i % 3), lambda i=i: seen.append(i)) for i in range(20)]
    for number in cancelled:
        events[number].cancel()
        events[number].cancel()
    kernel.run()
    assert sorted(seen) == sorted(set(range(20)) - cancelled)
    assert kernel.num_events == 20 - len(cancelled)
    events[0].cancel()  # too late, and harmless


@pytest.mark.parametrize("time_s", [0.5, math.inf, math.nan, -1.0])
def test_past_and_impossible_times_are_refused(time_s: float):
    kernel = Kernel()
    kernel.at(1.0, lambda: None)
    kernel.run()
    with pytest.raises(ValueError):
        kernel.at(time_s, lambda: None)


def test_running_until_a_moment_stops_there():
    kernel, seen = Kernel(), []
    for time_s in (1.0, 2.0, 3.0):
        kernel.at(time_s, lambda: seen.append(kernel.now_s))
    kernel.run(until_s=2.5)
    assert (seen, kernel.now_s) == ([1.0, 2.0], 2.5)
    kernel.run()
    assert seen == [1.0, 2.0, 3.0]
    assert not kernel.step()
