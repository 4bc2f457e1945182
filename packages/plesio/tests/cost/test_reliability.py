import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.reliability import (
    best_interval_s,
    check_run_ends,
    cluster_mtbf_s,
    daly_interval_s,
    expected_slowdown,
    slowdown_parts,
    young_interval_s,
)

MINUTE_S = 60.0
times_s = st.floats(1e-3, 1e7)


def test_reference_values():
    """studies/reference.md, study 14."""
    assert young_interval_s(checkpoint_s=12 * 60, mtbf_s=1080 * 60) == pytest.approx(160.997 * 60, abs=0.03)
    assert young_interval_s(checkpoint_s=6 * 60, mtbf_s=1080 * 60) == pytest.approx(113.84 * 60, abs=0.3)
    assert cluster_mtbf_s(part_mtbf_s=5 * 365 * 86400, num_parts=1000) == pytest.approx(43.8 * 3600, abs=180)


def test_the_best_interval_of_the_golden_example_is_that_of_five_minutes_and_21_hours():
    """108.94 min at 9.464 % is what C = 5 min and M = 1260 min give; C = 6 min and M = 1080 min give 109.88 min."""
    best_s = best_interval_s(checkpoint_s=300, mtbf_s=1260 * 60)
    assert best_s == pytest.approx(108.94 * 60, abs=0.3)
    assert expected_slowdown(interval_s=best_s, checkpoint_s=300, mtbf_s=1260 * 60) == pytest.approx(1.09464, abs=5e-6)
    assert best_interval_s(checkpoint_s=360, mtbf_s=1080 * 60) == pytest.approx(109.88 * 60, abs=0.3)


@given(checkpoint_s=times_s, mtbf_s=times_s, factor=st.floats(0.5, 2.0))
def test_no_other_interval_is_better(checkpoint_s: float, mtbf_s: float, factor: float):
    best_s = best_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    if checkpoint_s + 2 * best_s > 700 * mtbf_s:
        return
    least = expected_slowdown(interval_s=best_s, checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    other = expected_slowdown(interval_s=factor * best_s, checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    assert least <= other * (1 + 1e-9)


@given(mtbf_s=times_s, ratio=st.floats(1e-8, 1e-4))
def test_young_and_daly_approach_the_best_where_writing_is_short(mtbf_s: float, ratio: float):
    times = {"checkpoint_s": ratio * mtbf_s, "mtbf_s": mtbf_s}
    assert young_interval_s(**times) == pytest.approx(best_interval_s(**times), rel=math.sqrt(ratio))
    assert daly_interval_s(**times) == pytest.approx(best_interval_s(**times), rel=ratio)


@given(checkpoint_s=times_s, mtbf_s=times_s)
def test_the_best_interval_is_never_above_youngs_nor_the_mean_time_between_failures(checkpoint_s: float, mtbf_s: float):
    best_s = best_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    assert best_s <= min(young_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s), mtbf_s) * (1 + 1e-9)


def test_the_mean_of_simulated_segments_is_the_formulas():
    """5 standard errors of 100,000 segments."""
    mtbf_s, restart_s, segment_s, num_segments = 100.0, 20.0, 70.0, 100_000
    random = np.random.default_rng(0)
    took_s = np.zeros(num_segments)
    left = np.ones(num_segments, bool)  # segments that have not ended
    restarting = np.zeros(num_segments, bool)
    while left.any():
        need_s = np.where(restarting, restart_s, segment_s)
        until_failure_s = random.exponential(mtbf_s, num_segments)
        done = until_failure_s >= need_s
        took_s += np.where(left, np.minimum(until_failure_s, need_s), 0.0)
        left &= ~(done & ~restarting)
        restarting = left & ~(restarting & done)
    expected = expected_slowdown(interval_s=60.0, checkpoint_s=10.0, mtbf_s=mtbf_s, restart_s=restart_s) * 60.0
    assert took_s.mean() == pytest.approx(expected, abs=5 * took_s.std() / math.sqrt(num_segments))


@pytest.mark.parametrize("bad", [{"checkpoint_s": 0.0}, {"mtbf_s": 0.0}, {"mtbf_s": math.nan}])
def test_impossible_times_are_refused(bad: dict[str, float]):
    with pytest.raises(ConfigError, match="write more than 0"):
        best_interval_s(**{"checkpoint_s": 1.0, "mtbf_s": 10.0, **bad})


def test_a_segment_that_never_ends_takes_for_ever():
    assert expected_slowdown(interval_s=1e6, checkpoint_s=1.0, mtbf_s=1.0) == math.inf
    assert slowdown_parts(interval_s=1.0, checkpoint_s=1.0, mtbf_s=1.0, lag_s=1e6)["lost work"] == math.inf


@given(interval_s=times_s, mtbf_s=times_s, restart_s=st.floats(0, 1e4), lag_s=st.floats(0, 1e4))
def test_parts_are_those_of_dalys_total(interval_s: float, mtbf_s: float, restart_s: float, lag_s: float):
    """A lag costs what a longer restart would, and is lost, not restarting."""
    times = {"interval_s": interval_s, "checkpoint_s": 1.0, "mtbf_s": mtbf_s}
    if interval_s + 1 + restart_s + lag_s > 500 * mtbf_s:
        return
    parts = slowdown_parts(**times, restart_s=restart_s, lag_s=lag_s)
    total = mtbf_s * math.exp((restart_s + lag_s) / mtbf_s) * math.expm1((interval_s + 1) / mtbf_s) / interval_s
    assert 1 + math.fsum(parts.values()) == pytest.approx(total, rel=1e-9)
    assert parts["restarts"] == pytest.approx(-math.expm1(-restart_s / mtbf_s) * total, rel=1e-9)


def test_a_run_that_hardly_ever_ends_is_refused():
    times = {"interval_s": 100.0, "checkpoint_s": 1.0, "mtbf_s": 100.0}
    check_run_ends(**times)
    with pytest.raises(ConfigError, match="write a longer cluster_mtbf_s"):
        check_run_ends(**times, restart_s=1000.0)
    for restart_s in (1e4, 1e6):
        with pytest.raises(ConfigError, match="more than a billion times"):
            check_run_ends(**times, restart_s=restart_s)
