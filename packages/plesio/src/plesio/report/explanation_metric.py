"""The chart of how good a run was when, beside bsp: single evaluations as dots, and the smoothed curve as a line."""

from collections.abc import Iterator

from plesio.core.charts import Axis, LineChart, Look, Series
from plesio.report.charts.colours import COLOURS, QUIET
from plesio.report.curves import late_range
from plesio.report.explanation import Explanation
from plesio.report.explanation_outcome import Outcome
from plesio.report.explanation_verdict import metric_of
from plesio.report.metric import Metric

__all__ = ["metric_chart"]


def metric_chart(explanation: Explanation) -> LineChart | None:
    """The metric over training time; None where the run has fewer than two finite evaluations."""
    metric = metric_of(explanation)
    outcomes = [("bsp", explanation.bsp, Look(QUIET)), ("this run", explanation.outcome, Look(COLOURS[0]))]
    drawn = [(name, one, look) for name, one, look in outcomes if one is not None and len(one.metrics.x) > 1]
    if len(explanation.outcome.metrics.x) < 2:
        return None
    low, high = late_range([one.metrics for _, one, _ in drawn], goal=metric.goal)
    is_smooth = any(one.smooth_metrics.x for _, one, _ in drawn)
    lines = "Line: each evaluation averaged with its two neighbours." if is_smooth else ""
    target = "" if explanation.target is None else " Dotted: the target."
    return LineChart(
        slug="metric",
        title=_finding(explanation, metric),
        caption=f"Dots: evaluations. {lines}{target} The view leaves out the steep start; double-click to see all.",
        wide=True,
        x=Axis(title="training time (s)", from_zero=True),
        y=Axis(title=metric.axis_title, view=(metric.scale * low, metric.scale * high)),
        series=[series for name, one, look in drawn for series in _series(name, one, look, metric)],
        levels=[] if explanation.target is None else [metric.scale * explanation.target],
    )


def _series(name: str, outcome: Outcome, look: Look, metric: Metric) -> Iterator[Series]:
    curve, smooth = outcome.metrics, outcome.smooth_metrics
    y = [metric.scale * value for value in curve.y]
    yield Series(name=name, x=curve.x, y=y, style="points", look=look, weight="thin")
    line = smooth if smooth.x else curve
    yield Series(name=name, x=line.x, y=[metric.scale * value for value in line.y], look=look)


def _finding(explanation: Explanation, metric: Metric) -> str:
    ours, theirs = explanation.outcome.final_metric, None if explanation.bsp is None else explanation.bsp.final_metric
    if ours is None:
        return f"No final {metric.name} is known"
    beside = "" if theirs is None else f", bsp at {metric.text(theirs)}"
    return f"It ended at {metric.name} {metric.text(ours)}{beside}"
