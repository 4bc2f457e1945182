import math

import pytest

from plesio.policies.adaptive.rate_limit import RateLimit


def after(rates: list[float]) -> RateLimit:
    limit = RateLimit()
    assert [limit.allow(rate) for rate in rates] == rates
    return limit


@pytest.mark.parametrize(
    "rates",
    [
        [0.1] * 100,
        [0.1 * min(1.0, (step + 1) / 50) for step in range(100)],
        [0.0] + [0.1 * min(1.0, step / 50) for step in range(100)],
        [0.1 * 0.5 * (1.001 + math.cos(math.pi * (step % 50) / 50)) for step in range(200)],
        [0.1] * 30 + [0.001] * 30 + [0.1] * 30,
        [0.001] * 8 + [0.1] * 30,
    ],
    ids=["constant", "warm-up", "warm-up from zero", "warm restarts", "back to an earlier rate", "a start"],
)
def test_usual_schedules_are_let_through(rates: list[float]):
    assert not after(rates).holds


def test_a_leap_is_held_at_the_last_rate_and_rises_with_good_reviews():
    limit = after([0.1] * 20)
    allowed = []
    for _ in range(7):
        allowed += [limit.allow(0.3) for _ in range(16)]
        limit.good()
    assert allowed[:16] == [0.1] * 16
    assert allowed[16:32] == [0.125] * 16
    assert allowed[-1] == 0.3
    assert not limit.holds
    assert limit.allow(0.6) == 0.6  # twice what has been borne is no leap


def test_after_a_return_it_stays():
    limit = after([0.1] * 20)
    limit.allow(5.0)
    limit.good()
    assert limit.allow(5.0) == 0.125
    limit.returned()
    for _ in range(20):
        limit.good()
    assert limit.allow(5.0) == 0.125
    assert limit.allow(0.05) == 0.05


def test_from_next_to_nothing_a_leap_is_held_at_a_tenth_of_the_highest():
    limit = after([0.1] * 20 + [0.0] * 20)
    assert limit.allow(0.3) == pytest.approx(0.01)


def test_a_return_without_a_leap_holds_nothing():
    limit = after([0.1] * 20)
    limit.returned()
    assert limit.allow(0.2) == 0.2
