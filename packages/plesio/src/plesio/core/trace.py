"""Traces: what happened, when, per worker; cheap enough to leave on.

One file per writer, JSON lines. The first line is a header; every other line is a span (``"d"`` is there) or an event:

    {"schema": 1, "worker": 2, "policy": "ssp:4", "origin_s": 1763686184.1}
    {"k": "compute", "t": 0.0213, "d": 0.0186, "c": 7}
    {"k": "push", "t": 0.0402, "c": 7, "bytes": 181432}

``t`` and ``d`` are seconds on the writer's monotonic clock since the header's origin (its ``origin_s`` in Unix time),
``c`` is the worker's clock. Span kinds: ``compute``, ``wait``, ``communicate``, ``evaluate`` and ``blocked``. A blocked
span is waiting and communicating in one, as a collective shows it; `split_blocked` takes them apart.

A long trace is *sampled*. The first `WHOLE_STEPS` steps are recorded in full; from there on one block of `BLOCK_STEPS`
steps in two, in four once there are twice as many steps, and so on. The clock alone says which blocks, so all workers
record the same steps. A record ``{"k":"sampled","t":...,"c":131072,"every":2}`` says from which step on. Rare records
(an evaluation, a loss, a gradient that was scaled down) are always kept.

Recording appends a tuple to a list; encoding and writing happen every `FLUSH_RECORDS` records or `FLUSH_S` seconds, so
that a killed worker's file holds all but its last moments. A disk that fills up ends the tracing, not the training.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from plesio.core.clock import Clock, MonotonicClock
from plesio.core.errors import DataError
from plesio.core.files import read_text

TRACE_SCHEMA_VERSION = 1
UTILISATION = "utilisation"
"""Kind of the events that say what a worker used since the last one."""
FLUSH_RECORDS = 2048
FLUSH_S = 1.0
WHOLE_STEPS = 2**17
BLOCK_STEPS = 64
_RARE = frozenset({"evaluate"})
_OF_STEPS = frozenset({"push", "pull", "apply", "refuse", "backward", "mix"})
"""Events that there may be of every step."""


def sampled_every(clock: int) -> int:
    """Return n where one of n blocks of `BLOCK_STEPS` steps is recorded, at the step that ends at ``clock``.

    >>> [sampled_every(clock) for clock in (1, WHOLE_STEPS - 1, WHOLE_STEPS, 2 * WHOLE_STEPS, 100 * WHOLE_STEPS)]
    [1, 1, 2, 4, 128]
    """
    return 1 << (clock // WHOLE_STEPS).bit_length()


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """A span, or an event when ``duration_s`` is None."""

    kind: str
    at_s: float
    duration_s: float | None
    clock: int
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace file, read back."""

    header: Mapping[str, Any]
    records: tuple[TraceRecord, ...]


class TraceWriter:
    """Records one worker's spans and events; never raises on a full disk.

    Args:
        path: The file to write; None records nothing and costs nothing.
        on_failure: Called once with a sentence when the file can no longer be written.
        clock: Whose times are recorded; None is the machine's.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        header: Mapping[str, Any],
        on_failure: Callable[[str], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = MonotonicClock() if clock is None else clock
        self._file: IO[str] | None = None
        self._pending: list[tuple[str, float, float | None, int, Mapping[str, Any] | None]] = []
        self._on_failure = on_failure
        self._every = 1
        """One of so many blocks of steps is recorded at present."""
        self.origin_s = clock.now_s()
        self._next_flush_s = self.origin_s + FLUSH_S
        if path is None:
            return
        line = {"schema": TRACE_SCHEMA_VERSION, **header, "origin_s": clock.unix_s()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            self._fail(error)

    @property
    def recording(self) -> bool:
        """True if records still reach the file."""
        return self._file is not None

    def span(self, kind: str, *, start_s: float, end_s: float, clock: int) -> None:
        """Record that the worker did ``kind`` from ``start_s`` to ``end_s`` (the clock's seconds)."""
        if self._file is not None:
            if clock >= WHOLE_STEPS and kind not in _RARE and not self._samples(clock, at_s=start_s):
                return
            self._pending.append((kind, start_s, end_s - start_s, clock, None))
            self._flush_if_due(end_s)

    def event(self, kind: str, *, at_s: float, clock: int, **fields: Any) -> None:
        """Record that ``kind`` happened at ``at_s`` (the clock's seconds)."""
        if self._file is not None:
            if clock >= WHOLE_STEPS and kind in _OF_STEPS and not self._samples(clock, at_s=at_s):
                return
            self._pending.append((kind, at_s, None, clock, fields))
            self._flush_if_due(at_s)

    def _flush_if_due(self, now_s: float) -> None:
        if len(self._pending) >= FLUSH_RECORDS or now_s >= self._next_flush_s:
            self._next_flush_s = now_s + FLUSH_S
            self.flush()

    def _samples(self, clock: int, *, at_s: float) -> bool:
        """Return True if this step is recorded; note in the file where the sampling changes."""
        every = sampled_every(clock)
        if every > self._every:
            self._every = every
            self._pending.append(("sampled", at_s, None, clock, {"every": every}))
        return clock // BLOCK_STEPS % every == 0

    def flush(self) -> None:
        """Write what is pending."""
        if self._file is None:
            return
        pending, self._pending = self._pending, []
        try:
            self._file.write("".join(map(self._encode, pending)))
            self._file.flush()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Write what is pending and close the file; harmless when repeated."""
        self.flush()
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                self._fail(error)

    def _encode(self, record: tuple[str, float, float | None, int, Mapping[str, Any] | None]) -> str:
        kind, at_s, duration_s, clock, fields = record
        head = f'{_line_of(kind)}"t":{at_s - self.origin_s:.6f}'
        if duration_s is not None:
            return f'{head},"d":{duration_s:.6f},"c":{clock}}}\n'
        if fields:
            return f'{head},"c":{clock},{json.dumps(fields, separators=(",", ":"))[1:]}\n'
        return f'{head},"c":{clock}}}\n'

    def _fail(self, error: OSError) -> None:
        file, self._file = self._file, None
        self._pending.clear()
        if file is not None:
            with contextlib.suppress(OSError):  # the same full disk again: it is reported below
                file.close()
        if self._on_failure is not None:
            self._on_failure(f"tracing stopped, training goes on: {error}")


def read_trace(path: Path, *, kind: str | None = None) -> Trace:
    """Read a trace file, or records of one ``kind`` alone, which is quick; leave out a last line that is cut short.

    Raises `DataError` if it is missing, empty, or not a trace of this schema version.
    """
    lines = read_text(path, "the trace").splitlines()
    try:
        header = json.loads(lines[0])
        version = header.pop("schema")
    except (IndexError, ValueError, KeyError, AttributeError, TypeError):
        raise DataError(f"{path} is not a trace: its first line is no header") from None
    if version != TRACE_SCHEMA_VERSION:
        raise DataError(f"{path} has trace schema version {version}; this Plesio reads {TRACE_SCHEMA_VERSION}")
    begins = "" if kind is None else _line_of(kind)
    chosen = [(number, line) for number, line in enumerate(lines[1:], start=2) if line.startswith(begins)]
    return Trace(header=header, records=tuple(_records(path, chosen, num_lines=len(lines))))


def _line_of(kind: str) -> str:
    return f'{{"k":"{kind}",'


def _records(path: Path, lines: list[tuple[int, str]], *, num_lines: int) -> Iterator[TraceRecord]:
    for number, line in lines:
        try:
            data = json.loads(line)
        except ValueError:
            if number == num_lines:
                return
            raise DataError(f"{path}, line {number}: not a trace record") from None
        yield TraceRecord(data.pop("k"), data.pop("t"), data.pop("d", None), data.pop("c"), data)


def split_blocked(blocked_s: Mapping[int, float]) -> dict[int, tuple[float, float]]:
    """Take one collective apart: {worker: time blocked} to {worker: (waited, communicated)}, seconds.

    The worker that arrives last does not wait, so the shortest time blocked is the communication itself and the rest
    is waiting. This needs no common clock.

    >>> split_blocked({0: 0.040, 1: 0.010})
    {0: (0.03, 0.01), 1: (0.0, 0.01)}
    """
    if not blocked_s:
        return {}
    communicate_s = min(blocked_s.values())
    return {worker: (round(span_s - communicate_s, 9), communicate_s) for worker, span_s in blocked_s.items()}
