import functools
import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.policies.adaptive.config.bound import BoundTunerConfig
from plesio.policies.adaptive.readings.reading import GradientFigures, Reading
from plesio.policies.adaptive.training.bound import BoundTuner, most_changes, num_rungs

from_zero = functools.partial(BoundTunerConfig, first_slack=0, largest_slack=15)
FAST = from_zero(patience=1, back_off=4)
STABLE = [1.0, 1.01, 0.99, 1.0]


def reading(
    loss: float = math.nan, *, metric: float | None = None, norm_sq: float | None = None, num_refused: int = 0
) -> Reading:
    figures = None
    if norm_sq is not None:
        figures = GradientFigures(norm_sq=norm_sq, mean_norm_sq=1.0, within=1.0, between=1.0, noise_scale=1.0)
    return Reading(
        clock=16,
        num_steps=16,
        learning_rate=0.1,
        loss=loss,
        worst_loss=loss,
        metric=metric,
        gradient=figures,
        num_refused=num_refused,
    )


def slacks(tuner: BoundTuner, readings: Sequence[Reading]) -> list[float]:
    return [tuner.observe(one).slack for one in readings]


def stable(num_reviews: int) -> list[Reading]:
    return [reading(STABLE[number % 4]) for number in range(num_reviews)]


def grown(config: BoundTunerConfig) -> BoundTuner:
    """A tuner at its largest slack, with a full window behind it."""
    tuner = BoundTuner(config)
    assert slacks(tuner, stable(40))[-1] == config.largest_slack
    return tuner


def test_slack_doubles_at_most_once_in_patience_reviews():
    tuner = BoundTuner(from_zero(patience=3))
    assert slacks(tuner, stable(14)) == [0, 0, 1, 1, 1, 3, 3, 3, 7, 7, 7, 15, 15, 15]


def test_largest_slack_is_rounded_down_to_a_rung():
    assert slacks(BoundTuner(from_zero(largest_slack=10)), stable(60))[-1] == 7
    assert slacks(BoundTuner(from_zero(largest_slack=0)), stable(60))[-1] == 0


BAD = {
    "the loss is": reading(2.0),
    "the loss is infinite": reading(math.inf),
    "validation error": reading(1.0, metric=0.8),
    "the squared norm": reading(1.0, norm_sq=40.0),
    "not finite": reading(1.0, num_refused=1),
}


@pytest.mark.parametrize("sign", BAD)
def test_each_sign_cuts_two_rungs_and_says_why(sign: str):
    tuner = BoundTuner(from_zero())
    slacks(
        tuner, [reading(STABLE[n % 4], metric=0.9 + 0.001 * (n % 3), norm_sq=2.0 + 0.1 * (n % 3)) for n in range(30)]
    )
    advice = tuner.observe(BAD[sign])
    assert advice.slack == 3
    assert sign in advice.reason
    assert advice.inputs["ceiling"] == 7


def test_creeping_rise_is_a_sign():
    tuner = grown(from_zero())
    noise = [0.03, -0.02, 0.0, -0.03, 0.02]
    slacks(tuner, [reading(1.0 + noise[n % 5]) for n in range(20)])
    rising = [reading(1.0 + 0.03 * n + noise[n % 5]) for n in range(12)]
    assert min(slacks(tuner, rising)) < 15


@pytest.mark.parametrize("loss", [lambda n: 2.0 * 0.97**n, lambda n: 0.5, lambda n: -1.0 - 0.1 * n])
def test_falling_and_constant_losses_are_stable(loss: object):
    assert callable(loss)
    tuner = BoundTuner(from_zero())
    changes = slacks(tuner, [reading(loss(n) * (1 + 0.01 * (n * 7 % 5 - 2))) for n in range(100)])
    assert changes == sorted(changes)
    assert changes[-1] == 15


def test_rung_that_failed_is_tried_again_after_a_back_off_that_doubles():
    tuner = grown(FAST)
    waits = []
    for _ in range(4):
        tuner.observe(reading(num_refused=1))
        assert tuner.observe(stable(1)[0]).slack <= 7
        waits.append(1)
        while tuner.observe(stable(1)[0]).slack < 15:
            waits[-1] += 1
    assert [later - earlier for earlier, later in itertools.pairwise(waits)] == [4, 8, 16]


def test_below_the_ceiling_slack_comes_back_without_back_off():
    tuner = grown(from_zero(patience=2, back_off=50))
    assert tuner.observe(reading(num_refused=1)).slack == 3
    assert slacks(tuner, stable(12)) == [3, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]


def test_two_cuts_are_patience_reviews_apart():
    tuner = grown(from_zero(patience=3))
    assert slacks(tuner, [reading(num_refused=1)] * 7) == [3, 3, 3, 0, 0, 0, 0]


def test_without_news_nothing_changes():
    tuner = BoundTuner(FAST)
    assert slacks(tuner, [reading()] * 50) == [0] * 50
    slacks(tuner, stable(2))
    assert slacks(tuner, [reading(metric=math.nan)] * 50) == [3] * 50


def test_validation_alone_is_enough():
    tuner = BoundTuner(from_zero(patience=1))
    assert slacks(tuner, [reading(metric=0.9 + 0.001 * (n % 2)) for n in range(10)])[-1] == 15
    assert tuner.observe(reading(metric=0.8)).slack == 3


class Adversary:
    """Plays one of the strategies that hurt most, on top of what Hypothesis draws: strike at the top, or at once."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        self._last = 0.0
        self._highest = 0.0

    def strikes(self, slack: float, *, drawn: bool) -> bool:
        rose, self._last = slack > self._last, slack
        match self._strategy:
            case "whenever it rises":
                return rose
            case "whenever there is slack":
                return slack > 0
            case "at the largest":
                self._highest = max(self._highest, slack)
                return slack == self._highest
        return drawn


@settings(max_examples=50, deadline=None)
@given(
    strategy=st.sampled_from(["whenever it rises", "whenever there is slack", "at the largest", "drawn"]),
    drawn=st.lists(st.booleans(), min_size=1, max_size=40),
    patience=st.integers(1, 4),
    back_off=st.integers(1, 10),
    largest_slack=st.integers(0, 70),
    num_reviews=st.integers(1, 300),
)
def test_number_of_changes_is_logarithmic_whatever_the_signals(
    *, strategy: str, drawn: list[bool], patience: int, back_off: int, largest_slack: int, num_reviews: int
):
    config = from_zero(patience=patience, back_off=back_off, largest_slack=largest_slack)
    tuner, adversary = BoundTuner(config), Adversary(strategy)
    history = [0.0]
    since_cut = since_growth = patience
    for number in range(num_reviews):
        strikes = adversary.strikes(history[-1], drawn=drawn[number % len(drawn)])
        slack = tuner.observe(reading(1.0, num_refused=int(strikes))).slack
        since_cut, since_growth = since_cut + 1, since_growth + 1
        assert slack in {2**rung - 1 for rung in range(num_rungs(config) + 1)}
        if slack > history[-1]:
            assert slack == 2 * history[-1] + 1
            assert since_growth >= patience
            since_growth = 0
        elif slack < history[-1]:
            assert since_cut >= patience
            assert slack >= (history[-1] - 3) / 4
            since_cut = since_growth = 0
        history.append(slack)
    changes = sum(before != after for before, after in itertools.pairwise(history))
    assert changes <= most_changes(config, num_reviews=num_reviews)


@settings(max_examples=20, deadline=None)
@given(
    losses=st.lists(st.one_of(st.floats(), st.sampled_from([0.0, 1e-320, -1.0, 1e308])), min_size=1, max_size=40),
    norms=st.lists(st.floats(min_value=0), min_size=1, max_size=10),
)
def test_any_numbers_are_taken_and_changes_stay_bounded(losses: list[float], norms: list[float]):
    tuner = BoundTuner(FAST)
    found = slacks(
        tuner,
        [reading(loss, metric=-loss, norm_sq=norms[number % len(norms)]) for number, loss in enumerate(losses)],
    )
    assert sum(a != b for a, b in zip([0, *found[:-1]], found, strict=True)) <= most_changes(
        FAST, num_reviews=len(losses)
    )


def test_it_begins_where_it_is_told():
    assert slacks(BoundTuner(BoundTunerConfig(first_slack=10)), stable(1)) == [7]
    assert slacks(BoundTuner(BoundTunerConfig(first_slack=31, largest_slack=3)), stable(1)) == [3]
