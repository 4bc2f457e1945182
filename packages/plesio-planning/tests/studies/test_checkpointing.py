import math

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.studies import checkpointing
from plesio_planning.studies.models.checkpointing import most_checkpoint_s, published_failures

MINUTE = 60.0


def test_reference_values():
    """studies/reference.md, study 14, whose exact optimum is that of C=5 min, M=21 h."""
    answer = checkpointing()
    assert answer.best_s / MINUTE == pytest.approx(108.94, abs=0.005)
    assert answer.slowdown - 1 == pytest.approx(0.09464, abs=5e-6)
    young = {C: checkpointing(checkpoint_s=C * MINUTE, cluster_mtbf_s=1080 * MINUTE).young_s / MINUTE for C in (6, 12)}
    assert young[12] == pytest.approx(160.997, abs=5e-4)
    assert young[6] == pytest.approx(113.84, abs=5e-3)
    mtbf_s, _ = answer.by_hosts[1000]
    assert mtbf_s / 3600 == pytest.approx(43.8, abs=0.05)


def test_a_failure_undoes_half_an_interval():
    answer = checkpointing()
    assert answer.lost_s == pytest.approx((answer.best_s + answer.checkpoint_s) / 2, rel=0.02)
    short = checkpointing(checkpoint_interval_s=600.0)
    assert short.lost_s == pytest.approx((600 + 300) / 2, rel=0.002)


def test_simulation_agrees_with_the_exact_formula():
    for answer in (checkpointing(), checkpointing(restart_s=600.0)):
        for one in answer.simulated:
            low, high = one.poisson_ci95
            assert low <= one.exact <= high


def test_other_intervals_cost_more():
    answer = checkpointing()
    overheads = {one.factor: one.exact for one in answer.simulated}
    assert min(overheads, key=lambda factor: overheads[factor]) == 1
    assert overheads[0.25] > overheads[0.5] > overheads[1] < overheads[2] < overheads[4]
    assert checkpointing(checkpoint_interval_s=2 * answer.best_s).slowdown == pytest.approx(overheads[2])


def test_ways_are_better_the_less_a_run_stands_still():
    full, partial, sharded, asynchronous = checkpointing(restart_s=300.0).ways
    assert full.slowdown > partial.slowdown
    assert full.slowdown > sharded.slowdown > asynchronous.slowdown
    assert sharded.costs.checkpoint_s == full.costs.checkpoint_s / 4  # of eight writers the storage keeps up with four
    assert partial.costs.restart_s > full.costs.restart_s == asynchronous.costs.restart_s
    for way in (full, partial, sharded, asynchronous):
        assert math.fsum(way.parts.values()) == pytest.approx(way.slowdown - 1)
        assert way.interval_s >= way.costs.lag_s


def test_more_generations_are_safer():
    kept = checkpointing(unreadable=0.1).generations
    lost = [kept[number][1] for number in sorted(kept)]
    assert lost == sorted(lost, reverse=True)
    assert kept[1][0] == 0
    assert kept[2][0] == pytest.approx(0.1 * 0.9)


def test_published_runs_are_compared_by_their_hosts():
    rows = dict(published_failures().rows)
    assert rows["BLOOM: a host fails every"] == "336 days"
    assert rows["Llama 3: a host fails every"] == "264 days"
    assert not any("node" in what for what in rows)


def test_what_a_target_leaves_for_a_state():
    assert most_checkpoint_s(overhead=0.09464, mtbf_s=21 * 3600) == pytest.approx(300, rel=1e-3)
    assert most_checkpoint_s(overhead=0.01, mtbf_s=3600, restart_s=60) == 0


def test_a_run_that_hardly_ever_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match="write a longer cluster_mtbf_s"):
        checkpointing(cluster_mtbf_s=60.0)


def test_a_state_that_is_written_at_once_costs_nothing() -> None:
    answer = checkpointing(checkpoint_s=1e-9, num_runs=20)
    assert answer.slowdown == pytest.approx(1, abs=1e-6)
    assert len(answer.drawn) < 100
