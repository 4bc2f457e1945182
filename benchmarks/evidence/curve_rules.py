"""Rules that look at a training curve and say when a policy that is in force since a change is too loose.

A rule sees what was recorded of a run and gives the step of its first alarm after the change. Curves are turned so that
more is better; σ is the scatter of the validation metric about its trend before the change.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plesio.policies.adaptive.numbers import Numbers
from plesio.policies.adaptive.trend import Point, Trial

__all__ = ["REVIEW", "Case", "Rule", "fall", "oscillation", "stall", "trial"]

REVIEW = 8
"""Steps between two reviews of adaptive while a change is on trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run as a rule sees it.

    Attributes:
        clocks: Of the evaluations, by steps of each worker.
        metrics: In points, more is better.
        reviews: Clock, mean loss and its error.
        change: The step after which the policy is another.
        last: The step at which the run ends.
        lost: Points below BSP's end.
    """

    name: str
    task: str
    clocks: tuple[float, ...]
    metrics: tuple[float, ...]
    reviews: tuple[tuple[int, float, float], ...]
    change: int
    last: int
    lost: float
    harmed: bool
    healthy: bool

    @property
    def deadline(self) -> float:
        """The last step at which an alarm is in time."""
        return (self.change + self.last) / 2

    @property
    def known(self) -> list[float]:
        """Metrics before the change."""
        return [metric for clock, metric in zip(self.clocks, self.metrics, strict=True) if clock <= self.change]


Rule = Callable[[Case], float]
"""Gives the step of the first alarm; inf for none."""


def stall(patience: int, gain: float) -> Rule:
    """Find a plateau: the best of the last ``patience`` evaluations is not ``gain`` σ better than the best before."""

    def alarm(case: Case) -> float:
        least = gain * _scatter(case.known)
        for place in range(len(case.known) + patience, len(case.metrics) + 1):
            recent, before = case.metrics[place - patience : place], case.metrics[: place - patience]
            if max(recent) <= max(before) + least:
                return case.clocks[place - 1]
        return math.inf

    return alarm


def oscillation(window: int, ratio: float) -> Rule:
    """Find an oscillation: the last ``window`` values scatter ``ratio`` times as much as those before the change."""

    def alarm(case: Case) -> float:
        usual = _scatter(case.known)
        for place in range(len(case.known) + window, len(case.metrics) + 1):
            if _scatter(case.metrics[place - window : place]) > ratio * usual:
                return case.clocks[place - 1]
        return math.inf

    return alarm


def fall(patience: int, depth: float) -> Rule:
    """Find a fall: the last ``patience`` evaluations are all more than ``depth`` σ below the best so far."""

    def alarm(case: Case) -> float:
        limit = depth * _scatter(case.known)
        for place in range(len(case.known) + patience, len(case.metrics) + 1):
            if max(case.metrics[place - patience : place]) < max(case.metrics[:place]) - limit:
                return case.clocks[place - 1]
        return math.inf

    return alarm


def trial(numbers: Numbers) -> Rule:
    """Apply the test of `plesio.policies.adaptive.trend` to the losses."""

    def alarm(case: Case) -> float:
        points = [Point(clock, loss, error) for clock, loss, error in case.reviews]
        before = [point for point in points if point.clock <= case.change]
        judged = Trial(tuple(before[-numbers.window :]))
        for point in points[len(before) :][: numbers.trial]:
            judged.add(point)
            if judged.mean_excess > judged.most(numbers.chance_back):
                return point.clock
        return math.inf

    return alarm


def _scatter(values: Sequence[float]) -> float:
    """Return one value's standard deviation about the trend, from second differences; 0 of fewer than four values."""
    second = [abs(c - 2 * b + a) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return statistics.median(second) / (math.sqrt(6) * 0.6745) if len(second) >= 2 else 0.0
