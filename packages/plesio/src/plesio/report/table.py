"""The comparison in a terminal, one row a policy, then a sentence each; and its numbers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from plesio.core.charts import Table
from plesio.core.records import to_json
from plesio.core.units import format_bytes
from plesio.report.charts import TerminalTable, plain_table
from plesio.report.goodput import goodput_table
from plesio.report.model import Comparison, PolicySummary
from plesio.report.operation import Operation
from plesio.report.operation_advice import operations_advice
from plesio.report.sentences import policy_sentence, ratio_text, share_text
from plesio.report.statistics import Ratio

_NONE = "–"


def render_comparison(comparison: Comparison, *, operations: Sequence[Operation] = ()) -> RenderableType:
    texts = [policy_sentence(summary, comparison=comparison) for summary in comparison.policies]
    texts += [f"{policy}: {text}" for policy, found in operations_advice(operations).items() for text in found]
    shares = goodput_table({one.policy: one.goodput for one in comparison.policies})
    divided = (Text(), plain_table(shares, num_texts=3)) if shares.rows else ()
    return Group(comparison_table(comparison), *divided, *(Padding(Text(text), (1, 0, 0, 0)) for text in texts))


def comparison_values(comparison: Comparison) -> dict[str, Any]:
    """Return the numbers of a comparison as JSON values, without its runs, which ``results.json`` has."""
    values: dict[str, Any] = to_json(replace(comparison, runs=(), environments=()))
    return {name: value for name, value in values.items() if name not in ("runs", "environments")}


def comparison_table(comparison: Comparison) -> TerminalTable:
    """Draw one row a policy: mean ± standard deviation over its finished seeds."""
    policies = [summary.policy for summary in comparison.policies]
    rows = [[one.policy, *_cells(one, comparison=comparison)] for one in comparison.policies]
    table = Table(title="", headers=("policy", *_headers(comparison)), rows=rows)
    return plain_table(table, bold_row=policies.index(comparison.baseline))


def _headers(comparison: Comparison) -> list[str]:
    headers = ["seeds", "time (s)", "speed", "samples/s", comparison.metric.name]
    if comparison.target is not None:
        headers.append(f"to {comparison.metric.text(comparison.target)}")
    return [*headers, "bytes", "wait", "τ mean/max"]


def _cells(summary: PolicySummary, *, comparison: Comparison) -> list[str]:
    time, metric = summary.time_s, summary.final_metric
    cells = [
        f"{len(summary.seeds)}/{len(summary.seeds) + len(summary.unfinished)}",
        _NONE if time is None else f"{time.mean:.1f}" + ("" if time.std is None else f" ± {time.std:.1f}"),
        "1"
        if summary.policy == comparison.baseline and summary.seeds
        else _ratio(None if summary.contrast is None else summary.contrast.speed),
        _NONE if summary.samples_per_s is None else f"{summary.samples_per_s.mean:.0f}",
        _NONE if metric is None else comparison.metric.spread_text(metric),
    ]
    if comparison.target is not None:
        cells.append(_target(summary))
    return [
        *cells,
        _NONE if summary.bytes_sent is None else format_bytes(summary.bytes_sent.mean),
        _NONE if summary.wait_share is None else share_text(summary.wait_share),
        f"{summary.staleness.mean:.1f}/{summary.staleness.max}" if summary.staleness.counts else _NONE,
    ]


def _ratio(ratio: Ratio | None) -> str:
    return _NONE if ratio is None else ratio_text(ratio.value)


def _target(summary: PolicySummary) -> str:
    target = summary.to_target
    if target is None:
        return _NONE
    if target.median_s is None:
        return "never"
    partly = "" if target.num_reached == target.num_runs else f" ({target.num_reached} of {target.num_runs})"
    return f"{target.median_s:.1f} s{partly}"
