"""Rules for the length of a step by the batch: descents on a bowl with constant lengths, behind a warm-up.

A rule says what becomes of the best length of the smallest batch as the batch grows: *linear* (Goyal et al. 2017),
*square-root* (Krizhevsky 2014) or *none*. Beside them is the best of many lengths for each batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from plesio_planning.studies.noisy_descent import Bowl, steps_to_target

Rule = Literal["linear", "square-root", "none"]

LENGTHS = 2.0 ** np.arange(1.0, -7.0, -1.0)
"""Step lengths that are tried, over 1/L."""
_EXPONENTS: Mapping[Rule, float] = {"linear": 1.0, "square-root": 0.5, "none": 0.0}
"""Exponent of the batch in the step length."""
_RULE_RUNS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePoint:
    """One batch size, with the step length that a rule gives it.

    Attributes:
        rule: Which; ``best`` is the best of many constant lengths.
        warmup_steps: Steps over which their length grows.
        batch: B.
        length: Length of a step, over 1/L.
        steps: Steps to the target, the median of some runs; infinite where it is not reached.
    """

    rule: str
    warmup_steps: int
    batch: float
    length: float
    steps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRuns:
    """Descents with constant step lengths, behind a warm-up.

    Attributes:
        target: Loss to reach, over the first.
        most: Steps.
    """

    bowl: Bowl
    warmup_steps: int
    target: float
    most: int
    rng: np.random.Generator

    def all_rules(self, sizes: Sequence[int]) -> list[RulePoint]:
        """Return the best length of each size, and those that each rule makes of the smallest size's."""
        best = self.best(sizes)
        return [*best, *(point for rule in get_args(Rule) for point in self.by_rule(rule, sizes, base=best[0].length))]

    def best(self, sizes: Sequence[int]) -> list[RulePoint]:
        """Return the best of all lengths, for each size."""
        tried = [(float(size), float(length)) for size in sizes for length in LENGTHS]
        needed = np.array(self._median_steps(tried)).reshape(len(sizes), len(LENGTHS))
        return [
            self._point("best", size, length=float(LENGTHS[row.argmin()]), steps=float(row.min()))
            for size, row in zip(sizes, needed, strict=True)
        ]

    def by_rule(self, rule: Rule, sizes: Sequence[int], *, base: float) -> list[RulePoint]:
        """Apply a rule to the length that the smallest size has."""
        lengths = [base * (size / sizes[0]) ** _EXPONENTS[rule] for size in sizes]
        steps = self._median_steps(list(zip(map(float, sizes), lengths, strict=True)))
        return [
            self._point(rule, size, length=length, steps=number)
            for size, length, number in zip(sizes, lengths, steps, strict=True)
        ]

    def _point(self, rule: str, size: int, *, length: float, steps: float) -> RulePoint:
        return RulePoint(rule=rule, warmup_steps=self.warmup_steps, batch=size, length=length, steps=steps)

    def _median_steps(self, pairs: Sequence[tuple[float, float]]) -> list[float]:
        rows = np.repeat(np.array(pairs), _RULE_RUNS, axis=0)
        found = steps_to_target(
            self.bowl,
            batches=rows[:, 0],
            lengths=rows[:, 1],
            warmup_steps=np.full(len(rows), float(self.warmup_steps)),
            target=self.target,
            most=self.most,
            rng=self.rng,
        )
        return [float(value) for value in np.median(found.reshape(-1, _RULE_RUNS), axis=1)]


def largest_batch(points: Sequence[RulePoint]) -> float:
    """Return the largest batch up to which every point is at the target; 0 if none is."""
    largest = 0.0
    for point in points:
        if math.isinf(point.steps):
            break
        largest = point.batch
    return largest
