"""Charts of a run that changed: slack, time of a step, training, shares; all over the steps of a worker.

What was in force is blue in all of them and bsp is grey; a dotted line stands where something was changed.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from plesio.core.charts import Axis, Chart, LineChart, Look, Panels, Series
from plesio.core.units import counted, format_seconds, listed
from plesio.report.charts.colours import COLOURS, NUM_SHAPES, QUIET
from plesio.report.curves import late_range
from plesio.report.explanation.model import Chapter, Explanation, MeasuredOutcome
from plesio.report.explanation.sentences import change_text, percent
from plesio.report.explanation.verdict import metric_of
from plesio.report.metric import Metric
from plesio.report.sentences import share_text

_IN_FORCE, _BSP, _RESTORED = Look(COLOURS[0]), Look(QUIET, 1), Look(COLOURS[4], NUM_SHAPES - 1)
_SIZES = (1, 3, 7, 15, 31, 63, 127, 255)
_PREDICTED = (
    "Seconds computing and blocked, mean over workers and over the steps between two reviews; and what the policy "
    "predicted for bsp with equal shares from the same steps: step time, not progress. The two are one while bsp with "
    "equal shares was in force. After the last review by the training clock."
)
_SCHEDULED = "Training time between two changes, over the steps that a worker made in it on average."
_DOTS = "A dot is a change: point at it to read why."


def explanation_charts(explanation: Explanation) -> list[Chart]:
    made = (
        _slack_chart(explanation),
        _step_chart(explanation),
        _loss_chart(explanation),
        _noise_chart(explanation),
        _shares_chart(explanation),
    )
    return [chart for chart in made if chart is not None]


def _slack_chart(explanation: Explanation) -> LineChart | None:
    if not explanation.spans:
        return None
    known = [span.slack for span in explanation.spans]
    rungs = [0, *(size for size in _SIZES if size <= max(3, *known))]
    if max(known) > rungs[-1]:
        rungs.append(max(known))
    ticks = {_rung(rung): str(rung) for rung in rungs}
    in_force = _steps(
        [(span.begin, span.end) for span in explanation.spans],
        [_rung(span.slack) for span in explanation.spans],
        texts=[f"a slack of {span.slack} ({span.policy})" for span in explanation.spans],
        name="in force",
        look=_IN_FORCE,
        weight="thick",
    )
    return _over_steps(
        explanation,
        slug="slack",
        title=_slack_finding(explanation),
        caption=f"Steps that a worker trained without the others' updates. {_DOTS}",
        wide=True,
        y=Axis(title="slack (steps)", ticks=ticks, view=(-0.3, max(ticks) + 0.25)),
        series=[in_force, *_change_marks(explanation)],
    )


def _step_chart(explanation: Explanation) -> LineChart | None:
    if not explanation.spans:
        return None
    edges = [(span.begin, span.end) for span in explanation.spans]
    bsp_ms = [1e3 * span.bsp_step_s for span in explanation.spans if span.bsp_step_s is not None]
    step_ms = [1e3 * span.step_s for span in explanation.spans]
    series = []
    if explanation.predicts:
        series.append(_steps(edges, bsp_ms, unit="ms", name="bsp, predicted", look=_BSP))
    if explanation.saved_s > 0:
        x, high = _corners(edges, bsp_ms)
        _, low = _corners(edges, [min(pair) for pair in zip(step_ms, bsp_ms, strict=True)])
        saved = Series(name="less step time", x=x, y=high, low=low, high=high, style="band", look=_IN_FORCE)
        series.append(saved)
    series.append(_steps(edges, step_ms, unit="ms", name="measured", look=_IN_FORCE, weight="thick"))
    return _over_steps(
        explanation,
        slug="step-time",
        title=_step_finding(explanation),
        caption=_PREDICTED if explanation.predicts else _SCHEDULED,
        wide=True,
        y=Axis(title="a step (ms)", view=(0, 1.08 * max([*step_ms, *bsp_ms]))),
        series=series,
    )


def _loss_chart(explanation: Explanation) -> LineChart | None:
    if len(explanation.losses) < 2:
        return None
    clocks, losses = zip(*explanation.losses, strict=True)
    return _over_steps(
        explanation,
        slug="loss",
        title=f"The loss went from {losses[0]:.2g} to {losses[-1]:.2g}",
        caption="Mean over the workers. Dotted lines: changes.",
        y=Axis(title="training loss", log=min(losses) > 0),
        series=[Series(name="", x=clocks, y=losses, look=_IN_FORCE)],
    )


def _noise_chart(explanation: Explanation) -> Panels | None:
    if len(explanation.noises) < 2:
        return None
    clocks = [noise.clock for noise in explanation.noises]
    norms = [noise.norm for noise in explanation.noises]
    scales = [math.nan if noise.noise_scale is None else noise.noise_scale for noise in explanation.noises]
    num_known = sum(not math.isnan(scale) for scale in scales)
    panels = [("The norm", Axis(title="norm", from_zero=True), norms)]
    # a curve of gaps shows nothing
    if 2 * num_known >= len(scales):
        panels.append(("The noise scale", Axis(title="samples", log=True), scales))
    below = " The noise scale is the batch beyond which noise matters less than the gradient." if panels[1:] else ""
    gaps = " Gaps: noise hid the mean gradient." if panels[1:] and num_known < len(scales) else ""
    return Panels(
        slug="gradient",
        title=f"The gradient's norm went from {norms[0]:.2g} to {norms[-1]:.2g}",
        caption=f"A worker's own, of the sampled steps; mean over the workers.{below}{gaps}",
        wide=False,
        charts=[
            _over_steps(
                explanation,
                title=title,
                y=axis,
                series=[
                    Series(name="reviews", x=clocks, y=values, look=_IN_FORCE),
                    Series(name="reviews", x=clocks, y=values, look=_IN_FORCE, style="points"),
                ],
            )
            for title, axis, values in panels
        ],
    )


def _shares_chart(explanation: Explanation) -> LineChart | None:
    shared = [chapter for chapter in explanation.chapters if chapter.shares]
    if not shared:
        return None
    num_workers = len(shared[0].shares)
    equal = 1 / num_workers
    last = shared[-1].shares
    own = [rank for rank in range(num_workers) if any(_differs(chapter, rank) for chapter in shared)]
    edges = [(chapter.begin, chapter.end) for chapter in explanation.chapters]
    series = []
    for rank in range(num_workers):
        # equal shares of many workers are one colour: only those that differ are told apart
        place = own.index(rank) if rank in own else None
        shares = [100 * (chapter.shares[rank] if chapter.shares else equal) for chapter in explanation.chapters]
        series.append(
            _steps(
                edges,
                shares,
                unit=f"%, worker {rank}",
                name="the others" if place is None else f"worker {rank}",
                look=Look(QUIET) if place is None else Look(COLOURS[place % len(COLOURS)], place // len(COLOURS)),
                weight="normal" if place is None else "thick",
            )
        )
    largest = max(max(chapter.shares) for chapter in shared)
    least = min(range(num_workers), key=lambda rank: last[rank])
    return _over_steps(
        explanation,
        slug="shares",
        title=f"Worker {least} takes {percent(last[least])} of each round; an equal share is {percent(equal)}",
        caption="Slower workers take smaller shares, so that nobody waits for them; the mean counts samples alike.",
        wide=True,
        y=Axis(title="share of a round (%)", view=(0, 110 * max(largest, equal))),
        series=series,
    )


def _differs(chapter: Chapter, rank: int) -> bool:
    return abs(chapter.shares[rank] - sorted(chapter.shares)[(len(chapter.shares) - 1) // 2]) > 1e-9


def _rung(slack: float) -> float:
    """Place a slack on the axis: 0, 1, 3, 7 and so on are a rung apart.

    >>> [_rung(slack) for slack in (0, 1, 3, 7)]
    [0.0, 1.0, 2.0, 3.0]
    """
    return math.log2(slack + 1)


def _over_steps(explanation: Explanation, **chart: Any) -> LineChart:
    """Make a chart over all steps of the run, with a line at each change."""
    who = "the furthest" if any(chapter.steps_made for chapter in explanation.chapters) else "each"
    return LineChart(
        x=Axis(title=f"steps finished by {who} worker", view=(0, explanation.num_steps)),
        moments=[chapter.begin for chapter in explanation.changes],
        **chart,
    )


def _corners(edges: Sequence[tuple[int, int]], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """Return the corners of a line that is level between each two edges and rises and falls at them."""
    return [edge for pair in edges for edge in pair], [value for value in values for _ in range(2)]


def _steps(
    edges: Sequence[tuple[int, int]], values: Sequence[float], *, unit: str = "", texts: Sequence[str] = (), **look: Any
) -> Series:
    x, y = _corners(edges, values)
    told = texts or [f"{value:.3g} {unit}" for value in values]
    hints = [f"{text}, steps {begin + 1} to {end}" for text, (begin, end) in zip(told, edges, strict=True)]
    return Series(x=x, y=y, style="steps", hints=[hint for hint in hints for _ in range(2)], **look)


def _change_marks(explanation: Explanation) -> Iterator[Series]:
    """Yield a dot at each change; a cross where the workers went back to an earlier state."""
    for chapter in explanation.changes:
        if chapter.change is not None:
            yield Series(
                name="",
                x=[chapter.begin],
                y=[_rung(chapter.slack)],
                style="points",
                hints=[f"{change_text(chapter.change)}."],
                look=_RESTORED if chapter.change.restored else _IN_FORCE,
                weight="thick",
            )


def _slack_finding(explanation: Explanation) -> str:
    steps: dict[int, int] = {}
    for span in explanation.spans:
        steps[span.slack] = steps.get(span.slack, 0) + span.num_steps
    usual = max(steps, key=lambda slack: steps[slack])
    when = "throughout" if len(steps) == 1 else f"for {share_text(steps[usual] / explanation.num_steps)} of the run"
    return f"The slack was {counted(usual, 'step')} {when}"


def _step_finding(explanation: Explanation) -> str:
    if not explanation.predicts:
        return f"A step took {listed(list(_steps_by_policy(explanation)))}"
    step_s = sum(span.num_steps * span.step_s for span in explanation.spans) / explanation.num_steps
    took = f"A step took {format_seconds(step_s)} on average"
    if all(chapter.policy == "bsp" and not chapter.shares for chapter in explanation.chapters):
        return f"{took}, all under bsp"
    return f"{took}, {format_seconds(step_s + explanation.saved_s / explanation.num_steps)} under bsp by prediction"


def _steps_by_policy(explanation: Explanation) -> Iterator[str]:
    for policy in dict.fromkeys(chapter.policy for chapter in explanation.chapters):
        chapters = [chapter for chapter in explanation.chapters if chapter.policy == policy]
        step_s = sum(one.num_steps * one.step_s for one in chapters) / sum(one.num_steps for one in chapters)
        yield f"{format_seconds(step_s)} under {policy}"


def metric_chart(explanation: Explanation) -> LineChart | None:
    """Draw the metric over training time; None where the run has fewer than two finite evaluations."""
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
        title=_metric_finding(explanation, metric),
        caption=f"Dots: evaluations. {lines}{target} The view leaves out the steep start; double-click to see all.",
        wide=True,
        x=Axis(title="training time (s)", from_zero=True),
        y=Axis(title=metric.axis_title, view=(metric.scale * low, metric.scale * high)),
        series=[series for name, one, look in drawn for series in _metric_series(name, one, look, metric)],
        levels=[] if explanation.target is None else [metric.scale * explanation.target],
    )


def _metric_series(name: str, outcome: MeasuredOutcome, look: Look, metric: Metric) -> Iterator[Series]:
    curve, smooth = outcome.metrics, outcome.smooth_metrics
    y = [metric.scale * value for value in curve.y]
    yield Series(name=name, x=curve.x, y=y, style="points", look=look, weight="thin")
    line = smooth if smooth.x else curve
    yield Series(name=name, x=line.x, y=[metric.scale * value for value in line.y], look=look)


def _metric_finding(explanation: Explanation, metric: Metric) -> str:
    ours, theirs = explanation.outcome.final_metric, None if explanation.bsp is None else explanation.bsp.final_metric
    if ours is None:
        return f"No final {metric.name} is known"
    beside = "" if theirs is None else f", bsp at {metric.text(theirs)}"
    return f"It ended at {metric.name} {metric.text(ours)}{beside}"
