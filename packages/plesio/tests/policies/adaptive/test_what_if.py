import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from plesio.policies.adaptive.system.setting import ON_THE_STORE, Setting, ladder, settings_by_racks
from plesio.policies.adaptive.system.what_if import predict_step_s, predict_steps_s

SETTINGS = (*ladder(32, memory=1.0, rounded=True), *settings_by_racks(32))
COMPUTE_S = st.tuples(st.integers(1, 6), st.integers(1, 12)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(1e-3, 1.0))
)


def told_by_hand(compute_s: np.ndarray, setting: Setting, transfer_s: float) -> float:
    """Workers that step, exchange and stop one by one, as the module's head says: twice through the steps, or more."""
    num_workers, recorded = compute_s.shape
    num_rounds = max(2, math.ceil(recorded / setting.period))
    ends_s: list[float] = []
    now_s = [0.0] * num_workers
    for clock in range(1, 2 * num_rounds * setting.period + setting.delay + 1):
        now_s = [at_s + float(steps_s[(clock - 1) % recorded]) for at_s, steps_s in zip(now_s, compute_s, strict=True)]
        merges, is_merged = divmod(clock - setting.delay, setting.period)
        if setting.delay and not is_merged and merges > 0:
            now_s = [max(at_s, ends_s[merges - 1]) for at_s in now_s]
        if clock % setting.period == 0:
            ends_s.append(max(*now_s, *ends_s[-1:], 0.0) + transfer_s)
            if setting.delay == 0:
                now_s = [ends_s[-1]] * num_workers
    return (ends_s[2 * num_rounds - 1] - ends_s[num_rounds - 1]) / (num_rounds * setting.period)


@given(COMPUTE_S, st.floats(0.0, 5.0), st.sampled_from(SETTINGS))
def test_a_prediction_is_what_workers_would_take_that_step_one_by_one(
    compute_s: np.ndarray, transfer_s: float, setting: Setting
) -> None:
    expected_s = told_by_hand(compute_s, setting, transfer_s)
    assert predict_step_s(compute_s, transfer_s=transfer_s, setting=setting) == pytest.approx(expected_s)


@given(COMPUTE_S, st.lists(st.sampled_from(SETTINGS), unique=True, min_size=1))
def test_settings_that_are_predicted_together_take_what_each_takes_alone(
    compute_s: np.ndarray, settings: list[Setting]
) -> None:
    """To the bit, whatever they come with and in which order: the choice must not depend on it."""
    times_s = {setting: 0.01 * (1 + place) for place, setting in enumerate(settings)}
    together = predict_steps_s(compute_s, transfer_s=times_s.__getitem__, settings=settings)
    alone = {one: predict_step_s(compute_s, transfer_s=times_s[one], setting=one) for one in settings}
    assert together == alone


def test_on_the_store_too_settings_that_are_predicted_together_take_what_each_takes_alone():
    compute_s = np.random.default_rng(0).gamma(2.0, 0.01, (5, 32))
    settings = (*SETTINGS[:3], *ON_THE_STORE)
    together = predict_steps_s(compute_s, transfer_s=lambda _: 0.02, settings=settings)
    assert together == {one: predict_step_s(compute_s, transfer_s=0.02, setting=one) for one in settings}


def test_where_the_mean_s_moments_are_kept_nothing_is_delayed():
    for own, mean in (
        (ladder(8, memory=1.0, rounded=True), ladder(8, memory=1.0, rounded=True, moments="mean")),
        (settings_by_racks(8), settings_by_racks(8, moments="mean")),
    ):
        assert any(setting.delay for setting in own)
        assert not any(setting.delay for setting in mean)
        assert {setting.period for setting in mean} == {setting.period for setting in own}
