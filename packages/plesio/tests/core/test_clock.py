import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.clock import MonotonicClock, TrainingClock
from plesio.testing import FakeClock


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e3)), max_size=20))
def test_only_the_time_between_pauses_counts(spans: list[tuple[bool, float]]):
    fake = FakeClock()
    clock = TrainingClock(fake)
    fake.sleep_s(3.0)
    clock.start()
    trained_s = 0.0
    for paused, duration_s in spans:
        if paused:
            clock.pause()
        fake.sleep_s(duration_s)
        if paused:
            assert clock.elapsed_s() == pytest.approx(trained_s, abs=1e-6)
            clock.resume()
        else:
            trained_s += duration_s
        clock.start()  # changes nothing
    assert clock.elapsed_s() == pytest.approx(trained_s, abs=1e-6)


def test_evaluation_before_training_costs_no_training_time():
    fake = FakeClock()
    clock = TrainingClock(fake)
    clock.pause()
    fake.sleep_s(2.0)
    clock.start()
    fake.sleep_s(1.0)
    clock.resume()
    assert clock.elapsed_s() == 0.0
    fake.sleep_s(0.5)
    assert clock.elapsed_s() == 0.5


def test_pauses_do_not_nest():
    clock = TrainingClock(FakeClock())
    with pytest.raises(AssertionError, match="not paused"):
        clock.resume()
    clock.pause()
    with pytest.raises(AssertionError, match="paused already"):
        clock.pause()


def test_the_monotonic_clock_waits_at_least_as_long_as_asked():
    clock = MonotonicClock()
    before_s = clock.now_s()
    clock.sleep_s(0.01)
    clock.sleep_s(-1.0)
    assert clock.now_s() - before_s >= 0.01
