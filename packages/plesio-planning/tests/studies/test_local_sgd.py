import math

import numpy as np
import pytest

from plesio_planning.studies import local_sgd, nonconvex_local_steps
from plesio_planning.studies.heterogeneous_quadratic import make_heterogeneous
from plesio_planning.studies.models.local_sgd import LocalSgd
from plesio_planning.studies.nonconvex_local_steps import _gradients, _loss, make_sigmoid_regression, penalty_of

REFERENCE = {1: 4.6e-4, 4: 6.3e-4, 8: 1.1e-3, 32: 3.5e-3}
"""studies/reference.md, study 7: floors of a problem whose size it does not state."""


@pytest.fixture(scope="module")
def answer() -> LocalSgd:
    return local_sgd(num_trials=2, num_draws=2)


@pytest.fixture(autouse=True)
def _short_where_it_is_not_convex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the non-convex part, which the tests here do not look at."""
    monkeypatch.setattr(nonconvex_local_steps, "_LONG", 200)
    monkeypatch.setattr(nonconvex_local_steps, "_STEPS", 64)


def test_floors_grow_as_the_reference_does(answer: LocalSgd):
    floors = {point.period: point.floor for point in answer.points}
    assert sorted(floors.values()) == list(floors.values())
    for period, reference in REFERENCE.items():
        growth = reference / REFERENCE[1]
        assert growth / 2 < floors[period] / floors[1] < growth * 2


def test_the_simulation_agrees_with_the_closed_form():
    """Twice the 95 % interval's half-width is about four standard errors."""
    for point in local_sgd(periods=(1, 8), num_trials=40, num_draws=1).points:
        half = (point.simulated_floor.high - point.simulated_floor.low) / 2
        assert abs(point.simulated_floor.mean - point.floor) < 2 * half
        assert half < 0.1 * point.floor


def test_equal_hessians_cost_nothing_however_unlike_the_optima():
    answer = local_sgd(periods=(1, 4, 16), hessian_spread=0.0, heterogeneity=2.0, num_trials=2, num_draws=1)
    floors = [point.floor for point in answer.points]
    assert floors == pytest.approx([floors[0]] * len(floors), rel=1e-9)
    first = answer.points[0].iterations
    for point in answer.points:  # whole rounds only
        assert point.iterations < first + point.period
    assert all(point.period >= 16 or point.time_s > answer.total for point in answer.points)


def test_like_workers_cost_almost_nothing_with_unequal_hessians():
    floors = [point.floor for point in local_sgd(periods=(1, 32), heterogeneity=0.0, num_trials=2, num_draws=1).points]
    assert max(floors) < 1.05 * min(floors)  # against 6.6 times with unlike optima


def test_the_best_period_is_the_formulas(answer: LocalSgd):
    """The sweep has powers of two only, so the formula is within a factor of two of the best of them."""
    assert answer.best_period == pytest.approx(math.sqrt(2.0 / answer.penalty))
    for formula, best in answer.best_periods.values():
        assert best / 2 <= max(formula, 1.0) <= 2 * best


def test_times_are_rounds_of_computing_and_an_exchange():
    for point in local_sgd(periods=(1, 8), compute_s=1.0, exchange_s=10.0, num_trials=2, num_draws=1).points:
        assert point.time_s == pytest.approx(point.num_exchanges * (point.period + 10.0))


def test_one_step_of_a_round_is_gradient_descent():
    """Without noise and with one local step, the mean follows the mean gradient."""
    problem = make_heterogeneous(
        num_workers=3,
        num_dimensions=4,
        condition_number=10.0,
        hessian_spread=0.5,
        heterogeneity=1.0,
        noise=0.0,
        random=np.random.default_rng(1),
    )
    rounds = problem.rounds(step=0.1, period=1)
    shrinks = 1 - 0.1 * problem.eigenvalues.mean(axis=0)
    expected = [0.5 * (problem.eigenvalues.mean(axis=0) * shrinks ** (2 * number)).sum() for number in range(5)]
    np.testing.assert_allclose(rounds.loss(np.arange(5)), expected)
    simulated = problem.simulate(step=0.1, period=1, num_rounds=4, num_trials=1, random=np.random.default_rng(0))
    np.testing.assert_allclose(simulated[0], expected[1:])


def test_rounds_to_a_target_are_the_first_that_stay_below():
    problem = make_heterogeneous(
        num_workers=4,
        num_dimensions=5,
        condition_number=10.0,
        hessian_spread=0.3,
        heterogeneity=0.3,
        noise=0.05,
        random=np.random.default_rng(2),
    )
    rounds = problem.rounds(step=0.2, period=4)
    found = rounds.rounds_to(1e-3)
    losses = rounds.loss(np.arange(2 * int(found)))
    assert losses[int(found) - 1] > 1e-3
    assert (losses[int(found) :] <= 1e-3).all()
    assert math.isinf(rounds.rounds_to(rounds.floor))
    assert math.isfinite(rounds.rounds_to(1.1 * rounds.floor))


def test_a_penalty_is_fitted_to_those_that_arrive():
    assert penalty_of({1: 11.0, 2: 12.0, 4: 14.0, 8: math.inf}) == pytest.approx(0.1)
    assert penalty_of({1: 11.0, 2: 10.0}) == 0
    assert penalty_of({1: 11.0}) == 0


def test_local_steps_cost_iterations_where_the_loss_is_not_convex(answer: LocalSgd):
    found = answer.nonconvex
    assert len(found.over_first) == 2
    for over in found.over_first:
        assert over[1] == 1
        assert over[32] > 1.5
    assert 0.05 < found.penalty < 0.3


def test_gradients_of_sigmoid_neurons_are_those_of_their_loss():
    problem = make_sigmoid_regression(
        num_workers=3, num_dimensions=4, heterogeneity=0.5, noise=0.0, random=np.random.default_rng(0)
    )
    one, small = problem.start, 1e-6
    gradient = _gradients(problem.inputs, problem.labels, np.tile(one, (1, 3, 1)))[0].mean(axis=0)
    for place in range(4):
        moved = one + small * np.eye(4)[place]
        slope = (_loss(problem.inputs, problem.labels, moved) - _loss(problem.inputs, problem.labels, one)) / small
        assert slope == pytest.approx(gradient[place], abs=1e-6)
    flat = _loss(problem.inputs, problem.labels, np.linspace(-20, 20, 101)[:, None] * np.ones(4))
    assert (np.diff(flat, 2) < 0).any()  # not convex
