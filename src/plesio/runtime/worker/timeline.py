"""Where a worker's time goes: one call per span, into the meter's totals and the trace."""

from plesio.core.clock import Clock
from plesio.core.trace import TraceWriter
from plesio.runtime.worker.meter import Meter

__all__ = ["Timeline"]


class Timeline:
    """Adds spans to the totals and writes them to the trace. Times are those of ``clock``."""

    __slots__ = ("_totals", "clock", "ended_s", "exchanged_s", "meter", "now_s", "trace")

    def __init__(self, meter: Meter, trace: TraceWriter, *, clock: Clock) -> None:
        self.clock = clock
        self.now_s = clock.now_s
        self.meter = meter
        self.trace = trace
        self.exchanged_s = 0.0
        """Seconds of waiting, communicating and being blocked so far."""
        self.ended_s = 0.0
        """End of the last of these."""
        self._totals = meter.totals

    def compute(self, start_s: float, end_s: float, *, clock: int) -> None:
        """The worker computed (loading data, forward, backward, optimizer)."""
        self._totals.compute_s += end_s - start_s
        self.trace.span("compute", start_s=start_s, end_s=end_s, clock=clock)

    def worked(self, duration_s: float) -> None:
        """The worker computed inside its exchange, in pieces too short for spans of their own."""
        self._totals.compute_s += duration_s

    def wait(self, start_s: float, end_s: float, *, clock: int) -> None:
        """The worker waited for others."""
        self._totals.wait_s += end_s - start_s
        self.exchanged_s += end_s - start_s
        self.ended_s = end_s
        self.trace.span("wait", start_s=start_s, end_s=end_s, clock=clock)

    def communicate(self, start_s: float, end_s: float, *, clock: int) -> None:
        """The worker's step stood still for a transfer."""
        self._totals.communicate_s += end_s - start_s
        self.exchanged_s += end_s - start_s
        self.ended_s = end_s
        self.trace.span("communicate", start_s=start_s, end_s=end_s, clock=clock)

    def blocked(self, start_s: float, end_s: float, *, clock: int) -> None:
        """The worker was inside a collective: waiting and communicating, to be told apart when all have reported."""
        self._totals.blocked.append((clock, end_s - start_s))
        self.exchanged_s += end_s - start_s
        self.ended_s = end_s
        self.trace.span("blocked", start_s=start_s, end_s=end_s, clock=clock)

    def evaluate(self, start_s: float, end_s: float, *, clock: int) -> None:
        """The worker evaluated; training time stood still."""
        self.trace.span("evaluate", start_s=start_s, end_s=end_s, clock=clock)

    def refuse(self, clock: int, reason: str) -> None:
        """An update of this worker's was refused."""
        self.meter.refuse(reason)
        self.event("refuse", at_s=self.now_s(), clock=clock, reason=reason)

    def loss_scale(self, clock: int, scale: float) -> None:
        """What the loss is scaled by after step ``clock``, other than before."""
        self.event("loss_scale", at_s=self.now_s(), clock=clock, scale=scale)

    def event(self, kind: str, *, at_s: float, clock: int, **fields: object) -> None:
        """Something happened."""
        self.trace.event(kind, at_s=at_s, clock=clock, **fields)
