"""All that there is to see of a run at one moment, as finished numbers and sentences; terminal and page only show it.

Shares of a worker's time and its seconds a step are of the time since an earlier look; at the first look, and when the
run is over, they are of the whole run.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plesio.core.results import RunResult, WorkerTimes
from plesio.core.units import format_seconds
from plesio.protocol.figures import RunFigures, WorkerFigure

SLOWER = 1.2
"""A worker is slow that takes so many times as long for a step as the median of the others."""
LEAST_SLOWER_S = 0.001
LEAST_WINDOW_S = 1.0
"""In less training time than this a worker's beginning looks like slowness."""
SILENT_S = 2.5
"""From this silence on a worker is named: beats come every second at the latest."""
BUSY_CORES = 0.9
"""Share of a machine's cores from which on they are named as a reason."""
_WITHIN = {
    "forward": "in a forward pass that all make",
    "step": "in a step",
    "evaluation": "evaluating",
    "metric": "evaluating",
    "end": "at the end, waiting for the others",
}


@dataclass(frozen=True, slots=True)
class Glimpse:
    """Figures of a run at one moment, from its server or its files.

    Attributes:
        result: Its figures; ``running`` while it is under way.
        figures: Its present state; None of a run that is over.
        at_s: Time of the look, in seconds of any one clock.
    """

    result: RunResult
    figures: RunFigures | None
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker: what it does, and the shares of its time.

    Attributes:
        state: ``training``, ``lost``, ``left`` (it has finished), or the joint activity that it is in; empty in a run
            that is over.
        step_s: Seconds of a step; None where none was seen.
    """

    worker: int
    state: str
    clock: int
    lead: int
    compute: float
    exchange: float
    wait: float
    step_s: float | None
    samples: int
    joined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """A decision of a policy that adapts."""

    clock: int
    policy: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """All that there is to see; times in seconds, None for the unknown.

    Attributes:
        in_force: The static policy that the workers go by now.
        losses: (clock, loss), thinned; ``metrics`` are (samples, metric).
        slow: Sentences on workers that are slow or silent, each with its reason.
        members: Sentences on workers lost and joined.
    """

    status: str
    policy: str
    in_force: str
    task: str
    num_workers: int
    elapsed_s: float
    steps: int
    samples: int
    samples_per_s: float
    total_samples: int | None
    remaining_s: float | None
    loss: float | None
    losses: tuple[tuple[int, float], ...]
    metric_name: str
    metrics: tuple[tuple[int, float], ...]
    staleness: tuple[float, int, int]
    max_lead: int
    workers: tuple[WorkerRow, ...]
    slow: tuple[str, ...]
    members: tuple[str, ...]
    decisions: tuple[DecisionRow, ...]
    checkpoint: str | None
    fallbacks: tuple[str, ...]
    error: str | None
    note: str = ""
    refused: int = 0
    bytes_sent: Mapping[str, int] = field(default_factory=dict)


def view_of(now: Glimpse, earlier: Glimpse | None = None, *, note: str = "") -> RunView:
    """Return what there is to see; ``note`` is a line on where it comes from."""
    result, figures = now.result, now.figures
    spent = _since(result, None if earlier is None or figures is None else earlier.result)
    present = {} if figures is None else {one.worker: one for one in figures.workers}
    rows = _rows(result, spent, present)
    rate = _rate(now, earlier)
    window_s = result.wall_s - (0.0 if earlier is None else earlier.result.wall_s)
    total = None if figures is None else figures.total_samples
    left = None if total is None else max(0, total - result.samples)
    losses = tuple((point.clock, point.loss) for point in result.losses)
    latest = losses[-1][1] if losses else None
    if figures is not None and figures.loss == figures.loss:  # it is NaN before the first
        latest = figures.loss
    return RunView(
        status=result.status,
        policy=result.policy,
        in_force="" if figures is None else figures.in_force,
        task=result.task,
        num_workers=result.num_workers,
        elapsed_s=result.wall_s,
        steps=result.steps,
        samples=result.samples,
        samples_per_s=rate,
        total_samples=total,
        remaining_s=left / rate if left is not None and rate > 0 else None,
        loss=latest,
        losses=losses,
        metric_name=result.metric_name,
        metrics=tuple((one.samples, one.metric) for one in result.evaluations),
        staleness=(result.staleness.mean, result.staleness.p95, result.staleness.max),
        max_lead=result.max_lead,
        workers=rows,
        slow=() if figures is None else tuple(_slow(rows, spent, present, result.workers, window_s=window_s)),
        members=tuple(_members(result, rows)),
        decisions=tuple(_decisions(result.decisions)),
        checkpoint=None if figures is None else _checkpoint(figures.checkpoint),
        fallbacks=result.fallbacks,
        error=result.error,
        note=note,
        refused=sum(sum(reasons.values()) for reasons in result.refused_updates.values()),
        bytes_sent=result.bytes_sent,
    )


@dataclass(frozen=True, slots=True)
class _Spent:
    """A worker's seconds and steps in the time that is looked at."""

    compute_s: float
    communicate_s: float
    wait_s: float
    steps: int

    def a_step(self, seconds: float) -> float:
        return seconds / self.steps if self.steps else 0.0


def _since(result: RunResult, earlier: RunResult | None) -> dict[int, _Spent]:
    """Return what each worker has spent since the earlier figures; of one that has done nothing since, in all."""
    before = {} if earlier is None else {one.worker: one for one in earlier.workers}
    spent = {}
    for one in result.workers:
        then = before.get(one.worker)
        if then is None or one.steps <= then.steps:
            spent[one.worker] = _Spent(one.compute_s, one.communicate_s, one.wait_s, one.steps)
        else:
            spent[one.worker] = _Spent(
                one.compute_s - then.compute_s,
                max(0.0, one.communicate_s - then.communicate_s),
                max(0.0, one.wait_s - then.wait_s),
                one.steps - then.steps,
            )
    return spent


def _rows(result: RunResult, spent: Mapping[int, _Spent], present: Mapping[int, WorkerFigure]) -> tuple[WorkerRow, ...]:
    times = {one.worker: one for one in result.workers}
    rows = []
    for worker in sorted({*times, *present}):
        used, now = spent.get(worker, _Spent(0.0, 0.0, 0.0, 0)), present.get(worker)
        whole_s = used.compute_s + used.communicate_s + used.wait_s
        clock = times[worker].steps if now is None and worker in times else 0 if now is None else now.clock
        rows.append(
            WorkerRow(
                worker=worker,
                state=_state(worker, now, result),
                clock=clock,
                lead=0 if now is None else now.lead,
                compute=used.compute_s / whole_s if whole_s else 0.0,
                exchange=used.communicate_s / whole_s if whole_s else 0.0,
                wait=used.wait_s / whole_s if whole_s else 0.0,
                step_s=whole_s / used.steps if used.steps else None,
                samples=times[worker].samples if worker in times else 0,
                joined=worker >= result.num_workers,
            )
        )
    return tuple(rows)


def _state(worker: int, now: WorkerFigure | None, result: RunResult) -> str:
    if worker in result.lost_workers:
        return "lost"
    if now is None:
        return ""
    if not now.live:
        return "left"
    return "training" if now.within in (None, "step", "forward") else _WITHIN[now.within]


def _rate(now: Glimpse, earlier: Glimpse | None) -> float:
    """Return samples a second of training lately; over the whole run where nothing has happened since."""
    if earlier is not None and now.figures is not None:
        seconds = now.result.wall_s - earlier.result.wall_s
        if seconds > 0 and now.result.samples > earlier.result.samples:
            return (now.result.samples - earlier.result.samples) / seconds
    return now.result.samples_per_s


def _slow(
    rows: Sequence[WorkerRow],
    spent: Mapping[int, _Spent],
    present: Mapping[int, WorkerFigure],
    times: Sequence[WorkerTimes],
    *,
    window_s: float,
) -> list[str]:
    """Name the live workers that are silent, and the one that takes longest for a step where that is much longer."""
    live = [row.worker for row in rows if row.worker in present and present[row.worker].live]
    said = [
        f"worker {worker} has said nothing for {format_seconds(round(present[worker].silent_s, 1))}"
        for worker in live
        if present[worker].silent_s >= SILENT_S
    ]
    stepping = [worker for worker in live if worker in spent and spent[worker].steps]
    if window_s < LEAST_WINDOW_S:
        return said
    for verb, attribute in (("computes", "compute_s"), ("exchanges", "communicate_s")):
        took_s = {worker: spent[worker].a_step(getattr(spent[worker], attribute)) for worker in stepping}
        if len(took_s) < 2:
            continue
        slowest = max(took_s, key=lambda worker: took_s[worker])
        others_s = statistics.median(took_s[worker] for worker in took_s if worker != slowest)
        if took_s[slowest] > SLOWER * others_s and took_s[slowest] > others_s + LEAST_SLOWER_S:
            line = f"worker {slowest} is slow: it {verb} {_ms(took_s[slowest])} a step, the others {_ms(others_s)}"
            return [*said, line + (_why(slowest, times) if verb == "computes" else "; its link is slower")]
    return said


def _why(slowest: int, times: Sequence[WorkerTimes]) -> str:
    """Return the reason for slow computing that its resources show, from its semicolon on; empty if none does."""
    used = {one.worker: one.utilisation for one in times if one.utilisation is not None}
    own = used.get(slowest)
    if own is None:
        return ""
    cores = statistics.median(one.cpu.mean for one in used.values())
    if own.host_cpu.mean >= BUSY_CORES:
        return f"; the cores of its machine are {own.host_cpu.mean:.0%} busy"
    if own.cpu.mean < cores / SLOWER:
        return f"; it had {own.cpu.mean:.2f} cores on average, the median {cores:.2f}: it sleeps or reads in between"
    return ""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _members(result: RunResult, rows: Sequence[WorkerRow]) -> list[str]:
    clock = {row.worker: row.clock for row in rows}
    lost = [f"worker {worker} was lost after step {clock.get(worker, 0):,}" for worker in result.lost_workers]
    return [*lost, *(f"worker {row.worker} joined later" for row in rows if row.joined)]


def _decisions(made: Sequence[Mapping[str, Any]]) -> Iterator[DecisionRow]:
    """Yield the changes of the policy, and between two of them the last decision that kept it, with newest reasons."""
    changes = [one["policy"] != one["before"] for one in made]
    for number, (one, is_change) in enumerate(zip(made, changes, strict=True)):
        if is_change or all(changes[number + 1 : number + 2]):
            policy = f"{one['policy']} in place of {one['before']}" if is_change else f"{one['policy']} stays"
            yield DecisionRow(clock=one["clock"], policy=policy, reason=one.get("latest", one)["reason"])


def _checkpoint(latest: tuple[int, float] | None) -> str | None:
    if latest is None:
        return None
    return f"checkpoint of step {latest[0]:,}, begun {format_seconds(round(latest[1]))} ago"
