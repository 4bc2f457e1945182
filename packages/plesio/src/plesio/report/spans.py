"""The spans of a run's traces on one time axis, each either computing, waiting, communicating or evaluating.

Each trace counts from its own origin; the origins' Unix times put them on a common axis that begins with the earliest.
A blocked span is taken apart over the workers that were blocked at the same clock (`plesio.core.trace.split_blocked`):
first it waits for the last one to arrive, then all of them communicate.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plesio.core.errors import DataError
from plesio.core.trace import Trace, TraceRecord, read_trace, split_blocked

_BlockedKey = tuple[int, int]
"""A clock, and which of the blocked spans of that clock: a worker may be blocked more than once in a step."""


@dataclass(frozen=True, slots=True)
class ActivitySpan:
    """An activity of a worker from ``at_s`` on for ``duration_s`` seconds, at its clock ``clock``."""

    worker: int
    kind: str
    at_s: float
    duration_s: float
    clock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTraces:
    """The traces of a run.

    Attributes:
        policy: The run's policy; the folder's name where no trace tells it.
        by_worker: Traces in the order of workers.
        offsets_s: How long after the first trace's origin each worker's is.
    """

    policy: str
    by_worker: Mapping[int, Trace]
    offsets_s: Mapping[int, float]

    @classmethod
    def of(cls, traces: Sequence[Trace], *, name: str = "") -> "RunTraces":
        """Put the traces of a run together; ``name`` stands for a policy that no trace tells.

        Raises:
            DataError: A header names no worker or no origin, or two traces are of the same worker.
        """
        found: dict[int, Trace] = {}
        for trace in traces:
            worker, origin_s = trace.header.get("worker"), trace.header.get("origin_s")
            if not isinstance(worker, int) or not isinstance(origin_s, int | float):
                raise DataError(f'a trace header needs "worker" and "origin_s", but this one is {dict(trace.header)}')
            if worker in found:
                raise DataError(f"two traces say that they are of worker {worker}")
            found[worker] = trace
        first_s = min((trace.header["origin_s"] for trace in found.values()), default=0.0)
        ordered = dict(sorted(found.items()))
        policy = next((trace.header.get("policy", name) for trace in ordered.values()), name)
        offsets_s = {worker: trace.header["origin_s"] - first_s for worker, trace in ordered.items()}
        return cls(policy=str(policy), by_worker=ordered, offsets_s=offsets_s)

    @property
    def training(self) -> list[ActivitySpan]:
        """Spans of training, worker by worker."""
        return [span for span in spans_of(self) if span.kind != "evaluate"]


def trace_paths(run_folder: Path) -> list[Path]:
    """List the trace files of a run, in the order of their names."""
    return sorted(run_folder.glob("trace-*.jsonl"))


def read_traces(run_folder: Path, *, kind: str | None = None) -> RunTraces:
    """Read the traces of a run, all records or those of one kind; there may be none.

    Raises:
        DataError: A trace cannot be read.
    """
    return RunTraces.of([read_trace(path, kind=kind) for path in trace_paths(run_folder)], name=run_folder.name)


def spans_of(run: RunTraces) -> Iterator[ActivitySpan]:
    """Yield all spans, worker by worker, in the order in which they were recorded."""
    waited_s = _waited_s(run.by_worker)
    for worker, trace in run.by_worker.items():
        waits = iter(waited_s[worker])
        for record in trace.records:
            if record.duration_s is None:
                continue
            at_s = run.offsets_s[worker] + record.at_s
            if record.kind != "blocked":
                yield ActivitySpan(worker, record.kind, at_s, record.duration_s, record.clock)
                continue
            wait_s = next(waits)
            yield ActivitySpan(worker, "wait", at_s, wait_s, record.clock)
            yield ActivitySpan(worker, "communicate", at_s + wait_s, record.duration_s - wait_s, record.clock)


def _blocked(records: Sequence[TraceRecord]) -> Iterator[tuple[_BlockedKey, float]]:
    seen: Counter[int] = Counter()
    for record in records:
        if record.kind == "blocked" and record.duration_s is not None:
            yield (record.clock, seen[record.clock]), record.duration_s
            seen[record.clock] += 1


def _waited_s(traces: Mapping[int, Trace]) -> dict[int, list[float]]:
    """Compute how long each blocked span was waiting, by worker and in the order of the spans."""
    blocked_s: dict[_BlockedKey, dict[int, float]] = defaultdict(dict)
    for worker, trace in traces.items():
        for key, duration_s in _blocked(trace.records):
            blocked_s[key][worker] = duration_s
    split = {key: split_blocked(spans) for key, spans in blocked_s.items()}
    return {worker: [split[key][worker][0] for key, _ in _blocked(trace.records)] for worker, trace in traces.items()}
