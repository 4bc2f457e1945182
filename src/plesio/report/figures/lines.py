"""Figures of how training went on: the metric over time, the loss over steps."""

import html
from collections.abc import Iterable, Mapping

import plotly.graph_objects as go

from plesio.report.curves import Curve
from plesio.report.figures import findings
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import PolicyStyle, lay_out, with_alpha
from plesio.report.model import Comparison

__all__ = ["late_range", "loss_figure", "progress_figure"]


def progress_figure(comparison: Comparison, *, styles: Mapping[str, PolicyStyle]) -> PageFigure | None:
    """The metric over training time; None where no run was evaluated."""
    drawn = [summary for summary in comparison.policies if summary.metric_mean.x]
    if not drawn:
        return None
    metric = comparison.metric
    figure = go.Figure()
    for summary in drawn:
        for curve in summary.metric_curves:
            _add_line(figure, curve, summary.policy, styles, scale=metric.scale, thin=True)
    for summary in drawn:
        _add_line(figure, summary.metric_mean, summary.policy, styles, scale=metric.scale, unit=" s")
    if comparison.target is not None:
        figure.add_hline(y=metric.scale * comparison.target, line={"dash": "dot", "width": 1, "color": "#8b949e"})
    lay_out(figure, height_px=420, legend_gap_px=10)
    span = late_range([summary.metric_mean for summary in drawn], goal=metric.goal)
    figure.update_yaxes(title_text=metric.axis_title, range=[metric.scale * span[0], metric.scale * span[1]])
    figure.update_xaxes(title_text="training time (s)", rangemode="tozero")
    target = "" if comparison.target is None else " The dotted line is the target."
    return PageFigure(
        slug="metric",
        title=findings.progress_finding(comparison),
        caption=(
            "Thick: mean over seeds of the k-th evaluation, in time and in value. Thin: each seed."
            f"{target} The view leaves out the steep start; double-click to see all."
        ),
        figure=figure,
        wide=True,
    )


def loss_figure(comparison: Comparison, *, styles: Mapping[str, PolicyStyle]) -> PageFigure | None:
    """The training loss over steps; None where no run recorded a finite one."""
    drawn = [summary for summary in comparison.policies if summary.loss_mean.x]
    if not drawn:
        return None
    figure = go.Figure()
    for summary in drawn:
        _add_line(figure, summary.loss_mean, summary.policy, styles, unit=" steps")
    lay_out(figure, height_px=380, legend_gap_px=10)
    lowest = min(min(summary.loss_mean.y) for summary in drawn)
    figure.update_yaxes(
        title_text="training loss", type="log" if lowest > 0 else "linear", dtick=1 if lowest > 0 else None
    )
    figure.update_xaxes(title_text="steps finished by each worker", rangemode="tozero")
    return PageFigure(
        slug="loss",
        title=findings.loss_finding(comparison),
        caption="Mean over workers and seeds, smoothed over 4 % of the run. Equal steps, whatever time they took.",
        figure=figure,
        wide=True,
    )


def _add_line(
    figure: go.Figure,
    curve: Curve,
    policy: str,
    styles: Mapping[str, PolicyStyle],
    *,
    scale: float = 1.0,
    unit: str = "",
    thin: bool = False,
) -> None:
    style, name = styles[policy], html.escape(policy)
    colour = with_alpha(style.colour, 0.3) if thin else style.colour
    figure.add_trace(
        go.Scatter(
            x=list(curve.x),
            y=[scale * y for y in curve.y],
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=not thin,
            line={"color": colour, "width": 1 if thin else 2.5, "dash": style.dash},
            hoverinfo="skip" if thin else None,
            hovertemplate=None if thin else f"%{{y:.4g}} after %{{x:.4g}}{unit}<extra>{name}</extra>",
        )
    )


def late_range(curves: Iterable[Curve], *, goal: str) -> tuple[float, float]:
    """The range of a metric's values that leaves out the steep start: from the values a fifth of the way on."""
    late = [curve.at(curve.x[0] + 0.2 * (curve.x[-1] - curve.x[0])) for curve in curves]
    everything = [y for curve in curves for y in curve.y]
    low, high = (min(late), max(everything)) if goal == "max" else (min(everything), max(late))
    margin = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    return low - margin, high + margin
