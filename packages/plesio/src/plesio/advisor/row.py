"""One candidate in the ranking."""

import math
from dataclasses import dataclass
from typing import Literal

from plesio.advisor.memory import MemoryNeed
from plesio.advisor.price import Price

How = Literal["measured", "priced", "too late", "does not fit", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One candidate in the ranking.

    Attributes:
        how: Source of its time, or the reason why it has none.
        time_s: Predicted seconds to the goal, failures included; inf if it was not reached.
        low_s: Lower end of its interval, and
        high_s: upper end: 95 %, from the ratios to bsp seed by seed; of two seeds their range, of one NaN.
        num_seeds: It was run with.
        samples: Over those that bsp needs; NaN is not known.
        cost: Cost of all workers until then; None was not asked for.
        lost: Points that its final metric fell short of bsp's; None was not checked.
        slowdown: By failures.
        problem: Why it could not be run.
        doubt: Times its time that may be true as well: one standard error of the ratio to bsp, within limits.
        shares: Shares of the batch that it dealt; empty is equal shares.
    """

    spec: str
    how: How
    time_s: float
    low_s: float
    high_s: float
    num_seeds: int
    samples: float
    price: Price
    memory: MemoryNeed
    fits: bool
    cost: float | None
    lost: float | None
    slowdown: float
    problem: str | None
    slack: float
    doubt: float
    shares: tuple[float, ...] = ()

    @property
    def ranked(self) -> bool:
        """True if it fits and has a time to be ranked by."""
        return self.fits and math.isfinite(self.time_s)
