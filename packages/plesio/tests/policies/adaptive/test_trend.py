"""The test of a change by the loss's trend: what is taken back, and what a trial measures."""

import math
import random

import pytest

from plesio.policies.adaptive.trend import Point, Trial, boundary, further_fall, scatter

NOISE = 0.01


def losses(*, clock: int, num: int, lost: float, seed: int, noise: float = NOISE) -> list[Point]:
    """Losses of a run that makes steps worth ``1 - lost`` from ``clock`` on, one a review."""
    chance = random.Random(seed)
    found = []
    for review in range(num):
        at = 16 * (review + 1)
        steps = at if at <= clock else clock + (at - clock) * (1 - lost)
        found.append(Point(at, math.exp(-steps / 200) + chance.gauss(0.0, noise), noise))
    return found


def judged(*, lost: float, seed: int = 0, num: int = 6, noise: float = NOISE) -> Trial:
    points = losses(clock=96, num=6 + num, lost=lost, seed=seed, noise=noise)
    trial = Trial(tuple(points[:6]))
    for point in points[6:]:
        trial.add(point)
        if trial.mean_excess > trial.most:
            break
    return trial


def fails(*, lost: float, seed: int) -> bool:
    trial = judged(lost=lost, seed=seed)
    return trial.mean_excess > trial.most


def test_a_change_that_costs_nothing_is_next_to_never_taken_back():
    assert sum(fails(lost=0.0, seed=seed) for seed in range(200)) <= 2


def test_a_change_that_ends_all_progress_is_taken_back():
    assert sum(fails(lost=1.5, seed=seed) for seed in range(50)) >= 45


def test_the_smaller_its_chance_of_being_wrong_the_more_it_bears():
    assert boundary(1e-4, 3) > boundary(1e-2, 3) > boundary(0.5, 3) > 0


@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_a_trial_measures_the_worth_of_a_step_within_its_error(lost: float):
    found = judged(lost=lost, num=4, noise=1e-4).efficiency()
    assert found is not None
    assert found[0] == pytest.approx(math.log(1 - lost), abs=2 * found[1])
    assert found[1] < 0.3


def test_where_too_little_was_to_fall_nothing_is_measured():
    flat = [Point(16 * review, 1.0, 0.0) for review in range(1, 7)]
    trial = Trial(tuple(flat))
    for review in range(7, 11):
        trial.add(Point(16 * review, 1.0, 0.0))
    assert trial.efficiency() is None
    assert trial.mean_excess == 0.0


def test_an_exponential_goes_on_as_an_exponential():
    points = tuple(Point(16 * review, math.exp(-16 * review / 40), 0.0) for review in range(1, 7))
    fell = points[-1].loss - math.exp(-(96 + 48) / 40)
    assert further_fall(points, 48)[1] == pytest.approx(fell, rel=0.01)


def test_a_straight_line_is_expected_to_flatten_as_a_hyperbola_does():
    points = tuple(Point(16 * review, 1.0 - 0.05 * review, 0.0) for review in range(1, 7))
    assert further_fall(points, 80) == (0.5, pytest.approx(0.125))


def test_losses_that_rise_are_not_expected_to_fall():
    rising = tuple(Point(16 * review, 1.0 + 0.1 * review, 0.0) for review in range(1, 7))
    assert further_fall(rising, 16)[1] == 0.0


def test_the_scatter_is_that_of_the_noise_and_not_of_the_trend():
    assert scatter(tuple(losses(clock=96, num=6, lost=0.0, seed=0, noise=0.0))) < 2e-3, "where a review's fall is 0.05"
    chance = random.Random(1)
    found = [
        scatter(tuple(Point(n, 5.0 - 0.1 * n + chance.gauss(0.0, 1.0), 1.0) for n in range(12))) for _ in range(200)
    ]
    assert sorted(found)[100] == pytest.approx(1.0, rel=0.4)
