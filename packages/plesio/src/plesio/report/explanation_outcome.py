"""What a run came to, as measured: when it was at the target, how good it was in the end, and what that cost.

Two runs of one seed are held against each other here, and chance moves single evaluations. So the time to target is
read twice, and both readings are shown:

    as evaluated  the first evaluation that reached the target
    smoothed      each evaluation becomes the mean of itself and its two neighbours (at an end of the run, of its one
                  neighbour); the time is where the straight line between two such means meets the target

A run that passes the target once by luck and falls back is early by the first reading and not by the second. With
fewer than `FEWEST_TO_SMOOTH` evaluations there is no second one: three of them would be most of the run. For the same
reason the end is read twice, as the last evaluation and as the mean of the last three.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from plesio.core.results import Evaluation, RunResult
from plesio.report.curves import Curve

__all__ = ["FEWEST_TO_SMOOTH", "Outcome", "outcome_of", "smoothed"]

FEWEST_TO_SMOOTH = 6
_NUM_LAST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run, measured; times in seconds of training.

    Attributes:
        samples: That it trained on.
        num_evaluations: Also those that had no finite metric.
        final_metric: Metric of the last evaluation; None where it is not known or not finite.
        last_metrics: Metrics of the last three evaluations; empty where there are too few to smooth, or one is not
            finite.
        to_target_s: Moment of the first evaluation that reached the target; None if none did, or there is no target.
        smooth_to_target_s: The same by the smoothed curve; None also where there is none.
        metrics: The finite evaluations over seconds of training.
        smooth_metrics: The smoothed curve; empty where there are too few to smooth.
        cross_rack_bytes: Sent from rack to rack, where that is known.
    """

    wall_s: float
    samples: int
    num_evaluations: int
    final_metric: float | None
    last_metrics: tuple[float, ...]
    to_target_s: float | None
    smooth_to_target_s: float | None
    metrics: Curve
    smooth_metrics: Curve
    bytes_sent: int
    cross_rack_bytes: int

    @property
    def end_metric(self) -> float | None:
        """Mean of the last three evaluations, or the last one where there are too few to smooth."""
        return statistics.fmean(self.last_metrics) if self.last_metrics else self.final_metric


def outcome_of(run: RunResult, *, target: float | None) -> Outcome:
    """What ``run`` came to; ``target`` is the metric to reach, None for none."""
    smooth = smoothed(run.evaluations)
    last = tuple(point.metric for point in run.evaluations[-_NUM_LAST:])
    return Outcome(
        wall_s=run.wall_s,
        samples=run.samples,
        num_evaluations=len(run.evaluations),
        final_metric=run.final_metric if run.final_metric is None or math.isfinite(run.final_metric) else None,
        last_metrics=last if smooth and all(map(math.isfinite, last)) else (),
        to_target_s=None if target is None else _first_s(run.evaluations, target=target, goal=run.metric_goal),
        smooth_to_target_s=None if target is None else _crossing_s(smooth, target=target, goal=run.metric_goal),
        metrics=Curve.of((point.at_s, point.metric) for point in run.evaluations),
        smooth_metrics=Curve.of(smooth),
        bytes_sent=run.bytes_sent_total,
        cross_rack_bytes=run.bytes_sent_cross_rack,
    )


def smoothed(evaluations: Sequence[Evaluation]) -> list[tuple[float, float]]:
    """(seconds, mean of an evaluation and its neighbours); NaN next to one that is; empty with too few to smooth.

    >>> points = [Evaluation(samples=n, at_s=n, metric=m) for n, m in enumerate([0.0, 0.3, 0.6, 0.3, 0.6, 0.6])]
    >>> [round(metric, 2) for _, metric in smoothed(points)]
    [0.15, 0.3, 0.4, 0.5, 0.5, 0.6]
    """
    if len(evaluations) < FEWEST_TO_SMOOTH:
        return []
    values = [point.metric for point in evaluations]
    means = [statistics.fmean(values[max(0, place - 1) : place + 2]) for place in range(len(values))]
    return [(point.at_s, mean) for point, mean in zip(evaluations, means, strict=True)]


def _first_s(evaluations: Sequence[Evaluation], *, target: float, goal: Literal["max", "min"]) -> float | None:
    sign = 1.0 if goal == "max" else -1.0
    return next((point.at_s for point in evaluations if sign * point.metric >= sign * target), None)


def _crossing_s(points: Sequence[tuple[float, float]], *, target: float, goal: Literal["max", "min"]) -> float | None:
    """When the line through the points first meets the target."""
    sign = 1.0 if goal == "max" else -1.0
    for place, (at_s, value) in enumerate(points):
        if not sign * value >= sign * target:
            continue
        if place == 0 or not math.isfinite(points[place - 1][1]):
            return at_s
        before_s, before = points[place - 1]
        return before_s + (at_s - before_s) * (target - before) / (value - before)
    return None
