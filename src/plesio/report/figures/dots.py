"""Figures of one number a run: a row a policy, a dot a seed, a bar at the middle."""

import html
import statistics
from collections.abc import Mapping

import plotly.graph_objects as go

from plesio.report.figures import findings
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import PolicyStyle, axis_label, lay_out, with_alpha
from plesio.report.model import Comparison
from plesio.report.statistics import Spread

__all__ = ["final_metric_figure", "target_times_figure", "times_figure"]

_ROW_PX = 34
_AXIS_PX = 70


def times_figure(comparison: Comparison, *, styles: Mapping[str, PolicyStyle]) -> PageFigure | None:
    """Training time of every run; None where no run finished."""
    spreads = {summary.policy: summary.time_s for summary in comparison.policies if summary.time_s is not None}
    if not spreads:
        return None
    figure = _seed_dots(spreads, styles=styles, rows={policy: policy for policy in spreads}, hover="%{x:.2f} s")
    figure.update_xaxes(title_text="training time (s)", rangemode="tozero")
    return PageFigure(
        slug="time",
        title=findings.time_finding(comparison),
        caption="One dot a seed; the bar is their mean. Less is better.",
        figure=figure,
    )


def final_metric_figure(comparison: Comparison, *, styles: Mapping[str, PolicyStyle]) -> PageFigure | None:
    """Final metric of every run; None where no run ended with one."""
    metric = comparison.metric
    finals = {
        summary.policy: summary.final_metric for summary in comparison.policies if summary.final_metric is not None
    }
    if not finals:
        return None
    spreads = {policy: _scaled(spread, metric.scale) for policy, spread in finals.items()}
    hover = "%{x:.2f} %" if metric.is_percent else "%{x:.4g}"
    figure = _seed_dots(spreads, styles=styles, rows={policy: policy for policy in spreads}, hover=hover)
    figure.update_xaxes(title_text=f"final {html.escape(metric.axis_title)}")
    better = "More" if metric.goal == "max" else "Less"
    return PageFigure(
        slug="final-metric",
        title=findings.metric_finding(comparison),
        caption=f"One dot a seed; the bar is their mean. {better} is better. The axis does not begin at zero.",
        figure=figure,
    )


def target_times_figure(comparison: Comparison, *, styles: Mapping[str, PolicyStyle]) -> PageFigure | None:
    """Time to the target of every run that reached it; None without a target."""
    targets = {summary.policy: summary.to_target for summary in comparison.policies if summary.to_target is not None}
    if comparison.target is None or not targets:
        return None
    spreads = {policy: target.reached for policy, target in targets.items() if target.reached is not None}
    rows = {
        policy: policy
        if target.num_reached == target.num_runs
        else f"{policy} ({target.num_reached}/{target.num_runs})"
        for policy, target in targets.items()
    }
    figure = _seed_dots(spreads, styles=styles, rows=rows, hover="%{x:.2f} s", medians=True)
    figure.update_xaxes(title_text=f"time to {comparison.metric.text(comparison.target)} (s)", rangemode="tozero")
    partly = " A fraction counts the seeds that did." if any(policy != row for policy, row in rows.items()) else ""
    return PageFigure(
        slug="time-to-target",
        title=findings.target_finding(comparison),
        caption=f"One dot a seed that reached the target; the bar is their median.{partly} Less is better.",
        figure=figure,
    )


def _scaled(spread: Spread, scale: float) -> Spread:
    scaled = Spread.of({seed: scale * value for seed, value in spread.by_seed})
    assert scaled is not None, "a spread has at least one value"
    return scaled


def _seed_dots(
    spreads: Mapping[str, Spread],
    *,
    styles: Mapping[str, PolicyStyle],
    rows: Mapping[str, str],
    hover: str,
    medians: bool = False,
) -> go.Figure:
    """Draw ``spreads``, by policy, in the rows that ``rows`` names; a row may stay empty."""
    names = {policy: axis_label(row) for policy, row in rows.items()}
    figure = go.Figure()
    for policy, spread in spreads.items():
        style, name = styles[policy], names[policy]
        middle = statistics.median(spread.values) if medians else spread.mean
        figure.add_scatter(
            x=[middle],
            y=[name],
            mode="markers",
            marker={"symbol": "line-ns", "size": 18, "line": {"width": 3, "color": style.colour}},
            hovertemplate=f"{'median' if medians else 'mean'}: {hover}<extra>{name}</extra>",
        )
        figure.add_scatter(
            x=list(spread.values),
            y=[name] * spread.num_seeds,
            customdata=[seed for seed, _ in spread.by_seed],
            mode="markers",
            marker={"symbol": style.marker, "size": 9, "color": with_alpha(style.colour, 0.7)},
            hovertemplate=f"seed %{{customdata}}: {hover}<extra>{name}</extra>",
        )
    lay_out(figure, height_px=_AXIS_PX + _ROW_PX * len(names))
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=list(names.values()),
        range=[len(names) - 0.5, -0.5],  # the first policy on top
    )
    return figure
