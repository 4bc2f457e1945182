"""The page's details: every run, its decisions and timeline, and where it took place; each as escaped HTML."""

import html
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from plesio.core.results import RunResult
from plesio.core.units import format_bytes, format_seconds
from plesio.report.explanation_recorded import recorded_changes, recorded_review
from plesio.report.explanation_sentences import change_text, unchanged_text, upheld_text
from plesio.report.markup import prose
from plesio.report.metric import Metric
from plesio.report.model import Comparison
from plesio.report.page_frame import table
from plesio.report.summarise import training_s

__all__ = ["TraceLink", "decision_list", "environment_list", "run_table", "trace_list"]

_NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLink:
    """A run's Perfetto file.

    Attributes:
        name: The run's folder.
        href: The file, relative to the page; None where there is none.
        problem: Why there is none.
    """

    name: str
    href: str | None
    problem: str | None = None


def run_table(comparison: Comparison) -> str:
    """Every run, also those that failed."""
    headers = [
        "run", "status", "time", "steps", "samples", comparison.metric.name, "bytes", "across racks", "peak memory",
        "cores", "max lead", "lost workers", "refused", "parameters",
    ]  # fmt: skip
    rows = [[f"{run.policy}, seed {run.seed}", *_run_cells(run, metric=comparison.metric)] for run in comparison.runs]
    return _details(f"Every run ({len(comparison.runs)})", table(headers, rows))


def _run_cells(run: RunResult, *, metric: Metric) -> Iterable[str]:
    refused = [*(reasons for reasons in run.refused_updates.values()), run.refused_peers]
    num_refused = sum(sum(reasons.values()) for reasons in refused)
    peak_bytes = max((worker.peak_memory_bytes for worker in run.workers), default=0)
    yield run.status
    yield format_seconds(training_s(run))
    yield f"{run.steps:,}"
    yield f"{run.samples:,}"
    yield _NONE if run.final_metric is None else metric.text(run.final_metric)
    yield format_bytes(run.bytes_sent_total)
    yield format_bytes(run.bytes_sent_cross_rack)
    yield format_bytes(peak_bytes) if peak_bytes else _NONE
    cores = [worker.utilisation.cpu.mean for worker in run.workers if worker.utilisation is not None]
    yield f"{statistics.fmean(cores):.2f}" if cores else _NONE
    yield str(run.max_lead)
    yield ", ".join(map(str, run.lost_workers)) or _NONE
    yield str(num_refused) if num_refused else _NONE
    yield run.parameters_sha256[:12] if run.parameters_sha256 else _NONE


def decision_list(comparison: Comparison) -> str:
    """The decisions that changed how runs went on; nothing where there were none."""
    parts = [
        f"<p>{html.escape(run.policy)}, seed {run.seed}</p>{_decisions(run)}"
        for run in comparison.runs
        if run.decisions
    ]
    return _details("Decisions of the policies", "".join(parts)) if parts else ""


def _decisions(run: RunResult) -> str:
    """As sentences where they are those of a policy that adapts or switches."""
    changes = recorded_changes(run)
    if changes is None:
        return f"<pre>{html.escape(_json_lines(run.decisions))}</pre>"
    if not changes:
        latest = recorded_review(run.decisions[-1])
        num_steps = run.steps // max(1, run.num_workers)
        text = unchanged_text(num_steps=num_steps, policy=latest.policy, reason=latest.reason)
        return f"<ul><li>{prose(text)}</li></ul>"
    texts = [f"{change_text(change)}.{upheld_text(latest, reason=change.reason)}" for change, latest in changes]
    return f"<ol>{''.join(f'<li>{prose(text)}</li>' for text in texts)}</ol>"


def _json_lines(decisions: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(json.dumps(decision, ensure_ascii=False) for decision in decisions)


def trace_list(traces: Sequence[TraceLink]) -> str:
    """Links to the runs' timelines; nothing where none was traced."""
    if not traces:
        return ""
    items = []
    for trace in traces:
        name = html.escape(trace.name)
        if trace.href is None:
            items.append(f"<li>{name}: {html.escape(trace.problem or '')}</li>")
        else:
            items.append(f'<li><a href="{html.escape(trace.href)}">{name}</a></li>')
    how = "<p>A timeline of each run, step by step. Open a file at ui.perfetto.dev or in chrome://tracing.</p>"
    return _details(f"Timelines ({len(traces)})", f"{how}<ul>{''.join(items)}</ul>")


def environment_list(comparison: Comparison) -> str:
    """Where the runs took place."""
    if not comparison.environments:
        return ""
    lists = []
    for environment in comparison.environments:
        rows = "".join(
            f"<dt>{html.escape(name.replace('num_cpus', 'CPUs'))}</dt><dd>{html.escape(str(value))}</dd>"
            for name, value in asdict(environment).items()
            if value is not None
        )
        lists.append(f"<dl>{rows}</dl>")
    return _details("Environment", "".join(lists), opened=True)


def _details(summary: str, body: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{html.escape(summary)}</summary>{body}</details>"
