"""The loss's trend: what the loss would be if training went on as it did; and a test of that which may stop any time.

The trend is that of the reviews before a change, extrapolated by the smaller of a hyperbola and an exponential through
their halves. The excess of the losses since then over it is judged by a confidence sequence for its mean: the mixture
boundary of Robbins (Howard et al. 2021), under which the chance of *ever* crossing without harm is at most alpha.
"""

import itertools
import math
import statistics
from dataclasses import dataclass, field

_MEDIAN = 0.6745
LEAST_NOISE = 3e-3
"""Share of the loss; no mean over a review is known better."""
CHANCE = 0.01
"""Chance that a harmless change is ever taken back."""
LEAST_FALL, LEAST_RISE = 0.5, 0.01
"""Share of the expected fall that must be missed, and share of the loss that it must be above the expected one."""
FORECAST = 0.2
"""Standard error of the logarithm of a forecast fall: curves flatten in other ways, too."""


@dataclass(frozen=True, slots=True)
class Point:
    """One review: its clock, the mean loss of its steps, and that mean's standard error."""

    clock: int
    loss: float
    error: float


def boundary(alpha: float, num: float, *, effect: float = 1.0) -> float:
    """Return the standard errors that the mean of ``num`` values may be above zero, at any of all numbers together.

    ``effect`` is the mean excess that is looked for, in standard deviations of one value.
    """
    weight = num * effect**2
    return math.sqrt((1 + 1 / weight) * (2 * math.log(1 / alpha) + math.log1p(weight)))


@dataclass(slots=True)
class Trial:
    """A change on trial: the trend before it, and the excess of the losses since."""

    before: tuple[Point, ...]
    _excess: list[float] = field(default_factory=list)
    _falls: list[float] = field(default_factory=list)
    sigma: float = math.nan
    common: float = 0.0
    """Standard error of the forecast, which all excesses have in common."""

    @property
    def num(self) -> int:
        """Reviews since the change."""
        return len(self._excess)

    def add(self, point: Point) -> None:
        """Take a review under the setting on trial."""
        last = self.before[-1]
        part, fell = further_fall(self.before, point.clock - last.clock)
        noise = scatter(self.before)
        self.sigma = max(noise, point.error, LEAST_NOISE * abs(last.loss))
        level = math.hypot(max(noise, last.error), part * max(noise, self.before[0].error))
        self.common = max(self.common, level)
        self._excess.append(point.loss - (last.loss - fell))
        self._falls.append(fell)

    @property
    def mean_excess(self) -> float:
        """Mean over the reviews since the change of loss less the loss to expect."""
        return statistics.fmean(self._excess) if self._excess else 0.0

    @property
    def mean_fall(self) -> float:
        """Mean fall that was expected since the change."""
        return statistics.fmean(self._falls) if self._falls else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean excess."""
        return math.hypot(self.sigma / math.sqrt(max(1, self.num)), self.common)

    @property
    def most(self) -> float:
        """Mean excess above which the change fails: so much harm is more than chance explains."""
        margin = self.mean_fall * LEAST_FALL + LEAST_RISE * abs(self.before[-1].loss)
        return margin + self.error * boundary(CHANCE, self.num)

    def efficiency(self) -> tuple[float, float] | None:
        """Return the logarithm of the fall over the one expected, and its error; None where too little was to fall."""
        fall, error = self.mean_fall, self.error
        if self.num < 2 or fall <= 2 * error:
            return None
        share = min(1.5, max(0.3, 1 - self.mean_excess / fall))
        return math.log(share), math.hypot(error / fall / share, FORECAST)


def further_fall(points: tuple[Point, ...], num_steps: int) -> tuple[float, float]:
    """Return a hyperbola's share of the fall so far in so many further steps, and the expected fall of the loss."""
    first, last = points[0], points[-1]
    over, fell = last.clock - first.clock, max(0.0, first.loss - last.loss)
    if not over:
        return 0.0, 0.0
    part = num_steps / (over + num_steps)
    middle = points[len(points) // 2]
    older, newer = middle.clock - first.clock, last.clock - middle.clock
    if len(points) < 3 or first.loss <= middle.loss or not newer or not older:
        return part, part * fell
    ratio = ((middle.loss - last.loss) / newer) / ((first.loss - middle.loss) / older)
    if ratio <= 0:
        return part, 0.0
    decay = max(0.0, -math.log(ratio)) / ((older + newer) / 2)
    slope = (middle.loss - last.loss) / newer * math.exp(-decay * newer / 2)
    exponential = slope * (-math.expm1(-decay * num_steps) / decay if decay else num_steps)
    return part, min(part * fell, exponential)


def scatter(points: tuple[Point, ...]) -> float:
    """Return the standard deviation of one loss about the trend, from second differences."""
    losses = [point.loss for point in points]
    second = [c - 2 * b + a for a, b, c in zip(losses, losses[1:], losses[2:], strict=False)]
    if not second:
        return 0.0
    few = 1 + 2 / len(second)
    of_second = few * statistics.median(map(abs, second)) / (math.sqrt(6) * _MEDIAN)
    if min(second) <= 0:
        return of_second
    third = [abs(b - a) for a, b in itertools.pairwise(second)] or [0.0]
    return max(of_second / 3, min(of_second, few * statistics.median(third) / (math.sqrt(20) * _MEDIAN)))
