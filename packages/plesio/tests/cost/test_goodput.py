"""The effect of failures and states on work."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.goodput import expected_goodput
from plesio.cost.reliability import expected_slowdown
from plesio_planning.sim.checkpoints import CheckpointTimes, simulate_runs

WORK_S = 30 * 86_400.0
durations = st.floats(1.0, 3600.0)


@given(checkpoint_s=durations, restart_s=durations, mtbf_s=st.floats(3600.0, 1e8))
def test_parts_add_up_to_dalys_total(checkpoint_s: float, restart_s: float, mtbf_s: float):
    run = expected_goodput(WORK_S, checkpoint_s=checkpoint_s, restart_s=restart_s, mtbf_s=mtbf_s)
    slowdown = expected_slowdown(
        interval_s=run.interval_s, checkpoint_s=checkpoint_s, mtbf_s=mtbf_s, restart_s=restart_s
    )
    assert run.total_s == pytest.approx(WORK_S * slowdown, rel=1e-9)
    assert min(run.parts.values()) >= 0
    # after each of the failures, M (1 - e^(-R/M)) until the state is back or the next one comes
    once_s = mtbf_s * -math.expm1(-restart_s / mtbf_s)
    assert run.restarts_s == pytest.approx(run.num_failures * once_s, rel=1e-9)


@given(checkpoint_s=durations, factor=st.sampled_from([0.5, 0.8, 1.25, 2.0]))
def test_no_interval_beats_the_best(checkpoint_s: float, factor: float):
    best = expected_goodput(WORK_S, checkpoint_s=checkpoint_s, restart_s=600, mtbf_s=36_000)
    other = expected_goodput(
        WORK_S, checkpoint_s=checkpoint_s, restart_s=600, mtbf_s=36_000, interval_s=factor * best.interval_s
    )
    assert best.total_s <= other.total_s * (1 + 1e-12)


def test_simulated_runs_have_the_expected_mean_and_deviation():
    run = expected_goodput(WORK_S, checkpoint_s=30, restart_s=600, mtbf_s=36_000)
    num_segments = round(WORK_S / run.interval_s)
    times = CheckpointTimes(interval_s=WORK_S / num_segments, checkpoint_s=30, mtbf_s=36_000, restart_s=600)
    runs = simulate_runs(times, num_segments=num_segments, num_runs=20_000)
    low, high = runs.slowdown_ci95
    assert low < run.total_s / WORK_S < high
    assert runs.num_failures.mean() == pytest.approx(run.num_failures, rel=0.01)
    # of 20,000 runs a standard deviation is known to 0.5 %, and the formula leaves terms of I/M = 4 % out
    assert runs.elapsed_s.std() == pytest.approx(run.deviation_s, rel=0.04)


def test_llama_3_was_over_90_percent_effective():
    """Grattafiori et al. 2024, section 3.3.4: 419 interruptions in 54 days, 2 TB/s of storage; 10 minutes are ours."""
    run = expected_goodput(54 * 86_400, checkpoint_s=405e9 * 14 / 2e12, restart_s=600, mtbf_s=54 * 86_400 / 419)
    assert 0.90 < run.share < 0.95


def test_a_run_that_would_hardly_ever_end_is_refused():
    with pytest.raises(ConfigError, match="write a longer cluster_mtbf_s"):
        expected_goodput(WORK_S, checkpoint_s=3600, restart_s=600, mtbf_s=60)
    with pytest.raises(ConfigError, match="write a longer cluster_mtbf_s"):
        expected_goodput(WORK_S, checkpoint_s=1, restart_s=6000, mtbf_s=60)


def test_a_run_shorter_than_the_best_interval_writes_its_result():
    run = expected_goodput(60, checkpoint_s=1, restart_s=1, mtbf_s=1e9)
    assert (run.interval_s, run.checkpoints_s) == (60, 1)
