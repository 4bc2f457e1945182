"""When a worker's steps begin and end: its clock, the marks that split its time, and the clock of its training.

Between two steps a loop fetches a batch, and the session does what is due. Time is split at two marks in each step: the
end of the last one (computing begins) and the moment when the gradient is complete (exchanging begins). The clock of
the training stands still where the worker does something beside its steps.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch.distributed as dist

from plesio.core.clock import TrainingClock
from plesio.policies import Policy
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.loading import BatchSource
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worker.registered import Keeper
from plesio.runtime.worker.rounds import RoundRecords

T = TypeVar("T")

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
        self._timeline, self._pacer = timeline, pacer
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


class BetweenSteps:
    """The time between two steps: a loop fetches its next batch, and the session does what is due.

    Args:
        replica: Counts writes to parameters in this time as the session's, and has gradients after a backward pass.
    """

    def __init__(
        self, times: StepTimes, *, steps: StepClock, replica: Replica, policy: Policy, saver: Keeper | None
    ) -> None:
        self._times, self._steps = times, steps
        self._changes = replica.changes
        self.has_gradients = replica.has_gradients
        self.look_at_others = replica.stepper.look_at_others
        self._checkpoint = None if saver is None else partial(times.save, saver.take)
        self.policy = policy.spec
        self.unequal = not policy.synchronous and not policy.has_collectives and replica.island is None
        """True if workers may have unequally many batches, and all collectives would be among them."""

    def num_collectives(self) -> int:
        """Count the collectives of the script's group so far."""
        group = dist.group.WORLD if dist.is_initialized() else None
        return 0 if group is None else int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]

    def begin(self) -> None:
        self._times.begin()

    def fetch(self, batches: Iterator[T], *, source: BatchSource | None = None) -> T | None:
        """Take the checkpoint that is due, if one is, and return the next batch; None after the last one."""
        self._times.begin()
        with self._changes:
            # where samples are dealt anew, another loader begins first, and draws a random number
            if self._checkpoint is not None and (source is None or not source.redealt):
                self._checkpoint()
            return next(batches, None)

    def save(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint()

    def waited(self, begun_s: float, ended_s: float) -> None:
        self._times.waited(begun_s, ended_s, clock=self._steps.finished)
