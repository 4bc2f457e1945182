"""Predicted seconds of a step under every setting, and the workers' shares."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plesio.policies.adaptive.system.monitor import SHARES_GAIN, SystemMonitor
from plesio.policies.adaptive.system.setting import IN_LOW_RANK, ON_THE_STORE, RACKS_ON_THE_STORE, SYNCHRONOUS, Setting
from plesio.policies.adaptive.system.shares import shares_by_pace, with_shares
from plesio.policies.adaptive.system.what_if import predict_steps_s

__all__ = ["StepTimes"]

OUTLIER = 2.0
"""Times its worker's median, from which a step is an outlier."""


class StepTimes(SystemMonitor):
    """The system side of today, asked for times alone."""

    def predict(self, current: Setting, shares: Sequence[float]) -> tuple[dict[Setting, float], tuple[float, ...]]:
        """Return the seconds of a step by setting, and the shares for the next steps; no times if none is known."""
        pace_s = self._remembered_s()
        shares = shares if len(shares) == len(pace_s) else ()
        if not pace_s.size:
            return {}, tuple(shares)
        new = tuple(shares)
        if self._config.balance and self._counts_samples:
            new = shares_by_pace(pace_s, shares, gain=SHARES_GAIN)
        rounds = SYNCHRONOUS if current.on_store or (current.by_racks and self._racks is None) else current
        if new != tuple(shares) and not self._worth(pace_s, shares, new, rounds):
            new = tuple(shares)
        compute_s = with_shares(pace_s, new)
        low_rank = [IN_LOW_RANK] if current == IN_LOW_RANK or self._has_low_rank else []
        settings = (*self._ladder, *self._by_racks, *self._rounded_by_racks, *low_rank)
        times = self._predict(compute_s, settings)
        if current.on_store or self._store_may_gain(pace_s, best_s=times[SYNCHRONOUS]):
            times |= predict_steps_s(pace_s, transfer_s=self.transfer_s, settings=ON_THE_STORE)
        if self._by_racks:
            times |= self._predict_racks_on_store(pace_s, current=current, best_s=times[SYNCHRONOUS])
        if current not in times and current in RACKS_ON_THE_STORE:
            times = {current: times[SYNCHRONOUS]}
        return times, new

    def _remembered_s(self) -> NDArray[np.float64]:
        """Return the seconds of the remembered steps, without as many outliers as chance may have added to them.

        Of k rare events the standard deviation is the root of k: so many of the longest count as usual steps.
        """
        pace_s = super()._remembered_s()
        if not pace_s.size:
            return pace_s
        usual_s = np.broadcast_to(np.median(pace_s, axis=1, keepdims=True), pace_s.shape)
        excess = np.where(pace_s > OUTLIER * usual_s, pace_s / usual_s, 0.0).ravel()
        longest = np.argsort(-excess)[: math.ceil(math.sqrt(np.count_nonzero(excess)))]
        kept = pace_s.ravel().copy()
        kept[longest] = usual_s.ravel()[longest]
        return kept.reshape(pace_s.shape)
