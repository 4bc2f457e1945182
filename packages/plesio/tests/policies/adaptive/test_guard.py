"""The guard: what raises an alarm, and that healthy training raises none."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from plesio.policies.adaptive.guard import SILENT, Alarm, Guard
from plesio.policies.adaptive.readings.reading import Reading

NOISE = [0.01, -0.02, 0.0, 0.02, -0.01]


@pytest.fixture
def guard() -> Guard:
    """A guard that has seen 30 healthy reviews."""
    guard = Guard()
    assert not any(alarms(guard, healthy(30)))
    return guard


def reading(loss: float, *, rate: float = 0.1, speed: float = math.nan, **others: Any) -> Reading:
    figures: dict[str, Any] = {"least_loss": loss, "typical_loss": loss} | others
    return Reading(clock=16, num_steps=16, learning_rate=rate, loss=loss, speed=speed, **figures)


def healthy(num: int, *, level: float = 1.0, rate: float = 0.1) -> list[Reading]:
    noises = [NOISE[n % 5] for n in range(num)]
    return [reading(level * (1 + noise), rate=rate, speed=1 + 2 * noise) for noise in noises]


def alarms(guard: Guard, readings: Sequence[Reading]) -> list[Alarm | None]:
    return [guard.observe(one) for one in readings]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"loss": 2.0}, "the loss is 2, "),
        ({"loss": math.inf}, "the loss is infinite"),
        ({"loss": 1.0, "speed": 4.0}, "the parameters' speed is 4, "),
    ],
)
def test_each_figure_raises_an_alarm_that_says_why(guard: Guard, bad: dict[str, float], reason: str):
    alarm = guard.observe(reading(**bad))
    assert alarm.reason.startswith(reason)
    assert (alarm.averted, alarm.early, guard.good) == (False, False, False)


def test_a_rise_that_the_level_follows_raises_an_alarm_within_two_times(guard: Guard):
    losses = [1.03**n * (1 + NOISE[n % 5]) for n in range(24)]
    raised = [loss for loss in losses if guard.observe(reading(loss))]
    assert 1.1 < raised[0] < 2.0


@pytest.mark.parametrize(
    "losses",
    [
        [3.0 * 0.9**n for n in range(80)],
        [2.3 if n < 30 else 0.4 for n in range(60)],
        [-1.0 - 0.05 * n for n in range(60)],
        [1.0 - 0.05 * n for n in range(60)],
        [0.0] * 60,
    ],
    ids=["decay", "step decay", "below zero", "through zero", "zero"],
)
def test_healthy_losses_raise_no_alarm(losses: list[float]):
    guard = Guard()
    assert not any(alarms(guard, [reading(loss * (1 + NOISE[n % 5])) for n, loss in enumerate(losses)]))
    assert guard.good


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy tails"])
def test_noise_raises_next_to_no_alarm(heavy: bool):
    """Heavy tails: normal over the root of a chi-square of five degrees of freedom; at most one run in 20 may alarm."""
    chance = random.Random(1)

    def noise() -> float:
        return chance.gauss(0, 1) / (math.sqrt(chance.gammavariate(2.5, 2) / 5) if heavy else 1.0)

    runs = [[reading(math.exp(0.05 * noise())) for _ in range(80)] for _ in range(20)]
    assert sum(any(alarms(Guard(), run)) for run in runs) <= 1


def test_gradients_that_are_not_finite_raise_an_alarm_in_two_reviews_in_succession(guard: Guard):
    broken = reading(1.0, num_refused=16)
    first, second = alarms(guard, [broken, broken])
    assert first is None
    assert second.reason == "16 gradients in 16 steps were not finite"
    assert alarms(Guard(), [broken, *healthy(1), broken]) == [None] * 3


def test_harm_is_averted_if_gradients_were_scaled_down_and_the_median_worker_is_well(guard: Guard):
    assert guard.observe(reading(1.0, num_clipped=3)) is None
    assert not guard.good
    alarm = guard.observe(reading(1.5, typical_loss=1.0, num_clipped=16))
    assert alarm.averted
    real = guard.observe(reading(2.0, num_clipped=16))  # silence about averted harm is not about this
    assert real is not None
    assert not real.averted


def test_what_will_not_go_away_becomes_the_level_after_a_second_alarm(guard: Guard):
    raised = [number for number, alarm in enumerate(alarms(guard, healthy(40, level=3.0))) if alarm]
    assert raised == [0, SILENT + 1]
    assert guard.good
    assert guard.observe(reading(9.0)) is not None


def test_a_rate_that_returns_may_raise_the_loss_and_a_new_rate_may_not():
    before = [*healthy(20, level=2.0, rate=0.1), *healthy(20, level=1.0, rate=0.01)]
    assert not any(alarms(Guard(), [*before, *healthy(20, level=1.8, rate=0.1)]))
    assert any(alarms(Guard(), [*before, *healthy(1, level=1.8, rate=0.5)]))


def test_an_early_alarm_can_be_excused():
    guard = Guard()
    alarm = alarms(guard, [reading(2.3), reading(2.5), reading(8.0)])[-1]
    assert alarm.early
    guard.excuse()
    assert alarms(guard, healthy(20, level=8.0)) == [None] * 20


def leap(before: int, *, growth: float = 1.0) -> Reading:
    """The loss leaps from 1 to 3 after so many of 16 steps; from then on it grows."""
    losses = [1.0] * before + [3.0 * growth**step for step in range(16 - before)]
    return replace(reading(math.fsum(losses) / 16, speed=1.0), losses=tuple(losses))


@pytest.mark.parametrize("before", [0, 5, 10])
def test_a_leap_of_all_losses_is_nothing_to_go_back_from(guard: Guard, before: int):
    alarm = guard.observe(leap(before))
    assert alarm.averted
    assert alarm.reason == "all workers' losses leapt to 3"
    assert not any(alarms(guard, [reading(2.8, speed=9.0)]))
    assert guard.has_leapt
    assert not any(alarms(guard, healthy(40, level=2.5)))
    assert not guard.observe(reading(6.0)).averted


def test_a_leap_is_told_when_no_more_than_three_reviews_are_known():
    young = Guard()
    assert not any(alarms(young, healthy(3)))
    assert not any(alarms(young, [leap(5), reading(3.2)]))
    assert young.has_leapt


def below_zero(one: Reading) -> Reading:
    """The same with all losses ten lower."""
    lower = {name: getattr(one, name) - 10 for name in ("loss", "least_loss", "typical_loss")}
    return replace(one, losses=tuple(loss - 10 for loss in one.losses), **lower)


def test_a_leap_of_losses_below_zero_stays_there():
    guard = Guard()
    assert not any(alarms(guard, [below_zero(one) for one in healthy(30)]))
    alarm = guard.observe(below_zero(leap(5)))
    assert alarm is not None
    assert alarm.averted
    guard.observe(below_zero(reading(3.0)))
    assert guard.has_leapt


@pytest.mark.parametrize(
    "odd",
    [
        {"losses": ()},
        {"learning_rate": 0.11},
        {"losses": tuple(1.2**step for step in range(16))},
        {"num_refused": 1},
        {"least_loss": 1.1},
        {"loss": math.inf, "least_loss": math.inf},
    ],
)
def test_what_does_not_show_in_all_workers_at_once_is_no_leap(guard: Guard, odd: dict[str, Any]):
    alarm = guard.observe(replace(leap(5), **odd))
    assert alarm is not None
    assert not alarm.averted


def test_what_grows_is_no_leap(guard: Guard):
    assert not guard.observe(leap(5, growth=1.1)).averted


def test_a_loss_that_creeps_never_passes_for_a_leap(guard: Guard):
    creeping = [1.08**n * (1 + NOISE[n % 5]) for n in range(20)]
    found = alarms(guard, [replace(reading(loss), losses=(loss,) * 16) for loss in creeping])
    assert [alarm.averted for alarm in found if alarm][:1] == [False]


def test_any_numbers_are_taken_and_alarms_are_apart():
    chance = random.Random(0)
    odd = [math.nan, math.inf, -math.inf, 0.0, 1e-320, 1e308, -1e308, 1.0, -1.0, 2.0]
    for _ in range(20):
        guard = Guard()
        seen = [
            reading(chance.choice(odd), speed=abs(chance.choice(odd)), losses=tuple(chance.choices(odd, k=16)))
            for _ in range(40)
        ]
        raised = [number for number, alarm in enumerate(alarms(guard, seen)) if alarm and not alarm.averted]
        assert all(later - earlier > SILENT for earlier, later in itertools.pairwise(raised))


LEAVING_A_PLATEAU = [2.313, 2.306, 2.298, 2.282, 2.265, 2.229, 2.19, 2.118, 1.981, 1.752, 1.427, 1.083, 0.784, 0.598]
SPEEDS = [0.4, 0.63, 0.907, 1.198, 1.46, 1.603, 1.702, 2.283, 2.634, 3.554, 3.9, 4.096, 3.319, 2.811]


def test_parameters_may_be_fast_where_the_loss_falls_faster():
    assert not any(alarms(Guard(), list(map(fast, LEAVING_A_PLATEAU, SPEEDS))))
    steady = [2.313 - 0.02 * n for n in range(len(SPEEDS))]
    assert any(alarms(Guard(), list(map(fast, steady, SPEEDS))))


def fast(loss: float, speed: float) -> Reading:
    return reading(loss, speed=speed)
