"""Traces as the JSON that Perfetto and Chrome's tracing page open: one process per worker, on one time axis.

Each trace counts from its own origin; the origins' Unix times put them on a common axis that begins with the earliest.
A blocked span is taken apart over the workers that were blocked at the same clock (`plesio.core.trace.split_blocked`):
first it waits for the last one to arrive, then all of them communicate.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plesio.core.errors import DataError
from plesio.core.trace import Record, Trace, read_trace, split_blocked

__all__ = ["PERFETTO_NAME", "trace_events", "trace_paths", "write_perfetto"]

PERFETTO_NAME = "perfetto.json"

_MICROSECONDS = 1e6

_BlockedKey = tuple[int, int]
"""A clock, and which of the blocked spans of that clock: a worker may be blocked more than once in a step."""


def trace_paths(run_folder: Path) -> list[Path]:
    """The trace files of a run, in the order of their names."""
    return sorted(run_folder.glob("trace-*.jsonl"))


def write_perfetto(run_folder: Path) -> Path:
    """Write ``run_folder/perfetto.json`` from the run's traces; a reader sees the old file or the new one, never half.

    Returns:
        The file that was written.

    Raises:
        DataError: There are no traces, or one cannot be read.
    """
    paths = trace_paths(run_folder)
    if not paths:
        raise DataError(f"{run_folder} holds no trace-*.jsonl, so there is nothing to convert")
    events = trace_events([read_trace(path) for path in paths])
    path = run_folder / PERFETTO_NAME
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n", encoding="utf-8")
    os.replace(partial, path)
    return path


def trace_events(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """The ``traceEvents`` of one run's traces: metadata first, then spans and events, worker by worker.

    Raises:
        DataError: A header names no worker or no origin, or two traces are of the same worker.
    """
    by_worker: dict[int, Trace] = {}
    for trace in traces:
        worker, origin_s = trace.header.get("worker"), trace.header.get("origin_s")
        if not isinstance(worker, int) or not isinstance(origin_s, int | float):
            raise DataError(f'a trace header needs "worker" and "origin_s", but this one is {dict(trace.header)}')
        if worker in by_worker:
            raise DataError(f"two traces say that they are of worker {worker}")
        by_worker[worker] = trace
    first_origin_s = min((trace.header["origin_s"] for trace in by_worker.values()), default=0.0)
    waited_s = _waited_s(by_worker)
    events = [event for worker in sorted(by_worker) for event in _metadata(worker)]
    for worker, trace in sorted(by_worker.items()):
        offset_s = trace.header["origin_s"] - first_origin_s
        events.extend(_worker_events(worker, trace.records, offset_s=offset_s, waited_s=waited_s[worker]))
    return events


def _metadata(worker: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": worker, "tid": 0, "args": {"name": f"worker {worker}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": worker, "tid": 0, "args": {"sort_index": worker}}


def _blocked(records: Sequence[Record]) -> Iterator[tuple[_BlockedKey, float]]:
    seen: Counter[int] = Counter()
    for record in records:
        if record.kind == "blocked" and record.duration_s is not None:
            yield (record.clock, seen[record.clock]), record.duration_s
            seen[record.clock] += 1


def _waited_s(by_worker: Mapping[int, Trace]) -> dict[int, list[float]]:
    """For each worker, how long each of its blocked spans was waiting, in the order of the spans."""
    blocked_s: dict[_BlockedKey, dict[int, float]] = defaultdict(dict)
    for worker, trace in by_worker.items():
        for key, duration_s in _blocked(trace.records):
            blocked_s[key][worker] = duration_s
    split = {key: split_blocked(spans) for key, spans in blocked_s.items()}
    return {
        worker: [split[key][worker][0] for key, _ in _blocked(trace.records)] for worker, trace in by_worker.items()
    }


def _worker_events(
    worker: int, records: Sequence[Record], *, offset_s: float, waited_s: Sequence[float]
) -> Iterator[dict[str, Any]]:
    waits = iter(waited_s)
    for record in records:
        at_s = offset_s + record.at_s
        if record.duration_s is None:
            yield {
                **_event("i", record.kind, worker=worker, at_s=at_s, clock=record.clock, fields=record.fields),
                "s": "t",
            }
        elif record.kind == "blocked":
            wait_s = next(waits)
            yield _span("wait", worker=worker, at_s=at_s, duration_s=wait_s, clock=record.clock)
            rest_s = record.duration_s - wait_s
            yield _span("communicate", worker=worker, at_s=at_s + wait_s, duration_s=rest_s, clock=record.clock)
        else:
            yield _span(record.kind, worker=worker, at_s=at_s, duration_s=record.duration_s, clock=record.clock)


def _span(kind: str, *, worker: int, at_s: float, duration_s: float, clock: int) -> dict[str, Any]:
    event = _event("X", kind, worker=worker, at_s=at_s, clock=clock, fields={})
    return {**event, "dur": round(duration_s * _MICROSECONDS, 3)}


def _event(phase: str, name: str, *, worker: int, at_s: float, clock: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ph": phase,
        "name": name,
        "cat": "plesio",
        "pid": worker,
        "tid": 0,
        "ts": round(at_s * _MICROSECONDS, 3),
        "args": {"clock": clock, **fields},
    }
