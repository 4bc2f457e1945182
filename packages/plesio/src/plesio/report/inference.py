"""Many comparisons at once: what may be claimed of a difference, of a spread, and how large it is.

- Means are compared by `plesio.report.statistics`: in pairs where seeds coincide, else by Welch's test.
- Spreads are compared by Brown & Forsythe's test (1974): an analysis of variance of the distances from the median,
  which unlike the F test holds up where values are not normal.
- p values of a family of tests are adjusted by Holm's method (1979): the probability that any of the family's claims is
  false stays below the level, however the tests depend on each other.
- The size of an effect is Hedges' g (1981): a difference in units of the seeds' common standard deviation, corrected
  for few seeds.

Fewer than `MIN_SEEDS` seeds allow no claim: two differences can agree by chance far too easily, and no test is shown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from plesio.report.statistics import CONFIDENCE, Difference, Ratio, Spread, difference_of, ratio_of

MIN_SEEDS = 3
_SIZES = ((0.2, "negligible"), (0.5, "small"), (0.8, "medium"))
"""Cohen's (1988) words for sizes below these; above is large."""


def brown_forsythe(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the p value of "both spread alike"; None where a side is too small, or neither varies.

    >>> round(brown_forsythe([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 5.0, 9.0, 13.0, 17.0]), 4)
    0.0479
    """
    if min(len(one), len(other)) < MIN_SEEDS:
        return None
    distances = [np.abs(np.asarray(side) - np.median(side)) for side in (one, other)]
    if all(float(side.std()) == 0.0 for side in distances):
        return None
    return float(stats.levene(one, other, center="median").pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number, in the order given (Holm 1979).

    The smallest of m is multiplied by m, the next by m - 1 and so on; none is less than one before it, or above 1.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    result = [0.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        result[place] = least
    return result


def hedges_g(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the mean of ``one`` minus that of ``other``, over their common standard deviation, bias-corrected.

    The correction is for few values. None where a side has one value, or nothing varies.

    >>> round(hedges_g([3.0, 4.0, 5.0], [1.0, 2.0, 3.0]), 3)
    1.6
    """
    degrees = len(one) + len(other) - 2
    if min(len(one), len(other)) < 2:
        return None
    sides = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    variance = sum(float(side.var(ddof=1)) * (len(side) - 1) for side in sides) / degrees
    if variance == 0:
        return None
    correction = 1 - 3 / (4 * degrees - 1)
    return correction * float(sides[0].mean() - sides[1].mean()) / math.sqrt(variance)


def size_word(g: float) -> str:
    """Name the size of an effect.

    >>> size_word(-0.3), size_word(2.1)
    ('small', 'large')
    """
    return next((word for limit, word in _SIZES if abs(g) < limit), "large")


def least_visible(num_seeds: int) -> float:
    """Return how far a mean of paired differences must be from 0 to be claimed, in their standard deviations.

    >>> round(least_visible(3), 2), round(least_visible(10), 2)
    (2.48, 0.72)
    """
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, num_seeds - 1)) / math.sqrt(num_seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The seeds' evidence on one figure of a policy against the baseline's.

    Attributes:
        value: Difference of means, ratio (geometric mean), or ratio of standard deviations.
        low: Lower end of its interval, which is of this comparison alone; None where there is none.
        high: Upper end.
        p_value: Of this comparison alone; None where nothing may be claimed.
        p_adjusted: The same by Holm's method, of all of its family; None likewise.
        g: Hedges' g; None where the seeds do not vary.
        num_seeds: Of the side that has fewer.
        paired: Whether seeds were compared in pairs.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    g: float | None = None
    num_seeds: int
    paired: bool = False

    @property
    def shown(self) -> bool:
        """True if the difference may be claimed."""
        return self.p_adjusted is not None and self.p_adjusted < 1 - CONFIDENCE


def judge_difference(policy: Spread, *, baseline: Spread) -> Judgement:
    """Judge a difference of means.

    >>> judge_difference(Spread.of({0: 2.0, 1: 4.0}), baseline=Spread.of({0: 1.0, 1: 2.0})).p_value
    """
    return _judgement(difference_of(policy, baseline=baseline), policy, baseline)


def judge_ratio(policy: Spread, *, baseline: Spread) -> Judgement | None:
    """Judge a ratio of means over seeds; None where a value is not positive."""
    ratio = ratio_of(policy, denominator=baseline)
    return None if ratio is None else _judgement(ratio, policy, baseline)


def judge_spread(policy: Spread, *, baseline: Spread) -> Judgement | None:
    """Judge a ratio of standard deviations over seeds; None where one of them is 0 or unknown."""
    if not policy.std or not baseline.std:
        return None
    return Judgement(
        value=policy.std / baseline.std,
        p_value=brown_forsythe(policy.values, baseline.values),
        num_seeds=min(policy.num_seeds, baseline.num_seeds),
    )


def _judgement(found: Difference | Ratio, policy: Spread, baseline: Spread) -> Judgement:
    num_seeds = min(policy.num_seeds, baseline.num_seeds)
    value = found.mean if isinstance(found, Difference) else found.value
    paired = [seed for seed, _ in policy.by_seed] == [seed for seed, _ in baseline.by_seed]
    if num_seeds < MIN_SEEDS:
        return Judgement(value=value, num_seeds=num_seeds, paired=paired)
    return Judgement(
        value=value,
        low=found.low,
        high=found.high,
        p_value=found.p_value,
        g=hedges_g(policy.values, baseline.values),
        num_seeds=num_seeds,
        paired=paired,
    )


def adjusted(family: Sequence[Judgement | None]) -> list[Judgement | None]:
    """Adjust the judgements' p values for their number; judgements without one do not count.

    >>> tested = [Judgement(value=1.0, p_value=p_value, num_seeds=3) for p_value in (0.01, 0.04)]
    >>> [one and one.p_adjusted for one in adjusted([tested[0], None, tested[1]])]
    [0.02, None, 0.04]
    """
    tested = [one.p_value for one in family if one is not None and one.p_value is not None]
    by_holm = iter(holm(tested))
    return [one if one is None or one.p_value is None else replace(one, p_adjusted=next(by_holm)) for one in family]
