"""The page's overview: heading, runs that failed, table and sentences; each as escaped HTML."""

import html
from collections.abc import Sequence

from plesio.core.units import format_bytes
from plesio.report.comparison_charts import policy_looks
from plesio.report.markup import prose
from plesio.report.metric import Metric
from plesio.report.model import Comparison, PolicySummary
from plesio.report.operation import Operation
from plesio.report.operation_advice import NOTHING_TO_ADVISE, operations_advice
from plesio.report.page_frame import section
from plesio.report.sentences import p_text, policy_sentence, ratio_text, seeds_text
from plesio.report.statistics import Difference, Ratio

__all__ = ["advice_section", "alerts", "comparison_table", "heading", "sentence_list"]

_NONE = "–"


def heading(comparison: Comparison) -> str:
    """What was compared, and on how much."""
    num_others = len(comparison.policies) - 1
    others = "" if num_others == 0 else "1 policy against " if num_others == 1 else f"{num_others} policies against "
    workers = "1 worker" if comparison.num_workers == 1 else f"{comparison.num_workers} workers"
    finished = sum(run.status == "finished" for run in comparison.runs)
    facts = [
        f"{workers} in the {comparison.world} world",
        seeds_text(len(comparison.seeds)),
        f"{finished} of {len(comparison.runs)} runs finished",
    ]
    if comparison.target is not None:
        facts.append(f"target: {comparison.metric.name} {comparison.metric.text(comparison.target)}")
    title = f"{comparison.task}: {others}{comparison.baseline}"
    return f"<h1>{html.escape(title)}</h1>\n<p>{prose(' · '.join(facts))}</p>"


def alerts(comparison: Comparison) -> str:
    """Runs that did not finish, and why; nothing where all did."""
    lines = []
    for summary in comparison.policies:
        for seed, status, error in summary.unfinished:
            why = f": {error}" if error else "."
            lines.append(
                f"<p><strong>{html.escape(summary.policy)}, seed {seed}, {status}</strong>{html.escape(why)}</p>"
            )
    return f'<div class="alerts" role="alert">{"".join(lines)}</div>' if lines else ""


def sentence_list(comparison: Comparison) -> str:
    """What each policy cost and won."""
    items = [
        f"<li>{_chip(comparison, summary.policy)}<span>"
        f"{prose(policy_sentence(summary, comparison=comparison))}</span></li>"
        for summary in comparison.policies
    ]
    return f'<ul class="sentences">{"".join(items)}</ul>'


def advice_section(comparison: Comparison, operations: Sequence[Operation]) -> str:
    """What to do about how the first run of each policy went; nothing where no run has traces."""
    if not operations:
        return ""
    items = [
        f"<li>{_chip(comparison, policy)}<span><strong>{_breakable(policy)}</strong>: {prose(text)}</span></li>"
        for policy, texts in operations_advice(operations).items()
        for text in texts
    ]
    body = f'<ul class="sentences">{"".join(items)}</ul>' if items else f"<p>{NOTHING_TO_ADVISE}</p>"
    note = '<p class="note">From the traces of the first run of each policy.</p>'
    return section(body + note, slug="advice", title="Advice")


def _breakable(policy: str) -> str:
    return html.escape(policy).replace(",", ",<wbr>")


def _chip(comparison: Comparison, policy: str) -> str:
    return f'<span class="chip" style="background:{policy_looks(comparison)[policy].colour}"></span>'


def comparison_table(comparison: Comparison) -> str:
    """One row a policy: the figure, and under it what it is against the baseline."""
    headers = ["policy", "seeds", "training time", "samples/s", comparison.metric.name]
    if comparison.target is not None:
        headers.append(f"to {comparison.metric.text(comparison.target)}")
    headers += ["bytes", "wait", "communicate", "staleness τ", "max lead"]
    body = "".join(
        f"<tr><th scope=row>{_chip(comparison, summary.policy)}{_breakable(summary.policy)}</th>"
        f"{''.join(f'<td>{cell}</td>' for cell in _cells(summary, comparison=comparison))}</tr>"
        for summary in comparison.policies
    )
    head = "".join(f"<th scope=col>{html.escape(header)}</th>" for header in headers)
    baseline = html.escape(comparison.baseline)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="note">Mean ± standard deviation over finished seeds. Small print: against {baseline}, ratios as '
        "geometric means over seeds, differences with their 95 % interval and the p value of a two-sided t test (in "
        "pairs where the seeds coincide, else Welch's), not corrected for the number of policies. Time to target is "
        "the median of the seeds that reached it. Wait and communicate are shares of all workers' time.</p>"
    )


def _cells(summary: PolicySummary, *, comparison: Comparison) -> list[str]:
    metric, contrast = comparison.metric, summary.contrast
    total = len(summary.seeds) + len(summary.unfinished)
    time, rate, final, sent = summary.time_s, summary.samples_per_s, summary.final_metric, summary.bytes_sent
    time_text = _NONE if time is None else f"{time.mean:.2f}{'' if time.std is None else f' ± {time.std:.2f}'} s"
    cells = [
        _stacked(str(len(summary.seeds)), "" if len(summary.seeds) == total else f"of {total}"),
        _stacked(time_text, "" if contrast is None else _ratio_text(contrast.speed, "as fast")),
        _NONE if rate is None else f"{rate.mean:,.0f}",
        _stacked(
            _NONE if final is None else metric.spread_text(final),
            "" if contrast is None else _difference_text(contrast.metric, metric=metric),
        ),
    ]
    if comparison.target is not None:
        cells.append(_target_cell(summary))
    tau = summary.staleness
    return [
        *cells,
        _stacked(
            _NONE if sent is None else format_bytes(sent.mean),
            "" if contrast is None or contrast.bytes_sent is None else f"{ratio_text(contrast.bytes_sent.value)}",
        ),
        _NONE if summary.wait_share is None else f"{100 * summary.wait_share:.1f} %",
        _NONE if summary.communicate_share is None else f"{100 * summary.communicate_share:.1f} %",
        _stacked(f"{tau.mean:.2f}", f"p95 {tau.p95}, max {tau.max}") if tau.counts else _NONE,
        str(summary.max_lead) if summary.seeds else _NONE,
    ]


def _stacked(main: str, small: str) -> str:
    return html.escape(main) + "".join(f"<small>{html.escape(line)}</small>" for line in small.splitlines())


def _ratio_text(ratio: Ratio | None, words: str) -> str:
    return "" if ratio is None else f"{ratio_text(ratio.value)} {words}"


def _difference_text(difference: Difference | None, *, metric: Metric) -> str:
    if difference is None:
        return ""
    if difference.low is None or difference.high is None or difference.p_value is None:
        return metric.difference_text(difference.mean)
    if difference.identical:
        return "the same"
    interval = f"{metric.number(difference.low)} to {metric.number(difference.high)}"
    return f"{metric.number(difference.mean)} ({interval})\n{p_text(difference.p_value)}"


def _target_cell(summary: PolicySummary) -> str:
    target, contrast = summary.to_target, summary.contrast
    if target is None:
        return _NONE
    if target.median_s is None:
        return _stacked("never", f"0 of {target.num_runs}")
    if target.num_reached < target.num_runs:
        return _stacked(f"{target.median_s:.2f} s", f"{target.num_reached} of {target.num_runs}")
    return _stacked(f"{target.median_s:.2f} s", "" if contrast is None else _ratio_text(contrast.to_target, "as fast"))
