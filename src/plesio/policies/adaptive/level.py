"""The recent level of a noisy figure, and its noise: both forgive outliers, and a trend does not count as noise.

The level is the median of the last few values. The noise is the scatter of one value about its trend, taken from second
differences d = x(t) - 2 x(t-1) + x(t-2): a straight line gives zero; independent noise of standard deviation σ gives d
one of sqrt(6) σ and a mean size of sqrt(6) sqrt(2/π) σ (after von Neumann et al. 1941, who take first differences).

Values above zero are taken as logarithms as long as all of them are: a loss that has come down to a hundredth scatters a
hundredth as much in size, and about as much in proportion.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Excess", "Level"]

_MEAN_SECOND_DIFFERENCE = math.sqrt(6) * math.sqrt(2 / math.pi)
_LEAST_NOISE = 1e-3
"""Of the level: below this a figure counts as constant."""
_CLIP = 3.0
"""Standard deviations above the level at which a value is cut before it becomes part of the level."""
_LARGEST = 1e100
"""Beyond this a value is taken for this one, so that nothing overflows."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A value against what was to be expected.

    Attributes:
        value: The value.
        level: What was to be expected.
        noises: By how many standard deviations of its own noise the value is above that.
        share: By what share of the level's size it is above it.
    """

    value: float
    level: float
    noises: float
    share: float


class Level:
    """Level and noise of the values that were added last.

    >>> level = Level(window=8, recent=3)
    >>> for value in (1.0, 1.1, 0.9, 1.0, 1.1, 0.9):
    ...     level.add(value)
    >>> excess = level.excess(2.0)
    >>> excess.level, round(excess.noises, 1), excess.share
    (1.0, 6.0, 1.0)

    Args:
        window: Values that the noise is taken from, and levels that are remembered; half of them make the level known.
        recent: The last values, whose median is the level.
    """

    __slots__ = ("_levels", "_recent", "_values")

    def __init__(self, *, window: int, recent: int) -> None:
        assert window >= 6, f"window {window}"
        assert 1 <= recent <= window // 2, f"recent {recent} of {window}"
        self._recent = recent
        self._values: deque[float] = deque(maxlen=window)
        self._levels: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> None:
        """Take a value in; one far above the level counts as three standard deviations above."""
        assert not math.isnan(value)
        value = _within_range(value)
        if self.is_known:
            value = min(value, self._most())
        self._values.append(value)
        if self.is_known:
            self._levels.append(self.level)

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()
        self._levels.clear()

    @property
    def is_known(self) -> bool:
        """Whether there are enough values: half a window."""
        assert self._values.maxlen is not None
        return len(self._values) >= self._values.maxlen // 2

    @property
    def level(self) -> float:
        """The level; it must be known."""
        assert self.is_known, len(self._values)
        return statistics.median(list(self._values)[-self._recent :])

    def excess(self, value: float) -> Excess:
        """How far ``value`` is above the level, which must be known."""
        return self._excess(value, over=self.level)

    def creep(self, value: float) -> Excess:
        """How far the median of ``value`` and the two before it is above the lowest level of the window.

        It notices a rise that is slow enough for the level to follow.
        """
        assert self.is_known, len(self._values)
        return self._excess(statistics.median([*list(self._values)[-2:], value]), over=min(self._levels))

    def _excess(self, value: float, *, over: float) -> Excess:
        value = _within_range(value)
        values = list(self._values)
        share = (value - over) / max(abs(over), 1e-300)
        if min(*values, value, over) > 0:
            noises = (math.log(value) - math.log(over)) / _noise([math.log(past) for past in values], size=1.0)
        else:
            noises = (value - over) / _noise(values, size=abs(over))
        return Excess(value=value, level=over, noises=noises, share=share)

    def _most(self) -> float:
        """What a value is cut to."""
        values, level = list(self._values), self.level
        if min(values) > 0:
            return level * math.exp(min(_CLIP * _noise([math.log(past) for past in values], size=1.0), 300.0))
        return level + _CLIP * _noise(values, size=abs(level))


def _noise(values: Sequence[float], *, size: float) -> float:
    """Standard deviation about the trend, at least a thousandth of ``size``."""
    differences = [
        abs(last - 2 * middle + first)
        for first, middle, last in zip(values[:-2], values[1:-1], values[2:], strict=True)
    ]
    return max(statistics.fmean(differences) / _MEAN_SECOND_DIFFERENCE, _LEAST_NOISE * size, 1e-300)


def _within_range(value: float) -> float:
    return max(-_LARGEST, min(value, _LARGEST))
