"""Strict steps whose gradients go in low rank: when they are considered, chosen, judged and left."""

import math
from dataclasses import replace

import msgspec
import pytest

from plesio.policies import Reviewed, Steer, parse_policy, replay
from plesio.policies.adaptive.config.progress import ProgressConfig
from plesio.policies.adaptive.config.system import SystemConfig
from plesio.policies.adaptive.controller import Controller
from plesio.policies.adaptive.readings.reading import Reading
from plesio.policies.adaptive.system.choice import Allowance, SystemChoice
from plesio.policies.adaptive.system.monitor import SystemMonitor
from plesio.policies.adaptive.system.sent_bytes import SentBytes
from plesio.policies.adaptive.system.setting import IN_LOW_RANK, ON_THE_STORE, ROUNDED_SHARE, SYNCHRONOUS, Sent, Setting
from plesio.policies.adaptive.training.progress import ProgressJudge
from plesio.policies.events import Event, Joined
from plesio.policies.policy import Decision

NUM_WORKERS, STEP_S, LOW_RANK_SHARE = 4, 0.02, 0.05
ROUNDED = Setting.of(period=1, delay=0, sent=Sent.ROUNDED)
STRICT = Allowance(slack=0, drift=0, staleness=1)
"""No worker may step by itself, as where a worker's gradient is nearly all noise."""


def reviews(
    blocked_s: float, *, low_rank_share: float = LOW_RANK_SHARE, sparse_bytes: tuple[float, ...] = ()
) -> dict[int, Reviewed]:
    """Make the reviews of equal workers that were blocked so long in every step."""
    return {
        worker: Reviewed(
            worker=worker,
            clock=16,
            samples=(8,) * 16,
            compute_s=(STEP_S,) * 16,
            blocked_s=(blocked_s,) * 16,
            low_rank_share=low_rank_share,
            sparse_bytes=sparse_bytes,
            can_push=False,
        )
        for worker in range(NUM_WORKERS)
    }


def monitor(exchange_s: float, *, low_rank_share: float = LOW_RANK_SHARE, compress: bool = True) -> SystemMonitor:
    """One that has seen strict steps in full, and rounded ones if there may be some."""
    system = SystemMonitor(SystemConfig(compress=compress))
    system.observe(reviews(exchange_s, low_rank_share=low_rank_share), setting=SYNCHRONOUS)
    if compress:
        rounded_s = exchange_s * ROUNDED_SHARE
        system.observe(reviews(rounded_s, low_rank_share=low_rank_share), setting=ROUNDED)
    return system


def choose(system: SystemMonitor, *, current: Setting = ROUNDED, allowance: Allowance = STRICT) -> SystemChoice:
    return system.choose(allowance=allowance, current=current, shares=())


def test_it_is_chosen_where_a_rounded_exchange_is_still_much_of_a_step():
    choice = choose(monitor(0.16))
    assert choice.setting == IN_LOW_RANK
    assert choice.setting.spec == "bsp,compress=powersgd:4"
    assert choice.reason.endswith("and at best 60.3 ms if gradients were not sent in low rank")
    assert dict(choice.inputs)["system.low_rank_step_s"] == pytest.approx(STEP_S + 0.16 * LOW_RANK_SHARE)


@pytest.mark.parametrize(
    ("exchange_s", "share", "allowance"),
    [
        pytest.param(0.02, LOW_RANK_SHARE, STRICT, id="a quarter of the bytes is little enough"),
        pytest.param(0.16, 1.0, STRICT, id="no matrices"),
        pytest.param(1.6, 0.24, STRICT, id="fewer bytes, but not by a quarter of a step"),
        pytest.param(0.16, LOW_RANK_SHARE, Allowance(slack=0, drift=0, staleness=0), id="nothing may be late"),
        pytest.param(0.16, LOW_RANK_SHARE, replace(STRICT, bears=lambda it: it != IN_LOW_RANK), id="it has failed"),
    ],
)
def test_else_it_is_not(exchange_s: float, share: float, allowance: Allowance):
    assert choose(monitor(exchange_s, low_rank_share=share), allowance=allowance).setting == ROUNDED


def test_where_local_steps_can_be_afforded_and_hide_it_all_they_are_taken():
    assert choose(monitor(0.16), allowance=Allowance(slack=31)).setting.period > 1


def test_it_needs_the_price_and_the_gain():
    """The price makes 24.2 of 20.6 ms: less than 26 ms, which a rounded exchange of 6 ms makes, but not by a tenth."""
    assert choose(monitor(0.006 / ROUNDED_SHARE, low_rank_share=0.1 * ROUNDED_SHARE)).setting == ROUNDED
    cheap = SystemMonitor(SystemConfig(price=0.01))
    for setting, exchange_s in ((SYNCHRONOUS, 0.006 / ROUNDED_SHARE), (ROUNDED, 0.006)):
        cheap.observe(reviews(exchange_s, low_rank_share=0.1 * ROUNDED_SHARE), setting=setting)
    assert choose(cheap).setting == IN_LOW_RANK


def test_without_compression_there_is_none():
    choice = choose(monitor(0.16, compress=False), current=SYNCHRONOUS)
    assert choice.setting == SYNCHRONOUS
    assert "system.low_rank_step_s" not in dict(choice.inputs)


def test_where_the_optimizer_normalises_there_is_none():
    system = monitor(0.16)
    seen = {worker: msgspec.structs.replace(review, normalises=True) for worker, review in reviews(0.04).items()}
    system.observe(seen, setting=ROUNDED)
    choice = choose(system)
    assert choice.setting == ROUNDED
    assert "system.low_rank_step_s" not in dict(choice.inputs)


def test_an_alarm_ends_it():
    choice = monitor(0.16).choose(allowance=STRICT, current=IN_LOW_RANK, shares=(), only=SYNCHRONOUS)
    assert choice.setting == SYNCHRONOUS


def test_once_tried_it_is_measured_and_left_if_something_else_is_as_fast():
    """The time of factoring is part of the exchange that is measured."""
    system = monitor(0.16)
    assert system.transfer_s(IN_LOW_RANK) == pytest.approx(0.16 * LOW_RANK_SHARE)
    system.observe(reviews(0.012), setting=IN_LOW_RANK)
    assert system.transfer_s(IN_LOW_RANK) == pytest.approx(0.012)
    assert choose(system, current=IN_LOW_RANK).setting == IN_LOW_RANK
    system.observe(reviews(0.1), setting=IN_LOW_RANK)
    assert choose(system, current=IN_LOW_RANK).setting == ROUNDED


def test_rows_go_in_full():
    system = SystemMonitor(SystemConfig())
    system.observe(reviews(0.16, sparse_bytes=(0.0, 1e8, 1e5)), setting=SYNCHRONOUS)
    assert system.transfer_s(IN_LOW_RANK) == pytest.approx(0.16)
    assert choose(system, current=SYNCHRONOUS).setting == SYNCHRONOUS
    told = SentBytes().seen(reviews(0.16, sparse_bytes=(4e5, 1e8, 1e5)))
    in_full, low = (told.ratio("gradients", it, to="store", to_sent=Sent.FULL) for it in (Sent.FULL, Sent.LOW_RANK))
    assert low / in_full == pytest.approx((4e5 * LOW_RANK_SHARE + 2e5) / (4e5 + 2e5))


class _Judged:
    def __init__(self, num_reviews: int) -> None:
        self.judge = ProgressJudge(ProgressConfig())
        self.num_reviews = 0
        for _ in range(num_reviews):
            self.look(2.0 * 0.9**self.num_reviews)

    def look(self, loss: float) -> bool:
        """Return True if a review with this loss is a failure."""
        self.num_reviews += 1
        reading = Reading(clock=16 * self.num_reviews, num_steps=16, learning_rate=0.1, loss=loss, loss_error=0.001)
        return self.judge.observe(reading) is not None


def test_it_waits_until_training_has_shown_how_it_goes():
    assert not _Judged(2).judge.allows(IN_LOW_RANK)
    assert _Judged(3).judge.allows(IN_LOW_RANK)


@pytest.mark.parametrize("before", [SYNCHRONOUS, ROUNDED, Setting.of(period=4, delay=0)])
def test_it_is_on_trial_and_barred_by_itself(before: Setting):
    run = _Judged(4)
    run.judge.changed(before, IN_LOW_RANK)
    assert run.judge.on_trial
    assert run.look(1.9)
    assert not run.judge.allows(IN_LOW_RANK)
    assert run.judge.allows(before)
    while run.judge.advice.slack < math.inf:
        run.look(1.0)
    for other in (ROUNDED, Setting.of(period=4, delay=0), ON_THE_STORE[0]):
        assert run.judge.allows(other)
    assert not run.judge.allows(IN_LOW_RANK)


@pytest.mark.parametrize("after", [SYNCHRONOUS, ROUNDED])
def test_sending_more_again_is_not_on_trial(after: Setting):
    run = _Judged(4)
    run.judge.changed(IN_LOW_RANK, after)
    assert not run.judge.on_trial


class _Run:
    """Equal workers with a slow network, whose optimizer makes nothing of local steps."""

    def __init__(self) -> None:
        policy = parse_policy("adaptive,system.largest_period=1,system.store=off,phase=off")
        self.policy = policy
        self.controller = Controller(policy)  # type: ignore[arg-type]
        self.clock = 0

    def review(self, loss: float) -> Decision:
        self.clock += 16
        shares = {Sent.FULL: 1.0, Sent.ROUNDED: ROUNDED_SHARE, Sent.LOW_RANK: LOW_RANK_SHARE}
        seen = {
            worker: msgspec.structs.replace(one, clock=self.clock, loss=loss * (1 + 1e-4 * worker))
            for worker, one in reviews(0.4 * shares[self.controller.setting.sent]).items()
        }
        return self.controller.review(seen, metric=None)


def test_a_run_tries_it_and_when_it_fails_goes_back_to_what_it_had():
    run = _Run()
    specs = [run.review(2.0 * 0.9**number).policy.spec for number in range(4)]
    assert specs == ["bsp,compress=qsgd:8"] * 2 + ["bsp,compress=powersgd:4"] * 2
    failed = run.review(2.5)
    assert failed.policy == ROUNDED.policy
    assert "steps of bsp,compress=powersgd:4, where" in failed.reason
    assert [run.review(1.4 * 0.95**number).policy for number in range(4)] == [ROUNDED.policy] * 4


def test_its_reviews_replay():
    policy = parse_policy("adaptive,system.largest_period=1,system.store=off,phase=off")
    machine = policy.start()
    events: list[Event] = [Joined(worker=worker) for worker in range(NUM_WORKERS)]
    for event in events:
        machine.handle(event)
    blocked_s, clock, steers = 0.4, 2, []
    for number in range(6):
        for _, one in sorted(reviews(blocked_s).items()):
            events.append(msgspec.structs.replace(one, clock=clock, loss=2.0 * 0.9**number))
            answers = machine.handle(events[-1])
        [steer] = answers
        assert isinstance(steer, Steer)
        steers.append(steer)
        clock, blocked_s = steer.next_review, 0.02 if "powersgd" in steer.policy else 0.1
    assert any("powersgd" in steer.policy for steer in steers)
    again = [action for actions in replay(policy, events) for action in actions if isinstance(action, Steer)]
    assert again == steers
