"""Changes on trial: what fails, what passes, and what is remembered."""

import math
import random
from collections.abc import Sequence

import pytest

from plesio.policies.adaptive.config.progress import ProgressConfig
from plesio.policies.adaptive.readings.reading import NO_OBJECTION, Reading
from plesio.policies.adaptive.system.setting import Sent, Setting
from plesio.policies.adaptive.training.progress import Failure, ProgressJudge

BSP = Setting.of(period=1, delay=0)
LOCAL, LOOSER = Setting.of(period=4, delay=0), Setting.of(period=8, delay=4)
LONGER = Setting.of(period=8, delay=0)
STORE = Setting.on_the_store(7)
RACKS = Setting.of(period=8, delay=0, by_racks=True)
ROUNDED, ROUNDED_LOCAL = (Setting.of(period=period, delay=0, sent=Sent.ROUNDED) for period in (1, 8))
ROUNDED_LOOSER = Setting.of(period=16, delay=0, sent=Sent.ROUNDED)
ROUNDED_RACKS = Setting.of(period=8, delay=0, by_racks=True, sent=Sent.ROUNDED)


class Run:
    """Reviews every 16 steps."""

    def __init__(self, config: ProgressConfig | None = None, *, error: float = 0.01) -> None:
        self.judge = ProgressJudge(ProgressConfig() if config is None else config)
        self.error = error
        self.clock = 0

    def see(self, *losses: float) -> list[Failure | None]:
        found = []
        for loss in losses:
            self.clock += 16
            reading = Reading(
                clock=self.clock, num_steps=16, learning_rate=0.1, loss=loss, loss_error=self.error, num_workers=8
            )
            found.append(self.judge.observe(reading))
        return found


def fall(count: int, *, begin: int = 0, steepness: float = 0.05, noise: float = 0.0, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [math.exp(-steepness * (begin + place)) * (1 + rng.gauss(0, noise)) for place in range(count)]


def test_a_collapse_is_seen_in_the_first_review_and_the_parameters_have_come_to_harm():
    run = Run()
    run.see(*fall(4))
    run.judge.changed(BSP, STORE)
    [failure] = run.see(1.5)
    assert failure is not None
    assert failure.harmed
    assert failure.inputs["loss"] == 1.5
    assert not run.judge.allows(STORE)
    assert run.judge.allows(BSP)


def test_training_that_stands_still_fails_without_harm():
    run = Run(error=0.001)
    before = fall(4, steepness=0.1)
    run.see(*before)
    run.judge.changed(BSP, LOCAL)
    failures = [one for one in run.see(*[before[-1]] * 3) if one is not None]
    assert len(failures) == 1
    assert not failures[0].harmed


@pytest.mark.parametrize("seed", range(20))
def test_training_that_goes_on_as_it_did_passes(seed: int):
    losses = fall(40, noise=0.02, seed=seed)
    run = Run(error=0.02)
    for place, loss in enumerate(losses):
        if place == 10:
            run.judge.changed(BSP, LOCAL)
        if place == 20:
            run.judge.changed(LOCAL, LOOSER)
        assert run.see(loss) == [None]
    assert run.judge.allows(LOOSER)
    assert not run.judge.on_trial


def test_within_its_noise_nothing_is_judged():
    run = Run(error=0.3)
    run.see(*fall(4))
    run.judge.changed(BSP, STORE)
    assert run.see(1.0) == [None]


@pytest.mark.parametrize("losses", [(math.nan,) * 3, (math.inf,) * 3])
def test_without_a_loss_nothing_is_judged(losses: Sequence[float]):
    run = Run()
    run.see(*losses)
    run.judge.changed(BSP, STORE)
    assert run.see(*losses) == [None] * 3


def test_a_change_to_less_slack_is_not_on_trial():
    run = Run()
    run.see(*fall(4))
    run.judge.changed(LOOSER, BSP)
    assert not run.judge.on_trial
    assert run.see(2.0) == [None]


def test_rounding_between_racks_is_on_trial_and_barred_by_itself():
    run = Run()
    run.see(*fall(4))
    run.judge.changed(RACKS, ROUNDED_RACKS)
    assert run.judge.on_trial
    assert run.see(5.0)[0] is not None
    run.see(*[1.0] * 5)
    assert not run.judge.allows(ROUNDED_RACKS)
    assert run.judge.allows(RACKS)
    assert run.judge.allows(LOCAL)


def test_racks_that_share_the_store_are_on_trial_and_barred_by_themselves():
    run, sharing = Run(), Setting.on_the_store(7, by_racks=True)
    run.see(*fall(4))
    run.judge.changed(RACKS, sharing)
    assert run.see(5.0)[0] is not None
    run.see(*[1.0] * 5)
    assert not run.judge.allows(sharing)
    assert run.judge.allows(RACKS)
    assert run.judge.allows(STORE)


def test_where_racks_are_barred_they_do_not_round_either():
    run = Run()
    run.see(*fall(4))
    run.judge.changed(BSP, RACKS)
    assert run.see(5.0)[0] is not None
    run.see(*[1.0] * 5)
    assert not run.judge.allows(RACKS)
    assert not run.judge.allows(ROUNDED_RACKS)


@pytest.mark.parametrize(
    ("before", "barred", "allowed"),
    [
        (BSP, [LONGER, ROUNDED_LOCAL], [ROUNDED]),
        (ROUNDED, [LONGER, ROUNDED_LOCAL], [ROUNDED]),
        (LONGER, [ROUNDED_LOCAL], [LONGER, ROUNDED]),
    ],
    ids=["bsp", "rounded", "local"],
)
def test_of_rounded_local_steps_that_fail_what_is_new_is_barred(
    before: Setting, barred: list[Setting], allowed: list[Setting]
):
    run = Run(ProgressConfig(rest=0, back_off=100))
    run.see(*fall(4))
    run.judge.changed(before, ROUNDED_LOCAL)
    assert run.see(5.0)[0] is not None
    run.see(*[1.0] * 20)
    assert not any(run.judge.allows(setting) for setting in barred)
    assert all(run.judge.allows(setting) for setting in allowed)


def test_where_rounding_has_failed_local_steps_do_not_round_either():
    run = Run(ProgressConfig(rest=0, back_off=100))
    run.see(*fall(4))
    run.judge.changed(BSP, ROUNDED)
    assert run.see(5.0)[0] is not None
    run.see(*[1.0] * 20)
    assert not run.judge.allows(ROUNDED_LOCAL)
    assert run.judge.allows(LOCAL)


def test_rounding_no_longer_is_not_on_trial():
    run = Run()
    run.see(*fall(4))
    run.judge.changed(ROUNDED_RACKS, RACKS)
    assert not run.judge.on_trial


def test_what_failed_is_barred_from_half_of_its_slack_on_and_twice_as_long_the_next_time():
    run = Run(ProgressConfig(back_off=100))
    run.see(*fall(4))
    run.judge.changed(LOCAL, LOOSER)
    assert run.see(5.0)[0] is not None
    for _ in range(100):
        assert not run.judge.allows(LOOSER)
        assert not run.judge.allows(Setting.of(period=8, delay=0))  # 7 of 11 is more than half
        run.see(1.0)
        assert run.judge.allows(LOCAL)
    assert run.judge.allows(LOOSER)
    run.judge.changed(LOCAL, LOOSER)
    assert run.see(5.0)[0] is not None
    run.see(*[1.0] * 199)
    assert not run.judge.allows(LOOSER)
    run.see(1.0)
    assert run.judge.allows(LOOSER)


def test_what_racks_did_not_bear_single_workers_are_not_asked_to():
    run = Run(ProgressConfig(rest=0, back_off=100))
    run.see(*fall(4))
    run.judge.changed(BSP, Setting.of(period=8, delay=4, by_racks=True))
    assert run.see(5.0)[0] is not None
    run.see(*[1.0] * 20)
    assert not run.judge.allows(Setting.of(period=1, delay=1))
    assert run.judge.allows(Setting.of(period=2, delay=0, by_racks=True))
    assert run.judge.allows(STORE)


@pytest.mark.parametrize("before", [4, 20])
def test_after_a_failure_it_rests_for_as_long_as_the_run_has_been(before: int):
    run = Run(ProgressConfig(back_off=1))
    run.see(*fall(before))
    run.judge.changed(BSP, STORE)
    assert run.see(5.0)[0] is not None
    for _ in range(before + 1):
        assert not run.judge.allows(LOCAL)
        assert run.judge.allows(BSP)
        run.see(1.0)
    assert run.judge.allows(LOCAL)


def test_nothing_has_slack_before_training_has_shown_how_it_goes():
    run = Run()
    rounded = Setting.of(period=1, delay=0, sent=Sent.ROUNDED)
    for _ in range(ProgressConfig().warm_up):
        assert not run.judge.allows(LOCAL)
        assert not run.judge.allows(STORE)
        assert run.judge.allows(BSP)
        assert run.judge.allows(rounded)
        run.see(1.0)
    assert run.judge.allows(LOCAL)
    assert run.judge.allows(STORE)


@pytest.mark.parametrize(("cost", "fails"), [(0.3, False), (0.9, True)])
def test_what_saves_little_may_cost_little(cost: float, *, fails: bool):
    run = Run(error=0.001)
    run.see(1.0, 0.9, 0.8, 0.7)
    run.judge.changed(BSP, LOCAL, cost=cost)
    assert any(run.see(0.665, 0.63, 0.6)) == fails


def test_a_fall_that_was_ending_need_not_go_on():
    run = Run(error=0.001)
    run.see(*(math.exp(-2.0 * place) for place in range(4)))
    run.judge.changed(BSP, LOCAL, cost=0.9)
    assert run.see(*(math.exp(-2.0 * place) for place in range(4, 7))) == [None] * 3


def test_an_alarm_bars_what_is_on_trial():
    run = Run()
    run.see(*fall(4))
    run.judge.changed(BSP, STORE)
    run.judge.diverged(BSP)
    assert not run.judge.allows(STORE)
    assert not run.judge.on_trial


@pytest.mark.parametrize(
    ("setting", "barred", "allowed"),
    [
        (LOOSER, [LOOSER, ROUNDED_LOOSER, Setting.of(period=16, delay=8)], [BSP, ROUNDED, LOCAL, STORE, RACKS]),
        (STORE, [STORE, Setting.on_the_store(15)], [Setting.on_the_store(3), LOOSER]),
        (RACKS, [RACKS, ROUNDED_RACKS, LONGER], [LOCAL, STORE]),
        (ROUNDED, [], [ROUNDED, ROUNDED_LOCAL]),
    ],
)
def test_under_what_training_has_diverged_and_looser_it_does_not_go_on_again(
    setting: Setting, barred: list[Setting], allowed: list[Setting]
):
    run = Run()
    run.see(*fall(10))
    run.judge.diverged(setting)
    run.see(*fall(1000, begin=10))
    assert [one for one in (*barred, *allowed) if not run.judge.allows(one)] == barred


def test_a_loss_beyond_all_numbers_is_judged_too():
    run = Run(error=1e200)
    run.see(*fall(4))
    run.judge.changed(BSP, STORE)
    run.see(1e300)


@pytest.mark.parametrize(("known", "judged"), [(1, False), (2, True)])
def test_one_review_says_nothing_of_how_training_goes(known: int, *, judged: bool):
    run = Run()
    run.see(*fall(known))
    run.judge.changed(BSP, Setting.of(period=1, delay=0, sent=Sent.ROUNDED))
    assert run.judge.on_trial == judged
    assert (run.see(5.0)[0] is not None) == judged


def test_it_says_what_it_has_against_slack():
    run = Run(ProgressConfig(warm_up=2, rest=4))
    run.see(1.0)
    assert run.judge.advice.slack == 0
    assert "goes without slack" in run.judge.advice.reason
    run.see(1.0)
    assert run.judge.advice == NO_OBJECTION
    run.judge.changed(LOCAL, LOOSER)
    assert run.see(5.0)[0] is not None
    assert run.judge.advice.slack == LOCAL.slack
    assert "for 4 reviews" in run.judge.advice.reason


@pytest.mark.parametrize("before", [LOOSER, Setting.of(period=8, delay=0, sent=Sent.ROUNDED), STORE])
def test_strict_steps_after_loose_ones_are_not_on_trial_though_they_are_rounded(before: Setting):
    run = Run()
    run.see(*fall(4))
    run.judge.changed(before, Setting.of(period=1, delay=0, sent=Sent.ROUNDED))
    assert not run.judge.on_trial
    assert run.see(2.0) == [None]
