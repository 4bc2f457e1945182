"""The charts of what workers used: what their memory held, and processor, memory and network over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Panels, Series
from plesio.core.trace import UTILISATION, TraceRecord
from plesio.core.units import byte_unit, format_bytes
from plesio.report import findings
from plesio.report.model import MEMORY_PARTS, Comparison
from plesio.report.spans import RunTraces
from plesio.report.timelines import MOST_WORKERS

_MEMORY_COLOURS = {
    "before": "#c3c8ce",
    "parameters": "#0072b2",
    "gradients": "#56b4e9",
    "optimizer": "#009e73",
    "activations": "#d55e00",
    "other": "#e69f00",
    "shared": "#cc79a7",
    "kept free": "#e3d7b4",
    "evaluation": "#8d7cb8",
    "rest": "#7d8590",
}
_WHAT = (
    "Before: interpreter, libraries and data, before the session was joined; activations: what forward and backward "
    "took on top of gradients; other: batches, outputs, what the exchange keeps; shared: the host's store; kept free: "
    "by the allocator."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUtilisation:
    """Samples of one run, by worker.

    Attributes:
        samples: (Seconds since the run's first sample, what was used since the sample before), by worker.
    """

    policy: str
    samples: dict[int, tuple[tuple[float, TraceRecord], ...]]

    def has(self, field: str) -> bool:
        return any(field in record.fields for samples in self.samples.values() for _, record in samples)

    def values(self, worker: int, *fields: str) -> list[float]:
        """Sum these fields at each sample of a worker; NaN where one is missing."""
        return [
            float(sum(record.fields.get(field, float("nan")) for field in fields)) for _, record in self.samples[worker]
        ]


def utilisation_of(run: RunTraces) -> RunUtilisation | None:
    taken = {
        worker: [
            (run.offsets_s[worker] + record.at_s, record) for record in trace.records if record.kind == UTILISATION
        ]
        for worker, trace in run.by_worker.items()
    }
    began_s = min((records[0][0] for records in taken.values() if records), default=None)
    if began_s is None:
        return None
    samples = {
        worker: tuple((at_s - began_s, record) for at_s, record in records)
        for worker, records in taken.items()
        if records
    }
    return RunUtilisation(policy=run.policy, samples=samples)


def resource_charts(comparison: Comparison, utilisations: Sequence[RunUtilisation]) -> list[Chart]:
    made: tuple[Chart | None, ...] = (
        _memory_chart(
            comparison,
            slug="memory",
            title=findings.memory_finding(comparison),
            caption=f"A worker's peak, mean over workers and seeds. {_WHAT}",
        ),
        _memory_chart(
            comparison,
            slug="memory-of-run",
            title=findings.memory_of_run_finding(comparison),
            caption="The same without what was there before the session was joined.",
            without="before",
        ),
        _over_time(
            utilisations,
            slug="cpu-over-time",
            title=findings.cpu_finding(comparison),
            what="Processor time of its process; 100 % is one core.",
            axis="% of a core",
            scale=100,
            fields=("cpu",),
        ),
        _bytes_over_time(
            utilisations,
            slug="memory-over-time",
            title="Resident memory over time",
            what="At the end of a step, which is less than the peak within it.",
            unit_of="{}",
            fields=("memory_bytes",),
        ),
        _bytes_over_time(
            utilisations,
            slug="network-over-time",
            title="Bytes through the network over time",
            what="Sent and received, over all interfaces of the worker's host, whoever used them.",
            unit_of="{}/s",
            fields=("sent_bytes_per_s", "received_bytes_per_s"),
        ),
        _over_time(
            utilisations,
            slug="gpu-over-time",
            title="GPU over time",
            what="Share of the time that its GPU computed.",
            axis="% busy",
            scale=100,
            fields=("gpu",),
        ),
    )
    return [chart for chart in made if chart is not None]


def _memory_chart(
    comparison: Comparison, *, slug: str, title: str, caption: str, without: str | None = None
) -> BarChart | None:
    memories = comparison.by_policy(lambda one: one.memory or None)
    return memory_bars(memories, slug=slug, title=title, caption=caption, without=without) if memories else None


def memory_bars(
    memories: Mapping[str, Mapping[str, float]],
    *,
    slug: str,
    title: str,
    caption: str,
    without: str | None = None,
    ends: Sequence[str] = (),
) -> BarChart:
    """Draw what workers' memory held, a bar for each row, in bytes of `MEMORY_PARTS` but for the part ``without``.

    ``ends`` are words at the ends of the bars; else all that was drawn.
    """
    parts = [part for part in MEMORY_PARTS if part != without]
    totals = [sum(memory[part] for part in parts) for memory in memories.values()]
    unit, scale = byte_unit(max(totals))
    return BarChart(
        slug=slug,
        title=title,
        caption=caption,
        wide=True,
        axis=Axis(title=f"bytes of a worker ({unit})"),
        rows=list(memories),
        parts={part: [max(0.0, memory[part]) / scale for memory in memories.values()] for part in parts},
        colours=_MEMORY_COLOURS,
        ends=ends or [format_bytes(total) for total in totals],
    )


def _bytes_over_time(
    utilisations: Sequence[RunUtilisation], *, slug: str, title: str, what: str, unit_of: str, fields: Sequence[str]
) -> Panels | None:
    """Draw bytes over time with a unit that suits the values."""
    values = [value for run in utilisations for worker in run.samples for value in run.values(worker, *fields)]
    unit, scale = byte_unit(max(values, default=0.0))
    return _over_time(
        utilisations, slug=slug, title=title, what=what, axis=unit_of.format(unit), scale=1 / scale, fields=fields
    )


def _over_time(
    utilisations: Sequence[RunUtilisation],
    *,
    slug: str,
    title: str,
    what: str,
    axis: str,
    scale: float,
    fields: Sequence[str],
) -> Panels | None:
    """Draw a panel a policy, a line a worker; None if no run has the fields."""
    drawn = [run for run in utilisations if run.has(fields[0])]
    if not drawn:
        return None
    most = max(len(run.samples) for run in drawn)
    only = f" Of {most} workers the first {MOST_WORKERS} are shown." if most > MOST_WORKERS else ""
    return Panels(
        slug=slug,
        title=title,
        caption=f"A line a worker, in each policy's first run. {what}{only}",
        charts=[
            worker_lines(
                run,
                title=run.policy,
                x=Axis(title="seconds since the first sample", from_zero=True),
                y=Axis(title=axis, from_zero=True),
                scale=scale,
                fields=fields,
            )
            for run in drawn
        ],
    )


def worker_lines(
    run: RunUtilisation, *, title: str, x: Axis, y: Axis, scale: float, fields: Sequence[str]
) -> LineChart:
    """Draw the sum of some fields over time, a line for each of the first workers of a run."""
    series = [
        Series(
            name=f"worker {worker}",
            x=[at_s for at_s, _ in run.samples[worker]],
            y=[scale * value for value in run.values(worker, *fields)],
        )
        for worker in list(run.samples)[:MOST_WORKERS]
    ]
    return LineChart(title=title, x=x, y=y, series=series)
