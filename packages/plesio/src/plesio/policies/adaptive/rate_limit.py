"""Rate limit: a learning rate that leaps beyond all earlier ones is reached gradually, as reviews find training good.

After 16 steps, a rise in one step to more than `JUMP` times the highest rate so far is no warm-up: those rise by
small steps, and the first step of the steepest doubles the rate. The rate is then *held* at that of the step before (or
a tenth of the highest), and raised by a quarter with every review that finds the state good, until it is there. If the
run is taken back meanwhile, the rate stays at the limit for the rest of the run.

A rate that training has had before is let through (warm restarts). All ranks have the same rates and the same reviews,
so all hold alike.
"""

import math

import msgspec

JUMP = 2.5
"""Multiple of the highest rate so far to which one step may raise it."""
_KNOWN_AFTER = 16
_GROWTH = 1.25
_LEAST = 0.1
"""Share of the highest rate at which a rate that comes from next to nothing is held."""


class RateLimit(msgspec.Struct, kw_only=True):
    """Holds the rate of one parameter group; its fields are stored in checkpoints.

    >>> limit = RateLimit()
    >>> [limit.allow(0.1) for _ in range(16)] == [0.1] * 16, limit.allow(5.0), limit.holds
    (True, 0.1, True)
    >>> limit.good()
    >>> round(limit.allow(5.0), 3), limit.allow(0.01)
    (0.125, 0.01)
    """

    _highest: float = 0.0
    _num_steps: int = 0
    _last: float = 0.0
    _ceiling: float = math.inf
    _stays: bool = False
    holds: bool = False
    """True if the last rate was held."""

    def allow(self, rate: float) -> float:
        """Return the allowed rate of the next step, at most ``rate``."""
        if math.isinf(self._ceiling) and self._num_steps >= _KNOWN_AFTER and rate > JUMP * self._highest > 0:
            self._ceiling = max(self._last, _LEAST * self._highest)
        allowed = min(rate, self._ceiling)
        self.holds = allowed < rate
        self._last = allowed
        self._highest = max(self._highest, allowed)
        self._num_steps += 1
        return allowed

    def good(self) -> None:
        """Raise the limit: a review found nothing wrong with the steps up to here."""
        if not self.holds and not self._stays:
            self._ceiling = math.inf
        elif not self._stays:
            self._ceiling *= _GROWTH

    def returned(self) -> None:
        """Keep the limit for good if the rate is held: the run was taken back to an earlier state."""
        self._stays = math.isfinite(self._ceiling)
