"""Cycles of a learning rate: a rate that rises, has just jumped, or is nearly spent.

`plesio.policies.adaptive.training.phase` has the rules, under *Rate* and *Budget*.
"""

import math
from collections import deque

from plesio.policies.adaptive.config.phase import PhaseConfig
from plesio.policies.adaptive.readings.reading import Reading
from plesio.policies.adaptive.training.verdict import LARGEST, Verdict

__all__ = ["RateCycles"]

_KEEPS_RISING = 0.5
"""Share of its last growth by which a rising rate must grow to count as rising."""
_SLOWS_DOWN = 0.99
"""Newest fall of the rate over the oldest of three, below which the fall slows down."""


class RateCycles:
    """Follows the cycles of one learning rate."""

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._last = self._lowest = math.nan
        self._peak = self._budget = 0.0
        """The highest rate and the sum of the rates of this cycle so far."""
        self._jump_budget = 0.0
        """Part of the budget that belongs to a jump."""
        self._rises = False
        self._rise = 0.0
        """Growth of the rate a step, when it last grew."""
        self._num_rises = self._num_flat = self._since_rise = 0
        """Numbers of reviews in which it rose, in which it did not since then, and since the last rise or the start."""
        self._gap = 1
        """Most reviews between two rises."""
        self._falls: deque[float] = deque(maxlen=3)
        """Falls of the rate a step, in the last reviews."""
        self._num_steps = 0
        self._first_progress: tuple[int, float] | None = None
        self._left = 1.0

    def observe(self, reading: Reading, *, is_critical: bool) -> None:
        """Take the next rate; NaN and extreme values are skipped."""
        rate, num_steps = reading.learning_rate, max(1, reading.num_steps)
        self._num_steps += num_steps
        if not 0 <= rate < LARGEST:
            return
        if math.isnan(self._last):
            self._last = self._lowest = rate
        else:
            self._since_rise += 1
        growth = (rate - self._last) / num_steps
        if self._rises:
            self._follow(growth)
        elif rate > self._config.rise * self._lowest:
            self._begin_cycle(growth, gap=self._since_rise if is_critical else 1)
        self._falls.append(-growth)
        # the lowest rate since the last peak, above which the next cycle begins; while it rises, the rate itself
        self._lowest = rate if self._rises else min(self._lowest, rate)
        self._peak = max(self._peak, rate)
        self._budget += rate * num_steps
        self._last = rate
        self._left = self._budget_left(reading)

    def _begin_cycle(self, growth: float, *, gap: int) -> None:
        self._jump_budget = self._config.jump_budget * self._budget
        self._budget = self._peak = 0.0
        self._rises, self._rise, self._gap = True, growth, gap
        self._num_rises, self._num_flat, self._since_rise = 1, 0, 0

    def _follow(self, growth: float) -> None:
        if growth > _KEEPS_RISING * self._rise:
            self._gap = max(self._gap, self._since_rise)
            self._num_rises += 1
            self._rise, self._num_flat, self._since_rise = growth, 0, 0
            return
        self._num_flat += 1
        is_steady = self._gap == 1 and self._num_rises > 1
        if growth < 0 or is_steady or self._num_flat > self._gap:
            self._rises = False
            self._lowest = math.inf
            if self._num_rises > 1:
                self._jump_budget = 0.0

    def _budget_left(self, reading: Reading) -> float:
        """Return the share of the cycle's budget that is left in the middle of the next review; 1 if it is unknown.

        The middle, because the phase is decided for that review.
        """
        # by extrapolation from rate r at slope s to zero: a line covers r²/2s, a parabola whose fall slows down 2r²/3s
        left = math.inf
        oldest, newest = self._falls[0], self._falls[-1]
        if len(self._falls) == self._falls.maxlen and min(self._falls) > 0:
            left = self._last * self._last / newest * (2 / 3 if newest < _SLOWS_DOWN * oldest else 1 / 2)
        # by progress: the present rate for the steps that are still to come at the pace so far
        progress = reading.progress
        if progress is not None and 0 <= progress <= 1:
            first_steps, first_progress = self._first_progress = self._first_progress or (self._num_steps, progress)
            if progress > first_progress:
                steps = (self._num_steps - first_steps) * (1 - progress) / (progress - first_progress)
                left = min(left, self._last * steps)
        if left == math.inf or self._budget == 0:
            return 1.0
        return max(0.0, left - self._last * reading.num_steps / 2) / (left + self._budget)

    def verdict(self) -> Verdict | None:
        if self._rises:
            return Verdict(phase="critical", reason="the learning rate rises", inputs={"learning_rate": self._last})
        if self._budget < self._jump_budget:
            inputs = {"learning_rate": self._last}
            return Verdict(phase="critical", reason="the learning rate has jumped", inputs=inputs)
        share = self._last / self._peak if self._peak > 0 else 1.0
        if share <= self._config.final_share:
            reason = f"the learning rate is down to {100 * share:.2g} % of its peak"
            return Verdict(phase="final", reason=reason, inputs={"rate_share": share})
        if self._left <= self._config.final_budget:
            reason = f"{100 * self._left:.2g} % of the learning rate's sum is to come"
            return Verdict(phase="final", reason=reason, inputs={"budget_left": self._left})
        return None
