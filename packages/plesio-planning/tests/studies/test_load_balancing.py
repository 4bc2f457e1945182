import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio_planning.studies import load_balancing
from plesio_planning.studies.models.load_balancing import LoadBalancing
from plesio_planning.studies.work_shares import divide, moved, unweighted_variance


@pytest.fixture(scope="module")
def answer() -> LoadBalancing:
    return load_balancing()


def test_reference_values(answer: LoadBalancing):
    """studies/reference.md, study 8, each within its confidence interval and the reference's rounding."""
    assert answer.gain.ratio == pytest.approx(1.36, abs=answer.gain.ratio_error + 0.005)
    by_cv = {gain.distribution: gain for gain in answer.gains if gain.num_workers == 16}
    for cv, expected in ((0.1, 1.20), (0.2, 1.45), (0.3, 1.77), (0.5, 2.64)):
        gain = by_cv[f"lognormal, CV {cv:g}"]
        assert gain.ratio == pytest.approx(expected, abs=gain.ratio_error + 0.005)


@given(
    speeds=st.lists(st.floats(0.05, 20.0), min_size=1, max_size=12),
    per_worker=st.integers(1, 50),
    spare=st.integers(0, 30),
)
def test_shares_are_whole_add_up_and_keep_to_the_caps(speeds: list[float], per_worker: int, spare: int):
    total = per_worker * len(speeds)
    shares = divide(total, speeds, cap=per_worker + spare)
    assert shares.sum() == total
    assert shares.min() >= 0
    assert shares.max() <= per_worker + spare
    free = divide(total, speeds)
    assert free.sum() == total
    exact = total * np.array(speeds) / sum(speeds)
    assert np.abs(free - exact).max() < 1 + 1e-6


@given(
    counts=st.lists(st.tuples(st.integers(0, 60), st.floats(0.1, 10.0)), min_size=2, max_size=10),
    most=st.integers(1, 10),
)
def test_shares_move_no_further_than_they_may(counts: list[tuple[int, float]], most: int):
    current = np.array([count for count, _ in counts])
    wanted = divide(int(current.sum()), [speed for _, speed in counts])
    now = moved(current, wanted, most=most)
    assert now.sum() == current.sum()
    assert np.abs(now - current).max(initial=0) <= most
    assert (np.abs(wanted - now) <= np.abs(wanted - current)).all()


def test_proportional_shares_are_the_least_time_and_caps_cost(answer: LoadBalancing):
    assert answer.proportional_s <= answer.capped_s <= answer.equal_s
    tight = load_balancing(cap=33, num_clusters=500, num_steps=60)
    assert tight.capped_s > load_balancing(cap=60, num_clusters=500, num_steps=60).capped_s


def test_rebalancing_follows_drift_within_its_bound(answer: LoadBalancing):
    by_name = {one.name: one for one in answer.balanced}
    means = {name: float(np.mean(one.step_s)) for name, one in by_name.items()}
    assert means["rebalanced"] < means["proportional, once"] < means["equal"]
    assert by_name["rebalanced"].largest_move <= 2
    assert all(sum(one.slowest) == pytest.approx(1) for one in answer.balanced)
    assert max(by_name["rebalanced"].slowest) < max(by_name["equal"].slowest)


def test_who_leaves_has_no_more_samples_and_the_batch_stays(answer: LoadBalancing):
    """Equal shares grow by a sixteenth when a worker leaves; with the slowest gone it may even be faster."""
    still = load_balancing(low=1.0, high=1.0, jitter=0.0, num_clusters=100, num_steps=90, batch_size=15, cap=20)
    equal = still.balanced[0].step_s
    assert equal[still.leaves - 1] == pytest.approx(15e-3)
    assert equal[still.leaves] == pytest.approx(16e-3)
    assert equal[still.joins] == pytest.approx(15e-3)


def test_a_bound_ends_up_at_the_slowest_pace_and_none_adds_the_rates_up(answer: LoadBalancing):
    rates = [one.samples_per_s for one in answer.asynchronous]
    staleness = [one.staleness for one in answer.asynchronous]
    assert rates == sorted(rates)
    assert staleness == sorted(staleness)
    assert math.isinf(answer.asynchronous[-1].bound)
    assert staleness[-1] == pytest.approx(15, abs=0.5)  # n - 1


def test_a_loss_that_no_asynchronous_run_reaches_has_no_time(answer: LoadBalancing):
    never = tuple(dataclasses.replace(one, to_target_s=math.nan) for one in answer.asynchronous)
    (chart,) = (one for one in dataclasses.replace(answer, asynchronous=never).charts() if one.slug == "bounds")
    assert chart.title.endswith("no asynchronous run gets it down")
    assert "nan" not in chart.title


def test_unequal_counts_need_weights():
    assert unweighted_variance([8, 8, 8]) == 1
    rng = np.random.default_rng(0)
    counts = np.array([2, 6, 16])
    means = rng.standard_normal((100_000, 3)) / np.sqrt(counts)
    plain, weighted = means.mean(axis=1).var(), (means * counts / counts.sum()).sum(axis=1).var()
    assert plain / weighted == pytest.approx(unweighted_variance(counts), rel=0.03)


@pytest.mark.parametrize("wrong", [{"bounds": (-1.0,)}, {"bounds": (1.5,)}, {"jitter": 100.0}])
def test_leads_are_whole_steps_and_jitter_is_no_explosion(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="write"):
        load_balancing(num_clusters=50, num_steps=30, **wrong)


def test_in_step_samples_a_second_are_samples_over_step_time() -> None:
    answer = load_balancing(num_clusters=50, num_steps=30)
    per_s = answer.synchronous_per_s
    ratio = answer.synchronous_s["equal"] / answer.synchronous_s["proportional"]
    assert per_s["proportional"] / per_s["equal"] == pytest.approx(ratio)
    assert 5_000 < per_s["equal"] < 16_000
