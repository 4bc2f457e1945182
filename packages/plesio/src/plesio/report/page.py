"""The report of a comparison as one page: overview, advice, charts, and every run with its decisions."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from plesio.core.charts import Table
from plesio.core.results import RunResult
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.report.comparison_charts import comparison_charts, policy_looks
from plesio.report.document import (
    Document,
    Facts,
    Folded,
    Item,
    Items,
    PageBlock,
    PageSection,
    StyledTable,
    TextLine,
    pictures,
    section,
)
from plesio.report.explanation import decision_sentences
from plesio.report.goodput import goodput_table
from plesio.report.grid_stages import RunStages, grid_charts, grid_tables
from plesio.report.metric import Metric
from plesio.report.model import Comparison, PolicySummary
from plesio.report.operation import Operation
from plesio.report.operation_advice import NOTHING_TO_ADVISE, operations_advice
from plesio.report.page_frame import render_document
from plesio.report.resource_charts import RunUtilisation, resource_charts
from plesio.report.sentences import p_text, policy_sentence, ratio_text, seeds_text
from plesio.report.statistics import Difference, Ratio
from plesio.report.timelines import Window

_NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLink:
    """A run's Perfetto file.

    Attributes:
        href: The file, relative to the page; None where there is none.
        problem: Why there is none.
    """

    name: str
    href: str | None
    problem: str | None = None


def render_page(
    comparison: Comparison,
    *,
    traces: Sequence[TraceLink] = (),
    windows: Sequence[Window] = (),
    utilisations: Sequence[RunUtilisation] = (),
    operations: Sequence[Operation] = (),
    stages: Sequence[RunStages] = (),
) -> str:
    """Render the page as one HTML document, with links to the runs' ``traces`` and charts of what they hold."""
    colours = {policy: look.colour for policy, look in policy_looks(comparison).items()}
    sentences = [
        Item(text=policy_sentence(summary, comparison=comparison), colour=colours[summary.policy])
        for summary in comparison.policies
    ]
    charts = [*comparison_charts(comparison, windows=windows), *resource_charts(comparison, utilisations)]
    # runs that failed stand above everything: no figure below has them
    alerts = [
        (f"{summary.policy}, seed {seed}, {status}", f": {error}" if error else ".")
        for summary in comparison.policies
        for seed, status, error in summary.unfinished
    ]
    # a heading before each table, since all of them are one section
    kept = [
        block
        for one in grid_tables(stages)
        for block in (TextLine(one.title, "heading"), StyledTable(table=one, even=True))
    ]
    document = Document(
        title=f"Plesio: {comparison.task}",
        heading=_heading(comparison),
        facts=[_facts(comparison)],
        alerts=alerts,
        sections=[
            section("The comparison", *_overview(comparison, colours), slug="comparison"),
            _goodput(comparison, colours),
            section("In words", Items(items=sentences), slug="in-words"),
            _advice(operations, colours),
            pictures(charts),
            pictures(grid_charts(stages), title="Stages of the grids", slug="stages"),
            section("What stages kept", *kept, slug="stages-kept"),
            section(
                "The runs",
                _runs(comparison),
                _decisions(comparison),
                _timelines(traces),
                _environments(comparison),
                slug="details",
            ),
        ],
    )
    return render_document(document)


def _heading(comparison: Comparison) -> str:
    num_others = len(comparison.policies) - 1
    others = "" if num_others == 0 else "1 policy against " if num_others == 1 else f"{num_others} policies against "
    return f"{comparison.task}: {others}{comparison.baseline}"


def _facts(comparison: Comparison) -> str:
    finished = sum(run.status == "finished" for run in comparison.runs)
    facts = [
        f"{counted(comparison.num_workers, 'worker')} in the {comparison.world} world",
        seeds_text(len(comparison.seeds)),
        f"{finished} of {len(comparison.runs)} runs finished",
    ]
    if comparison.target is not None:
        facts.append(f"target: {comparison.metric.name} {comparison.metric.text(comparison.target)}")
    return " · ".join(facts)


def _goodput(comparison: Comparison, colours: Mapping[str, str]) -> PageSection | None:
    """Divide what all workers could have computed; None where no worker recorded anything."""
    table = goodput_table({one.policy: one.goodput for one in comparison.policies})
    named = [colours[row[0]] for row in table.rows]
    if not named:
        return None
    note = TextLine(
        "Goodput is the share of what all workers could have computed in the training time that went into samples "
        "which count; the shares of a row add up to 100 %. All finished seeds together.",
        "note",
    )
    return section(table.title, StyledTable(table=table, colours=named), note, slug="goodput")


def _advice(operations: Sequence[Operation], colours: Mapping[str, str]) -> PageSection | None:
    """Tell what to do about how the first run of each policy went; None where no run can be judged."""
    if not operations:
        return None
    items = [
        Item(lead=policy, text=text, colour=colours[policy])
        for policy, texts in operations_advice(operations).items()
        for text in texts
    ]
    advice = Items(items=items) if items else NOTHING_TO_ADVISE
    return section(
        "Advice", advice, TextLine("From the traces of the first run of each policy.", "note"), slug="advice"
    )


def _overview(comparison: Comparison, colours: Mapping[str, str]) -> tuple[PageBlock, ...]:
    """Make the table of policies, with what each figure is against the baseline in small print, and its note."""
    target = [] if comparison.target is None else [f"to {comparison.metric.text(comparison.target)}"]
    headers = (
        *("policy", "seeds", "training time", "samples/s", comparison.metric.name, *target),
        *("bytes", "wait", "communicate", "staleness τ", "max lead"),
    )
    rows = [[summary.policy, *_cells(summary, comparison=comparison)] for summary in comparison.policies]
    table = Table(title="The comparison", headers=headers, rows=rows)
    return StyledTable(table=table, colours=[colours[summary.policy] for summary in comparison.policies]), TextLine(
        f"Mean ± standard deviation over finished seeds. Small print: against {comparison.baseline}, ratios as "
        "geometric means over seeds, differences with their 95 % interval and the p value of a two-sided t test (in "
        "pairs where the seeds coincide, else Welch's), not corrected for the number of policies. Time to target is "
        "the median of the seeds that reached it. Wait and communicate are shares of all workers' time.",
        "note",
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
            "" if contrast is None or contrast.bytes_sent is None else ratio_text(contrast.bytes_sent.value),
        ),
        _NONE if summary.wait_share is None else f"{100 * summary.wait_share:.1f} %",
        _NONE if summary.communicate_share is None else f"{100 * summary.communicate_share:.1f} %",
        _stacked(f"{tau.mean:.2f}", f"p95 {tau.p95}, max {tau.max}") if tau.counts else _NONE,
        str(summary.max_lead) if summary.seeds else _NONE,
    ]


def _stacked(main: str, small: str) -> str:
    return f"{main}\n{small}" if small else main


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


def _runs(comparison: Comparison) -> Folded:
    headers = (
        "run", "status", "time", "steps", "samples", comparison.metric.name, "bytes", "across racks", "peak memory",
        "cores", "max lead", "lost workers", "refused", "parameters",
    )  # fmt: skip
    rows = [[f"{run.policy}, seed {run.seed}", *_run_cells(run, metric=comparison.metric)] for run in comparison.runs]
    summary = f"Every run ({len(comparison.runs)})"
    return Folded(summary=summary, blocks=[Table(title=summary, headers=headers, rows=rows)])


def _run_cells(run: RunResult, *, metric: Metric) -> Iterable[str]:
    refused = [*(reasons for reasons in run.refused_updates.values()), run.refused_peers]
    num_refused = sum(sum(reasons.values()) for reasons in refused)
    peak_bytes = max((worker.peak_memory_bytes for worker in run.workers), default=0)
    yield run.status
    yield format_seconds(run.training_s)
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


def _decisions(comparison: Comparison) -> Folded | None:
    blocks: list[PageBlock] = []
    for run in comparison.runs:
        if run.decisions:
            blocks += [f"{run.policy}, seed {run.seed}", _decisions_of(run)]
    return Folded(summary="Decisions of the policies", blocks=blocks) if blocks else None


def _decisions_of(run: RunResult) -> PageBlock:
    """Tell decisions in sentences where they are those of a policy that adapts or switches."""
    texts = decision_sentences(run)
    if texts is None:
        return TextLine("\n".join(json.dumps(decision, ensure_ascii=False) for decision in run.decisions), "code")
    return Items(items=[Item(text=text) for text in texts], ordered=len(texts) > 1)


def _timelines(traces: Sequence[TraceLink]) -> Folded | None:
    if not traces:
        return None
    items = [
        Item(text=f"{trace.name}: {trace.problem or ''}")
        if trace.href is None
        else Item(text=trace.name, href=trace.href)
        for trace in traces
    ]
    how = "A timeline of each run, step by step. Open a file at ui.perfetto.dev or in chrome://tracing."
    return Folded(summary=f"Timelines ({len(traces)})", blocks=[how, Items(items=items)])


def _environments(comparison: Comparison) -> Folded | None:
    found = [
        Facts(
            [
                (name.replace("num_cpus", "CPUs"), str(value))
                for name, value in asdict(environment).items()
                if value is not None
            ]
        )
        for environment in comparison.environments
    ]
    return Folded(summary="Environment", blocks=found, opened=True) if found else None
