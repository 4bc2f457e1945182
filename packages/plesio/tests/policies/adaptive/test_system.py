import dataclasses
import math
import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from plesio.policies import Reviewed
from plesio.policies.adaptive.config.system import SystemConfig
from plesio.policies.adaptive.system.choice import Allowance
from plesio.policies.adaptive.system.monitor import SystemMonitor
from plesio.policies.adaptive.system.setting import ON_THE_STORE, SYNCHRONOUS, Sent, Setting, ladder
from plesio.policies.adaptive.system.what_if import predict_step_s

BSP = Setting.of(period=1, delay=0)
SETTINGS = st.integers(1, 16).flatmap(
    lambda period: st.builds(Setting.of, period=st.just(period), delay=st.integers(0, period))
)


def allow(slack: float) -> Allowance:
    return Allowance(slack=slack, staleness=slack)


def review(
    worker: int, compute_s: list[float], blocked_s: list[float], *, samples: int = 16, clock: int = 0
) -> Reviewed:
    return Reviewed(
        worker=worker,
        clock=clock or len(compute_s),
        samples=(samples,) * len(compute_s),
        compute_s=tuple(compute_s),
        blocked_s=tuple(blocked_s),
    )


def bsp_reviews(compute_s: list[list[float]], *, transfer_s: float) -> dict[int, Reviewed]:
    """Make the reviews of workers with a barrier and a transfer after every step."""
    slowest = [max(steps) for steps in zip(*compute_s, strict=True)]
    return {
        worker: review(worker, steps, [most + transfer_s - own for own, most in zip(steps, slowest, strict=True)])
        for worker, steps in enumerate(compute_s)
    }


@given(SETTINGS, st.floats(1e-3, 1.0), st.floats(0.0, 5.0))
def test_equal_workers_take_what_the_closed_form_says(setting: Setting, step_s: float, transfer_s: float):
    """A round is bound by its steps, or by its transfer and the steps that nothing hides: max(H c, a + (H - d) c)."""
    h, d = setting.period, setting.delay
    expected_s = max(h * step_s, transfer_s + (h - d) * step_s) / h
    assert predict_step_s(np.full((3, 1), step_s), transfer_s=transfer_s, setting=setting) == pytest.approx(expected_s)


def test_a_period_averages_chance_and_a_barrier_takes_the_worst():
    alternating = np.array([[0.01, 0.03], [0.03, 0.01]])
    assert predict_step_s(alternating, transfer_s=0.0, setting=BSP) == pytest.approx(0.03)
    assert predict_step_s(alternating, transfer_s=0.0, setting=Setting.of(period=2, delay=0)) == pytest.approx(0.02)


@given(st.lists(st.lists(st.floats(1e-3, 1.0), min_size=6, max_size=6), min_size=2, max_size=5), st.floats(0, 1))
def test_no_setting_is_faster_than_its_slowest_worker(compute_s: list[list[float]], transfer_s: float):
    slowest_s = max(sum(steps) / len(steps) for steps in compute_s)
    for setting in ladder(8, memory=1.0):
        predicted_s = predict_step_s(np.array(compute_s), transfer_s=transfer_s, setting=setting)
        if 6 % setting.period == 0:
            assert predicted_s >= 0.8 * slowest_s  # who was behind in the first run may catch up in the second
        else:  # what counts is at most a period more than the six recorded steps
            assert predicted_s >= 0.8 * slowest_s * 6 / (6 + setting.period)


def test_the_ladder_begins_with_bsp_and_rises():
    settings = ladder(32, memory=1.0)
    assert settings[0] == BSP
    assert [s.slack for s in settings] == sorted(s.slack for s in settings)
    assert settings[-1] == Setting.of(period=32, delay=16)
    assert ladder(1, memory=1.0) == (BSP, Setting.of(period=1, delay=1))


def largest_stable_rate(setting: Setting, *, momentum: float) -> float:
    """Largest learning rate times curvature under which training on a one-dimensional quadratic comes nearer to 0.

    Written out by hand: a momentum step at a time, and every period an outer step, merged ``delay`` steps later.
    """

    def converges(rate: float) -> bool:
        x = base = 1.0
        moving = velocity = 0.0
        pending: tuple[int, float, float] | None = None
        for clock in range(1, 401):
            moving = momentum * moving + x
            x -= setting.inner_rate * rate * moving
            if pending is not None and pending[0] + setting.delay == clock:
                base, x, pending = base + pending[2], x + pending[2] - pending[1], None
            if clock % setting.period == 0:
                own = x - base
                velocity = setting.momentum * velocity + (1 - setting.momentum) * own / setting.period
                pending = clock, own, velocity * setting.period / setting.inner_rate
                if setting.delay == 0:
                    base, x, pending = base + pending[2], base + pending[2], None
            if abs(x) > 1e6:
                return False
        return abs(x) < 1

    rates = [0.02 * 1.1**number for number in range(64)]
    return next((rate for rate in rates if not converges(rate)), rates[-1])


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.8, 0.9, 0.95])
def test_every_setting_stands_the_rate_that_bsp_stands(momentum: float):
    most = largest_stable_rate(SYNCHRONOUS, momentum=momentum)
    for setting in ladder(32, memory=1 / (1 - momentum)):
        assert largest_stable_rate(setting, momentum=momentum) >= 0.8 * most, setting.spec


def test_steps_too_short_for_the_optimizers_momentum_would_swing_up():
    """Why `step_sizes` asks for it."""
    most = largest_stable_rate(SYNCHRONOUS, momentum=0.9)
    for setting in (Setting.of(period=4, delay=0, memory=1.0), Setting.of(period=8, delay=4, memory=1.0)):
        assert largest_stable_rate(setting, momentum=0.9) < 0.1 * most


@pytest.mark.parametrize("transfer_s", [0.0, 0.004, 0.1])
def test_the_transfer_is_what_the_last_one_to_come_waits(transfer_s: float):
    rng = random.Random(1)
    compute_s = [[rng.uniform(0.01, 0.03) for _ in range(12)] for _ in range(4)]
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews(compute_s, transfer_s=transfer_s), setting=BSP)
    assert monitor.transfer_s(BSP) == pytest.approx(transfer_s, abs=1e-12)


def test_behind_the_steps_the_transfer_is_what_it_took_whoever_began_it_last():
    monitor = SystemMonitor(SystemConfig())
    setting = Setting.of(period=4, delay=2)
    reviews = {
        worker: replace(review(worker, [0.02] * 8, [0.0] * 8), exchanges=((4.0, own_s), (8.0, own_s + 0.01)))
        for worker, own_s in enumerate([0.05, 0.03, 0.09])
    }
    monitor.observe(reviews, setting=setting)
    assert monitor.transfer_s(setting) == pytest.approx(0.035)


@pytest.mark.parametrize(
    ("transfer_s", "slack", "wanted"),
    [
        (0.0002, math.inf, BSP),
        (0.018, math.inf, Setting.of(period=1, delay=0, sent=Sent.ROUNDED)),
        (0.032, math.inf, Setting.of(period=4, delay=2)),
        (0.079, math.inf, Setting.of(period=8, delay=4)),
        (0.079, 3, Setting.of(period=4, delay=0, sent=Sent.ROUNDED)),
        (0.079, 0, Setting.of(period=1, delay=0, sent=Sent.ROUNDED)),
    ],
)
def test_the_least_slack_that_hides_the_transfer(transfer_s: float, slack: float, wanted: Setting):
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews([[0.02] * 8] * 4, transfer_s=transfer_s), setting=BSP)
    assert monitor.choose(allowance=allow(slack), current=BSP, shares=()).setting == wanted


def test_without_compression_strict_steps_are_sent_in_full():
    monitor = SystemMonitor(SystemConfig(compress=False))
    monitor.observe(bsp_reviews([[0.02] * 8] * 4, transfer_s=0.079), setting=BSP)
    choice = monitor.choose(allowance=allow(0), current=BSP, shares=())
    assert (choice.setting, choice.setting.spec) == (BSP, "bsp")


def test_a_compression_that_saves_less_time_than_bytes_is_given_up():
    """Rounding takes time of its own, which only an exchange tells."""
    rounded = Setting.of(period=1, delay=0, sent=Sent.ROUNDED)
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews([[0.02] * 8] * 4, transfer_s=0.02), setting=BSP)
    assert monitor.choose(allowance=allow(0), current=BSP, shares=()).setting == rounded
    monitor.observe(bsp_reviews([[0.02] * 8] * 4, transfer_s=0.03), setting=rounded)
    assert monitor.choose(allowance=allow(0), current=rounded, shares=()).setting == BSP


def test_a_setting_that_is_not_affordable_any_more_is_left_at_once():
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews([[0.02] * 8] * 4, transfer_s=0.1), setting=BSP)
    loose = Setting.of(period=8, delay=4)
    assert monitor.choose(allowance=allow(3), current=loose, shares=()).setting.slack == 3


def test_slack_that_is_not_needed_is_given_back_at_once():
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews([[0.02] * 8] * 4, transfer_s=0.0001), setting=BSP)
    loose = Setting.of(period=8, delay=4)
    assert monitor.choose(allowance=allow(math.inf), current=loose, shares=()).setting == BSP


def test_less_slack_must_be_wanted_in_two_reviews_running():
    """Not in two with one between them that is content."""
    quiet, busy = (bsp_reviews([[0.02] * 32] * 4, transfer_s=transfer_s) for transfer_s in (0.002, 0.014))
    monitor = SystemMonitor(SystemConfig(compress=False))
    current = Setting.of(period=1, delay=1)

    def choose(reviews: dict[int, Reviewed]) -> Setting:
        monitor.observe(reviews, setting=BSP)
        return monitor.choose(allowance=allow(math.inf), current=current, shares=()).setting

    assert [choose(seen) for seen in (quiet, busy, quiet, quiet)] == [current, current, current, BSP]


def test_what_is_sent_rounded_for_nothing_is_sent_in_full_from_the_second_review_on():
    monitor = SystemMonitor(SystemConfig())
    rounded = Setting.of(period=1, delay=0, sent=Sent.ROUNDED)
    monitor.observe(bsp_reviews([[0.02] * 8] * 4, transfer_s=0.0002), setting=rounded)
    first = monitor.choose(allowance=allow(math.inf), current=rounded, shares=())
    second = monitor.choose(allowance=allow(math.inf), current=first.setting, shares=())
    assert (first.setting, second.setting) == (rounded, BSP)


@pytest.mark.parametrize(("efficiency", "wanted"), [(1.0, Setting.of(period=1, delay=1)), (0.6, BSP)])
def test_local_steps_must_save_more_time_than_they_lose_progress(efficiency: float, wanted: Setting):
    monitor = SystemMonitor(SystemConfig(compress=False))
    monitor.observe(bsp_reviews([[0.02] * 8] * 4, transfer_s=0.015), setting=BSP)
    allowance = Allowance(efficiency=efficiency)
    assert monitor.choose(allowance=allowance, current=BSP, shares=()).setting == wanted


def test_a_reason_tells_the_prices_that_decided():
    """Local steps are shorter, and yet bsp is chosen: what they lose of progress costs more than they save."""
    monitor = SystemMonitor(SystemConfig(compress=False, price=0.2))
    monitor.observe(bsp_reviews([[0.07] * 4] * 4, transfer_s=0.002), setting=BSP)
    choice = monitor.choose(allowance=Allowance(slack=1, staleness=0), current=BSP, shares=())
    assert choice.setting == BSP
    assert choice.reason == (
        "no slack saves enough: bsp takes 72 ms a step, and local_sgd:1,delay=1,inner_rate=0.5,momentum=0.4 would take "
        "70 ms (priced at 87.5 ms)"
    )


def test_shares_follow_persistent_slowness():
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews([[0.02] * 8] * 3 + [[0.06] * 8], transfer_s=0.001), setting=BSP)
    choice = monitor.choose(allowance=allow(0), current=BSP, shares=())
    assert choice.shares == pytest.approx((0.3, 0.3, 0.3, 0.1))


def test_shares_are_found_in_a_few_reviews_where_a_step_has_a_part_of_its_own():
    """A step is 5 ms and a time in proportion to its samples; the fourth worker's samples take three times as long."""
    monitor, shares = SystemMonitor(SystemConfig(memory=8)), ()
    for _ in range(6):
        parts = shares or (0.25,) * 4
        seconds = [0.005 + 0.02 * 4 * part * (3 if worker == 3 else 1) for worker, part in enumerate(parts)]
        reviews = bsp_reviews([[s] * 8 for s in seconds], transfer_s=0.0)
        sized = {
            worker: Reviewed(
                worker=worker,
                clock=8,
                samples=(round(1000 * parts[worker]),) * 8,
                compute_s=it.compute_s,
                blocked_s=it.blocked_s,
            )
            for worker, it in reviews.items()
        }
        monitor.observe(sized, setting=BSP)
        shares = monitor.choose(allowance=allow(0), current=BSP, shares=shares).shares
    parts = shares
    seconds = [0.005 + 0.02 * 4 * part * (3 if worker == 3 else 1) for worker, part in enumerate(parts)]
    assert max(seconds) / min(seconds) < 1.06


@pytest.mark.parametrize("seed", range(20))
def test_chance_is_no_slowness(seed: int):
    rng = random.Random(seed)
    compute_s = [[0.02 * rng.lognormvariate(0, 0.4) for _ in range(16)] for _ in range(8)]
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews(compute_s, transfer_s=0.001), setting=BSP)
    assert monitor.choose(allowance=allow(0), current=BSP, shares=()).shares == ()


def test_slowness_that_has_just_begun_is_not_persistent():
    steps = [[0.02] * 14 for _ in range(3)] + [[0.02] * 4 + [0.03] * 10]
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews(steps, transfer_s=0.001), setting=BSP)
    assert monitor.choose(allowance=allow(0), current=BSP, shares=()).shares == ()
    monitor.observe(bsp_reviews([[0.02] * 12] * 3 + [[0.03] * 12], transfer_s=0.001), setting=BSP)
    assert monitor.choose(allowance=allow(0), current=BSP, shares=()).shares != ()


@pytest.mark.parametrize(
    ("slow", "num_steps", "changes"), [((3,), 8, False), ((3,), 16, False), ((3, 9), 16, True), ((3,), 24, True)]
)
def test_one_slow_step_of_few_does_not_decide(slow: tuple[int, ...], num_steps: int, *, changes: bool):
    """Two make a habit, and of 24 steps one that took thirty times as long does count."""
    steps = [[0.02] * num_steps for _ in range(4)]
    for place, step in enumerate(slow):
        steps[place][step] = 0.6
    monitor = SystemMonitor(SystemConfig(store=False))
    monitor.observe(bsp_reviews(steps, transfer_s=0.001), setting=BSP)
    choice = monitor.choose(allowance=allow(0), current=BSP, shares=())
    inputs = dict(choice.inputs)
    assert (inputs["system.bsp_step_s"] > 0.03) == changes


def test_without_samples_there_are_no_shares():
    """A loop over a loader of its own, which the session knows nothing of."""
    monitor = SystemMonitor(SystemConfig())
    reviews = bsp_reviews([[0.02] * 8] * 3 + [[0.06] * 8], transfer_s=0.001)
    monitor.observe({w: replace(it, samples=(0,) * 8) for w, it in reviews.items()}, setting=BSP)
    assert monitor.choose(allowance=allow(0), current=BSP, shares=()).shares == ()


@pytest.mark.parametrize("workers", [1, 2])
def test_few_workers_are_workers_too(workers: int):
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews([[0.02] * 8, [0.06] * 8][:workers], transfer_s=0.0), setting=BSP)
    assert monitor.choose(allowance=allow(math.inf), current=BSP, shares=()).setting == BSP


def test_a_beginning_that_is_not_on_the_ladder_is_left():
    monitor = SystemMonitor(SystemConfig(largest_period=2))
    monitor.observe(bsp_reviews([[0.02] * 8] * 4, transfer_s=0.0), setting=BSP)
    assert monitor.choose(allowance=allow(math.inf), current=Setting.of(period=4, delay=2), shares=()).setting == BSP


def test_steps_are_as_short_as_the_optimizers_momentum_allows():
    def spec(momentum: float) -> str:
        monitor = SystemMonitor(SystemConfig())
        reviews = bsp_reviews([[0.02] * 8] * 4, transfer_s=0.079)
        reviews = {w: replace(it, momentum=momentum) for w, it in reviews.items()}
        monitor.observe(reviews, setting=BSP)
        return monitor.choose(allowance=allow(math.inf), current=BSP, shares=()).setting.spec

    assert spec(0.0) == "local_sgd:8,delay=4,inner_rate=0.25,momentum=0.5"
    assert spec(0.8) == "local_sgd:8,delay=4,inner_rate=0.5,momentum=0.4"
    assert spec(0.9) == "local_sgd:8,delay=4"


def test_a_short_round_says_nothing_of_shares():
    monitor = SystemMonitor(SystemConfig(store=False))
    reviews = bsp_reviews([[0.02] * 8, [0.02] * 8], transfer_s=0.001)
    for worker, last in ((0, 2), (1, 1)):
        samples = (8, 8, 8, last) * 2
        reviews[worker] = replace(reviews[worker], samples=samples)
    monitor.observe(reviews, setting=SYNCHRONOUS)
    choice = monitor.choose(allowance=allow(math.inf), current=SYNCHRONOUS, shares=())
    assert choice.shares == ()
    assert dict(choice.inputs)["system.bsp_step_s"] == pytest.approx(0.021, rel=0.03)


def with_store(*, transfer_s: float, can_push: bool = True, slack: float = 3, efficiency: float = 1.0) -> Setting:
    """Chosen where one step of any worker in twenty takes eight times as long."""
    monitor = SystemMonitor(SystemConfig())
    draw = random.Random(3)
    compute_s = [[0.16 if draw.random() < 0.05 else 0.02 for _ in range(32)] for _ in range(8)]
    reviews = bsp_reviews(compute_s, transfer_s=transfer_s)
    reviews = {worker: replace(it, can_push=can_push) for worker, it in reviews.items()}
    monitor.observe(reviews, setting=SYNCHRONOUS)
    allowance = dataclasses.replace(allow(slack), store_efficiency=efficiency)
    return monitor.choose(allowance=allowance, current=SYNCHRONOUS, shares=()).setting


def test_the_store_must_save_more_time_than_its_steps_lose_progress():
    assert with_store(transfer_s=0.0005, efficiency=0.8).on_store
    assert not with_store(transfer_s=0.0005, efficiency=0.6).on_store


def test_the_store_is_for_stragglers_on_fast_links_where_its_servers_can_step():
    chosen = with_store(transfer_s=0.0005)
    assert chosen.on_store
    assert chosen.slack == 1
    assert not with_store(transfer_s=0.1).on_store
    assert not with_store(transfer_s=0.0005, can_push=False).on_store
    assert with_store(transfer_s=0.0005, slack=0) == SYNCHRONOUS


def test_nobody_goes_to_the_store_before_an_exchange_has_been_measured():
    monitor = SystemMonitor(SystemConfig())
    start = Setting.of(period=4, delay=2)
    draw = random.Random(3)
    reviews = {
        worker: review(worker, [0.16 if draw.random() < 0.3 else 0.02 for _ in range(3)], [0.0] * 3)
        for worker in range(8)
    }
    monitor.observe(reviews, setting=start)
    choice = monitor.choose(allowance=allow(3), current=start, shares=())
    assert not choice.setting.on_store
    assert choice.reason.endswith("(no exchange has been measured yet)")


def test_a_worker_that_is_slow_for_good_is_waited_for_under_any_bound():
    few = np.array([[0.02] * 3, [0.02] * 3, [0.06] * 3])
    for setting in ON_THE_STORE:
        assert predict_step_s(few, transfer_s=0.0, setting=setting) == pytest.approx(0.06, rel=0.05)


def test_the_store_is_left_for_smaller_shares_of_a_slow_worker():
    monitor = SystemMonitor(SystemConfig())
    setting = ON_THE_STORE[1]
    reviews = {worker: review(worker, [0.06 if worker == 3 else 0.02] * 16, [0.001] * 16) for worker in range(4)}
    monitor.observe(reviews, setting=setting)
    choice = monitor.choose(allowance=allow(3), current=setting, shares=())
    assert not choice.setting.on_store
    assert choice.shares[3] == pytest.approx(0.1, rel=0.05)


def test_shares_of_workers_that_have_left_are_dropped():
    monitor = SystemMonitor(SystemConfig())
    monitor.observe(bsp_reviews([[0.02] * 16] * 3, transfer_s=0.001), setting=BSP)
    assert monitor.choose(allowance=allow(0), current=BSP, shares=(0.4, 0.3, 0.2, 0.1)).shares == ()
