"""The finding each figure shows, as its title: computed from the same numbers that are drawn."""

import math
from collections.abc import Callable, Mapping
from operator import itemgetter

from plesio.core.units import format_bytes, format_seconds, listed
from plesio.report.model import Comparison, PolicySummary
from plesio.report.sentences import ratio_text, share_text


def time_finding(comparison: Comparison) -> str:
    ratios = comparison.by_policy(lambda one: None if one.contrast is None else one.contrast.speed)
    if not ratios:
        return "Training time"
    fastest, speed = max(((policy, ratio.value) for policy, ratio in ratios.items()), key=itemgetter(1))
    if speed <= 1:
        return f"No policy trained faster than {comparison.baseline}"
    return f"{fastest} trained {ratio_text(speed)} as fast as {comparison.baseline}"


def metric_finding(comparison: Comparison) -> str:
    name = comparison.metric.name
    differences = comparison.by_policy(lambda one: None if one.contrast is None else one.contrast.metric)
    if not differences:
        return f"Final {name}"
    if all(difference.p_value is None for difference in differences.values()):
        return f"One seed each: no test of the final {name} is possible"
    shown = {policy: difference.mean for policy, difference in differences.items() if difference.shown}
    if not shown:
        return f"No policy's final {name} is shown to differ from {comparison.baseline}'s"
    sides = {policy: comparison.metric.side(mean) for policy, mean in shown.items()}
    groups = [
        (group, how)
        for how in ("better", "worse", "higher", "lower")
        if (group := [policy for policy, side in sides.items() if side == how])
    ]
    parts = [f"{listed(group) if len(group) <= 2 else f'{len(group)} policies'} ended {how}" for group, how in groups]
    return f"In {name}, {'; '.join(parts)} than {comparison.baseline}"


def target_finding(comparison: Comparison) -> str:
    assert comparison.target is not None, "only a comparison with a target has this figure"
    goal = comparison.metric.text(comparison.target)
    medians = comparison.by_policy(lambda one: None if one.to_target is None else one.to_target.median_s)
    if not medians:
        return f"No policy reached {goal}"
    first = min(medians, key=medians.__getitem__)
    return f"{first} reached {goal} first, after {format_seconds(medians[first])}"


def progress_finding(comparison: Comparison) -> str:
    """Compare the mean curves at the moment the first policy ends."""
    curves = comparison.by_policy(lambda one: one.metric_mean if one.metric_mean.x else None)
    name, baseline = comparison.metric.name, comparison.baseline
    if len(curves) < 2 or baseline not in curves:
        return f"{name.capitalize()} over training time"
    first = min(curves, key=lambda policy: curves[policy].x[-1])
    theirs = curves[baseline]
    end_s = curves[first].x[-1]
    if first == baseline or end_s < theirs.x[0]:
        return f"{name.capitalize()} over training time"
    text = comparison.metric.text
    return (
        f"After {format_seconds(end_s)}, {first} has finished at {name} {text(curves[first].y[-1])}; "
        f"{baseline} is at {text(theirs.at(end_s))}"
    )


def loss_finding(comparison: Comparison) -> str:
    """Tell which policy gets the most out of a step, at the last clock that all curves reach."""
    curves = comparison.by_policy(lambda one: one.loss_mean if one.loss_mean.x else None)
    if len(curves) < 2:
        return "Training loss over steps"
    clock = min(curve.x[-1] for curve in curves.values())
    if clock < max(curve.x[0] for curve in curves.values()):
        return "Training loss over steps"
    losses = {policy: curve.at(clock) for policy, curve in curves.items()}
    low, high = min(losses, key=losses.__getitem__), max(losses, key=losses.__getitem__)
    lowest, highest = f"{low} ({losses[low]:.3g})", f"{high} ({losses[high]:.3g})"
    return f"At step {math.floor(clock)} the loss is lowest under {lowest}, highest under {highest}"


def bytes_finding(comparison: Comparison) -> str:
    sent = comparison.by_policy(lambda one: None if one.bytes_sent is None else one.bytes_sent.mean)
    theirs = sent.get(comparison.baseline, 0.0)
    if theirs <= 0 or len(sent) < 2:
        return "Bytes sent"
    least = min(sent, key=sent.__getitem__)
    if least == comparison.baseline:
        return f"No policy sent less than {least} ({format_bytes(theirs)})"
    return f"{least} sent {ratio_text(sent[least] / theirs)} the bytes of {comparison.baseline}"


def wait_finding(comparison: Comparison) -> str:
    shares = comparison.by_policy(lambda one: one.wait_share)
    return _at_extremes("Workers waited {} of their time", shares, share_text) or "Where each worker's time went"


def memory_finding(comparison: Comparison) -> str:
    peaks = comparison.by_policy(lambda one: sum(one.memory.values()) if one.memory else None)
    return _at_extremes("A worker had {} at its peak", peaks, format_bytes) or "Memory of a worker"


def memory_of_run_finding(comparison: Comparison) -> str:
    """Describe how much memory parameters, gradients and optimizer state take, at the two extremes."""
    held = comparison.by_policy(lambda one: one.state_bytes)
    what = "Parameters, gradients and optimizer state"
    if len(held) > 1 and len({*held.values()}) == 1:
        return f"{what} took {format_bytes(next(iter(held.values())))} under every policy"
    return _at_extremes(f"{what} took {{}}", held, format_bytes) or what


def cpu_finding(comparison: Comparison) -> str:
    used = comparison.by_policy(lambda one: one.cpu)
    return _at_extremes("A worker used {} of a core", used, share_text) or "Processor time over time"


def _at_extremes(sentence: str, values: Mapping[str, float], text: Callable[[float], str]) -> str:
    """Fill the sentence for the policy with the most, and for the one with the least if that is another.

    Empty without values.
    """
    if not values:
        return ""
    most, least = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
    finding = f"{sentence.format(text(values[most]))} under {most}"
    return finding if most == least else f"{finding}, {text(values[least])} under {least}"


def staleness_finding(comparison: Comparison) -> str:
    stale: list[PolicySummary] = [summary for summary in comparison.policies if summary.staleness.counts]
    if not stale:
        return "Staleness of the applied updates"
    worst = max(stale, key=lambda summary: summary.staleness.mean)
    if worst.staleness.max == 0:
        return "No update was stale"
    mean, most = f"{worst.staleness.mean:.1f}", worst.staleness.max
    return f"Under {worst.policy} an update was {mean} versions stale on average, at most {most}"
