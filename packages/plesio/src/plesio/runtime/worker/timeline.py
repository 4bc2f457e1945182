"""The spans of a worker's time, one call each, into the meter's totals and the trace; with them the utilisation."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plesio.core.clock import Clock
from plesio.core.trace import UTILISATION, TraceWriter
from plesio.runtime.worker.gauges import Gauges
from plesio.runtime.worker.meter import Meter

__all__ = ["WorkerTimeline"]


class WorkerTimeline:
    """Adds spans to the totals and writes them to the trace. Times are those of ``clock``.

    Args:
        meter: The totals.
        trace: The trace.
        clock: Tells the time.
        gauges: Measure memory and utilisation at each step; None for nothing.
    """

    __slots__ = ("_gauges", "_totals", "clock", "ended_s", "exchanged_s", "meter", "now_s", "trace")

    def __init__(self, meter: Meter, trace: TraceWriter, *, clock: Clock, gauges: Gauges | None = None) -> None:
        self.clock = clock
        self.now_s = clock.now_s
        self.meter = meter
        self.trace = trace
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
        """Record that the gradient of step ``clock`` is complete."""
        held = None if self._gauges is None else self._gauges.ready()
        if held is not None:
            self.event("memory", at_s=at_s, clock=clock, **held)

    def step(self, *, clock: int, samples: int, duration_s: float, loss: float | None, at_s: float) -> None:
        """Record a step that finished ``at_s`` seconds of training after the first one began."""
        self.meter.step(clock=clock, samples=samples, duration_s=duration_s, loss=loss, at_s=at_s)
        if self._gauges is not None:
            now_s = self.now_s()
            used = self._gauges.stepped(now_s)
            if used is not None:
                self.event(UTILISATION, at_s=now_s, clock=clock, **used)

    def leave_steps(self) -> None:
        """Begin a time without steps: the worker evaluates, saves or ends."""
        if self._gauges is not None:
            self._gauges.leave_steps()

    @contextmanager
    def beside_steps(self) -> Iterator[None]:
        """Mark what happens in this context as no step."""
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
        """Record a wait for others."""
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
        """Record an evaluation, which does not count as training time."""
        self.trace.span("evaluate", start_s=start_s, end_s=end_s, clock=clock)

    def refuse(self, clock: int, reason: str, num_returned: int = 0) -> None:
        """Record that an update of this worker was refused, and so many of its samples given back."""
        self.meter.refuse(reason, num_returned=num_returned)
        self.event("refuse", at_s=self.now_s(), clock=clock, reason=reason)

    def loss_scale(self, clock: int, scale: float) -> None:
        """Record the new scale of the loss after step ``clock``."""
        self.event("loss_scale", at_s=self.now_s(), clock=clock, scale=scale)

    def event(self, kind: str, *, at_s: float, clock: int, **fields: object) -> None:
        """Record an event."""
        self.trace.event(kind, at_s=at_s, clock=clock, **fields)
