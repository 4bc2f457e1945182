import json
import math
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import optimize, stats

from plesio.core.errors import ConfigError, DataError
from plesio.core.records import from_values, to_values
from plesio.cost.all_reduce import ring_all_reduce_s
from plesio.cost.fit import LineFit, alpha_beta_of_all_reduce, fit_line
from plesio.cost.link import Link

SIZES = [2.0**power for power in range(10, 31, 2)]


def noisy(law: Callable[[float], float], *, spread: float, seed: int):
    chance = random.Random(seed)
    return [law(size) * math.exp(chance.gauss(0, spread)) for size in SIZES]


@given(a=st.floats(1e-7, 1e-2), b=st.floats(1e-13, 1e-6))
def test_a_line_without_noise_is_found_with_intervals_of_no_width(a: float, b: float):
    fit = fit_line(SIZES, [a + b * size for size in SIZES])
    assert fit.at(0) == pytest.approx(a, rel=1e-6)
    assert [fit.at(size) for size in SIZES] == pytest.approx([a + b * size for size in SIZES], rel=1e-9)
    assert fit.residuals == pytest.approx([0.0] * len(SIZES), abs=1e-9)
    assert fit.intercept_ci95[1] - fit.intercept_ci95[0] < 1e-5 * a


@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.floats(1e-3, 1e3)), min_size=3, max_size=12, unique_by=lambda p: p[0]),
)
@example([(1.0, 1.0), (2.0, 4.0), (3.0, 9.0)])  # a negative intercept
@example([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)])  # a negative slope
def test_no_line_that_is_not_negative_has_smaller_relative_errors(points: list[tuple[float, float]]):
    x, y = zip(*points, strict=True)
    fit = fit_line(x, y)
    largest = max(x)
    rows = [[1 / value, one / largest / value] for one, value in points]
    _, norm = optimize.nnls(rows, [1.0] * len(rows))
    ours = math.hypot(*((value - fit.at(one)) / value for one, value in points))
    assert fit.intercept >= 0
    assert fit.slope >= 0
    assert ours == pytest.approx(norm, rel=1e-6, abs=1e-9)


def test_intervals_are_those_of_weighted_least_squares():
    y = noisy(lambda size: 20e-6 + size / 10e9, spread=0.1, seed=1)
    fit = fit_line(SIZES, y)
    # Independent of ours: the covariance that scipy estimates for errors proportional to y.
    found, covariance = optimize.curve_fit(
        lambda x, a, b: a * 1e-6 + b * 1e-9 * x, SIZES, y, p0=[1.0, 1.0], sigma=y, absolute_sigma=False
    )
    quantile = stats.t.ppf(0.975, len(SIZES) - 2)
    for value, interval, index, unit in (
        (fit.intercept, fit.intercept_ci95, 0, 1e-6),
        (fit.slope, fit.slope_ci95, 1, 1e-9),
    ):
        half = quantile * math.sqrt(covariance[index][index]) * unit
        assert value == pytest.approx(found[index] * unit, rel=1e-6)
        assert interval == pytest.approx((value - half, value + half), rel=1e-5)


@pytest.mark.parametrize("latency_s", [20e-6, 0.0])
def test_intervals_hold_the_truth_as_often_as_they_say(latency_s: float):
    held = [0, 0]
    runs = 600
    for seed in range(runs):
        fit = fit_line(SIZES, noisy(lambda size: latency_s + size / 10e9, spread=0.05, seed=seed))
        held[0] += fit.intercept_ci95[0] <= latency_s <= fit.intercept_ci95[1]
        held[1] += fit.slope_ci95[0] <= 1 / 10e9 <= fit.slope_ci95[1]
        assert fit.intercept_ci95[0] <= fit.intercept <= fit.intercept_ci95[1]
        assert fit.slope_ci95[0] <= fit.slope <= fit.slope_ci95[1]
    # 0.95 of 600 with three standard deviations (0.009 each) of the count; weights by measured y cost a little.
    assert min(held) / runs > 0.92
    assert max(held) / runs < 0.98


def test_a_negative_coefficient_becomes_zero_and_the_other_one_is_fitted_again():
    steeper = fit_line([1, 2, 3], [1, 4, 9])
    assert steeper.intercept == 0
    assert steeper.slope == pytest.approx((1 + 2 / 4 + 3 / 9) / (1 + 4 / 16 + 9 / 81))  # by hand: Σx/y over Σx²/y²
    assert steeper.intercept_ci95[0] == 0
    falling = fit_line([1, 2, 3], [3, 2, 1])
    assert falling.slope == 0
    assert falling.intercept == pytest.approx((1 / 3 + 1 / 2 + 1) / (1 / 9 + 1 / 4 + 1))
    assert falling.residuals == pytest.approx([value / falling.intercept - 1 for value in (3, 2, 1)])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1, 2], "3 different sizes or more; these 2 points have 2"),
        ([1, 1, 2, 2], [1, 1, 2, 2], "these 4 points have 2"),
        ([1, 2, 3], [1, 0, 3], "a measurement of 0 at 2"),
        ([1, 2, 3], [1, math.nan, 3], "a measurement of nan"),
        ([-1, 2, 3], [1, 2, 3], "a size of -1"),
        ([1, 2, 3], [1, 2], "3 sizes and 2 measurements"),
        ([0, 1, 100], [1e9, 0.01, 100], "would be 0 at 0"),
    ],
)
def test_points_with_no_line_are_refused(x: list[float], y: list[float], message: str):
    with pytest.raises(ConfigError, match=message):
        fit_line(x, y)


def test_a_fit_survives_json():
    fit = fit_line(SIZES, noisy(lambda size: 1e-5 + size / 1e9, spread=0.05, seed=3))
    assert from_values(json.loads(json.dumps(to_values(fit))), LineFit) == fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slope": "steep"}, r"Expected `float`, got `str` - at `\$.slope`"),
        ({"slope_ci95": [1.0]}, r"Expected `array` of length 2, got 1 - at `\$.slope_ci95`"),
        ({"colour": 1}, "unknown field `colour`"),
        ({"num_points": 4}, "3 residuals, not 4"),
        ({"slope": None}, r"got `null` - at `\$.slope`"),
    ],
)
def test_json_that_is_no_fit_is_refused(change: dict[str, object], message: str):
    data = to_values(fit_line([1, 2, 3], [1, 2, 3.1]))
    with pytest.raises(DataError, match=message):
        from_values({**data, **change}, LineFit)
    del data["intercept"]
    with pytest.raises(DataError, match="missing required field `intercept`"):
        from_values(data, LineFit)


@given(
    num_ranks=st.integers(2, 512),
    latency_s=st.floats(1e-7, 1e-3),
    bytes_per_s=st.floats(1e8, 1e12),
)
def test_the_links_of_a_ring_are_found_from_its_times(num_ranks: int, latency_s: float, bytes_per_s: float):
    links = {"num_ranks": num_ranks, "link": Link(latency_s=latency_s, bytes_per_s=bytes_per_s)}
    sizes = [size * num_ranks * latency_s * bytes_per_s for size in (0.01, 0.1, 1, 10, 100)]
    found = alpha_beta_of_all_reduce(
        fit_line(sizes, [ring_all_reduce_s(size, **links) for size in sizes]), num_ranks=num_ranks
    )
    assert found.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert found.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-6)


def test_intervals_of_the_links_are_those_of_the_line():
    fit = fit_line(SIZES, noisy(lambda size: 78.6e-6 + 1.75 * size / 227e9, spread=0.02, seed=5))
    links = alpha_beta_of_all_reduce(fit, num_ranks=8)
    assert links.latency_ci95_s == pytest.approx((fit.intercept_ci95[0] / 14, fit.intercept_ci95[1] / 14))
    low, high = links.bytes_per_s_ci95
    assert low < links.bytes_per_s < high
    assert 1.75 / low == pytest.approx(fit.slope_ci95[1])
    assert 1.75 / high == pytest.approx(fit.slope_ci95[0])


def test_a_slope_that_may_be_zero_bounds_the_bandwidth_from_below_only():
    small = [8.0, 64.0, 512.0, 4096.0]
    fit = fit_line(small, [40e-6, 41e-6, 39.5e-6, 40.5e-6])
    assert fit.slope_ci95[0] == 0
    links = alpha_beta_of_all_reduce(fit, num_ranks=8)
    assert links.bytes_per_s_ci95[1] == math.inf
    assert links.bytes_per_s_ci95[0] > 0


def test_links_that_no_times_can_show_are_refused():
    rising = fit_line([1, 2, 3], [1, 2, 3.1])
    with pytest.raises(ConfigError, match="2 or more"):
        alpha_beta_of_all_reduce(rising, num_ranks=1)
    with pytest.raises(ConfigError, match="measure larger messages"):
        alpha_beta_of_all_reduce(fit_line([1, 2, 3], [3, 2, 1]), num_ranks=8)


def test_importing_costs_no_scipy():
    code = "import sys, plesio.cost.fit; assert 'scipy' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
