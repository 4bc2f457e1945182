"""The losses of a run of any length, as a curve of a bounded number of points.

Losses are added up in bins of as many clocks as it takes for at most `MOST_BINS` of them: one clock each at first,
twice as many whenever there are too many bins. So a run of up to so many steps has every clock apart.
"""

from plesio.core.results import LossPoint

MOST_BINS = 4096


class LossCurve:
    """The loss curve over all workers of one run."""

    def __init__(self) -> None:
        self._clocks_per_bin = 1
        self._bins: dict[int, tuple[int, float, float]] = {}
        """How many losses, and the sums of their times and of themselves."""
        self._latest_clock = -1
        self.latest = float("nan")
        """A loss of the latest clock; NaN before there is any."""

    def add(self, clock: int, *, at_s: float, loss: float) -> None:
        """Add a worker's loss of the step that ended at ``clock``, ``at_s`` seconds into training."""
        if clock >= self._latest_clock:
            self._latest_clock, self.latest = clock, loss
        number = clock // self._clocks_per_bin
        num, sum_s, sum_loss = self._bins.get(number, (0, 0.0, 0.0))
        self._bins[number] = num + 1, sum_s + at_s, sum_loss + loss
        if len(self._bins) > MOST_BINS:
            self._widen()

    def _widen(self) -> None:
        bins, self._bins = self._bins, {}
        self._clocks_per_bin *= 2
        for number, (num, sum_s, sum_loss) in bins.items():
            before, before_s, before_loss = self._bins.get(number // 2, (0, 0.0, 0.0))
            self._bins[number // 2] = before + num, before_s + sum_s, before_loss + sum_loss

    def points(self, most: int) -> tuple[LossPoint, ...]:
        """Return at most so many points, each the mean of as many bins."""
        numbers = sorted(self._bins)
        width = max(1, -(-len(numbers) // most))
        points = []
        for first in range(0, len(numbers), width):
            group = numbers[first : first + width]
            sums = [sum(column) for column in zip(*(self._bins[number] for number in group), strict=True)]
            num, sum_s, sum_loss = sums
            clock = group[len(group) // 2] * self._clocks_per_bin
            points.append(LossPoint(clock=clock, at_s=sum_s / num, loss=sum_loss / num))
        return tuple(points)
