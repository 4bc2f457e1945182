import math
from typing import Any

import numpy as np
import pytest

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.sim.recurrences import order_updates, simulate_bound
from plesio_planning.studies import staleness_weighting


@pytest.fixture(scope="module")
def answer() -> Any:
    return staleness_weighting()


@pytest.fixture(scope="module")
def one_trial() -> Any:
    return staleness_weighting(num_trials=1)


def test_reference_values(answer: Any):
    """studies/reference.md, study 13: 12925, and 3463 for one draw of the staleness from one start, the first."""
    by_name = {each.name: each for each in answer.untuned}
    assert by_name["small"].by_trial[0] == 12925
    assert by_name["inverse"].by_trial[0] == pytest.approx(3463, rel=0.06)
    assert math.isinf(by_name["none"].iterations.mean)


def test_other_starts_and_draws_have_the_same_mean(answer: Any):
    means = [
        {each.name: each.iterations for each in one.untuned}["inverse"] for one in (answer, staleness_weighting(seed=1))
    ]
    assert means[0].low < means[1].mean < means[0].high


def test_who_arrives_is_counted_over_all_trials(answer: Any):
    by_name = {each.name: each for each in answer.untuned}
    edge = by_name["cap:10"]
    arrived = sum(math.isfinite(number) for number in edge.by_trial)
    assert 0 < arrived < 20
    assert edge.arrival.startswith(f"{20 - arrived} of 20 diverge, the others ")
    assert by_name["none"].arrival == "diverges"
    assert "±" in by_name["small"].arrival


def test_constant_staleness_makes_every_weighting_a_smaller_step(one_trial: Any):
    tuned = [each for each in one_trial.tuned if each.staleness == "constant"]
    plain, inverse, exponential, _ = tuned
    assert inverse.iterations == pytest.approx(plain.iterations, rel=0.01)
    assert exponential.iterations == pytest.approx(plain.iterations, rel=0.01)
    assert inverse.step / 11 == pytest.approx(plain.step, rel=0.03)


def test_weighting_pays_where_staleness_varies(one_trial: Any):
    for each in one_trial.tuned:
        if each.staleness == "0 to 20" and each.weighting != "none":
            assert each.saved > 0.3


def test_a_cut_off_below_constant_staleness_applies_nothing():
    tuned = staleness_weighting(num_trials=1, weightings=("cap:5",)).tuned
    (constant,) = [each for each in tuned if (each.staleness, each.weighting) == ("constant", "cap:5")]
    assert math.isinf(constant.iterations)


def test_measured_shares_take_the_place_of_even_ones():
    fresh = staleness_weighting(shares=(1.0,), num_trials=1)
    assert next(iter(fresh.shares)) == "as measured"
    iterations = {each.name: each.iterations.mean for each in fresh.untuned}
    assert iterations["none"] == iterations["inverse"] == iterations["small"]


def test_staleness_of_equal_workers_is_the_number_of_the_others():
    """N workers that take turns: everyone else's update comes in between."""
    schedule = simulate_bound(np.array([[1.0] * 9] * 4) + 0.1 * np.arange(4)[:, None] * [1, *[0] * 8], bound=math.inf)
    order = order_updates(schedule, exchange_s=0.0)
    assert set(order.staleness[4:-4].tolist()) == {3}
    assert order.workers[:8].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_behind_a_barrier_updates_are_as_old_as_their_place_in_the_round():
    schedule = simulate_bound([[1.0] * 5] * 3, bound=0, exchange_s=0.5)
    assert order_updates(schedule, exchange_s=0.5).staleness.tolist() == [0, 1, 2] * 5


def test_an_unknown_weighting_is_refused():
    with pytest.raises(ArgumentError, match="inverse"):
        staleness_weighting(weightings=("inverze",))


def test_badly_conditioned_descents_have_the_updates_they_need() -> None:
    answer = staleness_weighting(condition_number=300.0, num_trials=2)
    assert answer.total == pytest.approx(math.fsum(answer.parts.values()))
    assert math.isfinite(answer.total)
    assert all(math.isfinite(one.saved) for one in answer.tuned)
    with pytest.raises(ConfigError, match="write a condition_number of 2"):
        staleness_weighting(condition_number=1e5)
