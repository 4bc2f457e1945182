"""The spans of a run's traces on one time axis, each either computing, waiting, communicating or evaluating.

Each trace counts from its own origin; the origins' Unix times put them on a common axis that begins with the earliest.
A blocked span is taken apart over the workers that were blocked at the same clock (`plesio.core.trace.split_blocked`):
first it waits for the last one to arrive, then all of them communicate.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plesio.core.errors import DataError
from plesio.core.trace import Record, Trace, split_blocked

__all__ = ["Span", "by_worker", "origin_offsets_s", "spans_of"]

_BlockedKey = tuple[int, int]
"""A clock, and which of the blocked spans of that clock: a worker may be blocked more than once in a step."""


@dataclass(frozen=True, slots=True)
class Span:
    """An activity of a worker from ``at_s`` on for ``duration_s`` seconds, at its clock ``clock``."""

    worker: int
    kind: str
    at_s: float
    duration_s: float
    clock: int


def by_worker(traces: Sequence[Trace]) -> dict[int, Trace]:
    """The traces of a run by their workers, in order.

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
    return dict(sorted(found.items()))


def origin_offsets_s(traces: Mapping[int, Trace]) -> dict[int, float]:
    """How long after the first trace's origin each worker's is."""
    first_s = min((trace.header["origin_s"] for trace in traces.values()), default=0.0)
    return {worker: trace.header["origin_s"] - first_s for worker, trace in traces.items()}


def spans_of(traces: Mapping[int, Trace]) -> Iterator[Span]:
    """All spans, worker by worker, in the order in which they were recorded."""
    offsets_s, waited_s = origin_offsets_s(traces), _waited_s(traces)
    for worker, trace in traces.items():
        waits = iter(waited_s[worker])
        for record in trace.records:
            if record.duration_s is None:
                continue
            at_s = offsets_s[worker] + record.at_s
            if record.kind != "blocked":
                yield Span(worker, record.kind, at_s, record.duration_s, record.clock)
                continue
            wait_s = next(waits)
            yield Span(worker, "wait", at_s, wait_s, record.clock)
            yield Span(worker, "communicate", at_s + wait_s, record.duration_s - wait_s, record.clock)


def _blocked(records: Sequence[Record]) -> Iterator[tuple[_BlockedKey, float]]:
    seen: Counter[int] = Counter()
    for record in records:
        if record.kind == "blocked" and record.duration_s is not None:
            yield (record.clock, seen[record.clock]), record.duration_s
            seen[record.clock] += 1


def _waited_s(traces: Mapping[int, Trace]) -> dict[int, list[float]]:
    """How long each blocked span was waiting, by worker and in the order of the spans."""
    blocked_s: dict[_BlockedKey, dict[int, float]] = defaultdict(dict)
    for worker, trace in traces.items():
        for key, duration_s in _blocked(trace.records):
            blocked_s[key][worker] = duration_s
    split = {key: split_blocked(spans) for key, spans in blocked_s.items()}
    return {worker: [split[key][worker][0] for key, _ in _blocked(trace.records)] for worker, trace in traces.items()}
