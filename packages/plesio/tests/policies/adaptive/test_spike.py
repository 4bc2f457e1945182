import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.policies.adaptive.spike import SpikeDetector


def trained(values: list[float]) -> SpikeDetector:
    spikes = SpikeDetector()
    assert [spikes.judge(value) for value in values] == [1.0] * len(values)
    return spikes


def even(num_steps: int) -> list[float]:
    return [1.0 + 0.1 * (step % 3) for step in range(num_steps)]


def test_a_spike_is_made_a_quarter_of_the_usual_value_and_the_next_step_is_ordinary():
    spikes = trained(even(64))
    assert 110.0 * spikes.judge(110.0) == pytest.approx(1.1 / 4, rel=0.01)  # levels have risen by a 512th of a doubling
    assert spikes.judge(1.1) == 1.0


def test_before_64_steps_nothing_is_extraordinary():
    assert SpikeDetector().judge(1e9) == 1.0
    assert trained(even(63)).judge(1e9) == 1.0
    assert trained(even(64)).judge(1e9) < 1.0


def test_the_limit_is_as_far_above_the_largest_as_that_is_above_the_usual():
    # largest 1.2, usual 1.1: the limit is 2 * 1.2 * 1.2 / 1.1 = 2.62
    assert trained(even(64)).judge(2.6) == 1.0
    assert trained(even(64)).judge(2.63) < 1.0
    # a heavy tail: largest 10, usual 1, limit 200
    tail = [10.0 if step % 16 == 7 else 1.0 for step in range(64)]
    assert trained(tail).judge(199.0) == 1.0
    assert trained(tail).judge(201.0) < 1.0


def test_a_shift_that_no_single_step_shows_is_seen_in_the_third():
    # limit of a median of five: 1.5 * 1.1 * 1.1 / 1.1 = 1.65, for medians are never above 1.1
    spikes = trained(even(64))
    assert [spikes.judge(2.4) < 1.0 for _ in range(4)] == [False, False, True, True]


def test_what_does_not_go_away_becomes_ordinary():
    spikes = trained(even(64))
    factors = [spikes.judge(5.0) for _ in range(3000)]
    assert factors[0] < 1.0
    assert factors[511] == pytest.approx(2 * factors[0], rel=0.01)
    assert factors[-1] == 1.0


def test_a_suspect_value_is_held_to_the_same_quarter_and_kept_out_of_the_levels():
    spikes = trained(even(64))
    assert spikes.judge(1.1, suspect=True) == pytest.approx(0.25, rel=0.01)
    assert spikes.judge(0.1, suspect=True) == 1.0
    assert SpikeDetector().judge(1.0, suspect=True) == 1.0


def test_a_fall_and_a_slow_rise_are_ordinary():
    trained([0.97**step for step in range(400)])
    trained([1.01**step for step in range(400)])


def test_chance_is_rarely_extraordinary():
    """Norms with a log-normal scatter of 0.1 to 1 over 512 steps: at most 2 of 40 workers."""
    random = np.random.default_rng(3)
    num_struck = 0
    for worker in range(40):
        spikes = SpikeDetector()
        values = np.exp((0.1 + 0.9 * worker / 39) * random.standard_normal(512)).tolist()
        num_struck += any(spikes.judge(value) < 1.0 for value in values)
    assert num_struck <= 2


@pytest.mark.parametrize(
    "values", [[0.0] * 100, [-1.0] * 100, [math.nan] * 100, [(-1.0) ** step for step in range(100)]]
)
def test_values_that_are_not_above_zero_have_no_ratio(values: list[float]):
    assert trained(values).judge(5.0) == 1.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=200))
def test_any_numbers_are_taken_and_factors_are_shares(values: list[float]):
    spikes = SpikeDetector()
    assert all(0.0 <= spikes.judge(value) <= 1.0 for value in values)
