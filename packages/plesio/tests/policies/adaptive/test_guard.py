import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.policies.adaptive.config.guard import GuardConfig
from plesio.policies.adaptive.readings.reading import GradientFigures, Reading
from plesio.policies.adaptive.training.guard import Alarm, Guard

NOISE = [0.01, -0.02, 0.0, 0.02, -0.01]


def reading(
    loss: float = math.nan,
    *,
    worst_loss: float | None = None,
    norm_sq: float | None = None,
    typical_loss: float | None = None,
    num_refused: int = 0,
    num_clipped: int = 0,
    rate: float = 0.1,
    speed: float = math.nan,
) -> Reading:
    figures = None
    if norm_sq is not None:
        figures = GradientFigures(norm_sq=norm_sq, mean_norm_sq=1.0, within=1.0, between=1.0, noise_scale=1.0)
    return Reading(
        clock=16,
        num_steps=16,
        learning_rate=rate,
        loss=loss,
        worst_loss=loss if worst_loss is None else worst_loss,
        least_loss=loss,
        typical_loss=loss if typical_loss is None else typical_loss,
        gradient=figures,
        num_refused=num_refused,
        num_clipped=num_clipped,
        speed=speed,
    )


def healthy(num_reviews: int, *, level: float = 1.0, rate: float = 0.1) -> list[Reading]:
    return [
        reading(
            level * (1 + NOISE[n % 5]),
            worst_loss=1.2 * level,
            norm_sq=2 * (1 + NOISE[n % 5]),
            rate=rate,
            speed=1 + 2 * NOISE[n % 5],
        )
        for n in range(num_reviews)
    ]


def alarms(guard: Guard, readings: Sequence[Reading]) -> list[Alarm | None]:
    return [guard.observe(one) for one in readings]


def trained(config: GuardConfig | None = None) -> Guard:
    guard = Guard(config or GuardConfig())
    assert alarms(guard, healthy(30)) == [None] * 30
    return guard


BAD = {
    "the loss is 2": reading(2.0),
    "the worst loss": reading(1.0, worst_loss=4.0),
    "the parameters' speed": reading(1.0, worst_loss=1.2, speed=2.5),
    "the gradient's squared norm": reading(1.08, worst_loss=1.2, norm_sq=40.0),
    "infinite": reading(math.inf),
}


@pytest.mark.parametrize("what", BAD)
def test_each_figure_raises_an_alarm_that_says_why(what: str):
    guard = trained()
    alarm = guard.observe(BAD[what])
    assert alarm is not None
    assert what in alarm.reason
    assert not guard.good


def test_gradients_that_are_not_finite_raise_an_alarm_in_two_reviews_in_succession():
    broken = reading(1.0, worst_loss=1.2, num_refused=16)
    guard = trained()
    assert guard.observe(broken) is None
    assert not guard.good
    alarm = guard.observe(broken)
    assert alarm is not None
    assert alarm.reason == "16 gradients in 16 steps were not finite"
    assert alarms(trained(), [broken, *healthy(1), broken]) == [None] * 3


def test_extraordinary_gradients_of_one_worker_raise_an_alarm_and_the_harm_is_averted():
    guard = trained()
    assert guard.observe(reading(1.0, worst_loss=1.2, num_clipped=4)) is None
    assert not guard.good
    alarm = guard.observe(reading(1.0, worst_loss=1.2, num_clipped=5))
    assert alarm is not None
    assert alarm.averted
    assert alarm.reason == "5 gradients of one worker in 16 steps were extraordinary"


def test_harm_that_the_median_worker_shows_is_not_averted_whatever_was_scaled_down():
    bad = reading(2.0, worst_loss=4.0, num_clipped=16)
    alarm = trained().observe(bad)
    assert alarm is not None
    assert not alarm.averted
    only_worst = trained().observe(reading(1.5, worst_loss=4.0, typical_loss=1.0, num_clipped=16))
    assert only_worst is not None
    assert only_worst.averted
    nothing_done = trained().observe(reading(1.5, worst_loss=4.0, typical_loss=1.0))
    assert nothing_done is not None
    assert not nothing_done.averted


def test_silence_about_averted_harm_is_not_about_harm():
    guard = trained()
    averted = reading(1.0, worst_loss=1.2, num_clipped=16)
    assert guard.observe(averted) is not None
    assert guard.observe(averted) is None
    alarm = guard.observe(reading(2.0, worst_loss=4.0))
    assert alarm is not None
    assert not alarm.averted


def test_rise_that_the_level_follows_raises_an_alarm():
    creeping = [reading(1.03**n * (1 + NOISE[n % 5]), worst_loss=1.2) for n in range(16)]
    assert any(alarms(trained(), creeping))


def test_a_figure_must_be_above_its_noise_and_by_a_share():
    assert trained().observe(reading(1.08, worst_loss=1.2)) is None
    noisy = Guard(GuardConfig())
    random = np.random.default_rng(0)
    losses = np.exp(0.3 * random.standard_normal(30)).tolist()
    assert alarms(noisy, [reading(loss, worst_loss=2 * loss) for loss in losses]) == [None] * 30
    assert noisy.observe(reading(2.0, worst_loss=4.0)) is None
    assert noisy.observe(reading(20.0, worst_loss=40.0)) is not None


@pytest.mark.parametrize(
    "losses",
    [
        [3.0 * 0.9**n for n in range(80)],
        [2.3 if n < 30 else 0.4 for n in range(60)],
        [-1.0 - 0.05 * n for n in range(60)],
        [0.5] * 60,
        [0.0] * 60,
    ],
    ids=["decay", "step decay", "below zero", "constant", "zero"],
)
def test_healthy_losses_raise_no_alarm(losses: list[float]):
    guard = Guard(GuardConfig())
    assert not any(alarms(guard, [reading(loss * (1 + NOISE[n % 5])) for n, loss in enumerate(losses)]))
    assert guard.good


def test_false_alarms_on_noise_are_rare_over_whole_runs():
    """Independent normal noise, 40 runs of 200 reviews (3,200 steps): at most one may alarm."""
    random = np.random.default_rng(1)
    num_alarmed = 0
    for _ in range(40):
        losses = (1 + 0.05 * random.standard_normal(200)).tolist()
        num_alarmed += any(alarms(Guard(GuardConfig()), [reading(loss) for loss in losses]))
    assert num_alarmed <= 1


def test_before_levels_are_known_only_the_highest_loss_counts():
    guard = Guard(GuardConfig())
    assert alarms(guard, [reading(2.3), reading(2.5), reading(4.0), reading(1.0)]) == [None] * 4
    alarm = guard.observe(reading(12.5))
    assert alarm is not None
    assert "never above 4" in alarm.reason


def test_restart_of_the_rate_is_no_divergence_and_a_new_rate_is_none_either():
    before = [*healthy(20, level=2.0, rate=0.1), *healthy(20, level=1.0, rate=0.01)]
    restarted, raised = Guard(GuardConfig()), Guard(GuardConfig())
    assert not any(alarms(restarted, before) + alarms(raised, before))
    assert not any(alarms(restarted, healthy(20, level=1.8, rate=0.1)))
    assert any(alarms(raised, healthy(1, level=1.8, rate=0.5)))


def test_after_a_restart_a_collapse_is_still_seen():
    guard = Guard(GuardConfig())
    alarms(guard, [*healthy(20, level=2.0, rate=0.1), *healthy(20, level=1.0, rate=0.01)])
    assert guard.observe(reading(7.0, rate=0.1)) is not None


def test_silence_after_an_alarm_and_the_old_level_afterwards():
    guard = trained(GuardConfig(rearm_reviews=3))
    bad = reading(2.0)
    assert guard.observe(bad) is not None
    assert alarms(guard, [bad, *healthy(2)]) == [None] * 3
    assert guard.good
    assert guard.observe(bad) is not None


def test_what_will_not_go_away_becomes_the_level_after_a_second_alarm():
    guard = trained(GuardConfig(rearm_reviews=2))
    stuck = healthy(40, level=3.0)
    raised = [number for number, alarm in enumerate(alarms(guard, stuck)) if alarm]
    assert raised == [0, 3]
    assert guard.good
    assert guard.observe(reading(9.0)) is not None


def test_a_state_is_good_from_the_start_and_not_when_something_is_half_way_to_an_alarm():
    guard = Guard(GuardConfig())
    assert not guard.good
    guard.observe(reading(2.3))
    assert guard.good
    guard = trained()
    guard.observe(reading(1.09, worst_loss=1.2))
    assert not guard.good
    guard.observe(healthy(1)[0])
    assert guard.good
    guard.observe(reading(1.0, worst_loss=1.2, num_refused=1))
    assert not guard.good


def test_without_any_figures_there_is_no_alarm():
    guard = Guard(GuardConfig())
    assert alarms(guard, [reading()] * 50) == [None] * 50


def test_without_losses_the_speed_is_enough():
    guard = Guard(GuardConfig())
    assert not any(alarms(guard, [reading(speed=3.0 * (1 + NOISE[n % 5])) for n in range(20)]))
    assert guard.observe(reading(speed=7.0)) is not None


def test_a_norm_that_nothing_else_agrees_with_is_ordinary():
    guard = trained()
    for _ in range(12):
        assert guard.observe(reading(1.0, worst_loss=1.2, norm_sq=40.0)) is None
        assert guard.good


def test_a_speed_that_rises_slowly_raises_an_alarm_at_three_times_the_lowest():
    guard = trained()
    speeds = [1.12**n for n in range(20)]
    raised = [speed for speed in speeds if guard.observe(reading(1.0, worst_loss=1.2, speed=speed)) is not None]
    assert 3 < raised[0] < 4


def leap(before: int, *, growth: float = 1.0) -> Reading:
    """The loss leaps from 1 to 3 after so many of 16 steps; from then on it grows."""
    losses = [1.0] * before + [3.0 * growth**step for step in range(16 - before)]
    mean = math.fsum(losses) / 16
    return replace(reading(mean, worst_loss=1.2 * mean, speed=1.0), losses=tuple(losses))


@pytest.mark.parametrize("before", [0, 5, 14])
@pytest.mark.parametrize(("num_clipped", "speed"), [(0, 1.0), (11, 1.0), (0, 9.0)])
def test_a_leap_of_all_losses_is_nothing_to_go_back_from(before: int, num_clipped: int, speed: float):
    """Parameters may go faster after it, and not before."""
    guard = trained()
    alarm = guard.observe(replace(leap(before), num_clipped=num_clipped, speed=speed))
    assert alarm is not None
    assert alarm.averted
    assert alarm.reason == "all workers' losses leapt to 3"
    assert not guard.good
    assert alarms(guard, [reading(2.8, speed=speed), *healthy(40, level=2.5)]) == [None] * 41
    assert guard.good
    [after] = alarms(guard, [reading(6.0, worst_loss=7.0, speed=1.0)])
    assert after is not None
    assert not after.averted


@pytest.mark.parametrize(
    "seen",
    [
        leap(5, growth=1.1),
        leap(0, growth=1.1),
        replace(leap(5), losses=()),
        replace(leap(5), learning_rate=0.11),
        replace(leap(5), losses=tuple(1.2**step for step in range(16))),
        replace(leap(5), num_refused=1),
        replace(leap(5), least_loss=1.1),
        reading(3.0, worst_loss=3.6),
    ],
)
def test_what_grows_or_shows_in_the_parameters_is_no_leap(seen: Reading):
    alarm = trained().observe(seen)
    assert alarm is not None
    assert not alarm.averted


def test_a_leap_on_trial_or_after_something_odd_is_none():
    guard = trained()
    alarm = guard.observe(leap(5), settled=False)
    assert alarm is not None
    assert not alarm.averted
    guard = trained()
    guard.observe(reading(1.08, worst_loss=1.2, speed=1.6))
    assert not guard.good
    alarm = guard.observe(leap(5))
    assert alarm is not None
    assert not alarm.averted


def test_a_loss_that_goes_on_rising_after_a_leap_has_diverged():
    guard = trained()
    first, second = alarms(guard, [leap(14), reading(4.5, worst_loss=5.0, speed=1.0)])
    assert first is not None
    assert first.averted
    assert second is not None
    assert not second.averted


def trained_with_stale_gradients(staleness: int, *, since_review: int, num_reviews: int) -> list[Reading]:
    """SGD on a quadratic with a fixed rate, in reviews of 16 steps; the losses are those of mini-batches."""
    random = np.random.default_rng(3)
    curvature, rate = np.geomspace(0.01, 1.0, 30), 0.1
    history, readings = [np.ones(30)], []
    for review in range(num_reviews):
        start, losses = history[-1], []
        for _ in range(16):
            stale = history[-1 - (staleness if review >= since_review else 0)]
            losses.append(float(curvature @ stale**2) / 2 + 1 + 0.3 * random.standard_normal())
            history.append(history[-1] - rate * (curvature * stale + 0.05 * random.standard_normal(30)))
        speed = float(np.linalg.norm(history[-1] - start)) / (16 * rate)
        readings.append(reading(float(np.mean(losses)), worst_loss=1.2, rate=rate, speed=speed))
    return readings


def test_too_stale_gradients_are_noticed_reviews_before_the_loss_shows_them():
    readings = trained_with_stale_gradients(24, since_review=30, num_reviews=60)
    [by_speed, by_loss] = [
        next(number for number, one in enumerate(seen) if guard.observe(one))
        for guard, seen in (
            (Guard(GuardConfig()), readings),
            (Guard(GuardConfig()), [replace(one, speed=math.nan) for one in readings]),
        )
    ]
    assert 30 <= by_speed <= by_loss - 5


@settings(max_examples=20, deadline=None)
@given(
    losses=st.lists(st.one_of(st.floats(), st.sampled_from([0.0, 1e-320, -1.0, 1e308])), min_size=1, max_size=40),
    norms=st.lists(st.floats(min_value=0), min_size=1, max_size=10),
    rates=st.lists(st.floats(min_value=0, max_value=10), min_size=1, max_size=10),
)
def test_any_numbers_are_taken_and_alarms_are_apart(losses: list[float], norms: list[float], rates: list[float]):
    guard = Guard(GuardConfig(rearm_reviews=4))
    found = alarms(
        guard,
        [
            reading(
                loss,
                norm_sq=norms[number % len(norms)],
                rate=rates[number % len(rates)],
                speed=norms[-1 - number % len(norms)],
            )
            for number, loss in enumerate(losses)
        ],
    )
    raised = [number for number, alarm in enumerate(found) if alarm]
    assert all(later - earlier > 4 for earlier, later in itertools.pairwise(raised))
