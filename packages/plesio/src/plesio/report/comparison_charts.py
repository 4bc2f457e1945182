"""The charts of a comparison: each answers one question, and its title is the answer."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Look, Panels, Series, Timeline, TimelineBar
from plesio.core.units import byte_unit, format_bytes
from plesio.report import findings
from plesio.report.charts.colours import ACTIVITY_COLOURS, looks_of
from plesio.report.curves import Curve, late_range
from plesio.report.model import Comparison, PolicySummary
from plesio.report.statistics import Spread
from plesio.report.timelines import MOST_WORKERS, Window

_LINK_COLOURS = ("#3f6384", "#86a8c4", "#c9b458", "#9a7fb0")
"""Colours of link classes, by order of appearance."""
_BEYOND = 0.6
"""Room before and after the bars of the least and the greatest staleness."""

Looks = Mapping[str, Look]
"""One for each policy, in all charts of a page."""


def comparison_charts(comparison: Comparison, *, windows: Sequence[Window] = ()) -> list[Chart]:
    looks = policy_looks(comparison)
    made: tuple[Chart | None, ...] = (
        _times_chart(comparison, looks),
        _final_metric_chart(comparison, looks),
        _target_times_chart(comparison, looks),
        _bytes_chart(comparison),
        _progress_chart(comparison, looks),
        _loss_chart(comparison, looks),
        _worker_times_chart(comparison),
        timeline_chart(windows),
        _staleness_chart(comparison, looks),
    )
    return [chart for chart in made if chart is not None]


def policy_looks(comparison: Comparison) -> dict[str, Look]:
    return looks_of((summary.policy for summary in comparison.policies), quiet=comparison.baseline)


def _times_chart(comparison: Comparison, looks: Looks) -> LineChart | None:
    spreads = comparison.by_policy(lambda one: one.time_s)
    if not spreads:
        return None
    return _seed_dots(
        spreads,
        looks,
        slug="time",
        title=findings.time_finding(comparison),
        caption="Training time of a run, without evaluation. One dot a seed; the bar is their mean. Less is better.",
        axis=Axis(title="training time (s)", from_zero=True),
    )


def _final_metric_chart(comparison: Comparison, looks: Looks) -> LineChart | None:
    metric = comparison.metric
    spreads = comparison.by_policy(
        lambda one: None if one.final_metric is None else one.final_metric.scaled(metric.scale)
    )
    if not spreads:
        return None
    better = "" if metric.is_doubted else "More is better. " if metric.goal == "max" else "Less is better. "
    return _seed_dots(
        spreads,
        looks,
        slug="final-metric",
        title=findings.metric_finding(comparison),
        caption=(
            f"Metric of a run's last evaluation. One dot a seed; the bar is their mean. {better}"
            "The axis does not begin at zero."
        ),
        axis=Axis(title=f"final {metric.axis_title}"),
    )


def _target_times_chart(comparison: Comparison, looks: Looks) -> LineChart | None:
    targets = comparison.by_policy(lambda one: one.to_target)
    if comparison.target is None or not targets:
        return None
    rows = {
        policy: policy
        if target.num_reached == target.num_runs
        else f"{policy} ({target.num_reached}/{target.num_runs})"
        for policy, target in targets.items()
    }
    partly = " A fraction counts the seeds that did." if any(policy != row for policy, row in rows.items()) else ""
    return _seed_dots(
        {policy: target.reached for policy, target in targets.items()},
        looks,
        slug="time-to-target",
        title=findings.target_finding(comparison),
        caption=(
            "Training time up to the first evaluation that reached the target. One dot a seed that did; the bar is "
            f"their median.{partly} Less is better."
        ),
        axis=Axis(title=f"time to {comparison.metric.text(comparison.target)} (s)", from_zero=True),
        rows=rows,
        middle=statistics.median,
    )


def _seed_dots(
    spreads: Mapping[str, Spread | None],
    looks: Looks,
    *,
    slug: str,
    title: str,
    caption: str,
    axis: Axis,
    rows: Mapping[str, str] | None = None,
    middle: Callable[[Sequence[float]], float] = statistics.mean,
) -> LineChart:
    """Draw a row a policy, a dot a seed, a bar at the middle; a row may stay empty, and ``rows`` may rename it."""
    series: list[Series] = []
    for row, (policy, spread) in enumerate(spreads.items()):
        if spread is None:
            continue
        value = middle(spread.values)
        dots = partial(Series, name="", look=looks[policy])
        series.append(dots(x=[value], y=[row], style="strokes", hints=[f"{middle.__name__}: {value:.4g}"]))
        hints = [f"seed {seed}: {one:.4g}" for seed, one in spread.by_seed]
        series.append(dots(x=spread.values, y=[row] * spread.num_seeds, style="points", hints=hints))
    names = [(rows or {}).get(policy, policy) for policy in spreads]
    y = Axis(title="", ticks=dict(enumerate(names)), down=True)
    return LineChart(slug=slug, title=title, caption=caption, x=axis, y=y, series=series)


def _bytes_chart(comparison: Comparison) -> BarChart | None:
    drawn = [summary for summary in comparison.policies if summary.bytes_sent is not None]
    totals = [sum(summary.bytes_by_link.values()) for summary in drawn]
    if max(totals, default=0) <= 0:
        return None
    unit, scale = byte_unit(max(totals))
    links = list(dict.fromkeys(link for summary in drawn for link in summary.bytes_by_link))
    return BarChart(
        slug="bytes",
        title=findings.bytes_finding(comparison),
        caption="Payload and framing on the wire, all workers and servers, mean over seeds, by link class.",
        axis=Axis(title=f"bytes sent per run ({unit})"),
        rows=[summary.policy for summary in drawn],
        parts={link: [summary.bytes_by_link.get(link, 0) / scale for summary in drawn] for link in links},
        colours={link: _LINK_COLOURS[place % len(_LINK_COLOURS)] for place, link in enumerate(links)},
        ends=[format_bytes(total) for total in totals],
    )


def _progress_chart(comparison: Comparison, looks: Looks) -> LineChart | None:
    drawn = [summary for summary in comparison.policies if summary.metric_mean.x]
    if not drawn:
        return None
    metric = comparison.metric
    low, high = late_range([summary.metric_mean for summary in drawn], goal=metric.goal)
    target = "" if comparison.target is None else " The dotted line is the target."
    seeds = [
        _line(summary, curve, looks, scale=metric.scale, thin=True)
        for summary in drawn
        for curve in summary.metric_curves
    ]
    return LineChart(
        slug="metric",
        title=findings.progress_finding(comparison),
        caption=(
            "Metric of each evaluation. Thick: mean over seeds of the k-th one, in time and in value. Thin: each seed."
            f"{target} The view leaves out the steep start; double-click to see all."
        ),
        wide=True,
        x=Axis(title="training time (s)", from_zero=True),
        y=Axis(title=metric.axis_title, view=(metric.scale * low, metric.scale * high)),
        series=[*seeds, *(_line(summary, summary.metric_mean, looks, scale=metric.scale) for summary in drawn)],
        levels=[] if comparison.target is None else [metric.scale * comparison.target],
    )


def _loss_chart(comparison: Comparison, looks: Looks) -> LineChart | None:
    drawn = [summary for summary in comparison.policies if summary.loss_mean.x]
    if not drawn:
        return None
    return LineChart(
        slug="loss",
        title=findings.loss_finding(comparison),
        caption=(
            "Training loss, mean over workers and seeds, smoothed over 4 % of the run. Equal steps, whatever time they "
            "took."
        ),
        wide=True,
        x=Axis(title="steps finished by each worker", from_zero=True),
        y=Axis(title="training loss", log=min(min(summary.loss_mean.y) for summary in drawn) > 0),
        series=[_line(summary, summary.loss_mean, looks) for summary in drawn],
    )


def _line(summary: PolicySummary, curve: Curve, looks: Looks, *, scale: float = 1.0, thin: bool = False) -> Series:
    return Series(
        name=summary.policy,
        x=curve.x,
        y=[scale * y for y in curve.y],
        look=looks[summary.policy],
        weight="thin" if thin else "normal",
    )


def _worker_times_chart(comparison: Comparison) -> Panels | None:
    panels = [
        BarChart(
            title=summary.policy,
            axis=Axis(title="seconds per run"),
            rows=[str(times.worker) for times in summary.workers],
            parts={
                activity: [getattr(times, f"{activity}_s") for times in summary.workers]
                for activity in ACTIVITY_COLOURS
            },
            colours=ACTIVITY_COLOURS,
        )
        for summary in comparison.policies
        if summary.workers
    ]
    if not panels:
        return None
    return Panels(
        slug="worker-times",
        title=findings.wait_finding(comparison),
        caption=(
            "Seconds that each worker computed, waited and communicated; a bar a worker, named by its number, mean "
            "over seeds. Evaluation is off the training clock."
        ),
        charts=panels,
    )


def timeline_chart(windows: Sequence[Window]) -> Panels | None:
    """Draw a few steps of each policy's first run, all to one scale; None without traces."""
    if not windows:
        return None
    length_ms = 1e3 * max(window.ends_s - window.begins_s for window in windows)
    axis = Axis(title="milliseconds from the window's beginning", view=(0, length_ms))
    most = max(window.num_workers for window in windows)
    only = f" Of {most} workers the first are shown, and the slowest." if most > MOST_WORKERS else ""
    return Panels(
        slug="gantt",
        title="A few steps from the middle of each policy's first run",
        caption=(
            "Computing, waiting and communicating by the run's traces, a row a worker, named by its number. The traces "
            f"below have all steps.{only}"
        ),
        charts=[_timeline(window, axis) for window in windows],
    )


def _timeline(window: Window, axis: Axis) -> Timeline:
    workers = sorted({span.worker for span in window.spans})
    bars = []
    for activity in ACTIVITY_COLOURS:
        for span in window.spans:
            begin_s = max(span.at_s, window.begins_s)
            end_s = min(span.at_s + span.duration_s, window.ends_s)
            if span.kind == activity and end_s > begin_s:
                begin_ms, end_ms = 1e3 * (begin_s - window.begins_s), 1e3 * (end_s - window.begins_s)
                row, hint = workers.index(span.worker), f"worker {span.worker}, step {span.clock}"
                bars.append(TimelineBar(row, begin_ms, end_ms, activity, hint=hint))
    rows = [str(worker) for worker in workers]
    return Timeline(title=window.policy, axis=axis, rows=rows, spans=bars, colours=ACTIVITY_COLOURS)


def _staleness_chart(comparison: Comparison, looks: Looks) -> Panels | None:
    drawn = [summary for summary in comparison.policies if summary.staleness.counts]
    if not drawn:
        return None
    widest = max(4, *(summary.staleness.max for summary in drawn))
    axis = Axis(title="staleness τ (versions)", view=(-_BEYOND, widest + _BEYOND))
    panels = []
    for summary in drawn:
        counts = summary.staleness.counts
        shares = [100 * number / sum(counts) for number in counts]
        panels.append(
            LineChart(
                title=f"{summary.policy}: mean {summary.staleness.mean:.1f}, max {summary.staleness.max}",
                x=axis,
                y=Axis(title="%", from_zero=True),
                series=[Series(name="", x=range(len(counts)), y=shares, style="bars", look=looks[summary.policy])],
            )
        )
    return Panels(
        slug="staleness",
        title=findings.staleness_finding(comparison),
        caption="Share of the applied updates by staleness, all seeds together. Each panel has its own vertical scale.",
        charts=panels,
    )
