import math

import numpy as np
import pytest

from plesio_planning.studies import bounded_staleness
from plesio_planning.studies.delayed_descent import LateUpdates, descend, eigenvalues_of
from plesio_planning.studies.refusing_server import serve
from plesio_planning.theory.stability import stability_limit

REFERENCE = {0: 463, 1: 932, 5: 3271, 10: 6229, 20: 12152, 50: 29927}
"""studies/reference.md, study 3, which does not say how finely the best step was searched: the count is within
a third of a percent for all steps from 0.972 to 0.976 of the limit (0.985 without delay)."""


def test_reference_values():
    answer = bounded_staleness(num_trials=1)
    for point in answer.points:
        assert point.best_iterations == pytest.approx(REFERENCE[point.delay], rel=0.003)
        assert point.tiny_iterations == pytest.approx(46_000, rel=0.01)
    assert answer.unstable_from == 79  # 2 sin(π / (2(2·79+1))) is 0.01976
    assert answer.total == answer.points[-1].best_iterations


def test_trials_cover_the_range_of_constant_staleness():
    """Random starts are as far away as the fixed one, give or take; staleness below the bound does no harm."""
    for point in bounded_staleness(stalenesses=(5, 20)).points:
        assert 0.75 * point.best_iterations < point.best_trials.mean < 1.15 * point.best_iterations
        assert point.best_trials.low < point.best_trials.mean < point.best_trials.high


@pytest.mark.parametrize("delay", [0, 1, 5, 16])
def test_descent_diverges_above_the_limit_and_not_below(delay: int):
    limit, delays = stability_limit(staleness=delay), np.full(40_000, delay)
    one = np.array([1.0])
    below = descend(eigenvalues=one, start=one, updates=LateUpdates.of(delays, steps=0.99 * limit), target=1e-6)
    above = descend(eigenvalues=one, start=one, updates=LateUpdates.of(delays, steps=1.01 * limit), target=1e-6)
    assert math.isfinite(below.iterations)
    assert above.diverged


def test_without_delay_descent_is_a_power():
    one = np.array([1.0])
    going = descend(eigenvalues=one, start=one, updates=LateUpdates.of(np.zeros(50, np.int64), steps=0.25), target=1e-3)
    np.testing.assert_allclose(going.distance, 0.75 ** np.arange(len(going.distance)))
    assert going.iterations == math.ceil(math.log(1e-3) / math.log(0.75))


def test_only_the_ends_of_the_spectrum_decide():
    for num_dimensions in (2, 10, 20):
        point = bounded_staleness(stalenesses=(0,), num_dimensions=num_dimensions, num_trials=1).points[0]
        assert point.best_iterations == pytest.approx(463, rel=0.003)
    assert eigenvalues_of(100.0, num_dimensions=20)[[0, -1]] == pytest.approx([0.01, 1.0])


def test_a_step_above_the_limit_is_said_to_diverge():
    answer = bounded_staleness(stalenesses=(0, 50), tiny_step=0.1, num_trials=1)
    assert answer.unstable_from == 16  # studies/reference.md, theorem 9
    assert math.isinf(answer.points[-1].tiny_iterations)
    assert "diverges" in answer.finding


def test_a_server_refuses_what_is_older_than_its_bound():
    served = {point.delay: point.served for point in bounded_staleness(stalenesses=(0, 5, 50), num_trials=3).points}
    assert all(point.max_age <= bound for bound, point in served.items())
    assert served[0].refused > served[5].refused > served[50].refused
    assert served[50].refused < 1e-3
    assert served[0].refused == pytest.approx(0.84, abs=0.01)
    alone = bounded_staleness(stalenesses=(0,), num_trials=2, num_workers=1, slowdown=1.0).points[0].served
    assert alone.refused == alone.mean_age == 0


def test_a_server_applies_in_the_order_of_pushes():
    """Two workers of one pace: one counts and the other, one update late, is refused; both then pull anew."""
    served = serve(np.array([[1.0], [1.0]]), bound=0, num_updates=3)
    assert served.at.tolist() == [1.0, 2.0, 3.0]
    assert served.pushed.tolist() == [1, 3, 5]
    both = serve(np.array([[1.0], [1.0]]), bound=1, num_updates=4)
    assert both.ages.tolist() == [0, 1, 1, 1]


def test_curves_are_drawn_to_the_target() -> None:
    answer = bounded_staleness(stalenesses=(0, 5), num_trials=3)
    assert all(point.curve.distance[-1] <= answer.target for point in answer.points)
