"""Stages of a grid, from the traces of a run: how long they waited, how stale their gradients were."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Series, Table
from plesio.core.trace import Trace, TraceRecord
from plesio.core.units import format_bytes
from plesio.policies.grid import GridSetting, is_grid
from plesio.report.spans import RunTraces

_MOST_POINTS = 400
"""Points of a line; no reader sees more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """One worker of a grid.

    Attributes:
        name: Its stage, and its group where there are several.
        delay: The staleness that its gradients have by the schedule, once all stages are at work.
        compute_s: Seconds of passes and updates.
        wait_s: Seconds of waiting for messages: the bubble.
        staleness: (Micro-batch, updates between its two passes), in order.
        held: What it kept between passes when that was most: fields of the trace's ``held``.
    """

    name: str
    delay: int
    compute_s: float
    wait_s: float
    staleness: tuple[tuple[int, int], ...]
    held: Mapping[str, int]

    @property
    def bubble_share(self) -> float:
        total_s = self.compute_s + self.wait_s
        return self.wait_s / total_s if total_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStages:
    """The workers of one run of a grid, by rank.

    Attributes:
        consensus: (Seconds, mean squared distance of the groups' networks from their mean), where it was measured.
    """

    policy: str
    stages: tuple[StageFigures, ...]
    consensus: tuple[tuple[float, float], ...]


def stages_of(run: RunTraces) -> RunStages | None:
    if not is_grid(run.policy) or not run.by_worker:
        return None
    setting = GridSetting.parse(run.policy)
    consensus = [
        (run.offsets_s[worker] + record.at_s, float(record.fields["distance"]))
        for worker, trace in run.by_worker.items()
        for record in _of_kind(trace, "consensus")
    ]
    return RunStages(
        policy=run.policy,
        stages=tuple(_figures(trace, worker, setting) for worker, trace in run.by_worker.items()),
        consensus=tuple(sorted(consensus)),
    )


def _of_kind(trace: Trace, kind: str) -> list[TraceRecord]:
    return [record for record in trace.records if record.kind == kind]


def _figures(trace: Trace, rank: int, setting: GridSetting) -> StageFigures:
    group, stage = divmod(rank, setting.stages)
    passes, held = _of_kind(trace, "backward"), _of_kind(trace, "held")
    return StageFigures(
        name=f"stage {stage}" if setting.groups == 1 else f"group {group}, stage {stage}",
        delay=0 if setting.flushes else setting.delays[stage],
        compute_s=sum(record.duration_s or 0.0 for record in _of_kind(trace, "compute")),
        wait_s=sum(record.duration_s or 0.0 for record in _of_kind(trace, "wait")),
        staleness=tuple((int(one.fields["micro_batch"]), int(one.fields["staleness"])) for one in passes),
        held=dict(held[-1].fields) if held else {},
    )


def grid_charts(runs: Sequence[RunStages]) -> list[Chart]:
    charts: list[Chart] = []
    for number, run in enumerate(runs):
        charts += [_bubble_chart(run, number), _staleness_chart(run, number)]
        if len(run.consensus) > 1:
            charts.append(_consensus_chart(run, number))
    return charts


def _bubble_chart(run: RunStages, number: int) -> BarChart:
    most = max(stage.bubble_share for stage in run.stages)
    return BarChart(
        slug=f"bubble-{number}",
        title=f"{run.policy}: stages wait {100 * most:.0f} % of their time at most",
        caption="Share of each stage's training time: passes and updates, and waiting for messages (the bubble).",
        axis=Axis(title="share of the time (%)", from_zero=True),
        rows=[stage.name for stage in run.stages],
        parts={
            "compute": [100 * (1 - stage.bubble_share) for stage in run.stages],
            "wait": [100 * stage.bubble_share for stage in run.stages],
        },
        ends=[f"{100 * stage.bubble_share:.1f} % waiting" for stage in run.stages],
    )


def _staleness_chart(run: RunStages, number: int) -> LineChart:
    series = []
    for stage in run.stages:
        points = stage.staleness[:: -(-len(stage.staleness) // _MOST_POINTS) or 1]
        series.append(
            Series(
                name=stage.name,
                x=[micro_batch for micro_batch, _ in points],
                y=[staleness for _, staleness in points],
                style="steps",
            )
        )
    most = max((staleness for stage in run.stages for _, staleness in stage.staleness), default=0)
    return LineChart(
        slug=f"stage-staleness-{number}",
        title=f"{run.policy}: gradients are {most} updates stale at most",
        caption="Updates of a stage between a micro-batch's forward and backward pass there.",
        x=Axis(title="micro-batch"),
        y=Axis(title="staleness (updates)", from_zero=True),
        series=series,
    )


def _consensus_chart(run: RunStages, number: int) -> LineChart:
    return LineChart(
        slug=f"consensus-{number}",
        title=f"{run.policy}: the groups' distance from their mean",
        caption="Mean over the groups of the squared distance of their weights from the mean's, at each evaluation.",
        x=Axis(title="time (s)"),
        y=Axis(title="squared distance", from_zero=True),
        series=[Series(name="", x=[at for at, _ in run.consensus], y=[distance for _, distance in run.consensus])],
    )


def grid_tables(runs: Sequence[RunStages]) -> list[Table]:
    return [
        Table(
            title=run.policy,
            headers=("worker", "waiting", "staleness, at most", "by the schedule", "micro-batches kept",
                     "inputs and outputs", "copies of weights", "in bytes"),
            rows=[_row(stage) for stage in run.stages],
        )
        for run in runs
    ]  # fmt: skip


def _row(stage: StageFigures) -> tuple[str, ...]:
    held = stage.held
    return (
        stage.name,
        f"{100 * stage.bubble_share:.1f} %",
        str(max((staleness for _, staleness in stage.staleness), default=0)),
        str(stage.delay),
        str(held.get("micro_batches", 0)),
        format_bytes(held.get("inputs_bytes", 0)),
        str(held.get("copies", 0)),
        format_bytes(held.get("copies_bytes", 0)),
    )
