"""How a run went from step to step: where its time went, how its steps varied, what exchanges sent and kept back.

All of it is read from the traces of one run; `plesio.report.operation_advice` says what to do about it.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plesio.core.results import RunResult, read_results
from plesio.core.trace import Trace
from plesio.report.spans import ActivitySpan, RunTraces, read_traces

_SHORTEST_S = 1.0
"""The figures of a real run that trains for less are those of its beginning."""
_WARM_UP_STEPS = 3
_FEWEST_STEPS = 20
"""Fewer have no 99th percentile."""
_FEWEST_RATIOS = 9
"""Fewer residuals show no trend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTimes:
    """How long the workers computed for a step, without its exchange and without the first steps.

    Attributes:
        p50_s: Median of all workers' steps.
        p99_s: The 99th percentile.
        medians_s: Each worker's own median.
        own_ratio: The largest of the workers' own p99 over their own p50.
    """

    p50_s: float
    p99_s: float
    medians_s: Mapping[int, float]
    own_ratio: float

    @property
    def ratio(self) -> float:
        return self.p99_s / self.p50_s

    @property
    def slowest(self) -> int:
        return max(self.medians_s, key=self.medians_s.__getitem__)

    @property
    def slowest_ratio(self) -> float:
        """Its median over the median worker's."""
        return self.medians_s[self.slowest] / statistics.median(self.medians_s.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """The traffic of exchanges.

    Attributes:
        number: Exchanges of a worker.
        num_bytes: Bytes that a worker sent in one, on average.
        communicate_s: Median time that one took, waiting for others left out; 0 where it was hidden.
        buckets_bytes: Sizes of DDP's buckets, in their order; empty where the gradient is one message.
    """

    number: int
    num_bytes: float
    communicate_s: float
    buckets_bytes: tuple[int, ...] = ()

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes that a worker sent a second while it communicated; None where that was hidden."""
        return self.num_bytes / self.communicate_s if self.communicate_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A run, step by step.

    Attributes:
        compute_share: Share of all workers' time that was computing.
        communicate_share: Share in which they stood still for transfers.
        steps: None of a run with too few.
        exchanges: None where nothing was exchanged.
        residuals: What error feedback kept back, as a multiple of an update, largest worker, in the order of exchanges.
    """

    policy: str
    compute_share: float
    communicate_share: float
    steps: ComputeTimes | None = None
    exchanges: Exchanges | None = None
    residuals: tuple[float, ...] = ()

    @property
    def wait_share(self) -> float:
        return max(0.0, 1 - self.compute_share - self.communicate_share)

    @property
    def residual_growth(self) -> float | None:
        """Mean of the last third of the residuals over that of the first; None with too few."""
        third = len(self.residuals) // 3
        if len(self.residuals) < _FEWEST_RATIOS:
            return None
        first = statistics.fmean(self.residuals[:third])
        return statistics.fmean(self.residuals[-third:]) / first if first > 0 else None


def read_operation(run_folder: Path) -> Operation | None:
    """Read how the run in a trace folder went; None as of `operation_of`.

    Raises:
        DataError: A trace or the result cannot be read.
    """
    return operation_of(read_traces(run_folder), read_result(run_folder))


def read_result(run_folder: Path) -> RunResult | None:
    """Read the result beside a run's traces; None if there is none.

    Raises:
        DataError: It cannot be read.
    """
    path = run_folder / "results.json"
    return read_results(path)[0] if path.exists() else None


def operation_of(run: RunTraces, result: RunResult | None = None) -> Operation | None:
    """Tell how a run with these traces went; its ``result`` has the bytes.

    None if they have no spans, or if the run was too short for advice: its workers trained for less than a second. A
    virtual run has no such noise.
    """
    spans, traces = run.training, run.by_worker
    spent_s = {kind: sum(span.duration_s for span in spans if span.kind == kind) for kind in ("compute", "communicate")}
    whole_s = sum(span.duration_s for span in spans)
    measured = result is None or result.world != "virtual"
    if whole_s <= 0 or (measured and whole_s < _SHORTEST_S * len(traces)):
        return None
    return Operation(
        policy=run.policy,
        compute_share=spent_s["compute"] / whole_s,
        communicate_share=spent_s["communicate"] / whole_s,
        steps=_step_times(spans),
        exchanges=None if result is None else _exchanges(spans, traces, result),
        residuals=_residuals(traces),
    )


def _step_times(spans: Iterable[ActivitySpan]) -> ComputeTimes | None:
    by_step: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans:
        if span.kind == "compute":
            by_step[span.worker][span.clock] += span.duration_s
    steps = {worker: _settled(times_s) for worker, times_s in by_step.items()}
    pooled = [duration_s for durations_s in steps.values() for duration_s in durations_s]
    if len(pooled) < _FEWEST_STEPS or min(map(len, steps.values())) < 2 or statistics.median(pooled) <= 0:
        return None
    own = [_p99(durations_s) / statistics.median(durations_s) for durations_s in steps.values()]
    return ComputeTimes(
        p50_s=statistics.median(pooled),
        p99_s=_p99(pooled),
        medians_s={worker: statistics.median(durations_s) for worker, durations_s in steps.items()},
        own_ratio=max(own),
    )


def _settled(times_s: Mapping[int, float]) -> list[float]:
    return [times_s[clock] for clock in sorted(times_s)[_WARM_UP_STEPS:]]


def _p99(durations_s: Sequence[float]) -> float:
    return statistics.quantiles(durations_s, n=100, method="inclusive")[98]


def _exchanges(spans: Iterable[ActivitySpan], traces: Mapping[int, Trace], run: RunResult) -> Exchanges | None:
    by_clock: dict[tuple[int, int], float] = defaultdict(float)
    for span in spans:
        if span.kind == "communicate":
            by_clock[span.worker, span.clock] += span.duration_s
    number = round(len(by_clock) / len(traces))
    if not number or not run.bytes_sent_total:
        return None
    records = (record for trace in traces.values() for record in trace.records if record.kind == "buckets")
    buckets = next((tuple(record.fields["num_bytes"]) for record in records), ())
    return Exchanges(
        number=number,
        num_bytes=run.bytes_sent_total / len(traces) / number,
        communicate_s=statistics.median(by_clock.values()),
        buckets_bytes=buckets,
    )


def _residuals(traces: Mapping[int, Trace]) -> tuple[float, ...]:
    """Return the largest of the workers' values, by exchange."""
    largest: dict[int, float] = {}
    for trace in traces.values():
        for record in trace.records:
            if record.kind == "residual" and record.fields.get("ratio") is not None:
                largest[record.clock] = max(largest.get(record.clock, 0.0), float(record.fields["ratio"]))
    return tuple(largest[clock] for clock in sorted(largest))
