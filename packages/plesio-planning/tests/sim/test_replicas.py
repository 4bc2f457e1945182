import pytest

from plesio.cost.reliability import expected_slowdown
from plesio_planning.sim.checkpoints import CheckpointTimes, simulate_long_run
from plesio_planning.sim.replicas import Elastic, simulate_replicas

HOUR = 3600.0


def elastic(**changes: float) -> Elastic:
    times = {"replica_mtbf_s": 1000 * HOUR, "away_s": HOUR, "reconfigure_s": 0.0, **changes}
    return simulate_replicas(num_replicas=50, num_failures=40_000, **times)  # type: ignore[arg-type]


def test_replicas_are_away_as_long_as_repairs_take():
    """Each is at work for its mean life and then away: ``repair / (life + repair)`` of the time (renewal theory)."""
    for away_s in (HOUR, 100 * HOUR, 1000 * HOUR):
        one = elastic(away_s=away_s)
        assert one.away == pytest.approx(away_s / (1000 * HOUR + away_s), rel=0.02)
        assert one.waiting == 0
        assert one.work + one.away == pytest.approx(1)


def test_all_wait_at_every_failure_and_every_return():
    """Rare changes: two waits a failure, one of all replicas but the failed, and one of all."""
    one = elastic(reconfigure_s=60.0)
    assert one.waiting == pytest.approx(2 * 50 * 60 / (1000 * HOUR), rel=0.03)


def test_waits_that_overlap_begin_anew():
    """Changes come at twice the failures' rate; time with none for a while d before is ``e^(-2 d rate)`` of it all."""
    one = elastic(reconfigure_s=5 * HOUR, away_s=HOUR / 100)
    rate = 50 / (1000 * HOUR)
    # a return follows its failure at once here, so both are one change
    assert one.work == pytest.approx(2.718281828 ** (-rate * 5 * HOUR), rel=0.02)


def test_a_single_replica_is_a_run_that_waits_for_its_repair():
    one = simulate_replicas(num_replicas=1, replica_mtbf_s=10 * HOUR, away_s=HOUR, reconfigure_s=0.0)
    assert one.work == pytest.approx(10 / 11, rel=0.01)


def test_the_interval_covers_what_long_simulations_find():
    sure = simulate_replicas(
        num_replicas=20, replica_mtbf_s=1e5, away_s=1e3, reconfigure_s=100.0, num_failures=400_000, seed=99
    )
    inside = 0
    for seed in range(20):
        one = simulate_replicas(
            num_replicas=20, replica_mtbf_s=1e5, away_s=1e3, reconfigure_s=100.0, num_failures=4000, seed=seed
        )
        low, high = one.work_ci95
        inside += low <= sure.work <= high
    assert inside >= 15  # of 20, of which a fair 95 % interval misses more than 5 once in 3000 times


@pytest.mark.parametrize("restart_s", [0.0, 600.0, 20_000.0])
def test_a_run_without_an_end_has_the_closed_form(restart_s: float):
    times = {"interval_s": 600.0, "checkpoint_s": 20.0, "mtbf_s": 5000.0, "restart_s": restart_s}
    run = simulate_long_run(CheckpointTimes(**times), num_failures=200_000)
    low, high = run.work_ci95
    assert run.work == pytest.approx(1 / expected_slowdown(**times), abs=3.3 / 1.96 * (high - low) / 2)
    assert run.work + run.writing + run.lost + run.restarts == pytest.approx(1)
    assert run.writing == pytest.approx(run.work * 20 / 600)
