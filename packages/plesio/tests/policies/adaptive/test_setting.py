"""Settings: the ladder, what its settings take in the closed form, and that their step sizes are stable."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from plesio.policies.adaptive.system.setting import ON_THE_STORE, SYNCHRONOUS, Setting, ladder
from plesio.policies.adaptive.system.what_if import predict_step_s

BSP = SYNCHRONOUS
SETTINGS = st.integers(1, 16).flatmap(
    lambda period: st.builds(Setting.of, period=st.just(period), delay=st.integers(0, period))
)


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


def test_local_steps_with_the_mean_s_moments_are_strict_and_those_with_their_own_are_not():
    strict = {it.spec for it in ladder(4, memory=math.inf, rounded=True, moments="mean") if it.is_strict}
    local = {
        f"local_sgd:{period},moments=mean{sent}"
        for period in (2, 4)
        for sent in ("", ",compress=qsgd:8", ",compress=qsgd:4")
    }
    steps = {"bsp", "bsp,compress=qsgd:8"}
    assert strict == steps | local
    assert {it.spec for it in ladder(8, memory=math.inf, rounded=True) if it.is_strict} == steps


def test_the_mean_s_moments_have_an_outer_momentum_where_it_may():
    after = {it.spec for it in ladder(4, memory=math.inf, rounded=True, moments="mean", has_outer=True)}
    outer = {spec for spec in after if spec.startswith("diloco")}
    assert outer == {
        f"diloco:{period},outer_lr=0.9,outer_momentum=0.5,moments=mean{sent}"
        for period in (2, 4)
        for sent in ("", ",compress=qsgd:8", ",compress=qsgd:4")
    }
    assert not any("local_sgd" in spec for spec in after)
    without = (
        ladder(4, memory=math.inf, moments="mean"),
        ladder(4, memory=math.inf, has_outer=True),
        ladder(4, memory=1.0, moments="mean", has_outer=True),
    )
    assert not any(it.has_outer for settings in without for it in settings)


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


def test_a_worker_that_is_slow_for_good_is_waited_for_under_any_bound():
    few = np.array([[0.02] * 3, [0.02] * 3, [0.06] * 3])
    for setting in ON_THE_STORE:
        assert predict_step_s(few, transfer_s=0.0, setting=setting) == pytest.approx(0.06, rel=0.05)
