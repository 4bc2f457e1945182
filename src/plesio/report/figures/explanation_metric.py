"""The figure of how good a run was when, beside bsp: single evaluations as dots, and the smoothed curve as a line."""

import html

import plotly.graph_objects as go

from plesio.report.colours import COLOURS, QUIET
from plesio.report.explanation import Explanation
from plesio.report.explanation_outcome import Outcome
from plesio.report.explanation_verdict import metric_of
from plesio.report.figures.lines import late_range
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import lay_out
from plesio.report.metric import Metric

__all__ = ["metric_figure"]

_IN_FORCE = COLOURS[0]


def metric_figure(explanation: Explanation) -> PageFigure | None:
    """The metric over training time; None where the run has fewer than two finite evaluations."""
    metric = metric_of(explanation)
    outcomes = [("this run", explanation.outcome, _IN_FORCE), ("bsp", explanation.bsp, QUIET)]
    drawn = [(name, one, colour) for name, one, colour in outcomes if one is not None and len(one.metrics.x) > 1]
    if len(explanation.outcome.metrics.x) < 2:
        return None
    figure = go.Figure()
    for name, outcome, colour in reversed(drawn):
        _add(figure, outcome, name=name, colour=colour, metric=metric)
    if explanation.target is not None:
        figure.add_hline(y=metric.scale * explanation.target, line={"dash": "dot", "width": 1, "color": "#8b949e"})
    lay_out(figure, height_px=360, legend_gap_px=10)
    low, high = late_range([one.metrics for _, one, _ in drawn], goal=metric.goal)
    figure.update_yaxes(title_text=html.escape(metric.axis_title), range=[metric.scale * low, metric.scale * high])
    figure.update_xaxes(title_text="training time (s)", rangemode="tozero")
    is_smooth = any(one.smooth_metrics.x for _, one, _ in drawn)
    lines = "Line: each evaluation averaged with its two neighbours." if is_smooth else ""
    target = "" if explanation.target is None else " Dotted: the target."
    return PageFigure(
        slug="metric",
        title=_finding(explanation, metric),
        caption=f"Dots: evaluations. {lines}{target} The view leaves out the steep start; double-click to see all.",
        figure=figure,
        wide=True,
    )


def _add(figure: go.Figure, outcome: Outcome, *, name: str, colour: str, metric: Metric) -> None:
    curve, smooth = outcome.metrics, outcome.smooth_metrics
    hover = "%{y:.4g} after %{x:.4g} s<extra>" + name + "</extra>"
    figure.add_scatter(
        x=list(curve.x),
        y=[metric.scale * value for value in curve.y],
        mode="markers" if smooth.x else "lines+markers",
        marker={"size": 6, "color": colour, "opacity": 0.55},
        line={"color": colour, "width": 1.5},
        name=name,
        legendgroup=name,
        showlegend=not smooth.x,
        hovertemplate=hover,
    )
    if smooth.x:
        figure.add_scatter(
            x=list(smooth.x),
            y=[metric.scale * value for value in smooth.y],
            mode="lines",
            line={"color": colour, "width": 2.5},
            name=name,
            legendgroup=name,
            hovertemplate=hover.replace("<extra>", ", smoothed<extra>"),
        )


def _finding(explanation: Explanation, metric: Metric) -> str:
    ours, theirs = explanation.outcome.final_metric, None if explanation.bsp is None else explanation.bsp.final_metric
    if ours is None:
        return f"No final {metric.name} is known"
    beside = "" if theirs is None else f", bsp at {metric.text(theirs)}"
    return f"It ended at {metric.name} {metric.text(ours)}{beside}"
