"""Predicted step times: the measured steps are simulated again under other settings.

A worker's step k ends ``compute`` after its last, an exchange ends ``transfer`` after the last worker has come to it,
and a worker stops if the exchange that it should merge is not complete. Persistent slowness, chance and heavy tails
enter as they were measured; no distribution is assumed.

All settings are simulated at once, one exchange of each at a time: the cost of a review is its number of array
operations, most of which are small. Settings with the longest periods have the fewest exchanges and finish first.

On the store (SSP) a worker exchanges after every p steps, for half a transfer up and half a transfer down. It begins
the step at clock k when all workers have been reported at clock k - s; workers that are behind report at their next
exchange.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plesio.policies.adaptive.system.setting import Setting


def predict_steps_s(
    compute_s: NDArray[np.float64], *, transfer_s: Callable[[Setting], float], settings: Sequence[Setting]
) -> dict[Setting, float]:
    """Return the seconds that a step takes on average, if these steps were run under each setting, over and over.

    >>> bsp = Setting.of(period=1, delay=0)
    >>> found = predict_steps_s(np.array([[0.02], [0.03]]), transfer_s=lambda _: 0.01, settings=[bsp])
    >>> [round(step_s, 9) for step_s in found.values()]
    [0.04]

    Args:
        compute_s: ``[num_workers, num_steps]`` seconds of computing.
        transfer_s: Seconds of an exchange under a setting, once all workers have come.
        settings: Periods and delays.
    """
    store = [setting for setting in settings if setting.on_store]
    collective = sorted((setting for setting in settings if not setting.on_store), key=lambda it: it.period)
    synchronous = [setting for setting in collective if setting.delay == 0]
    delayed = [setting for setting in collective if setting.delay > 0]
    predicted: dict[Setting, float] = {}
    for alike, run in ((synchronous, _run), (delayed, _run), (store, _run_on_store)):
        if alike:
            transfers_s = np.array([transfer_s(setting) for setting in alike])
            predicted |= zip(alike, run(compute_s, alike, transfers_s).tolist(), strict=True)
    return predicted


def predict_step_s(compute_s: NDArray[np.float64], *, transfer_s: float, setting: Setting) -> float:
    return predict_steps_s(compute_s, transfer_s=lambda _: transfer_s, settings=[setting])[setting]


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """Exchanges of some settings: all first ones, then all second ones, and so on.

    Attributes:
        rounds: By setting, exchanges in one run through the recorded steps. The first run fills the pipeline, the
            second one counts.
        numbers: By exchange, the number of earlier ones of its setting.
        owners: By exchange, the index of its setting.
        starts: By exchange, the clock at which it starts.
        merges: By exchange, the clock at which it is merged.
        merges_before: By exchange, the clock at which the one before it is merged.
    """

    rounds: NDArray[np.int64]
    numbers: NDArray[np.int64]
    owners: NDArray[np.int64]
    starts: NDArray[np.int64]
    merges: NDArray[np.int64]
    merges_before: NDArray[np.int64]

    @staticmethod
    @lru_cache(maxsize=16)  # settings and the number of recorded steps seldom change from review to review
    def of(settings: tuple[Setting, ...], recorded: int) -> "_Exchanges":
        """Make the exchanges of settings whose periods ascend: settings with fewer exchanges come later."""
        periods = np.array([setting.period for setting in settings])
        rounds = np.maximum(2, -(-recorded // periods))
        numbers, owners = np.nonzero(np.arange(2 * rounds[0])[:, None] < 2 * rounds)
        starts = periods[owners] * (numbers + 1)
        merges = starts + np.array([setting.delay for setting in settings])[owners]
        merges_before = np.where(numbers, merges - periods[owners], 0)
        return _Exchanges(rounds, numbers, owners, starts, merges, merges_before)


def _run(
    compute_s: NDArray[np.float64], settings: Sequence[Setting], transfers_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the seconds of a step by setting on the collective; periods ascend, and all have a delay or none."""
    recorded = compute_s.shape[1]
    exchanges = _Exchanges.of(tuple(settings), recorded)
    computed_s = _computed_s(compute_s, until=int(exchanges.merges.max()))
    run = _in_turns if settings[0].delay else _one_after_another
    ends_s = run(computed_s, exchanges, transfers_s)
    rounds, each = exchanges.rounds, np.arange(len(settings))
    run_s = ends_s[2 * rounds - 1, each] - ends_s[rounds - 1, each]
    step_s: NDArray[np.float64] = run_s / (rounds * [setting.period for setting in settings])
    return step_s


def _one_after_another(
    computed_s: NDArray[np.float64], exchanges: _Exchanges, transfers_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``[exchange, setting]`` end times, if all workers go on together after each exchange."""
    spans_s = np.zeros((2 * exchanges.rounds[0], 2, len(transfers_s)))
    slowest_s = (computed_s[exchanges.starts] - computed_s[exchanges.merges_before]).max(axis=1)
    spans_s[exchanges.numbers, 0, exchanges.owners] = slowest_s
    spans_s[:, 1] = transfers_s
    ends_s: NDArray[np.float64] = np.cumsum(spans_s.reshape(-1, len(transfers_s)), axis=0)[1::2]
    return ends_s


def _in_turns(
    computed_s: NDArray[np.float64], exchanges: _Exchanges, transfers_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``[exchange, setting]`` end times, if workers make the steps of the delay before they wait."""
    # one more worker computes nothing: it comes to an exchange when the one before has ended
    computed_s = np.concatenate([computed_s, np.zeros((len(computed_s), 1))], axis=1)
    to_start_s = computed_s[exchanges.starts] - computed_s[exchanges.merges_before]
    to_merge_s = computed_s[exchanges.merges] - computed_s[exchanges.starts]
    transfers_s = transfers_s[:, None]
    merged_s = np.zeros((len(transfers_s), computed_s.shape[1]))
    each_end_s = []
    first = 0
    for count in np.bincount(exchanges.numbers).tolist():
        here = slice(first, first := first + count)
        # settings of long periods have ended: those with an exchange left are the first `count` rows
        came_s = merged_s[:count] + to_start_s[here]
        end_s = np.maximum.reduce(came_s, axis=1, keepdims=True)
        end_s += transfers_s[:count]
        came_s += to_merge_s[here]
        merged_s = np.maximum(came_s, end_s, out=came_s)
        each_end_s.append(end_s)
    ends_s = np.empty((2 * exchanges.rounds[0], len(transfers_s)))
    ends_s[exchanges.numbers, exchanges.owners] = np.concatenate(each_end_s)[:, 0]
    return ends_s


def _computed_s(compute_s: NDArray[np.float64], *, until: int) -> NDArray[np.float64]:
    """Return ``[until + 1, num_workers]`` seconds of all steps up to each clock, with the recorded ones repeated."""
    num_workers, recorded = compute_s.shape
    sums_s = np.concatenate([np.zeros((1, num_workers)), np.cumsum(compute_s.T, axis=0)])
    cycles, column = np.divmod(np.arange(until + 1), recorded)
    seconds: NDArray[np.float64] = sums_s[column] + cycles[:, None] * sums_s[-1]
    return seconds


def _run_on_store(
    compute_s: NDArray[np.float64], settings: Sequence[Setting], transfers_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the seconds of a step under each of the settings on the store."""
    num_workers, recorded = compute_s.shape
    bounds = np.array([setting.bound for setting in settings])
    periods = np.array([setting.period for setting in settings])
    counted = max(recorded, 2 * int(bounds.max()))  # as many before: a bound takes steps to be used up
    clocks = np.arange(2 * counted)[:, None]
    awaited = np.where(clocks > bounds, -((bounds - clocks) // periods) * periods, 0)
    """By clock and setting, the clock that all workers must have reported; 0 for none."""
    delays = np.array([setting.delay for setting in settings])
    merges = (clocks > delays) & ((clocks - delays) % periods == 0)
    own_s = np.where(merges, transfers_s, 0.0)[:, :, None]
    """By clock and setting, the seconds of a worker's own exchange that it merges before it begins its step."""
    begun = np.maximum(clocks - delays, 0)
    """By clock and setting, the clock at which that exchange was begun."""
    half_transfers_s = transfers_s[:, None] / 2
    steps_s = compute_s.T[np.arange(2 * counted) % recorded]
    heard_s = np.zeros((2 * counted + 1, len(settings), 1))
    """By clock and setting, the time at which all have the report of the last worker at it."""
    each = np.arange(len(settings))
    ends_s = np.zeros((2 * counted + 1, len(settings), num_workers))
    end_s = half_s = ends_s[0]
    for clock in range(2 * counted):
        if clock == counted:  # the first half fills the pipeline, the second one counts
            half_s = end_s
        merged_s = np.maximum(end_s, ends_s[begun[clock], each] + own_s[clock])
        end_s = ends_s[clock + 1] = np.maximum(merged_s, heard_s[awaited[clock], each]) + steps_s[clock]
        last_s = np.maximum.reduce(end_s, axis=1, keepdims=True)
        heard_s[clock + 1] = last_s + half_transfers_s + half_transfers_s
    step_s: NDArray[np.float64] = (end_s.mean(axis=1) - half_s.mean(axis=1)) / counted
    return step_s
