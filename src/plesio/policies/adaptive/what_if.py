"""How long a step would take: the steps that were measured, run again in thought under other settings.

A worker's step k ends ``compute`` after its last, an exchange ends ``transfer`` after the last worker has come to it,
and a worker stops where the exchange that it should merge is not complete. Persistent slowness, chance and heavy tails
count as they were measured; no distribution is assumed. All delays of one period are run at once.

On the store (SSP) a worker exchanges after every p steps, for half a transfer up and half a transfer down, and begins
the step at clock k when all have been heard of at clock k - s: those that are behind, at their next exchange.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from plesio.policies.adaptive.setting import Setting

__all__ = ["predict_step_s", "predict_steps_s"]


def predict_steps_s(
    compute_s: NDArray[np.float64], *, transfer_s: Callable[[Setting], float], settings: Sequence[Setting]
) -> dict[Setting, float]:
    """Seconds that a step takes on average, if these steps were run under each of the settings, over and over.

    Args:
        compute_s: ``[num_workers, num_steps]`` seconds of computing.
        transfer_s: Seconds of an exchange under a setting, once all have come.
        settings: Periods and delays.

    >>> bsp = Setting.of(period=1, delay=0)
    >>> found = predict_steps_s(np.array([[0.02], [0.03]]), transfer_s=lambda _: 0.01, settings=[bsp])
    >>> [round(step_s, 9) for step_s in found.values()]
    [0.04]
    """
    predicted = {
        setting: _run_on_store(compute_s, setting=setting, transfer_s=transfer_s(setting))
        for setting in settings
        if setting.on_store
    }
    collective = sorted((it for it in settings if not it.on_store), key=lambda it: it.period)
    for period, group in itertools.groupby(collective, key=lambda it: it.period):
        equal_periods = list(group)
        delays = np.array([setting.delay for setting in equal_periods])
        transfers_s = np.array([transfer_s(setting) for setting in equal_periods])
        times_s = _run(compute_s, period=period, delays=delays, transfers_s=transfers_s)
        predicted |= zip(equal_periods, times_s.tolist(), strict=True)
    return {setting: predicted[setting] for setting in settings}


def predict_step_s(compute_s: NDArray[np.float64], *, transfer_s: float, setting: Setting) -> float:
    """`predict_steps_s` of one setting."""
    return predict_steps_s(compute_s, transfer_s=lambda _: transfer_s, settings=[setting])[setting]


def _run(
    compute_s: NDArray[np.float64], *, period: int, delays: NDArray[np.int64], transfers_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds of a step by delay."""
    num_workers, recorded = compute_s.shape
    sums_s = np.concatenate([np.zeros((num_workers, 1)), np.cumsum(compute_s, axis=1)], axis=1)

    def computed_s(clocks: NDArray[np.int64]) -> NDArray[np.float64]:
        """``[num_workers, *clocks.shape]``: the seconds that all steps up to a clock compute."""
        cycles, column = np.divmod(clocks, recorded)
        seconds: NDArray[np.float64] = sums_s[:, column] + cycles * sums_s[:, -1].reshape(-1, *[1] * clocks.ndim)
        return seconds

    # the first run through the recorded steps fills the pipeline, the second one counts
    rounds = max(2, -(-recorded // period))
    clocks = period * np.arange(1, 2 * rounds + 1)
    starts_s = computed_s(clocks)[:, :, None]
    merges_s = computed_s(clocks[:, None] + delays)
    to_merge_s = np.moveaxis(merges_s - starts_s, 1, 0)  # [exchange, worker, delay], from its start to where it merges
    to_start_s = starts_s - np.concatenate([np.zeros((num_workers, 1, len(delays))), merges_s[:, :-1]], axis=1)
    to_start_s = np.moveaxis(to_start_s, 1, 0)  # from the merge before
    merged_s = np.zeros((num_workers, len(delays)))
    end_s = half_s = np.zeros(len(delays))
    for number, (start_s, merge_s) in enumerate(zip(to_start_s, to_merge_s, strict=True)):
        if number == rounds:
            half_s = end_s
        came_s = merged_s + start_s
        end_s = np.maximum(came_s.max(axis=0), end_s) + transfers_s
        merged_s = np.maximum(came_s + merge_s, end_s)
    step_s: NDArray[np.float64] = (end_s - half_s) / (rounds * period)
    return step_s


def _run_on_store(compute_s: NDArray[np.float64], *, setting: Setting, transfer_s: float) -> float:
    """Seconds of a step under SSP."""
    num_workers, recorded = compute_s.shape
    bound, period = setting.slack, setting.period
    end_s = np.zeros(num_workers)
    all_heard_s = np.zeros(2 * recorded + 1)
    """By clock, when the last worker was heard of at it."""
    half_s = 0.0
    for clock in range(2 * recorded):
        if clock == recorded:
            half_s = float(end_s.mean())
        start_s = end_s + transfer_s if clock and clock % period == 0 else end_s
        if clock > bound:
            awaited = -(-(clock - bound) // period) * period
            start_s = np.maximum(start_s, all_heard_s[awaited] + transfer_s / 2)
        end_s = start_s + compute_s[:, clock % recorded]
        all_heard_s[clock + 1] = end_s.max() + transfer_s / 2
    return (float(end_s.mean()) - half_s) / float(recorded)
