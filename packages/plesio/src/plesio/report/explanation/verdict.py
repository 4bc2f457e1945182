"""How a run did against bsp, in plain words and as a table: first what was measured, else that it is not known.

Sooner or later is told by the smoothed curves where there are any, for one lucky evaluation decides the other reading;
where the two readings contradict each other, neither is believed. Better or worse in the end is told by the last three
evaluations; where the ranges of the two overlap it is "perhaps" better or worse, and the difference is told anyway.
With several seeds the test of `plesio compare` decides instead, so that both say the same of the same runs.

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
from typing import Literal

from plesio.core.charts import Table
from plesio.core.results import Evaluation, RunResult
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.report.curves import Curve
from plesio.report.explanation.model import Explanation, MeasuredOutcome
from plesio.report.inference import MIN_SEEDS
from plesio.report.metric import Metric
from plesio.report.sentences import doubt_sentence, finding_of, p_text, ratio_text, seeds_text

ABOUT_EQUAL = 0.01
"""A difference below this share of the time is none to people."""
_BY_CHANCE = 0.05
"""The times of two runs of one seed may differ by this share by chance."""
FEWEST_TO_SMOOTH = 6
"""Evaluations; of fewer, three would be most of the run."""
_NUM_LAST = 3
_NONE = "–"
_Side = Literal["better", "perhaps better", "equal", "perhaps worse", "worse"] | None
"""None: it is not known, or not clear."""


_Row = tuple[str, str, str, str]


def metric_of(explanation: Explanation) -> Metric:
    runs = [run.metrics.y for run in (explanation.outcome, explanation.bsp) if run is not None]
    return Metric(name=explanation.metric_name, goal=explanation.metric_goal).doubted_by(runs)


def verdict_sentences(explanation: Explanation) -> list[str]:
    """Tell whether it did better or worse than bsp, or that this is not known and how to find out."""
    if explanation.status != "finished":
        error = f": {explanation.error.rstrip('.')}" if explanation.error else ""
        return [f"The run {'was interrupted' if explanation.status == 'interrupted' else 'failed'}{error}."]
    if explanation.bsp is None:
        return _unknown(explanation)
    time, time_text = _time(explanation, explanation.bsp)
    quality, quality_text = _quality(explanation, explanation.bsp)
    sides = (time, quality)
    but = "but" if any(map(_is_better, sides)) and any(map(_is_worse, sides)) else "and"
    return [
        f"{_lead(time, quality)}: it {time_text}, {but} {quality_text}.",
        _reservations(explanation, explanation.bsp),
    ]


def _is_better(side: _Side) -> bool:
    return side in ("better", "perhaps better")


def _is_worse(side: _Side) -> bool:
    return side in ("worse", "perhaps worse")


def _lead(time: _Side, quality: _Side) -> str:
    """Put the verdict in a few words; none where the two do not go together."""
    if quality is None:
        return "Whether it learned as well as bsp is not known"
    sides = (time, quality)
    if "better" in sides and "worse" in sides:
        return "Better than bsp in one way and worse in another"
    if "worse" in sides and not any(map(_is_better, sides)):
        return "Worse than bsp"
    if "better" in sides and not any(map(_is_worse, sides)) and time is not None:
        return "Better than bsp"
    return "About the same as bsp" if sides == ("equal", "equal") else "Against bsp"


def measured_table(explanation: Explanation) -> Table | None:
    """Make the table of measured figures beside bsp's; None where bsp was not run, or this run did not finish."""
    here, bsp, metric = explanation.outcome, explanation.bsp, metric_of(explanation)
    if bsp is None or explanation.status != "finished":
        return None
    rows = []
    if explanation.target is not None and here.num_evaluations and bsp.num_evaluations:
        to = f"to {metric.name} {metric.text(explanation.target)}"
        rows.append(_seconds_row(f"{to}, as evaluated", here.to_target_s, bsp.to_target_s))
        if here.smooth_metrics.x and bsp.smooth_metrics.x:
            rows.append(_seconds_row(f"{to}, smoothed", here.smooth_to_target_s, bsp.smooth_to_target_s))
    if here.final_metric is not None and bsp.final_metric is not None:
        rows.append(_metric_row(f"{metric.name} in the end", (here.final_metric,), (bsp.final_metric,), metric))
    if here.last_metrics and bsp.last_metrics:
        what = f"{metric.name}, last {len(here.last_metrics)} evaluations"
        rows.append(_metric_row(what, here.last_metrics, bsp.last_metrics, metric))
    rows.append(_seconds_row("the whole run", here.wall_s, bsp.wall_s))
    for what, ours, theirs in (
        ("bytes sent", here.bytes_sent, bsp.bytes_sent),
        ("bytes between racks", here.cross_rack_bytes, bsp.cross_rack_bytes),
    ):
        if theirs > 0:
            rows.append((what, format_bytes(ours), format_bytes(theirs), ratio_text(ours / theirs)))
    return Table(title="", headers=("measured", "this run", "bsp", "compared"), rows=rows)


def _unknown(explanation: Explanation) -> list[str]:
    where = "no finished run of bsp with the same task, workers and seed is here"
    sentences = [f"Whether this run did better or worse than bsp is not known: {where}."]
    if explanation.predicts:
        sentences[0] += " What is predicted for bsp below is the time of its steps, not what they would have learned."
    if explanation.how_to_know:
        sentences[0] += f" To find out, {explanation.how_to_know}."
    here, metric = explanation.outcome, metric_of(explanation)
    told = []
    if explanation.target is not None and here.num_evaluations:
        when = "was not reached" if here.to_target_s is None else f"came after {format_seconds(here.to_target_s)}"
        text = f"{metric.name} {metric.text(explanation.target)} {when}"
        if here.smooth_metrics.x:
            smooth_s = here.smooth_to_target_s
            text += f" (smoothed: {'not reached' if smooth_s is None else f'after {format_seconds(smooth_s)}'})"
        told.append(text)
    if here.final_metric is not None:
        told.append(f"it ended at {metric.name} {metric.text(here.final_metric)}")
    return [*sentences, f"By itself: {'; '.join(told)}."] if told else sentences


def _time(explanation: Explanation, bsp: MeasuredOutcome) -> tuple[_Side, str]:
    """Tell which run was sooner at the target; without one, which took less time for the same samples."""
    here = explanation.outcome
    if explanation.target is None or not (here.num_evaluations and bsp.num_evaluations):
        why = "no target was set" if explanation.target is None else "a run was not evaluated"
        took = f"took {_ratio_text(here.wall_s, bsp.wall_s)} bsp's time for its samples"
        return _sooner(here.wall_s, bsp.wall_s), f"{took} (the time to a target is not known: {why})"
    if here.to_target_s is None and bsp.to_target_s is None:
        return "equal", "did not reach the target, and neither did bsp"
    if here.to_target_s is None:
        return "worse", "did not reach the target, and bsp did"
    if bsp.to_target_s is None:
        return "better", "reached the target, and bsp did not"
    raw = _sooner(here.to_target_s, bsp.to_target_s)
    smooth = _sooner(here.smooth_to_target_s, bsp.smooth_to_target_s)
    if {raw, smooth} == {"better", "worse"}:
        return None, "was sooner at the target by one reading and later by the other"
    if smooth is None:
        return raw, _when_text(here.to_target_s, bsp.to_target_s, how="as evaluated")
    return smooth, _when_text(here.smooth_to_target_s, bsp.smooth_to_target_s, how="smoothed")


def _when_text(ours: float | None, theirs: float | None, *, how: str) -> str:
    """Write when each held the target by this reading, which does not count a lucky evaluation."""
    if theirs is None:
        return f"held the target for more than a lucky evaluation ({how}), and bsp did not"
    if ours is None:
        return f"did not hold the target for more than a lucky evaluation ({how}), and bsp did"
    if _sooner(ours, theirs) == "equal":
        return f"was at the target about as soon, in {_ratio_text(ours, theirs)} bsp's time ({how})"
    return (
        f"was at the target {'sooner' if ours < theirs else 'later'}, in {_ratio_text(ours, theirs)} bsp's time ({how})"
    )


def _quality(explanation: Explanation, bsp: MeasuredOutcome) -> tuple[_Side, str]:
    side: _Side
    here, metric = explanation.outcome, metric_of(explanation)
    ours, theirs = here.end_metric, bsp.end_metric
    smooth = bool(here.last_metrics and bsp.last_metrics)
    if not smooth:
        ours, theirs = here.final_metric, bsp.final_metric
    if ours is None or theirs is None:
        if here.num_evaluations and theirs is not None:
            return "worse", f"ended with no finite {metric.name}: it diverged"
        if bsp.num_evaluations and ours is not None:
            return "better", f"ended at {metric.name} {metric.text(ours)} where bsp diverged"
        return None, f"how good it was in the end is not known, for a final {metric.name} is missing"
    if metric.is_doubted:
        return None, f"{metric.name} differs by {metric.difference_text(ours - theirs)}. {doubt_sentence(metric)}"
    how = f"mean of the last {len(here.last_metrics)} evaluations" if smooth else "last evaluation"
    # several seeds are tested, and both commands say the same of the same runs
    over = explanation.over_seeds
    if over is not None and over.p_value is not None:
        side = finding_of(over, metric=metric)
        seeds = seeds_text(over.num_seeds)
        test = f"{p_text(over.p_value)}, {seeds}" if over.num_seeds >= MIN_SEEDS else f"{seeds}: too few for a test"
        if side == "equal":
            one = f"; with this seed it is {metric.difference_text(ours - theirs)}, {how}"
            return side, f"{metric.name} is not shown to differ in the end ({test}{one})"
        return side, f"ended {side}: {metric.name} {metric.difference_text(over.mean)} ({test})"
    if metric.text(ours) == metric.text(theirs):
        return "equal", f"ended as good ({how})"
    better = metric.improves(ours - theirs)
    difference = f"{metric.name} {metric.difference_text(ours - theirs)}"
    if smooth and _overlap(here.last_metrics, bsp.last_metrics):
        side = "perhaps better" if better else "perhaps worse"
        return side, f"ended {side}: {difference} ({how}, and their ranges overlap)"
    side = "better" if better else "worse"
    return side, f"ended {side}: {difference} ({how})"


def _reservations(explanation: Explanation, bsp: MeasuredOutcome) -> str:
    """Tell what the verdict is of, and what it does not show."""
    here = explanation.outcome
    text = f"Measured, with the same task, {counted(explanation.num_workers, 'worker')} and seed {explanation.seed}"
    if abs(here.samples - bsp.samples) > ABOUT_EQUAL * bsp.samples:
        text += f", but with {here.samples:,} samples where bsp had {bsp.samples:,}, so that the ends do not compare"
    others = f"; plesio report tells all {explanation.num_seeds} seeds here" if explanation.num_seeds > 1 else ""
    return f"{text}. One seed cannot tell small differences from chance{others}."


def _sooner(ours: float | None, theirs: float | None) -> _Side:
    """Compare two times, of which None is never; None where both are."""
    if ours is None or theirs is None:
        return None if ours is theirs else "worse" if ours is None else "better"
    if abs(ours - theirs) <= _BY_CHANCE * theirs:
        return "equal"
    return "better" if ours < theirs else "worse"


def _overlap(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return max(min(ours), min(theirs)) <= min(max(ours), max(theirs))


def _ratio_text(ours: float, theirs: float) -> str:
    return ratio_text(ours / theirs) if theirs > 0 and math.isfinite(ours) else _NONE


def _seconds_row(what: str, ours: float | None, theirs: float | None) -> _Row:
    texts = ["not reached" if value is None else format_seconds(value) for value in (ours, theirs)]
    compared = _NONE if ours is None or theirs is None else _ratio_text(ours, theirs)
    return what, texts[0], texts[1], compared


def _metric_row(what: str, ours: Sequence[float], theirs: Sequence[float], metric: Metric) -> _Row:
    """Make the row of the means, with the ranges of more than one value."""
    here, there = (math.fsum(values) / len(values) for values in (ours, theirs))
    difference = 0.0 if metric.text(here) == metric.text(there) else here - there
    return what, _range_text(ours, metric), _range_text(theirs, metric), metric.difference_text(difference)


def _range_text(values: Sequence[float], metric: Metric) -> str:
    mean = metric.text(math.fsum(values) / len(values))
    return mean if len(values) == 1 else f"{mean} ({metric.text(min(values))} to {metric.text(max(values))})"


def outcome_of(run: RunResult, *, target: float | None) -> MeasuredOutcome:
    """Measure what ``run`` came to; ``target`` is the metric to reach, None for none."""
    smooth = smoothed(run.evaluations)
    last = tuple(point.metric for point in run.evaluations[-_NUM_LAST:])
    return MeasuredOutcome(
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
    """Return (seconds, mean of an evaluation and its neighbours); NaN next to a NaN; empty with too few to smooth.

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
    """Return when the line through the points first meets the target."""
    sign = 1.0 if goal == "max" else -1.0
    for place, (at_s, value) in enumerate(points):
        if not sign * value >= sign * target:
            continue
        if place == 0 or not math.isfinite(points[place - 1][1]):
            return at_s
        before_s, before = points[place - 1]
        return before_s + (at_s - before_s) * (target - before) / (value - before)
    return None
