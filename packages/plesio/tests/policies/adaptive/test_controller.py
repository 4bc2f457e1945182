"""The controller's decisions after an alarm of the guard; reviews are made up."""

import pytest
from msgspec.structs import replace

from plesio.policies import BSP, Adaptive, Reviewed, parse_policy
from plesio.policies.adaptive.controller import MAX_RESTORES, Controller
from plesio.policies.adaptive.system.setting import ON_THE_STORE, SYNCHRONOUS, Sent, Setting
from plesio.policies.policy import Decision

NUM_WORKERS, NUM_STEPS = 4, 16
ROUNDED_BSP = f"bsp,compress={Sent.ROUNDED.compression.spec}"
NO_SLACK = "adaptive,gradient=off,noise=off,feedback=off,phase.direction=both,phase.slack=0"
"""Training is critical from the beginning while the rate rises, so compression is all that can hide a slow network."""


class Run:
    """Reviews of equal workers, one after another."""

    def __init__(self, policy: str) -> None:
        adaptive = parse_policy(policy)
        assert isinstance(adaptive, Adaptive)
        self.controller = Controller(adaptive)
        self.clock = 0

    def review(
        self,
        loss: float = 1.0,
        *,
        typical: bool = True,
        num_clipped: int = 0,
        position: tuple[float, ...] = (),
        steps_left: int | None = None,
    ) -> Decision:
        """All workers' losses are ``loss``; only the last one's, and only its gradients clipped, if not ``typical``."""
        self.clock += NUM_STEPS
        setting = self.controller.setting
        blocked_s = 0.0005 if setting.on_store else 0.015 if setting.sent is Sent.ROUNDED else 0.06
        every = Reviewed(
            worker=0,
            clock=self.clock,
            samples=(8,) * NUM_STEPS,
            compute_s=(0.02,) * NUM_STEPS,
            blocked_s=(blocked_s,) * NUM_STEPS,
            loss=1.0 + 0.01 * (self.clock // NUM_STEPS % 3),
            learning_rate=1e-4 * self.clock,
            position=position,
            summed_rate=1.0,
            progress=-1.0 if steps_left is None else self.clock / (self.clock + steps_left),
        )
        reviews = {worker: replace(every, worker=worker) for worker in range(NUM_WORKERS)}
        for worker in range(NUM_WORKERS) if typical else [NUM_WORKERS - 1]:
            if loss != 1.0:
                reviews[worker] = replace(reviews[worker], loss=loss, num_clipped=num_clipped)
        return self.controller.review(reviews, metric=None)

    def settle(self) -> Decision:
        """Reviews until levels are known and a setting is found."""
        for _ in range(12):
            decision = self.review()
        return decision


def test_an_alarm_ends_compression_and_a_later_review_brings_it_back():
    run = Run(NO_SLACK)
    assert run.settle().policy.spec == ROUNDED_BSP
    alarm = run.review(50.0)
    assert (alarm.policy, alarm.alarm, alarm.restore) == (BSP(), True, True)
    assert alarm.reason.endswith(": back to bsp and to the last good state")
    assert dict(alarm.inputs)["system.step_s"] == dict(alarm.inputs)["system.bsp_step_s"]
    later = run.review()
    assert (later.policy.spec, later.alarm) == (ROUNDED_BSP, False)


def test_a_setting_under_which_training_diverged_is_not_tried_again():
    run = Run("adaptive,noise=off,phase=off,system.store=off,system.compress=off")
    run.settle()
    loose = run.controller.setting
    assert loose.slack > 0
    assert run.review(50.0).alarm
    for _ in range(150):
        run.review()
        assert run.controller.setting.slack < loose.slack


@pytest.mark.parametrize("policy", [NO_SLACK, "adaptive", "adaptive,topology=off,system.compress=off"])
def test_averted_harm_is_an_alarm_that_restores_nothing(policy: str):
    run = Run(policy)
    run.settle()
    alarm = run.review(50.0, typical=False, num_clipped=NUM_STEPS)
    assert (alarm.policy, alarm.alarm, alarm.restore) == (BSP(), True, False)
    assert alarm.reason.endswith(": back to bsp")


def test_under_bsp_an_alarm_says_that_it_stays():
    run = Run("adaptive,system.compress=off,phase.direction=both,phase.slack=0")
    assert run.settle().policy == BSP()
    assert run.review(50.0, typical=False, num_clipped=NUM_STEPS).reason.endswith(": the run stays with bsp")


def test_where_nothing_was_kept_the_run_goes_back_to_nothing():
    run = Run(NO_SLACK)
    alarm = run.review(float("inf"))
    assert (alarm.alarm, alarm.restore) == (True, False)
    assert "last good state" not in alarm.reason


def test_after_so_many_restores_an_alarm_only_falls_back():
    run = Run(NO_SLACK)
    restores = []
    for _ in range(MAX_RESTORES + 1):
        run.settle()
        alarm = run.review(50.0)
        assert alarm.alarm
        restores.append(alarm.restore)
    assert restores == [True] * MAX_RESTORES + [False]


def test_a_state_kept_on_the_store_is_one_to_go_back_to():
    run = Run("adaptive,gradient=off,phase=off,progress.warm_up=0")
    run.controller.setting = ON_THE_STORE[0]
    assert run.settle().policy == ON_THE_STORE[0].policy
    alarm = run.review(50.0)
    assert (alarm.policy, alarm.restore) == (BSP(), True)


def test_a_leap_of_the_parameters_is_an_alarm_and_the_way_back_from_it_is_none():
    run = Run("adaptive,system.compress=off,phase.direction=both,phase.slack=0")
    for place in range(12):
        assert not run.review(position=(float(place), 1.0)).alarm
    alarm = run.review(position=(21.0, 1.0))
    assert (alarm.alarm, alarm.restore) == (True, True)
    assert alarm.reason.startswith("the parameters' speed is 10, ")
    assert dict(alarm.inputs)["guard.value"] == 10.0
    for place in range(11, 23):
        decision = run.review(position=(float(place), 1.0))
        assert (decision.alarm, decision.keep) == (False, True)


def test_it_does_not_go_back_to_where_training_was_clearly_worse():
    run = Run("adaptive,system.compress=off,phase.direction=both,phase.slack=0")
    for place in range(12):
        run.review(position=(float(place), 1.0))
    alarm = run.review(0.5, position=(21.0, 1.0))
    assert (alarm.alarm, alarm.restore) == (True, False)


@pytest.mark.parametrize(
    ("before", "alarmed"), [(SYNCHRONOUS, True), (Setting.of(period=32, delay=16), False), (ON_THE_STORE[0], False)]
)
def test_with_less_slack_or_from_the_store_the_speed_is_learned_anew(before: Setting, alarmed: bool):
    run = Run("adaptive,system.compress=off,system.store=off,phase.direction=both,phase.slack=0")
    for place in range(12):
        run.controller.setting = before
        decision = run.review(position=(float(place), 1.0))
    assert decision.policy == BSP()
    found = [run.review(position=(3.0 * place, 1.0)) for place in range(12, 24)]
    assert any(decision.alarm for decision in found) == alarmed


@pytest.mark.parametrize(("policy", "alarmed"), [("adaptive,system.compress=off", False), ("adaptive", True)])
def test_a_leap_in_the_first_reviews_is_bsps_own_where_the_run_has_been_bsp_all_along(policy: str, *, alarmed: bool):
    run = Run(f"{policy},phase.direction=both,phase.slack=0")
    for _ in range(3):
        policy = run.review().policy
    assert (policy != BSP()) == alarmed
    leap = run.review(5.0)
    assert (leap.alarm, leap.restore) == (alarmed, alarmed)
    if not alarmed:  # and levels are learned from there
        assert not any(run.review(5.0 - 0.1 * review).alarm for review in range(20))


def test_after_going_back_it_is_the_older_state_that_is_left():
    """The workers have dropped the newer one: training that is below its loss, and not below the older's, goes back."""
    run = Run("adaptive,system.compress=off,phase.direction=both,phase.slack=0")
    run.settle()
    run.controller._kept_losses.extend([1.0, 0.5])
    assert run.review(50.0).restore
    assert list(run.controller._kept_losses) == [1.0]


@pytest.mark.parametrize(
    ("before", "policy", "steps_left", "changes"),
    [
        (SYNCHRONOUS, "adaptive,phase=off", 10, False),
        (SYNCHRONOUS, "adaptive,phase=off", 40, True),
        (Setting.of(period=8, delay=0), "adaptive", 5, False),
        (Setting.of(period=8, delay=0), "adaptive", 6, True),
        (Setting.of(period=8, delay=4), "adaptive", 7, False),
    ],
)
def test_there_is_no_change_that_cannot_pay_before_the_end(
    before: Setting, policy: str, steps_left: int, *, changes: bool
):
    """More slack needs a review's 16 steps, the strict end four, from when the change takes effect."""
    run = Run(f"{policy},noise=off,system.store=off,system.compress=off")
    for _ in range(6):
        run.controller.setting = before
        run.review(steps_left=1000)
    run.controller.setting = before
    decision = run.review(steps_left=steps_left)
    assert (decision.policy != before.policy) == changes
    assert ("too few steps are left to change to" in decision.reason) != changes


@pytest.mark.parametrize(("transfer_s", "strict"), [(0.012, 240), (0.03, 192), (0.4, 80)])
def test_the_strict_beginning_of_adam_is_bounded_by_what_it_costs(transfer_s: float, strict: int):
    """A quarter of 960 steps, or half as many seconds as the rest is predicted to take."""
    controller = Controller(parse_policy("adaptive,phase=off,progress=off,system.compress=off"))
    for clock in range(NUM_STEPS, 960, NUM_STEPS):
        noise = [[4.0 * (place == number) for place in range(2 * NUM_WORKERS)] for number in range(2 * NUM_WORKERS)]
        reviews = {
            worker: Reviewed(
                worker=worker,
                clock=clock,
                samples=(8,) * NUM_STEPS,
                compute_s=(0.02,) * NUM_STEPS,
                blocked_s=(transfer_s,) * NUM_STEPS,
                loss=1.0,
                learning_rate=0.1,
                normalises=True,
                shares_moments=True,
                gradients=tuple((clock - 15.0 + step, 16.0, *noise[2 * worker + step]) for step in range(2)),
                progress=clock / 960,
                can_push=False,
            )
            for worker in range(NUM_WORKERS)
        }
        if controller.review(reviews, metric=None).policy != BSP():
            break
    assert clock == strict


def test_an_alarm_changes_the_policy_however_few_steps_are_left():
    run = Run("adaptive,noise=off,system.store=off,system.compress=off")
    run.settle()
    assert run.controller.setting.slack > 0
    assert run.review(50.0, steps_left=1).policy == BSP()


def test_a_reason_names_nobody_who_objects_to_nothing():
    """Slack would save time, but not enough for its price; what components allow is more than that."""
    run = Run("adaptive,gradient=off,noise=off,phase=off,system.compress=off,system.store=off,system.price=0.9")
    reason = run.settle().reason
    assert reason.startswith("no slack saves enough")
    assert "allows" not in reason


def test_a_reason_names_what_has_failed():
    run = Run("adaptive,gradient=off,noise=off,phase=off,feedback=off,guard=off,progress.back_off=99,system.store=off")
    run.settle()
    loose = run.controller.setting
    assert loose.slack > 0
    assert run.controller._progress is not None
    run.controller._progress.changed(SYNCHRONOUS, loose)
    run.review(50.0)
    while "training shows" in (reason := run.review(50.0).reason):
        pass
    assert reason.endswith("is barred, since its kind has failed")
