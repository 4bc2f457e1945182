"""Durations as distributions, and what the k-th fastest of n independent ones takes on average.

Theory. The k-th smallest of n uniform numbers has a Beta(k, n-k+1) distribution (David & Nagaraja 2003, section 2.1),
and that of n durations is its image under their quantile function Q:

    E[X_(k:n)] = ∫ Q(u) dBeta_(k,n-k+1)(u) = ∫ Q(Beta⁻¹(p)) dp

The largest, k = n, is ``∫ Q(p^(1/n)) dp``. The integral is taken over ``z = ln(p / (1-p))``, where both ends fall off
exponentially and the trapezoidal rule converges as fast. All is computed from 1 - u, for u itself is rounded to 1.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LOGITS = np.linspace(-150.0, 150.0, 4001)
"""Far enough for a tail as heavy as a Pareto's of shape 1.1, whose integrand falls as exp(-z / 11)."""


class Durations(ABC):
    """Independent positive durations of one distribution."""

    __slots__ = ()

    @property
    @abstractmethod
    def mean_s(self) -> float:
        """Mean, in seconds."""

    @abstractmethod
    def exceeded_s(self, share: Array) -> Array:
        """Return the seconds that this share of the durations exceeds: the quantile of ``1 - share``."""

    @abstractmethod
    def draw_s(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return the durations in seconds."""

    def expected_s(self, *, rank: int, of: int) -> float:
        """Return the mean of the ``rank``-th fastest of ``of``, exactly up to the integral's rounding.

        >>> round(UniformTimes(low_s=0.0, high_s=1.0).expected_s(rank=3, of=4), 9)  # k / (n + 1)
        0.6
        """
        from scipy.special import betaincinv, expit

        slower = betaincinv(of - rank + 1, rank, expit(-_LOGITS))
        density = expit(_LOGITS) * expit(-_LOGITS)
        return float(np.sum(self.exceeded_s(slower) * density) * (_LOGITS[1] - _LOGITS[0]))

    def slowest_quantile_s(self, level: float, *, of: int) -> float:
        """Return the time that the slowest of ``of`` does not exceed with probability ``level``."""
        return float(self.exceeded_s(np.array(-math.expm1(math.log(level) / of))))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalTimes(Durations):
    """The logarithm is normal; mean and coefficient of variation are those of the durations."""

    mean_s: float
    cv: float

    def exceeded_s(self, share: Array) -> Array:
        """Return ``exp(μ - σ Φ⁻¹(share))``."""
        from scipy.special import ndtri

        variance = math.log1p(self.cv**2)
        times_s: Array = self.mean_s * np.exp(-variance / 2 - math.sqrt(variance) * ndtri(share))
        return times_s

    def draw_s(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return the durations in seconds."""
        variance = math.log1p(self.cv**2)
        return random.lognormal(math.log(self.mean_s) - variance / 2, math.sqrt(variance), shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GammaTimes(Durations):
    """Shape ``1/cv²``: a lighter tail than `LogNormalTimes`; a cv of 1 is the exponential distribution."""

    mean_s: float
    cv: float

    def exceeded_s(self, share: Array) -> Array:
        """Invert the regularised upper incomplete gamma function."""
        from scipy.special import gammainccinv

        times_s: Array = self.mean_s * self.cv**2 * gammainccinv(self.cv**-2, share)
        return times_s

    def draw_s(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return the durations in seconds."""
        return random.gamma(self.cv**-2, self.mean_s * self.cv**2, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformTimes(Durations):
    """Any duration between two is as likely as any other."""

    low_s: float
    high_s: float

    @property
    def mean_s(self) -> float:
        """Half way."""
        return (self.low_s + self.high_s) / 2

    def exceeded_s(self, share: Array) -> Array:
        """Return a point of a straight line."""
        return self.high_s - (self.high_s - self.low_s) * share

    def draw_s(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return the durations in seconds."""
        return random.uniform(self.low_s, self.high_s, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoTimes(Durations):
    """``P(duration > x) = (min / x)^shape``: no variance with a shape of 2 or less, no mean with 1 or less."""

    mean_s: float
    shape: float

    def exceeded_s(self, share: Array) -> Array:
        """Return ``min share^(-1/shape)``."""
        times_s: Array = self._min_s * share ** (-1 / self.shape)
        return times_s

    def draw_s(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return the durations in seconds."""
        return self._min_s * (1 + random.pareto(self.shape, shape))

    @property
    def _min_s(self) -> float:
        return self.mean_s * (1 - 1 / self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class TraceTimes(Durations):
    """Durations that were measured, each as likely as any other.

    Args:
        sorted_s: Seconds from the shortest to the longest.

    >>> TraceTimes(np.array([1.0, 2.0])).expected_s(rank=2, of=2)  # 1 only if both are: a quarter
    1.75
    """

    sorted_s: Array

    @property
    def mean_s(self) -> float:
        """Mean of the trace."""
        return float(self.sorted_s.mean())

    def exceeded_s(self, share: Array) -> Array:
        """Return a duration of the trace."""
        number = len(self.sorted_s)
        places = np.clip(np.ceil((1 - share) * number).astype(int) - 1, 0, number - 1)
        times_s: Array = self.sorted_s[places]
        return times_s

    def draw_s(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return the durations in seconds."""
        return random.choice(self.sorted_s, shape)

    def expected_s(self, *, rank: int, of: int) -> float:
        """Mean of the ``rank``-th fastest of ``of``: a sum over the trace, for its quantile function has steps."""
        from scipy.special import betainc

        edges = betainc(rank, of - rank + 1, np.arange(len(self.sorted_s) + 1) / len(self.sorted_s))
        return float(self.sorted_s @ np.diff(edges))
