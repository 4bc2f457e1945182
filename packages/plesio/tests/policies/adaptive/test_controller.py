"""The controller's decisions: what it takes, tries, takes back and goes back to; reviews are made up."""

import math

import pytest
from msgspec.structs import replace

from plesio.policies import BSP, Adaptive, Reviewed, parse_policy
from plesio.policies.adaptive.compared import compared_in, trial_end_in
from plesio.policies.adaptive.controller import MOST_RESTORES, Controller
from plesio.policies.adaptive.system.setting import (
    COARSE_SHARE,
    ON_THE_STORE,
    ROUNDED_SHARE,
    SYNCHRONOUS,
    Sent,
    Setting,
)
from plesio.policies.policy import Decision

NUM_WORKERS, NUM_STEPS, STEP_S = 4, 16, 0.02
ROUNDED_BSP = f"bsp,compress={Sent.ROUNDED.compression.spec}"
STRICT = "adaptive,warm_up=999,store=off"
"""Compression is all that can hide a slow network."""
LOCAL_ONLY = "adaptive,compress=off,store=off"


class Run:
    """Reviews of equal workers, one after another, whose exchanges take ``transfer_s`` in full."""

    def __init__(self, policy: str, *, transfer_s: float = 0.06) -> None:
        adaptive = parse_policy(policy)
        assert isinstance(adaptive, Adaptive)
        self.controller = Controller(adaptive)
        self.transfer_s = transfer_s
        self.clock = 0

    @property
    def setting(self) -> Setting:
        return self.controller.setting

    def review(
        self,
        loss: float = 1.0,
        *,
        typical: bool = True,
        num_clipped: int = 0,
        position: tuple[float, ...] = (),
        steps_left: int | None = None,
        normalises: bool = False,
        shares_moments: bool = False,
        learning_rate: float | None = None,
        wire_s: float | None = None,
    ) -> Decision:
        """All workers' losses are ``loss``; only the last one's, and only its gradients clipped, if not ``typical``."""
        self.clock += NUM_STEPS
        shares = {Sent.ROUNDED: ROUNDED_SHARE, Sent.COARSE: COARSE_SHARE}
        took_s = self.transfer_s * shares.get(self.setting.sent, 1.0)
        together = self.setting.steps_together
        every = Reviewed(
            worker=0,
            clock=self.clock,
            samples=(8,) * NUM_STEPS,
            compute_s=(STEP_S,) * NUM_STEPS,
            blocked_s=(took_s if together else 0.0005,) * NUM_STEPS,
            exchanges=() if together and wire_s is None else ((float(self.clock - 4), wire_s or took_s),),
            loss=1.0 + 0.01 * (self.clock // NUM_STEPS % 3),
            learning_rate=1e-4 * self.clock if learning_rate is None else learning_rate,
            position=position,
            summed_rate=1.0,
            progress=-1.0 if steps_left is None else self.clock / (self.clock + steps_left),
            normalises=normalises or shares_moments,
            shares_moments=shares_moments,
            momentum=0.9 if shares_moments else 0.0,
            can_push=self.setting.on_store,
            began_slow=wire_s is not None,
        )
        reviews = {
            worker: replace(every, worker=worker, gradients=self.gradients(worker)) for worker in range(NUM_WORKERS)
        }
        for worker in range(NUM_WORKERS) if typical else [NUM_WORKERS - 1]:
            if loss != 1.0:
                reviews[worker] = replace(reviews[worker], loss=loss, num_clipped=num_clipped)
        return self.controller.review(reviews)

    def gradients(self, worker: int) -> tuple[tuple[float, ...], ...]:
        """The last two steps': as large in what the workers have in common as in what they have not."""
        signs = (1.0, -1.0) if worker % 2 else (-1.0, 1.0)
        return tuple((float(self.clock + at), 2.0, 1.0, sign) for at, sign in zip((-1, 0), signs, strict=True))

    def settle(self, num_reviews: int = 12) -> Decision:
        """Reviews until levels are known and a setting is found."""
        for _ in range(num_reviews):
            decision = self.review()
        return decision


@pytest.mark.parametrize(
    ("policy", "transfer_s", "spec"),
    [
        ("adaptive", 0.0002, "bsp"),
        (STRICT, 0.06, ROUNDED_BSP),
        (f"{STRICT},compress=off", 0.06, "bsp"),
        (f"{LOCAL_ONLY},price=9", 0.06, "bsp"),
    ],
)
def test_it_takes_what_has_the_most_progress_per_second(policy: str, transfer_s: float, spec: str):
    assert Run(policy, transfer_s=transfer_s).settle().policy.spec == spec


def test_of_the_settings_that_it_names_one_of_the_highest_is_chosen():
    run = Run("adaptive")
    for _ in range(8):
        before, decision = run.setting, run.review()
        found = compared_in(dict(decision.inputs))
        assert {"bsp", decision.policy.spec} <= {one.spec for one in found}
        if decision.policy != before.policy:
            [chosen] = [one for one in found if one.spec == decision.policy.spec]
            assert chosen.score >= found[0].score - 0.05
            assert f"{chosen.worth_low:.2f} to {chosen.worth_high:.2f}" in decision.reason


def test_adam_s_local_steps_get_slack_by_their_own_trials_and_an_outer_momentum_after_a_quarter():
    """That 4 bits do no harm says nothing of local steps; and the guard learns the longer steps' speed anew."""
    run, specs = Run("adaptive,store=off,price=0.2", transfer_s=2.0), []
    for num in range(1, 33):
        guard = run.controller._guard
        assert guard is not None
        run.review(shares_moments=True, steps_left=(32 - num) * NUM_STEPS, learning_rate=0.1 - 0.001 * num)
        specs.append(run.setting.spec)
        if run.setting.has_outer and not any("diloco" in spec for spec in specs[:-1]):
            assert not guard._speed.values
            assert 8 <= num <= 10
    changes = [spec for before, spec in zip(["", *specs], specs, strict=False) if spec != before]
    assert changes[:4] == [
        "bsp,compress=qsgd:8",
        "bsp,compress=qsgd:4",
        "local_sgd:2,moments=mean,compress=qsgd:4",
        "diloco:2,outer_lr=0.9,outer_momentum=0.5,moments=mean,compress=qsgd:4",
    ]


def test_there_is_no_slack_in_the_first_reviews_and_little_at_first():
    """Three reviews without, then at most 3 steps until a trial has passed; each that passes allows twice as much."""
    run = Run(LOCAL_ONLY, transfer_s=0.4)
    slacks = [(run.review(), run.setting.slack)[1] for _ in range(24)]
    assert slacks[:2] == [0, 0]
    first = next(slack for slack in slacks if slack)
    assert first <= 3 < max(slacks)
    assert slacks == sorted(slacks)


def test_a_change_that_training_does_not_bear_is_taken_back_and_said_why():
    run = Run("adaptive,compress=off,store=off,guard=off", transfer_s=0.06)
    while not run.setting.slack:
        run.review()
    loose = run.setting
    decisions = [run.review(1.0 + 0.4 * number) for number in range(1, 5)]
    failed, end = next((one, end) for one in decisions if (end := trial_end_in(dict(one.inputs))) is not None)
    assert end.failed
    assert failed.reason.startswith(f"the loss is {end.excess:.3g} above what was to be expected: ")
    assert failed.policy != loose.policy
    assert not failed.alarm
    assert failed.restore is False, "without a guard nothing is kept"
    run.settle()
    assert run.setting.slack < loose.slack


def test_a_trial_that_passes_says_what_it_has_measured():
    run = Run(LOCAL_ONLY)
    loss, ends = 4.0, []
    for _ in range(14):
        loss *= 0.9
        end = trial_end_in(dict(run.review(loss).inputs))
        ends += [] if end is None else [end]
    assert ends
    assert not any(end.failed for end in ends)
    assert any(end.worth_low is not None and end.worth_low < 1.0 < (end.worth_high or 0.0) for end in ends)


def test_an_alarm_ends_compression_and_a_later_review_brings_it_back():
    run = Run(STRICT)
    run.settle()
    alarm = run.review(50.0)
    assert (alarm.policy, alarm.alarm, alarm.restore) == (BSP(), True, True)
    assert alarm.reason.startswith("the loss is 50")
    assert alarm.reason.endswith(": back to bsp and to the last good state")
    assert not alarm.keep
    assert run.settle(2).policy == BSP(), "rounding is under suspicion, too"


def test_a_setting_under_which_training_diverged_is_not_tried_again():
    run = Run(LOCAL_ONLY)
    run.settle()
    loose = run.setting
    assert loose.slack > 0
    alarm = run.review(50.0)
    assert (alarm.alarm, alarm.restore) == (True, True)
    assert alarm.reason.endswith(": back to bsp and to the last good state")
    for _ in range(150):
        run.review()
        assert run.setting.slack < loose.slack


@pytest.mark.parametrize("policy", [STRICT, "adaptive", LOCAL_ONLY])
def test_averted_harm_is_an_alarm_that_restores_nothing(policy: str):
    run = Run(policy)
    run.settle()
    alarm = run.review(50.0, typical=False, num_clipped=NUM_STEPS)
    assert (alarm.policy, alarm.alarm, alarm.restore) == (BSP(), True, False)
    assert alarm.reason.endswith(": back to bsp")


def test_under_bsp_an_alarm_says_that_it_stays():
    run = Run(f"{STRICT},compress=off")
    run.settle()
    assert run.review(50.0, typical=False, num_clipped=NUM_STEPS).reason.endswith(": the run stays with bsp")


def test_without_a_guard_there_is_no_alarm_and_nothing_is_kept():
    run = Run(f"{STRICT},guard=off")
    decisions = [run.review() for _ in range(12)] + [run.review(50.0)]
    assert not any(one.alarm or one.keep or one.restore or one.relearn for one in decisions)


def test_where_nothing_was_kept_the_run_goes_back_to_nothing():
    alarm = Run(STRICT).review(math.inf)
    assert (alarm.alarm, alarm.restore) == (True, False)


def test_after_so_many_restores_an_alarm_only_falls_back():
    run = Run(STRICT)
    restores = []
    for _ in range(MOST_RESTORES + 1):
        run.settle()
        alarm = run.review(math.inf)
        assert alarm.alarm
        restores.append(alarm.restore)
    assert restores == [True] * MOST_RESTORES + [False]


def test_a_leap_of_the_parameters_is_an_alarm_and_the_way_on_from_it_is_none():
    run = Run(f"{STRICT},compress=off")
    for place in range(12):
        assert not run.review(position=(float(place), 1.0)).alarm
    alarm = run.review(position=(21.0, 1.0))
    assert (alarm.alarm, alarm.restore) == (True, False)
    assert alarm.reason.startswith("the parameters' speed is 10, ")
    for place in range(22, 34):
        decision = run.review(position=(float(place), 1.0))
        assert not decision.alarm
    assert decision.keep


def test_it_does_not_go_back_to_where_training_was_clearly_worse():
    run = Run(LOCAL_ONLY)
    for place in range(12):
        run.review(position=(float(place), 1.0))
    assert run.setting.slack > 0
    assert not run.review(0.5, position=(12.0, 1.0)).alarm
    alarm = run.review(0.5, position=(51.0, 1.0))
    assert (alarm.alarm, alarm.restore) == (True, False)


@pytest.mark.parametrize(
    ("before", "alarmed"), [(SYNCHRONOUS, True), (Setting.of(period=32, delay=16), False), (ON_THE_STORE[0], False)]
)
def test_with_less_slack_or_from_the_store_the_speed_is_learned_anew(before: Setting, *, alarmed: bool):
    run = Run(f"{STRICT},compress=off")
    for place in range(12):
        run.controller.setting = before
        decision = run.review(position=(float(place), 1.0))
    assert decision.policy == BSP()
    found = [run.review(position=(3.0 * place, 1.0)) for place in range(12, 24)]
    assert any(decision.alarm for decision in found) == alarmed


@pytest.mark.parametrize(("policy", "alarmed"), [(f"{STRICT},compress=off", False), (STRICT, True)])
def test_a_leap_in_the_first_reviews_is_bsps_own_where_the_run_has_been_bsp_all_along(policy: str, *, alarmed: bool):
    run = Run(policy)
    assert (run.settle(3).policy != BSP()) == alarmed
    leap = run.review(5.0)
    assert (leap.alarm, leap.restore) == (alarmed, False)
    if not alarmed:  # and levels are learned from there
        assert not any(run.review(5.0 - 0.1 * review).alarm for review in range(20))


def test_after_going_back_it_is_the_older_state_that_is_left():
    """The workers have dropped the newer one: training that is below its loss, and not below the older's, goes back."""
    run = Run(f"{STRICT},compress=off")
    run.settle()
    run.controller._kept.extend([(1, 1.0), (2, 0.5)])
    run.controller._last_loose = 3
    assert run.review(50.0).restore
    assert list(run.controller._kept) == [(1, 1.0)]


def test_where_little_slack_does_not_pay_the_least_that_does_is_tried():
    run = Run(f"{LOCAL_ONLY},gain=0.6")
    slacks = [(run.review(), run.setting.slack)[1] for _ in range(12)]
    assert next(slack for slack in slacks if slack) == 3


def test_nothing_looser_is_tried_while_the_loss_rises():
    run = Run(LOCAL_ONLY)
    loss, reasons = 1.0, []
    while len(reasons) < 8:
        loss *= 1.005
        reasons.append(run.review(loss).reason)
        assert run.setting == SYNCHRONOUS
    assert reasons[-1].endswith("waits until the loss falls again")
    run.review(loss)
    run.review(0.98 * loss)
    run.review(0.97 * loss)
    assert run.setting.slack > 0


@pytest.mark.parametrize(
    ("options", "steps_left", "changes"),
    [
        ("finish=0", 17, False),  # a trial of 16 steps and a period of 2
        ("finish=0", 18, True),
        ("finish=0.1", 18, False),  # of the 66 steps some are without slack
        ("finish=0.1", 2000, True),
    ],
)
def test_there_is_no_change_that_cannot_pay_before_the_end(options: str, steps_left: int, *, changes: bool):
    run = Run(f"{LOCAL_ONLY},{options}", transfer_s=0.4)
    run.settle(2)
    decision = run.review(steps_left=steps_left)
    assert (decision.policy != BSP()) == changes
    assert ("too few steps are left" in decision.reason) != changes


def test_the_last_steps_are_without_slack():
    run = Run(LOCAL_ONLY, transfer_s=0.02)
    for number in range(1, 61):
        decision = run.review(steps_left=NUM_STEPS * (60 - number))
        if number == 50:
            assert run.setting.slack > 0
        if number > 50 and run.setting == SYNCHRONOUS:
            break
    assert decision.reason == "the last steps are without slack"
    assert number == 54


def test_the_slower_bsp_the_shorter_its_end():
    """It may take a quarter of the time at most."""
    ends = []
    for transfer_s in (0.06, 1.6):
        run = Run(LOCAL_ONLY, transfer_s=transfer_s)
        for number in range(1, 201):
            run.review(steps_left=NUM_STEPS * (200 - number))
            if number > 100 and run.setting == SYNCHRONOUS:
                ends.append(number)
                break
    assert ends[0] < ends[1]


def test_an_alarm_changes_the_policy_however_few_steps_are_left():
    run = Run(LOCAL_ONLY)
    run.settle()
    assert run.setting.slack > 0
    assert run.review(50.0, steps_left=1).policy == BSP()


def test_trials_are_reviewed_twice_as_often():
    run = Run(LOCAL_ONLY)
    run.settle(2)
    assert run.controller.next_review(100)[1] == 116
    while not run.setting.slack:
        run.review()
    assert 100 + 8 <= run.controller.next_review(100)[1] < 116


def test_an_optimizer_that_normalises_has_no_slack_before_its_noise_is_known():
    run = Run("adaptive")
    specs = {run.review(normalises=True).policy.spec for _ in range(12)}
    assert specs == {ROUNDED_BSP}


@pytest.mark.parametrize(("wire_s", "spec"), [(0.0005, "bsp"), (0.02, ROUNDED_BSP)])
def test_what_begins_in_8_bits_goes_on_so_where_the_links_and_not_the_codec_take_the_time(wire_s: float, spec: str):
    assert Run(STRICT, transfer_s=0.02).review(wire_s=wire_s).policy.spec == spec
