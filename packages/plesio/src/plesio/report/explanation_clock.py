"""When each step of a run was finished, from the few hundred points of its loss curve."""

import itertools
from bisect import bisect_right
from collections.abc import Mapping

from plesio.core.results import RunResult

__all__ = ["TrainingClock"]


class TrainingClock:
    """Training time at a step: on the straight line between the recorded losses, which have both."""

    def __init__(self, run: RunResult, *, num_steps: int) -> None:
        known: Mapping[float, float] = {0.0: 0.0, **{point.clock: point.at_s for point in run.losses}}
        self._points = sorted({**known, max(num_steps, *known): run.wall_s}.items())

    def at_s(self, clock: float) -> float:
        """Seconds of training when the step that ends at ``clock`` was finished."""
        place = bisect_right(self._points, (clock, float("inf")))
        if place == len(self._points):
            return self._points[-1][1]
        (before, before_s), (after, after_s) = itertools.islice(self._points, place - 1, place + 1)
        return before_s + (after_s - before_s) * (clock - before) / (after - before)
