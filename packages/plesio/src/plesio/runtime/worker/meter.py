"""A worker's own records: what it sends to the server, which adds them up (`plesio.runtime.coordinator.ledger`).

The `WorkerTimeline` takes the spans of a worker's time, one call each, into the totals of its `Meter` and the trace.
"""

import logging
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from msgspec import UNSET, UnsetType

from plesio.core.clock import Clock
from plesio.core.errors import ConfigError
from plesio.core.trace import UTILISATION, TraceWriter
from plesio.protocol.figures import Alike, Report, Within
from plesio.runtime.worker.callbacks import Callbacks
from plesio.runtime.worker.gauges import Gauges


class History:
    """The lists of all reports so far, in 40 bytes a step, kept in case the server is lost and its records with it."""

    def __init__(self) -> None:
        self._losses: tuple[array[Any], ...] = (array("q"), array("d"), array("d"))
        self._blocked: tuple[array[Any], ...] = (array("q"), array("d"))

    def add(self, report: Report) -> None:
        for columns, rows in ((self._losses, report.losses), (self._blocked, report.blocked)):
            for column, values in zip(columns, zip(*rows, strict=True), strict=False):
                column.extend(values)

    def complete(self, report: Report) -> None:
        report.losses = list(zip(*self._losses, strict=True))
        report.blocked = list(zip(*self._blocked, strict=True))


_log = logging.getLogger(__name__)

_TOTALS = (
    "clock",
    "steps",
    "samples",
    "elapsed_s",
    "compute_s",
    "wait_s",
    "communicate_s",
    "peak_memory_bytes",
    "lost_s",
    "checkpoint_s",
    "restart_s",
)


MOST_NEWS = 4096
"""Losses and collectives that are kept until they are taken."""
FIRST_LOSSES = 3
"""By which the server sees whether all workers draw the same batches."""


class Meter:
    """A worker's own records; the training thread writes, it and the heartbeat thread take what is new.

    Lists are handed over by swapping them, so only takers need a lock.

    Args:
        bytes_sent: Tells the bytes sent so far, by class of link.
        memory_bytes: The worker's configured need, where nothing measures it.
        history: Keeps what was taken, if this worker may have to report all of it again.
    """

    RECENT = 20

    def __init__(
        self,
        *,
        bytes_sent: Callable[[], dict[str, int]] = dict,
        memory_bytes: int = 0,
        gauges: Gauges | None = None,
        history: History | None = None,
        callbacks: Callbacks | None = None,
        says: bool = True,
    ) -> None:
        self.totals = Report()
        self._says = says
        self.callbacks = Callbacks() if callbacks is None else callbacks
        self._bytes_sent, self._memory_bytes, self._gauges = bytes_sent, memory_bytes, gauges
        self._recent: list[float] = []
        self._hand_on: Callable[[Report], None] | None = None
        self.latest: tuple[int, float, float] | None = None
        """Clock, seconds of training and loss of the latest step that had one."""
        self._history = history
        self._taking = threading.RLock()

    def step(self, *, clock: int, samples: int, duration_s: float, loss: float | None, at_s: float) -> None:
        totals = self.totals
        totals.clock = clock
        totals.steps += 1
        totals.samples += samples
        totals.elapsed_s = at_s
        if loss is not None:
            self.latest = clock, at_s, loss
            totals.losses.append(self.latest)
        if totals.steps > 1:  # the first loads and compiles what all others need
            self._recent.append(duration_s)
        if len(self._recent) > self.RECENT:
            del self._recent[0]
        if self._hand_on is not None and len(totals.losses) + len(totals.blocked) >= MOST_NEWS:
            self._hand_on(self.take())

    @contextmanager
    def within(self, place: Within | UnsetType) -> Iterator[None]:
        """Mark the place at which this worker waits for the others, for its heartbeats."""
        before, self.totals.within = self.totals.within, place
        try:
            yield
        finally:
            self.totals.within = UNSET if place == "forward" else before

    def drew(self, loss: float) -> None:
        """Record the loss of a step on a batch that the worker drew by itself, and was not dealt."""
        if len(self.totals.own_losses) < FIRST_LOSSES:
            self.totals.own_losses.append(loss)

    def has_alike(self, kind: Alike, number: int, values: list[float]) -> None:
        """Tell values that all workers must have alike at this place of their program."""
        self.totals.alike = [*(self.totals.alike or []), (kind, number, values)]

    def mean_step_s(self) -> float:
        return self.totals.elapsed_s / max(1, self.totals.steps)

    def measured_by(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def hand_on(self, to: Callable[[Report], None]) -> None:
        """Have ``to`` take what is new whenever there is much of it, where no heartbeat does."""
        self._hand_on = to

    def warn(self, line: str, *, aloud: bool = True) -> None:
        """Tell the user once, among the result's ``fallbacks`` and ``aloud`` in the log, what is not as scripts ask."""
        if line not in self.totals.fallbacks:
            if self._says and aloud:
                _log.warning(line)
            self.totals.fallbacks.append(line)

    def refuse(self, reason: str, *, num_returned: int = 0) -> None:
        """Count a refused update of this worker; samples that are given back are not trained on."""
        totals = self.totals
        num_steps = max(1.0, num_returned * totals.steps / max(1, totals.samples))
        self.lose(num_steps * totals.compute_s / max(1, totals.steps))
        totals.samples -= num_returned
        if reason == "not_finite" and reason not in totals.refused and self._says:
            _log.warning("a gradient is not finite, so its step trains nothing; the result counts such steps")
        totals.refused[reason] = totals.refused.get(reason, 0) + 1

    def lose(self, computed_s: float) -> None:
        """Count computing that came to nothing."""
        self.totals.lost_s = (self.totals.lost_s or 0.0) + computed_s

    def saved(self, duration_s: float) -> None:
        """Count computing that copied what a checkpoint has."""
        self.totals.checkpoint_s = (self.totals.checkpoint_s or 0.0) + duration_s

    def go_on_from(self, report: Report, *, after_s: float = 0.0) -> None:
        """Go on from the figures of a checkpoint, ``after_s`` seconds after it was taken."""
        sent = self._bytes_sent
        for name in _TOTALS:
            setattr(self.totals, name, getattr(report, name))
        self._bytes_sent = lambda: dict(Counter(report.bytes_sent) + Counter(sent()))
        self.totals.refused = dict(report.refused)
        if after_s > 0:
            self.totals.restart_s = (self.totals.restart_s or 0.0) + after_s

    def so_far(self) -> Report:
        report = Report(**{name: getattr(self.totals, name) for name in _TOTALS})
        report.bytes_sent, report.refused = self._bytes_sent(), dict(self.totals.refused)
        return report

    def take(self) -> Report:
        """Return the totals, with the lists' news since the last call."""
        with self._taking:
            return self._take()

    def _take(self) -> Report:
        totals = self.totals
        losses, totals.losses = totals.losses, []
        blocked, totals.blocked = totals.blocked, []
        recent = sorted(self._recent)
        totals.recent_step_s = recent[(len(recent) - 1) // 2] if recent else 0.0
        memory_bytes = self._memory_bytes if self._gauges is None else self._gauges.resident_peak_bytes()
        totals.peak_memory_bytes = max(totals.peak_memory_bytes, memory_bytes)
        report = Report(**{name: getattr(totals, name) for name in Report.__slots__})
        report.losses, report.blocked = losses, blocked
        totals.alike = UNSET
        report.bytes_sent, report.refused = self._bytes_sent(), dict(totals.refused)
        self._gauge(report)
        if self._history is not None:
            self._history.add(report)
        return report

    def whole(self) -> Report:
        """Return the totals, with all that the lists have ever had; with a history only."""
        assert self._history is not None
        self.take()
        report = self.so_far()
        report.fallbacks = list(self.totals.fallbacks)
        self._gauge(report)
        self._history.complete(report)
        return report

    def _gauge(self, report: Report) -> None:
        if self._gauges is not None:
            memory = self._gauges.split()
            if memory is not None:
                report.memory = memory
                if memory.device == "cpu":
                    report.peak_memory_bytes = memory.peak_bytes  # it may have grown since it was read
            report.utilisation = self._gauges.utilisation() or UNSET


class WorkerTimeline:
    """Adds spans to the totals and writes them to the trace. Times are those of ``clock``."""

    __slots__ = ("_gauges", "_totals", "clock", "ended_s", "exchanged_s", "meter", "now_s", "trace")

    def __init__(self, meter: Meter, trace: TraceWriter, *, clock: Clock, gauges: Gauges | None = None) -> None:
        self.clock = clock
        self.now_s = clock.now_s
        self.meter, self.trace = meter, trace
        self.exchanged_s = 0.0
        """Seconds of waiting, communicating and being blocked so far."""
        self.ended_s = 0.0
        """End of the last of these."""
        self._totals = meter.totals
        self._gauges = gauges

    @classmethod
    def of(
        cls, meter: Meter, folder: Path | None, *, worker: int, policy: str, clock: Clock, gauges: Gauges | None = None
    ) -> "WorkerTimeline":
        """Make a worker's, with a trace in the folder if there is one; if that cannot be written, without."""
        path = None if folder is None else folder / f"trace-{worker}.jsonl"
        header = {"worker": worker, "policy": policy}
        trace = TraceWriter(path, header=header, on_failure=meter.warn, clock=clock)
        return cls(meter, trace, clock=clock, gauges=gauges)

    def measured_by(self, gauges: Gauges) -> None:
        """Measure each step by ``gauges`` from here on, where what they measure was not there at the beginning."""
        self._gauges = gauges
        self.meter.measured_by(gauges)

    def ready(self, at_s: float, *, clock: int) -> None:
        held = None if self._gauges is None else self._gauges.ready()
        if held is not None:
            self.event("memory", at_s=at_s, clock=clock, **held)

    def step(self, *, clock: int, samples: int, duration_s: float, loss: float | None, at_s: float) -> None:
        """Record a step that finished ``at_s`` seconds of training after the first one began."""
        self.meter.step(clock=clock, samples=samples, duration_s=duration_s, loss=loss, at_s=at_s)
        if self._gauges is not None:
            now_s = self.now_s()
            used = self._gauges.finished(now_s)
            if used is not None:
                self.event(UTILISATION, at_s=now_s, clock=clock, **used)

    def leave_steps(self) -> None:
        """Begin a time without steps: the worker evaluates, saves or ends."""
        if self._gauges is not None:
            self._gauges.leave_steps()

    @contextmanager
    def beside_steps(self) -> Iterator[None]:
        self.leave_steps()
        try:
            yield
        finally:
            if self._gauges is not None:
                self._gauges.return_to_steps()

    def compute(self, start_s: float, end_s: float, *, clock: int) -> None:
        """Record computing (loading data, forward, backward, optimizer)."""
        self._totals.compute_s += end_s - start_s
        self.trace.span("compute", start_s=start_s, end_s=end_s, clock=clock)

    def worked(self, duration_s: float) -> None:
        """Add computing inside an exchange, in pieces too short for spans of their own."""
        self._totals.compute_s += duration_s

    def wait(self, start_s: float, end_s: float, *, clock: int) -> None:
        self._totals.wait_s += end_s - start_s
        self.exchanged_s += end_s - start_s
        self.ended_s = end_s
        self.trace.span("wait", start_s=start_s, end_s=end_s, clock=clock)

    def communicate(self, start_s: float, end_s: float, *, clock: int) -> None:
        """Record a transfer during which the worker's step waited."""
        self._totals.communicate_s += end_s - start_s
        self.exchanged_s += end_s - start_s
        self.ended_s = end_s
        self.trace.span("communicate", start_s=start_s, end_s=end_s, clock=clock)

    def blocked(self, start_s: float, end_s: float, *, clock: int) -> None:
        """Record time inside a collective: waiting and communicating, to be parted when all have reported."""
        self._totals.blocked.append((clock, end_s - start_s))
        self.exchanged_s += end_s - start_s
        self.ended_s = end_s
        self.trace.span("blocked", start_s=start_s, end_s=end_s, clock=clock)

    def evaluate(self, start_s: float, end_s: float, *, clock: int) -> None:
        self.trace.span("evaluate", start_s=start_s, end_s=end_s, clock=clock)

    def refuse(self, clock: int, reason: str, num_returned: int = 0) -> None:
        self.meter.refuse(reason, num_returned=num_returned)
        self.event("refuse", at_s=self.now_s(), clock=clock, reason=reason)

    def loss_scale(self, clock: int, scale: float) -> None:
        self.event("loss_scale", at_s=self.now_s(), clock=clock, scale=scale)

    def event(self, kind: str, *, at_s: float, clock: int, **fields: object) -> None:
        self.trace.event(kind, at_s=at_s, clock=clock, **fields)


def number_of(value: Any, *, call: str, what: str) -> float:
    """Return the value as a float: a number, or a tensor with one; ConfigError if it is neither."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, float | Real):  # numpy's numbers are, too; a float is found at once
        return float(value)
    kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:60]
    raise ConfigError(f"{call}(...): {what} is {kind}; a single number is needed, as a number or a tensor with one")
