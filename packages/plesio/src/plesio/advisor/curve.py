"""How far a run is, by samples and by seconds, and when it comes to a level.

Chance between two evaluations should not decide which strategy is first, so the points are smoothed by samples: a local
linear fit at each, with tricube weights (Cleveland 1979); a straight line is reproduced exactly. The smoothed curve's
way to a level is interpolated between two points. Weights reach a twelfth of the run to each side at first, and then a
sixth of the samples at which the level is reached: the length of a run after that does not matter then.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plesio.core.results import RunResult

HALF_WIDTH = 1 / 12
"""Half of the smoothing window, as a share of the whole run's samples."""
LEVEL_HALF_WIDTH = 1 / 6
"""Half of the smoothing window, as a share of the samples to the level."""
REFITS = 3
FEWEST = 2
"""Points of a curve that can be smoothed."""
MOST_LOSSES = 120


@dataclass(frozen=True, slots=True)
class ProgressCurve:
    """A run's progress; a larger value is always better.

    Attributes:
        samples: Trained on, over all workers, at each point; increasing.
        points: The metric or the training loss, negative where less is better.

    >>> line = ProgressCurve([10, 20, 30, 40, 50], [1.0, 2.0, 3.0, 4.0, 5.0], [0.1, 0.2, 0.3, 0.4, 0.5])
    >>> line.samples_to(0.25), line.seconds_to(0.25), line.samples_to(0.9)
    (25.0, 2.5, inf)
    """

    samples: Sequence[float]
    seconds: Sequence[float]
    points: Sequence[float]
    _reached: dict[float, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Samples by level, of those that were asked for: a race asks again and again."""

    @property
    def values(self) -> list[float]:
        """The points, smoothed."""
        return self._smoothed(HALF_WIDTH * self.samples[-1])

    def _smoothed(self, half_width: float) -> list[float]:
        fit = _fit(np.asarray(self.samples, dtype=float), np.asarray(self.points, dtype=float), half_width)
        return [round(value, 12) for value in fit]

    def samples_to(self, level: float) -> float:
        """Return the samples at which the curve first is at ``level`` or above; inf if it never is."""
        if level not in self._reached:
            self._reached[level] = self._samples_to(level)
        return self._reached[level]

    def _samples_to(self, level: float) -> float:
        reached = self._crossing(self.values, level)
        for _ in range(REFITS):
            if math.isinf(reached):
                break
            refit = self._crossing(self._smoothed(LEVEL_HALF_WIDTH * reached), level)
            if math.isinf(refit):
                break
            reached = refit
        return reached

    def _crossing(self, values: Sequence[float], level: float) -> float:
        after = next((place for place, value in enumerate(values) if value >= level), None)
        if after is None:
            return math.inf
        if after == 0:
            return self.samples[0]
        low, high = values[after - 1], values[after]
        share = (level - low) / (high - low)
        return self.samples[after - 1] + share * (self.samples[after] - self.samples[after - 1])

    def seconds_to(self, level: float) -> float:
        """Return the seconds at which that is; inf if it never is."""
        reached = self.samples_to(level)
        if math.isinf(reached):
            return math.inf
        return float(np.interp(reached, (0.0, *self.samples), (0.0, *self.seconds)))

    def value_at(self, samples: float) -> float:
        """Return the value after so many samples; that of the last point beyond it."""
        return float(np.interp(samples, self.samples, self.values))

    @property
    def best(self) -> float:
        return max(self.values)


def curve_of(run: RunResult, *, by_loss: bool) -> ProgressCurve | None:
    """Make the run's curve from its evaluations or its training loss; None where there are too few points.

    The training loss is at the run's own samples, in means of a few steps.
    """
    if by_loss:
        return _of_losses(run)
    sign = 1.0 if run.metric_goal == "max" else -1.0
    points = [point for point in run.evaluations if math.isfinite(point.metric) and point.samples > 0]
    if len(points) < FEWEST:
        return None
    return ProgressCurve(
        [point.samples for point in points], [point.at_s for point in points], [sign * point.metric for point in points]
    )


def _of_losses(run: RunResult) -> ProgressCurve | None:
    points = [point for point in run.losses if math.isfinite(point.loss) and point.at_s > 0]
    if len(points) < FEWEST or not run.samples:
        return None
    size = max(1, len(points) // MOST_LOSSES)
    groups = [points[place : place + size] for place in range(0, len(points) - size + 1, size)]
    last_s = points[-1].at_s
    seconds = [group[-1].at_s for group in groups]
    # samples are dealt at an even rate, near enough: a loss point has its time, and the run its samples
    samples = [run.samples * at_s / last_s for at_s in seconds]
    keep = [place for place in range(len(samples)) if place == 0 or samples[place] > samples[place - 1]]
    values = [-sum(point.loss for point in group) / len(group) for group in groups]
    if len(keep) < FEWEST:
        return None
    return ProgressCurve(*([series[place] for place in keep] for series in (samples, seconds, values)))


def _fit(places: NDArray[np.float64], values: NDArray[np.float64], half_width: float) -> list[float]:
    if len(places) < 2:
        return [float(value) for value in values]
    half_width = max(half_width, 1.5 * np.diff(places).max())  # a neighbour on each side has weight
    offsets = places[None, :] - places[:, None]
    weights = np.clip(1 - np.abs(offsets / half_width) ** 3, 0, None) ** 3
    totals = weights.sum(1)
    mean_offsets, mean_values = (weights * offsets).sum(1) / totals, weights @ values / totals
    centred = offsets - mean_offsets[:, None]
    spreads = (weights * centred**2).sum(1)
    slopes = (weights * centred * (values[None, :] - mean_values[:, None])).sum(1) / np.where(spreads > 0, spreads, 1)
    return [float(value) for value in mean_values - slopes * mean_offsets]
