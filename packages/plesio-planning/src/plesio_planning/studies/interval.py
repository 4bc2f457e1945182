"""A mean over repetitions and how far it may be off."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """Write the mean and half the interval's width: ``4.5 ± 1.6``.

        >>> f"{interval_of([4.0, 5.0, 4.0, 5.0]):.1f}"
        '4.5 ± 0.9'
        """
        return f"{self.mean:{spec}} ± {(self.high - self.low) / 2:{spec}}"


def interval_of(values: Sequence[float] | NDArray[np.float64]) -> Interval:
    """Return the mean of independent ``values`` and its confidence interval by Student's t; one value has none.

    >>> interval_of([4.0, 5.0, 4.0, 5.0])
    Interval(mean=4.5, low=3.5813..., high=5.4186...)
    """
    from scipy.special import stdtrit  # a tenth of a second that only those pay who repeat something

    number, mean = len(values), float(np.mean(values))
    if number < 2 or not math.isfinite(mean):
        return Interval(mean=mean, low=mean, high=mean)
    half = float(stdtrit(number - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(number))
    return Interval(mean=mean, low=mean - half, high=mean + half)
