"""Costs and gains of a policy against the baseline, in a sentence that a person can act on.

A difference is claimed only where the seeds show one; where they do not, the sentence says so instead of saying that
there is none.
"""

from typing import Literal

from plesio.core.units import format_bytes, format_seconds, listed
from plesio.report.inference import MIN_SEEDS
from plesio.report.metric import Metric
from plesio.report.model import Comparison, Contrast, PolicySummary
from plesio.report.statistics import Difference, Ratio


def ratio_text(value: float) -> str:
    """Write a ratio for people.

    >>> ratio_text(1.018), ratio_text(0.0312), ratio_text(23.4)
    ('1.02x', '0.031x', '23x')
    """
    return f"{value:.2f}x" if 0.1 <= value < 10 else f"{value:.2g}x" if value < 100 else f"{value:.0f}x"


def p_text(p_value: float) -> str:
    """Write a p value for people.

    >>> p_text(0.4123), p_text(0.0314), p_text(0.00001)
    ('p = 0.41', 'p = 0.031', 'p < 0.001')
    """
    if p_value < 0.001:
        return "p < 0.001"
    return f"p = {p_value:.2f}" if p_value >= 0.1 else f"p = {p_value:.2g}"


def seeds_text(num_seeds: int) -> str:
    """Write a number of seeds.

    >>> seeds_text(1), seeds_text(3)
    ('1 seed', '3 seeds')
    """
    return f"{num_seeds} seed" if num_seeds == 1 else f"{num_seeds} seeds"


def share_text(share: float) -> str:
    """Write a share of 1 in percent.

    >>> share_text(0.461)
    '46 %'
    """
    return f"{100 * share:.0f} %"


def policy_sentence(summary: PolicySummary, *, comparison: Comparison) -> str:
    """Tell what ``summary`` cost and won against the comparison's baseline, and what went wrong with its runs."""
    if not summary.seeds:
        text = f"{summary.policy} has no finished run, so it is not compared."
    elif summary.policy == comparison.baseline:
        text = _baseline_sentence(summary, comparison=comparison)
    elif summary.contrast is None:
        figures = _own_figures(summary, comparison=comparison)
        text = f"{figures}; {comparison.baseline} has no finished run to compare with."
    else:
        text = _contrast_sentence(summary, summary.contrast, comparison=comparison)
    return " ".join([text, *_stages(summary), *troubles(summary, metric=comparison.metric)])


def _stages(summary: PolicySummary) -> list[str]:
    if summary.staleness.max == 0 or len(summary.stage_staleness) < 2:
        return []
    means = [f"{staleness.mean:.1f}" for staleness in summary.stage_staleness]
    last = len(means) - 1
    return [f"At its stages 0 to {last} gradients were {listed(means)} updates stale on average."]


def troubles(summary: PolicySummary, *, metric: Metric) -> list[str]:
    """Write a sentence for each trouble of the runs that their figures alone would hide."""
    lines = []
    for status in ("failed", "interrupted"):
        seeds = [str(seed) for seed, how, _ in summary.unfinished if how == status]
        if seeds:
            lines.append(f"Seed {', '.join(seeds)} {status} and is left out.")
    if summary.num_evaluated < len(summary.seeds):
        lines.append(
            f"{len(summary.seeds) - summary.num_evaluated} of {len(summary.seeds)} finished runs were not evaluated."
        )
    if summary.identical:
        lines.append(f"Its {len(summary.seeds)} seeds ran identically, so their spread says nothing.")
    known = 0 if summary.final_metric is None else summary.final_metric.num_seeds
    if known < summary.num_evaluated:
        lines.append(f"Only {known} of {summary.num_evaluated} evaluated runs ended with a finite {metric.name}.")
    if summary.lost_workers:
        lost = ", ".join(f"worker {worker} (seed {seed})" for seed, worker in summary.lost_workers)
        lines.append(f"Lost: {lost}.")
    if summary.refused_updates:
        refused = "; ".join(
            f"{sum(by_worker.values())} {reason.replace('_', ' ')} ({_by_worker(by_worker)})"
            for reason, by_worker in summary.refused_updates.items()
        )
        lines.append(f"Updates refused: {refused}.")
    lines.extend(f"Seed {seed} fell back: {line.rstrip('.')}." for seed, line in summary.fallbacks)
    return lines


def _by_worker(numbers: dict[int, int]) -> str:
    return ", ".join(f"worker {worker}: {number}" for worker, number in numbers.items())


def _baseline_sentence(summary: PolicySummary, *, comparison: Comparison) -> str:
    figures = _own_figures(summary, comparison=comparison)
    return f"{figures}; the others are held against it." if len(comparison.policies) > 1 else f"{figures}."


def _own_figures(summary: PolicySummary, *, comparison: Comparison) -> str:
    parts = []
    if summary.time_s is not None:
        parts.append(f"trained in {format_seconds(summary.time_s.mean)}")
    if summary.bytes_sent is not None:
        parts.append(f"sent {format_bytes(summary.bytes_sent.mean)}")
    if summary.final_metric is not None:
        parts.append(f"ended at {comparison.metric.name} {comparison.metric.text(summary.final_metric.mean)}")
    return f"{summary.policy} {listed(parts)} ({seeds_text(len(summary.seeds))})"


def _contrast_sentence(summary: PolicySummary, contrast: Contrast, *, comparison: Comparison) -> str:
    clauses = [_speed_clause(summary.policy, contrast, baseline=comparison.baseline)]
    if contrast.metric is not None:
        clauses.append(_metric_clause(summary, contrast.metric, comparison=comparison))
    target = _target_clause(summary, contrast, comparison=comparison)
    if target is not None:
        clauses.append(target)
    return f"{'; '.join(clauses)}. {_verdict(summary, contrast, comparison=comparison)}"


def _speed_clause(policy: str, contrast: Contrast, *, baseline: str) -> str:
    with_bytes = "" if contrast.bytes_sent is None else f" with {ratio_text(contrast.bytes_sent.value)} the bytes"
    if contrast.speed is None:
        return f"{policy} has no training time to compare with {baseline}'s{with_bytes}"
    return f"{policy} trained {ratio_text(contrast.speed.value)} as fast as {baseline}{with_bytes}"


def finding_of(difference: Difference, *, metric: Metric) -> Literal["better", "equal", "worse"]:
    """Return the difference that the seeds show; "equal" if they show none, or are fewer than a test needs."""
    if not difference.shown or difference.num_seeds < MIN_SEEDS:
        return "equal"
    return "better" if metric.improves(difference.mean) else "worse"


def _metric_clause(summary: PolicySummary, difference: Difference, *, comparison: Comparison) -> str:
    metric, theirs = comparison.metric, comparison.baseline_summary.final_metric
    assert summary.final_metric is not None, "a difference has two sides"
    assert theirs is not None, "a difference has two sides"
    values = f"{metric.name} {metric.text(summary.final_metric.mean)} against {metric.text(theirs.mean)}"
    gap = metric.difference_text(difference.mean)
    if difference.identical:
        return f"{values} (the same on each of {seeds_text(difference.num_seeds)})"
    if difference.p_value is None or difference.num_seeds < MIN_SEEDS:
        return f"{values} ({gap}, {seeds_text(difference.num_seeds)}: too few for a test)"
    is_equal = finding_of(difference, metric=metric) == "equal"
    finding = "no difference shown" if is_equal else metric.side(difference.mean)
    return f"{values} ({gap}, {p_text(difference.p_value)}, {seeds_text(difference.num_seeds)}: {finding})"


def _target_clause(summary: PolicySummary, contrast: Contrast, *, comparison: Comparison) -> str | None:
    target = summary.to_target
    if target is None or comparison.target is None:
        return None
    goal = comparison.metric.text(comparison.target)
    if target.num_reached < target.num_runs:
        return f"reached {goal} on {target.num_reached} of {seeds_text(target.num_runs)}"
    if contrast.to_target is None:
        return f"reached {goal} on every seed"
    return f"got to {goal} {ratio_text(contrast.to_target.value)} as fast"


def _verdict(summary: PolicySummary, contrast: Contrast, *, comparison: Comparison) -> str:
    """Write the advice that follows, for as far as the seeds carry it."""
    speed, metric, baseline = contrast.speed, contrast.metric, comparison.baseline
    if speed is None or metric is None:
        return "There is not enough to judge it by."
    if speed.p_value is None or metric.p_value is None:
        return "Run at least 3 seeds a policy before choosing by this."
    if comparison.metric.is_doubted:
        return f"{doubt_sentence(comparison.metric)}."
    finding = finding_of(metric, metric=comparison.metric)
    better, worse = finding == "better", finding == "worse"
    name = comparison.metric.name
    if _shown_above(speed):
        if _misses_target(summary, comparison=comparison):
            return f"Faster, but {f'worse in {name} and ' if worse else ''}less sure of reaching the target."
        if _shown_below(contrast.to_target):
            return f"Faster per sample, but later at the target: stay with {baseline}."
        if worse:
            return f"Faster, at a price in {name}."
        return f"Faster and better in {name}." if better else f"Faster, and {name} is not shown to suffer."
    if better:
        return f"Better in {name}, for more time." if _shown(speed) else f"Better in {name}."
    if _shown_below(contrast.bytes_sent) and not worse:
        pace = "Slower" if _shown(speed) else "Not faster"
        return f"{pace}, but it sends less: worth it where the network is the limit."
    if worse:
        return f"{'Slower and worse' if _shown(speed) else 'Worse'} in {name}: stay with {baseline}."
    return f"{'Slower' if _shown(speed) else 'No gain shown'}: stay with {baseline}."


def doubt_sentence(metric: Metric) -> str:
    """Say why the goal of a metric is doubted, and how to set it."""
    return (
        f"Which is better is not known: {metric.name} fell in every run, and more of it counts as better; if less of "
        'it is, write session.evaluate(..., goal="min")'
    )


def _misses_target(summary: PolicySummary, *, comparison: Comparison) -> bool:
    ours, theirs = summary.to_target, comparison.baseline_summary.to_target
    return ours is not None and theirs is not None and ours.share_reached < theirs.share_reached


def _shown_above(ratio: Ratio | None) -> bool:
    return ratio is not None and _shown(ratio) and ratio.value > 1


def _shown_below(ratio: Ratio | None) -> bool:
    return ratio is not None and _shown(ratio) and ratio.value < 1


def _shown(ratio: Ratio) -> bool:
    """Return whether the seeds show a difference that the printed ratio has too."""
    return ratio.shown and ratio_text(ratio.value) != ratio_text(1.0)
