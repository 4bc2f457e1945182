"""Traces as the JSON that Perfetto and Chrome's tracing page open: one process per worker, on one time axis."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from plesio.core.errors import DataError
from plesio.core.files import write_whole
from plesio.core.trace import UTILISATION, Trace, TraceRecord, read_trace
from plesio.report.spans import ActivitySpan, RunTraces, spans_of, trace_paths

PERFETTO_NAME = "perfetto.json"

_MICROSECONDS = 1e6
_COUNTERS = {
    "processor (cores)": {"cores": "cpu"},
    "machine's cores busy (share)": {"share": "host_cpu"},
    "resident memory (bytes)": {"bytes": "memory_bytes"},
    "network (bytes/s)": {"sent": "sent_bytes_per_s", "received": "received_bytes_per_s"},
    "GPU busy (share)": {"share": "gpu"},
    "GPU memory (bytes)": {"bytes": "gpu_memory_bytes"},
}
"""Rows, with the names in them and the fields of a sample."""


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
    write_whole(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n")
    return path


def trace_events(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return the ``traceEvents`` of one run's traces: metadata first, then spans, events and counters, by worker.

    Raises:
        DataError: A header names no worker or no origin, or two traces are of the same worker.
    """
    run = RunTraces.of(traces)
    events = [event for worker in run.by_worker for event in _metadata(worker)]
    spans = groupby(spans_of(run), key=lambda span: span.worker)
    spans_by_worker = {worker: list(group) for worker, group in spans}
    for worker, trace in run.by_worker.items():
        events.extend(_span(span) for span in spans_by_worker.get(worker, ()))
        for record in trace.records:
            at_s = run.offsets_s[worker] + record.at_s
            if record.kind == UTILISATION:
                events.extend(_counters(record, worker=worker, at_s=at_s))
            elif record.duration_s is None:
                events.append(_moment(record, worker=worker, at_s=at_s))
    return events


def _metadata(worker: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": worker, "tid": 0, "args": {"name": f"worker {worker}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": worker, "tid": 0, "args": {"sort_index": worker}}


def _moment(record: TraceRecord, *, worker: int, at_s: float) -> dict[str, Any]:
    event = _event("i", record.kind, worker=worker, at_s=at_s, clock=record.clock, fields=record.fields)
    return {**event, "s": "t"}


def _counters(record: TraceRecord, *, worker: int, at_s: float) -> Iterator[dict[str, Any]]:
    """Yield rows below the worker's own, each with the quantities of one unit."""
    for name, quantities in _COUNTERS.items():
        values = {label: record.fields[field] for label, field in quantities.items() if field in record.fields}
        if values:
            ts = round(at_s * _MICROSECONDS, 3)
            yield {"ph": "C", "name": name, "cat": "plesio", "pid": worker, "ts": ts, "args": values}


def _span(span: ActivitySpan) -> dict[str, Any]:
    event = _event("X", span.kind, worker=span.worker, at_s=span.at_s, clock=span.clock, fields={})
    return {**event, "dur": round(span.duration_s * _MICROSECONDS, 3)}


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
