"""Predicted seconds of a step, and shares, from what workers have measured."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from plesio.policies import Reviewed
from plesio.policies.adaptive.numbers import Options
from plesio.policies.adaptive.system.setting import IN_LOW_RANK, ON_THE_STORE, ROUNDED_SHARE, SYNCHRONOUS, Sent, Setting
from plesio.policies.adaptive.system.times import SettingTimes

BSP = SYNCHRONOUS
ROUNDED = Setting.of(period=1, delay=0, sent=Sent.ROUNDED)


def review(worker: int, compute_s: list[float], blocked_s: list[float], *, samples: int = 16) -> Reviewed:
    return Reviewed(
        worker=worker,
        clock=len(compute_s),
        samples=(samples,) * len(compute_s),
        compute_s=tuple(compute_s),
        blocked_s=tuple(blocked_s),
    )


def under_bsp(compute_s: list[list[float]], *, transfer_s: float) -> dict[int, Reviewed]:
    """Make the reviews of workers with a barrier and a transfer after every step."""
    slowest = [max(steps) for steps in zip(*compute_s, strict=True)]
    return {
        worker: review(worker, steps, [most + transfer_s - own for own, most in zip(steps, slowest, strict=True)])
        for worker, steps in enumerate(compute_s)
    }


def times_of(reviews: dict[int, Reviewed], *, setting: Setting = BSP, options: Options | None = None) -> SettingTimes:
    times = SettingTimes(options or Options())
    times.observe(reviews, setting=setting)
    return times


def step_s(times: SettingTimes, setting: Setting = BSP, *, current: Setting = BSP) -> float:
    return times.predict(current, ())[0][setting]


def shares_of(times: SettingTimes, *, before: tuple[float, ...] = ()) -> tuple[float, ...]:
    return times.predict(BSP, before)[1]


@pytest.mark.parametrize("transfer_s", [0.0, 0.004, 0.1])
def test_the_transfer_is_what_the_last_one_to_come_waits(transfer_s: float):
    rng = random.Random(1)
    compute_s = [[rng.uniform(0.01, 0.03) for _ in range(12)] for _ in range(4)]
    assert times_of(under_bsp(compute_s, transfer_s=transfer_s)).transfer_s(BSP) == pytest.approx(transfer_s, abs=1e-12)


def test_behind_the_steps_the_transfer_is_what_it_took_whoever_began_it_last():
    setting = Setting.of(period=4, delay=2)
    reviews = {
        worker: replace(review(worker, [0.02] * 8, [0.0] * 8), exchanges=((4.0, own_s), (8.0, own_s + 0.01)))
        for worker, own_s in enumerate([0.05, 0.03, 0.09])
    }
    assert times_of(reviews, setting=setting).transfer_s(setting) == pytest.approx(0.035)


def test_a_compression_that_saves_less_time_than_bytes_is_known_once_it_is_measured():
    times = times_of(under_bsp([[0.02] * 8] * 4, transfer_s=0.02))
    assert step_s(times, ROUNDED) < 0.03
    times.observe(under_bsp([[0.02] * 8] * 4, transfer_s=0.03), setting=ROUNDED)
    assert (step_s(times, BSP), step_s(times, ROUNDED)) == pytest.approx((0.04, 0.05))


def test_without_compression_all_is_sent_in_full():
    times = times_of(under_bsp([[0.02] * 8] * 4, transfer_s=0.079), options=Options(compress=False))
    assert all(setting.sent is Sent.FULL for setting in times.predict(BSP, ())[0])


@pytest.mark.parametrize(
    ("share", "normalises", "compress", "has"),
    [(0.05, False, True, True), (0.5, False, True, False), (0.05, True, True, False), (0.05, False, False, False)],
)
def test_low_rank_is_for_fewer_bytes_where_nothing_normalises(
    share: float, *, normalises: bool, compress: bool, has: bool
):
    reviews = {
        worker: replace(it, low_rank_share=share, normalises=normalises)
        for worker, it in under_bsp([[0.02] * 8] * 4, transfer_s=0.16).items()
    }
    times = times_of(reviews, options=Options(compress=compress)).predict(BSP, ())[0]
    assert (IN_LOW_RANK in times) == has
    assert not has or times[IN_LOW_RANK] == pytest.approx(0.02 + 0.16 * share)


def with_store(*, transfer_s: float, can_push: bool = True, store: bool = True) -> bool:
    """Return True if the store is compared where one step of any worker in twenty takes eight times as long."""
    draw = random.Random(3)
    compute_s = [[0.16 if draw.random() < 0.05 else 0.02 for _ in range(32)] for _ in range(8)]
    reviews = under_bsp(compute_s, transfer_s=transfer_s)
    reviews = {worker: replace(it, can_push=can_push) for worker, it in reviews.items()}
    return ON_THE_STORE[0] in times_of(reviews, options=Options(store=store)).predict(BSP, ())[0]


def test_the_store_is_for_stragglers_on_fast_links_where_its_servers_can_step():
    assert with_store(transfer_s=0.0005)
    assert not with_store(transfer_s=1.0)
    assert not with_store(transfer_s=0.0005, can_push=False)
    assert not with_store(transfer_s=0.0005, store=False)


def test_steps_are_as_short_as_the_optimizers_momentum_allows():
    def spec(momentum: float) -> str:
        reviews = under_bsp([[0.02] * 8] * 4, transfer_s=0.079)
        times = times_of({w: replace(it, momentum=momentum) for w, it in reviews.items()})
        return next(it.spec for it in times.predict(BSP, ())[0] if (it.period, it.delay) == (8, 4))

    assert spec(0.0) == "local_sgd:8,delay=4,inner_rate=0.25,momentum=0.5"
    assert spec(0.8) == "local_sgd:8,delay=4,inner_rate=0.5,momentum=0.4"
    assert spec(0.9) == "local_sgd:8,delay=4"


@pytest.mark.parametrize(("momentum", "rest"), [(0.9, ""), (0.0, ",inner_rate=0.25,momentum=0.5")])
def test_the_mean_s_momentum_never_dies_away(momentum: float, rest: str):
    """It is met with, so that steps have full length; without momentum they are short as ever."""
    reviews = under_bsp([[0.02] * 8] * 4, transfer_s=0.079)
    times = times_of({w: replace(it, momentum=momentum, shares_moments=True) for w, it in reviews.items()})
    [spec] = [it.spec for it in times.predict(BSP, ())[0] if (it.period, it.delay, it.sent) == (32, 0, Sent.FULL)]
    assert spec == f"local_sgd:32{rest},moments=mean"


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"progress": 0.2}, False),
        ({"progress": -1.0}, False),
        ({"learning_rate": 0.1}, False),
        ({"writes": True}, False),
    ],
)
def test_an_outer_momentum_is_for_a_falling_rate_after_the_beginning(changes: dict[str, Any], may: bool):
    first = under_bsp([[0.02] * 8] * 4, transfer_s=0.079)
    times = times_of({w: replace(it, learning_rate=0.1) for w, it in first.items()})
    later = {"momentum": 0.9, "shares_moments": True, "progress": 0.3, "learning_rate": 0.09, **changes}
    times.observe({w: replace(it, **later) for w, it in first.items()}, setting=BSP)
    assert {it.has_outer for it in times.predict(BSP, ())[0] if it.period > 1} == {may}


@pytest.mark.parametrize(("slow", "num_slow"), [((3,), 0), ((3, 9), 0), ((3, 9, 12, 20), 2)])
def test_as_many_slow_steps_as_chance_may_have_added_count_as_usual_ones(slow: tuple[int, ...], num_slow: int):
    """Two of four steps count that took thirty times as long; each is another worker's."""
    steps = [[0.02] * 24 for _ in range(4)]
    for place, step in enumerate(slow):
        steps[place][step] = 0.6
    expected_s = 0.021 + num_slow * 0.58 / 24
    times = times_of(under_bsp(steps, transfer_s=0.001), options=Options(store=False))
    assert step_s(times) == pytest.approx(expected_s, rel=1e-3)


def test_shares_follow_persistent_slowness():
    times = times_of(under_bsp([[0.02] * 8] * 3 + [[0.06] * 8], transfer_s=0.001))
    assert shares_of(times) == pytest.approx((0.3, 0.3, 0.3, 0.1))
    reviews = under_bsp([[0.02] * 8] * 3 + [[0.06] * 8], transfer_s=0.001)
    assert shares_of(times_of(reviews, options=Options(balance=False))) == ()
    no_samples = {w: replace(it, samples=(0,) * 8) for w, it in reviews.items()}
    assert shares_of(times_of(no_samples)) == (), "a loop over a loader of its own"


def test_shares_are_found_in_a_few_reviews_where_a_step_has_a_part_of_its_own():
    """A step is 5 ms and a time in proportion to its samples; the fourth worker's samples take three times as long."""

    def seconds(parts: tuple[float, ...]) -> list[float]:
        return [0.005 + 0.02 * 4 * part * (3 if worker == 3 else 1) for worker, part in enumerate(parts)]

    times, shares = SettingTimes(Options()), ()
    for _ in range(16):
        parts = shares or (0.25,) * 4
        reviews = under_bsp([[s] * 8 for s in seconds(parts)], transfer_s=0.0)
        sized = {w: replace(it, samples=(round(1000 * parts[w]),) * 8) for w, it in reviews.items()}
        times.observe(sized, setting=BSP)
        shares = shares_of(times, before=shares)
    assert max(seconds(shares)) / min(seconds(shares)) < 1.06


@pytest.mark.parametrize("seed", range(20))
def test_chance_is_no_slowness(seed: int):
    rng = random.Random(seed)
    compute_s = [[0.02 * rng.lognormvariate(0, 0.4) for _ in range(16)] for _ in range(8)]
    assert shares_of(times_of(under_bsp(compute_s, transfer_s=0.001))) == ()


def test_slowness_that_has_just_begun_is_not_persistent():
    times = times_of(under_bsp([[0.02] * 14 for _ in range(3)] + [[0.02] * 4 + [0.03] * 10], transfer_s=0.001))
    assert shares_of(times) == ()
    times.observe(under_bsp([[0.02] * 12] * 3 + [[0.03] * 12], transfer_s=0.001), setting=BSP)
    assert shares_of(times) != ()


def test_a_short_round_says_nothing_of_shares():
    reviews = under_bsp([[0.02] * 8, [0.02] * 8], transfer_s=0.001)
    for worker, last in ((0, 2), (1, 1)):
        reviews[worker] = replace(reviews[worker], samples=(8, 8, 8, last) * 2)
    times = times_of(reviews, options=Options(store=False))
    assert shares_of(times) == ()
    assert step_s(times) == pytest.approx(0.021, rel=0.03)


def test_a_slow_worker_has_a_smaller_share_in_what_the_store_is_compared_with():
    current = ON_THE_STORE[1]
    reviews = {worker: review(worker, [0.06 if worker == 3 else 0.02] * 16, [0.001] * 16) for worker in range(4)}
    times = times_of(reviews, setting=current)
    predicted, shares = times.predict(current, ())
    assert shares[3] == pytest.approx(0.1, rel=0.05)
    assert predicted[BSP] < predicted[current]


def test_shares_of_workers_that_have_left_are_dropped():
    times = times_of(under_bsp([[0.02] * 16] * 3, transfer_s=0.001))
    assert shares_of(times, before=(0.4, 0.3, 0.2, 0.1)) == ()


def test_before_anything_is_measured_there_are_no_times():
    assert SettingTimes(Options()).predict(BSP, (0.5, 0.5)) == ({}, ())


@pytest.mark.parametrize(("wire_s", "in_full_s"), [(0.02, 0.02 / ROUNDED_SHARE - 0.012), (0.001, 0.0)])
def test_an_exchange_in_full_has_no_codec_and_hides_behind_the_backward_pass(wire_s: float, in_full_s: float):
    reviews = under_bsp([[0.018] * 8] * 4, transfer_s=wire_s + 0.01)
    reviews = {worker: replace(one, exchanges=((8.0, wire_s),)) for worker, one in reviews.items()}
    times = times_of(reviews, setting=ROUNDED)
    assert times.transfer_s(ROUNDED) == pytest.approx(wire_s + 0.01)
    assert times.transfer_s(BSP) == pytest.approx(in_full_s)
    assert times.transfer_s(Setting.of(period=8, delay=0)) == pytest.approx(wire_s / ROUNDED_SHARE)


def test_exchanges_of_gradients_are_no_measure_of_those_of_parameters():
    local = Setting.of(period=8, delay=0)
    times = times_of(under_bsp([[0.02] * 8] * 4, transfer_s=0.04), setting=ROUNDED)
    mixed = {worker: replace(review(worker, [0.02] * 8, [0.0] * 8), clock=16, exchanges=((8.0, 0.01), (16.0, 0.1)))
             for worker in range(4)}  # fmt: skip
    times.observe(mixed, setting=local)
    assert times.transfer_s(local) == pytest.approx(0.1)
