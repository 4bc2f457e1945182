"""The evidence of seeds on a figure: its spread, and how it differs from the baseline's.

Two policies trained with the same seeds are compared in pairs, since a seed fixes the initial parameters and the order
of the data; otherwise by Welch's test, which does not assume equal variances (Welch 1947). Both give Student-t
intervals at `CONFIDENCE`. One seed allows no test, and none is made.

Ratios are compared as differences of logarithms, so "twice as fast" and "half as fast" are equally far from 1; a ratio
is thus the geometric mean over seeds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure over the seeds of a policy.

    Attributes:
        by_seed: (seed, value), in the order of the seeds.
        std: Sample standard deviation (n - 1); None for a single seed.
    """

    mean: float
    std: float | None
    by_seed: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> "Spread | None":
        """Summarise {seed: value}; None when there is no value.

        >>> Spread.of({1: 3.0, 0: 1.0})
        Spread(mean=2.0, std=1.4142135623730951, by_seed=((0, 1.0), (1, 3.0)))
        """
        if not by_seed:
            return None
        values = np.array(list(by_seed.values()), dtype=float)
        std = float(values.std(ddof=1)) if len(values) > 1 else None
        return cls(mean=float(values.mean()), std=std, by_seed=tuple(sorted(by_seed.items())))

    def scaled(self, scale: float) -> "Spread":
        """Return the same figure in another unit.

        >>> Spread.of({0: 0.5}).scaled(100).by_seed
        ((0, 50.0),)
        """
        std = None if self.std is None else abs(scale) * self.std
        by_seed = tuple((seed, scale * value) for seed, value in self.by_seed)
        return Spread(mean=scale * self.mean, std=std, by_seed=by_seed)

    @property
    def num_seeds(self) -> int:
        return len(self.by_seed)

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(value for _, value in self.by_seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A policy's mean minus the baseline's.

    Attributes:
        low: Lower end of the `CONFIDENCE` interval; None when a side has a single seed.
        high: Upper end; None likewise.
        p_value: Two-sided, of the hypothesis "no difference"; None likewise. Values that do not vary at all take the
            limits of the test: 1 when they are equal, else 0.
        paired: Whether the seeds of the two sides coincide and were compared in pairs.
        num_seeds: Seeds of the side that has fewer.
    """

    mean: float
    low: float | None
    high: float | None
    p_value: float | None
    paired: bool
    num_seeds: int

    @property
    def shown(self) -> bool:
        """True if the seeds show a difference at the level 1 - `CONFIDENCE`."""
        return self.p_value is not None and self.p_value < 1 - CONFIDENCE

    @property
    def identical(self) -> bool:
        """True if the two sides agree exactly on every seed."""
        return self.mean == 0 and self.low == self.high == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A policy's value over the baseline's, or the reverse; the fields are those of `Difference`."""

    value: float
    low: float | None
    high: float | None
    p_value: float | None

    @property
    def shown(self) -> bool:
        """True if the seeds show a ratio other than 1 at the level 1 - `CONFIDENCE`."""
        return self.p_value is not None and self.p_value < 1 - CONFIDENCE


def difference_of(policy: Spread, *, baseline: Spread) -> Difference:
    """Compare two means over seeds: in pairs where the seeds coincide, else by Welch's test.

    >>> difference = difference_of(Spread.of({0: 2.0, 1: 4.0}), baseline=Spread.of({0: 1.0, 1: 2.0}))
    >>> difference.mean, difference.paired, round(difference.p_value, 3)
    (1.5, True, 0.205)
    """
    ours, theirs = np.array(policy.values), np.array(baseline.values)
    paired = [seed for seed, _ in policy.by_seed] == [seed for seed, _ in baseline.by_seed]
    mean = float((ours - theirs).mean()) if paired else policy.mean - baseline.mean
    num_seeds = min(len(ours), len(theirs))
    if num_seeds < 2:
        return Difference(mean=mean, low=None, high=None, p_value=None, paired=paired, num_seeds=num_seeds)
    standard_error, degrees = _paired_error(ours - theirs) if paired else _welch_error(ours, theirs)
    if standard_error == 0:
        p_value = 1.0 if mean == 0 else 0.0
        return Difference(mean=mean, low=mean, high=mean, p_value=p_value, paired=paired, num_seeds=num_seeds)
    half_width = float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * standard_error
    return Difference(
        mean=mean,
        low=mean - half_width,
        high=mean + half_width,
        p_value=float(2 * stats.t.sf(abs(mean) / standard_error, degrees)),
        paired=paired,
        num_seeds=num_seeds,
    )


def ratio_of(numerator: Spread | None, *, denominator: Spread | None) -> Ratio | None:
    """Return the geometric mean ratio over seeds; None where a side is missing or has a value that is not positive."""
    if numerator is None or denominator is None or min(*numerator.values, *denominator.values) <= 0:
        return None
    difference = difference_of(_logarithms(numerator), baseline=_logarithms(denominator))
    return Ratio(
        value=math.exp(difference.mean),
        low=None if difference.low is None else math.exp(difference.low),
        high=None if difference.high is None else math.exp(difference.high),
        p_value=difference.p_value,
    )


def _logarithms(spread: Spread) -> Spread:
    logarithms = Spread.of({seed: math.log(value) for seed, value in spread.by_seed})
    assert logarithms is not None, "a spread has at least one value"
    return logarithms


def _paired_error(differences: np.ndarray) -> tuple[float, float]:
    """Return the standard error of the mean difference, and its degrees of freedom."""
    return float(differences.std(ddof=1)) / math.sqrt(len(differences)), len(differences) - 1


def _welch_error(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Return the standard error of the difference of means, with the Welch-Satterthwaite degrees of freedom."""
    parts = [float(side.var(ddof=1)) / len(side) for side in (ours, theirs)]
    if sum(parts) == 0:
        return 0.0, 1.0
    degrees = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (ours, theirs), strict=True))
    return math.sqrt(sum(parts)), degrees
