import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from plesio.report.statistics import Spread, difference_of, ratio_of

FINITE = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


def spread(values: list[float], *, first_seed: int = 0) -> Spread:
    made = Spread.of(dict(enumerate(values, start=first_seed)))
    assert made is not None
    return made


def varies(values: list[float]) -> bool:
    return float(np.std(values)) > 1e-6 * (1 + max(abs(value) for value in values))


@given(st.lists(st.tuples(FINITE, FINITE), min_size=2, max_size=12))
def test_coinciding_seeds_are_compared_by_the_paired_t_test(pairs: list[tuple[float, float]]):
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    difference = difference_of(spread(ours), baseline=spread(theirs))
    assert difference.paired
    assert difference.mean == pytest.approx(np.mean(ours) - np.mean(theirs), abs=1e-6)
    if varies([first - second for first, second in pairs]):
        expected = stats.ttest_rel(ours, theirs)
        interval = expected.confidence_interval(0.95)
        assert difference.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
        assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


@given(st.lists(FINITE, min_size=2, max_size=8), st.lists(FINITE, min_size=2, max_size=8))
def test_other_seeds_are_compared_by_welchs_test(ours: list[float], theirs: list[float]):
    difference = difference_of(spread(ours), baseline=spread(theirs, first_seed=100))
    assert not difference.paired
    if varies(ours) and varies(theirs):
        expected = stats.ttest_ind(ours, theirs, equal_var=False)
        interval = expected.confidence_interval(0.95)
        assert difference.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
        assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


def test_a_paired_test_by_hand():
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 2*sqrt(3) with 2 degrees of freedom.
    difference = difference_of(spread([2.0, 4.0, 6.0]), baseline=spread([1.0, 2.0, 3.0]))
    t = 2 * math.sqrt(3)
    by_hand = 1 - t / math.sqrt(2 + t * t)  # two-sided p of Student's t with 2 degrees of freedom
    assert difference.p_value == pytest.approx(by_hand)
    assert not difference.shown


@pytest.mark.parametrize("other", [[0.5], [0.5, 0.6]])
def test_one_seed_gets_no_test(other: list[float]):
    difference = difference_of(spread([0.7]), baseline=spread(other))
    assert (difference.low, difference.high, difference.p_value) == (None, None, None)
    assert not difference.shown
    assert not difference.identical


def test_the_same_values_are_identical_and_show_no_difference():
    difference = difference_of(spread([0.9, 0.95]), baseline=spread([0.9, 0.95]))
    assert difference.identical
    assert difference.p_value == 1.0


def test_a_difference_that_never_varies_is_shown():
    difference = difference_of(spread([2.0, 3.0]), baseline=spread([1.0, 2.0]))
    assert (difference.low, difference.high) == (1.0, 1.0)
    assert difference.shown


def test_a_ratio_is_the_geometric_mean_over_seeds_and_inverts():
    ratio = ratio_of(spread([2.0, 8.0]), denominator=spread([1.0, 1.0]))
    inverse = ratio_of(spread([1.0, 1.0]), denominator=spread([2.0, 8.0]))
    assert ratio is not None
    assert inverse is not None
    assert ratio.value == pytest.approx(4.0)
    assert inverse.value == pytest.approx(0.25)
    assert ratio.p_value == pytest.approx(inverse.p_value)


def test_there_is_no_ratio_to_nothing():
    assert ratio_of(spread([1.0]), denominator=spread([0.0])) is None
    assert ratio_of(None, denominator=spread([1.0])) is None
