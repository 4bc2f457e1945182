"""Tests against values from books and by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from plesio.report.characterisation import pareto_front
from plesio.report.inference import (
    MIN_SEEDS,
    brown_forsythe,
    hedges_g,
    holm,
    judge_difference,
    judge_ratio,
    judge_spread,
    least_visible,
    size_word,
)
from plesio.report.statistics import Spread


def spread(*values: float, first_seed: int = 0) -> Spread:
    made = Spread.of({first_seed + place: value for place, value in enumerate(values)})
    assert made is not None
    return made


def test_holm_adjusts_as_in_the_worked_example():
    # Four hypotheses at p = 0.01, 0.04, 0.03, 0.005: 4 x 0.005, 3 x 0.01, 2 x 0.03, then no less than that.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_the_order_and_is_between_none_and_bonferroni(p_values: list[float]):
    adjusted = holm(p_values)
    for before, after in zip(p_values, adjusted, strict=True):
        assert before <= after <= 1
    for one, other in zip(sorted(zip(p_values, adjusted, strict=True)), sorted(adjusted), strict=True):
        assert one[1] == other
    assert adjusted[p_values.index(min(p_values))] == pytest.approx(min(1.0, min(p_values) * len(p_values)))


def test_brown_and_forsythe_by_hand():
    # Distances from the medians: 2 1 0 1 2 and 8 4 0 4 8. Between: 32.4 with 1 degree, within: 47.6 with 8.
    f = 32.4 / (47.6 / 8)
    found = brown_forsythe([1, 2, 3, 4, 5], [1, 5, 9, 13, 17])
    assert found == pytest.approx(float(stats.f.sf(f, 1, 8)))


@pytest.mark.parametrize(("one", "other"), [([1.0, 2.0], [1.0, 5.0]), ([2.0] * 4, [3.0] * 4)])
def test_few_values_or_none_that_vary_are_not_tested(one: list[float], other: list[float]):
    assert brown_forsythe(one, other) is None


def test_the_effect_size_is_in_common_standard_deviations_corrected_for_few():
    assert hedges_g([3, 4, 5], [1, 2, 3]) == pytest.approx(2 * (1 - 3 / 15))
    assert hedges_g([3.0], [1.0, 2.0]) is None
    assert hedges_g([3.0, 3.0], [1.0, 1.0]) is None
    assert [size_word(g) for g in (0.1, -0.4, 0.7, -3)] == ["negligible", "small", "medium", "large"]


def test_what_three_seeds_can_show():
    assert least_visible(3) == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)  # Student's t, 2 degrees, 97.5 %


def test_seeds_that_coincide_are_compared_in_pairs_others_by_welch():
    ours, theirs = (1.0, 2.0, 4.0), (0.5, 1.4, 3.7)
    paired = judge_difference(spread(*ours), baseline=spread(*theirs))
    welch = judge_difference(spread(*ours, first_seed=3), baseline=spread(*theirs))
    assert paired.paired
    assert not welch.paired
    assert paired.p_value == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert welch.p_value == pytest.approx(stats.ttest_ind(ours, theirs, equal_var=False).pvalue)


def test_a_ratio_is_of_geometric_means():
    one = judge_ratio(spread(2.0, 4.0, 8.0), baseline=spread(1.0, 2.0, 4.0))
    assert one is not None
    assert (one.value, one.low, one.high) == pytest.approx((2.0, 2.0, 2.0))
    assert judge_ratio(spread(0.0), baseline=spread(1.0)) is None


def test_fewer_than_three_seeds_allow_no_claim():
    two = spread(1.0, 1.1), spread(9.0, 9.1)
    assert MIN_SEEDS == 3
    for one in (judge_difference(two[0], baseline=two[1]), judge_ratio(two[0], baseline=two[1])):
        assert one is not None
        assert (one.p_value, one.low, one.high, one.shown) == (None, None, None, False)
    wide = judge_spread(two[0], baseline=two[1])
    assert wide is not None
    assert wide.p_value is None


def test_the_front_is_what_nobody_beats():
    assert pareto_front({"a": (1.0, 1.0), "b": (1.0, 2.0), "c": (2.0, 2.0), "d": (3.0, 3.0)}) == ["b", "d"]
    assert pareto_front({}) == []
