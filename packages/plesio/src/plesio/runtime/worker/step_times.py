"""When a worker's steps begin and end: its clock, the marks that split its time, and the clock of its training.

Time is split at two marks in every step: the end of the last one (computing begins) and the moment the gradient is
complete (exchanging begins). The training clock stands still where the worker does something beside its steps.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator

from plesio.core.clock import TrainingClock
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worker.rounds import RoundRecords

__all__ = ["StepClock", "StepTimes"]

_log = logging.getLogger(__name__)


class StepClock:
    """A worker's clock: the steps that it has finished, or the place in the run from which it was let go on.

    All parts of a worker read it; its session moves it at the end of a step, and when it is admitted.

    >>> clock = StepClock()
    >>> clock.go_on_from(7)
    >>> clock.finish(clock.finished + 1)
    >>> clock.finished
    8
    """

    __slots__ = ("finished",)

    def __init__(self) -> None:
        self.finished = 0
        """The last step that is finished; only the clock's methods move it."""

    def finish(self, clock: int) -> None:
        assert clock == self.finished + 1, f"step {clock} follows step {self.finished}"
        self.finished = clock

    def go_on_from(self, clock: int) -> None:
        """Go on at ``clock``: the worker is admitted, or all go on together."""
        self.finished = clock


class StepTimes:
    """Measures the steps of one worker's session."""

    def __init__(self, timeline: WorkerTimeline, *, pacer: Pacer | None, already_s: float) -> None:
        self._timeline = timeline
        self._pacer = pacer
        self._now_s = timeline.now_s
        self._training = TrainingClock(timeline.clock, already_s=already_s)
        self._marked_s: float | None = None
        self._began_s = self._entered_s = self._exchanged_s = self._computed_s = 0.0

    @property
    def elapsed_s(self) -> float:
        return self._training.elapsed_s()

    def begin(self) -> None:
        """Begin computing, unless it has begun since the last step."""
        if self._marked_s is None:
            self._training.start()
            self._marked_s = self._now_s()

    def waited(self, begun_s: float, ended_s: float, *, clock: int) -> None:
        """Record a wait for samples; the work until then is in the records: its last step, for one."""
        self._timeline.wait(max(begun_s, self._timeline.ended_s), ended_s, clock=clock)
        self._marked_s = ended_s

    def computed(self, clock: int, *, ready_s: float | None, rounds: RoundRecords) -> None:
        """Record that the gradient of step ``clock`` is complete; the exchange may have it since ``ready_s``."""
        if self._marked_s is None:
            self.begin()
        timeline, entered_s = self._timeline, self._now_s()
        self._began_s = began_s = entered_s if self._marked_s is None else self._marked_s
        ready_s = max(began_s, ready_s or entered_s)
        timeline.ready(entered_s, clock=clock)
        timeline.compute(began_s, ready_s, clock=clock)
        if ready_s < entered_s:
            timeline.blocked(ready_s, entered_s, clock=clock)
        if self._pacer is not None:
            self._pacer.pace(clock, started_s=began_s + (entered_s - ready_s), relative_size=rounds.relative_size)
            timeline.compute(entered_s, self._now_s(), clock=clock)
        self._computed_s = (ready_s - began_s) + (self._now_s() - entered_s)
        self._entered_s, self._exchanged_s = self._now_s(), timeline.exchanged_s

    def repeat(self) -> None:
        """Begin computing again: the step does not count."""
        self._timeline.meter.lose(self._computed_s)
        self._marked_s = self._now_s()

    def save(self, take: Callable[[], bool]) -> None:
        """Take the checkpoint that is due, if one is, and record how long that took."""
        begun_s = self._now_s()
        if take():
            self._timeline.meter.saved(self._now_s() - begun_s)

    def stepped(self, clock: int, *, samples: int, loss: float | None) -> None:
        timeline, ended_s = self._timeline, self._now_s()
        # the optimizer's step and the packing of tensors: all of the exchange that was neither waiting nor transfer
        timeline.worked((ended_s - self._entered_s) - (timeline.exchanged_s - self._exchanged_s))
        self._marked_s, duration_s = ended_s, ended_s - self._began_s
        _log.debug("a step of %d samples took %.6f s", samples, duration_s)
        timeline.step(clock=clock, samples=samples, duration_s=duration_s, loss=loss, at_s=self._training.elapsed_s())

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self._training.pause()
        try:
            with self._timeline.beside_steps():
                yield
        finally:
            self._training.resume()
            self._marked_s = None if self._marked_s is None else self._now_s()

    def leave(self) -> None:
        self._timeline.leave_steps()
        if self._training.elapsed_s() > 0:
            self._training.pause()
