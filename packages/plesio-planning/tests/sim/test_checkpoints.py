from itertools import pairwise, repeat

import pytest

from plesio.cost.reliability import expected_slowdown
from plesio_planning.sim.checkpoints import CheckpointTimes, simulate_runs, trace_run

HOUR = 3600.0


@pytest.mark.parametrize("interval_s", [0.5 * HOUR, 2 * HOUR, 6 * HOUR])
@pytest.mark.parametrize("restart_s", [0.0, 0.25 * HOUR])
def test_failures_without_memory_give_the_closed_form(interval_s: float, restart_s: float):
    """Within the 99.9 % interval, for twelve tests look at once."""
    times = {"interval_s": interval_s, "checkpoint_s": 300.0, "mtbf_s": 20 * HOUR, "restart_s": restart_s}
    runs = simulate_runs(CheckpointTimes(**times), num_segments=200, num_runs=4000)
    low, high = runs.slowdown_ci95
    assert runs.slowdown == pytest.approx(expected_slowdown(**times), abs=3.3 / 1.96 * (high - low) / 2)
    assert high - low < 0.01


def test_a_lag_costs_a_restart_that_is_longer_by_it():
    times = {"interval_s": HOUR, "checkpoint_s": 5.0, "mtbf_s": 10 * HOUR}
    late = CheckpointTimes(restart_s=0.1 * HOUR, lag_s=0.5 * HOUR, **times)
    runs = simulate_runs(late, num_segments=500, num_runs=4000)
    low, high = runs.slowdown_ci95
    last_state = 0.5 * HOUR / runs.work_s  # a run also waits for its last state
    assert low <= expected_slowdown(restart_s=0.6 * HOUR, **times) + last_state <= high


def test_the_interrupted_and_the_sure():
    never = CheckpointTimes(interval_s=10.0, checkpoint_s=1.0, mtbf_s=1e15, lag_s=4.0)
    sure = simulate_runs(never, num_segments=3, num_runs=2)
    assert sure.elapsed_s.tolist() == [37.0, 37.0]
    assert sure.num_failures.tolist() == [0, 0]
    times = CheckpointTimes(interval_s=10.0, checkpoint_s=1.0, mtbf_s=20.0)
    often = simulate_runs(times, num_segments=3, num_runs=500)
    assert often.num_failures.sum() * 20.0 == pytest.approx(often.elapsed_s.sum(), rel=0.1)  # Wald


def test_a_run_is_traced_without_gaps():
    phases = trace_run(repeat(25.0), until_s=100.0, interval_s=9.0, checkpoint_s=1.0, restart_s=5.0)
    assert phases[0].start_s == 0
    for phase, after in pairwise(phases):
        assert phase.end_s == after.start_s > phase.start_s
    assert sum(phase.kind == "restart" for phase in phases) == 3
    assert {phase.end_s - phase.start_s for phase in phases if phase.kind == "work"} == {9.0}


def test_who_fails_while_restarting_begins_to_restart_again():
    phases = trace_run(iter([12.0, 3.0, 99.0]), until_s=40.0, interval_s=9.0, checkpoint_s=1.0, restart_s=5.0)
    assert [phase.kind for phase in phases[:5]] == ["work", "writing", "lost", "restart", "restart"]
