import math
from pathlib import Path

import numpy as np
import pytest

from plesio.core.errors import DataError
from plesio_planning.studies import stragglers
from plesio_planning.studies.order_statistics import GammaTimes, LogNormalTimes, ParetoTimes, TraceTimes, UniformTimes

REFERENCE = {
    64: {0.05: 1.123, 0.1: 1.258, 0.2: 1.566, 0.3: 1.923, 0.5: 2.77},
    256: {0.05: 1.151, 0.1: 1.320, 0.2: 1.722, 0.3: 2.21, 0.5: 3.46},
}
"""studies/reference.md, study 2: E[max] over the mean of lognormal times."""


def test_reference_values():
    answer = stragglers()
    cells = {(point.num_workers, point.cv): point.cost for point in answer.grid}
    for num_workers, by_cv in REFERENCE.items():
        for cv, cost in by_cv.items():
            digits = 0.0006 if cost < 2 else 0.006
            assert cells[num_workers, cv] == pytest.approx(cost, abs=digits)
    for backups, cost in {4: 1.78, 8: 1.65, 13: 1.55, 26: 1.41}.items():
        assert answer.backups[backups] == pytest.approx(cost, abs=0.006)
    assert answer.cost == answer.backups[0] == pytest.approx(cells[256, 0.3])


@pytest.mark.parametrize("distribution", ["lognormal", "gamma", "uniform"])
def test_the_simulation_agrees_with_the_integral(distribution: str):
    """Four half-widths of a 95 % interval are eight standard errors."""
    answer = stragglers(num_workers=64, distribution=distribution)  # type: ignore[arg-type]
    half = (answer.simulated_cost.high - answer.simulated_cost.low) / 2
    assert abs(answer.simulated_cost.mean - answer.cost) < 4 * half
    assert half < 0.02 * answer.cost


def test_closed_forms_of_order_statistics():
    harmonic = sum(1 / k for k in range(1, 65))
    assert GammaTimes(mean_s=1.0, cv=1.0).expected_s(rank=64, of=64) == pytest.approx(harmonic, rel=1e-9)
    assert UniformTimes(low_s=1.0, high_s=2.0).expected_s(rank=9, of=9) == pytest.approx(1.9, rel=1e-9)
    shape, number = 1.5, 256  # n B(n, 1 - 1/a) times the minimum
    exact = number * math.exp(math.lgamma(number) + math.lgamma(1 - 1 / shape) - math.lgamma(number + 1 - 1 / shape))
    assert ParetoTimes(mean_s=3.0, shape=shape).expected_s(rank=number, of=number) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    "times",
    [
        LogNormalTimes(mean_s=2.0, cv=0.5),
        GammaTimes(mean_s=2.0, cv=0.5),
        UniformTimes(low_s=1.0, high_s=3.0),
        ParetoTimes(mean_s=2.0, shape=3.0),
        TraceTimes(np.array([1.0, 1.0, 2.0, 4.0])),
    ],
    ids=lambda times: type(times).__name__,
)
def test_order_statistics_add_up_to_the_sum(times: LogNormalTimes):
    """All n of n together are n durations, whoever is the fastest."""
    expected = [times.expected_s(rank=rank, of=7) for rank in range(1, 8)]
    assert expected == sorted(expected)
    assert sum(expected) == pytest.approx(7 * times.mean_s, rel=1e-6)


def test_pareto_without_variance_reports_quantiles():
    answer = stragglers(distribution="pareto", shape=1.5)
    assert not answer.has_variance
    assert "quantiles" in answer.finding
    minimum = 1 - 1 / 1.5
    assert answer.quantiles[0.5] == pytest.approx(minimum * (1 - 0.5 ** (1 / 256)) ** (-1 / 1.5), rel=1e-9)


def test_a_trace_is_read_and_its_largest_duration_is_the_most_that_can_happen(tmp_path: Path):
    trace = tmp_path / "steps.txt"
    trace.write_text("10 ms\n10 ms\n20 ms\n40 ms\n")
    answer = stragglers(distribution="trace", trace=str(trace), num_workers=2)
    expected = (10 * 0.25 + 20 * (9 / 16 - 4 / 16) + 40 * (1 - 9 / 16)) / 20
    assert answer.cost == pytest.approx(expected)
    assert stragglers(distribution="trace", trace=str(trace), num_workers=9999, num_steps=2).cost == pytest.approx(2.0)


def test_a_persistently_slow_worker_is_not_averaged_away():
    composed = stragglers(slowdown=2.0).composed
    assert composed.slowest_worker == 255
    assert composed.slowest_share > 0.99
    assert composed.cost_by_period[16] > 1.9
    assert composed.shuffled_by_period[16] < 1.3


def test_without_causes_all_are_the_slowest_equally_often():
    composed = stragglers(num_workers=4, slowdown=1.0, stage_weights=(1.0,), num_steps=8000).composed
    assert max(abs(share - 0.25) for share in composed.slowest_shares) < 0.025  # five standard deviations


def test_a_trace_that_is_not_there_is_refused():
    with pytest.raises(DataError, match="cannot read"):
        stragglers(distribution="trace", trace="/nowhere/steps.txt")


def test_a_heavy_tail_has_a_percentile_where_it_has_no_variance():
    """For the coefficient of variation E[max] differs more between distributions than for the percentile."""
    tails = stragglers().tails
    lognormal = {point.cv: point.cost for point in tails.points if point.kind == "lognormal"}
    assert lognormal[0.3] == pytest.approx(2.211, abs=0.001)
    heaviest = tails.points[-1]
    assert heaviest.kind == "pareto"
    assert math.isinf(heaviest.cv)
    assert heaviest.p99_over_median == pytest.approx(50 ** (1 / 1.5))
    low, high = tails.efficiencies_at(1.8)
    at_cv = [100 / point.cost for point in tails.points if point.cv == 0.3]
    assert high - low < 0.5 * (max(at_cv) - min(at_cv))
