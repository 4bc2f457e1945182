"""The interface of an exchange, by which a session steps, evaluates and ends."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, Protocol

import torch

from plesio.runtime.worker.exchange.group import CutOffError, Group
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.meter import WorkerTimeline


class StepProgress(NamedTuple):
    """How far training is when a step ends.

    Attributes:
        global_samples: Samples of all workers so far, where that is known without asking (collectives); else None.
    """

    clock: int
    samples: int
    global_samples: int | None
    loss: float | None
    at_s: float


@dataclass(frozen=True, slots=True)
class SharedState:
    """The shared parameters after ``samples`` samples and ``at_s`` seconds of training."""

    samples: int
    at_s: float
    state: State


class HeldSteps(NamedTuple):
    """Which steps a replica holds, by their clocks.

    Attributes:
        settled: Up to which it holds what all workers have done.
        counted: Up to which it holds what this worker has done.
    """

    settled: int
    counted: int


class Exchange:
    """How one worker shares its updates; here nothing is held back. Every method is called from the training thread.

    An exchange owns the optimizer step: when `step` returns, the replica is ready for the next forward pass and the
    gradients are cleared.
    """

    @property
    def ready_s(self) -> float | None:
        """When this step's own gradient was complete, if it is being exchanged since then; else None."""
        return None

    def step(self, progress: StepProgress) -> None:
        raise NotImplementedError

    def average(self, clock: int) -> None:
        """Average the gradients of step ``clock`` now, if DDP does, for the script to see; the step does it again."""

    def accumulating(self) -> AbstractContextManager[None]:
        """Let backward passes in this context only add to the gradient."""
        return nullcontext()

    def admitted_at(self, clock: int) -> None:
        """Take part again from ``clock`` on, after a rest; in a collective no worker rests."""

    def shared(self) -> State | None:
        """Return the shared parameters now, on the worker that evaluates; None on the others. All workers call it.

        After `finish` it is called when all have finished, and nothing is made again.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Contribute what is still held back. All workers call it after the same step."""

    def snapshots(self) -> list[SharedState]:
        """Return the snapshots taken since the last call, on the worker that evaluates."""
        return []

    def close(self) -> None:
        """Let go of the model: hooks, buffers, handles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One rank's part in a collective, of which all exchanges there are built.

    Attributes:
        replica: Equal on all ranks when an exchange is built.
        snapshots: Kept on rank 0.
        gauge: Shown this rank's own gradients, and weighs them; None for a policy that never adapts.
        ranks: The group's among those whose shares the gauge knows; None for all of them.
    """

    replica: Replica
    group: Group
    timeline: WorkerTimeline
    snapshots: "SnapshotTaker"
    gauge: "Gauge | None" = None
    ranks: Sequence[int] | None = None


class CollectiveExchange(Exchange):
    """An exchange that another one can follow in the middle of a run: `finish` makes all replicas their mean."""

    def count_as(self, share: float) -> None:
        """Set the weight of this rank's parameters in a mean of parameters, relative to an equal share.

        All ranks call it between steps, after the same one.
        """

    def settle(self) -> None:
        """Make all replicas equal, and equal to their mean. All workers call it after the same step."""
        self.finish()

    def held_steps(self) -> HeldSteps | None:
        """Return the steps that the replica holds; None if it has made none by this exchange."""
        return None

    def units(self) -> list[int]:
        """Return a number for each rank, shared by the ranks whose replicas are equal after every step."""
        raise NotImplementedError


class NoGroup(CollectiveExchange):
    """Cuts off whatever needs the others, so that it is done again in the group that is formed then.

    Args:
        size: Workers that have come to one state, and to whom an exchange has yet to be given; 0 where none have.
    """

    def __init__(self, size: int = 0) -> None:
        self._size = size

    def step(self, progress: object = None) -> NoReturn:
        raise CutOffError("the workers have yet to form a group")

    shared = finish = step

    def units(self) -> list[int]:
        return [0] * self._size


class LocalExchange(Exchange):
    """An exchange of one worker alone: an ordinary single-process run."""

    def __init__(self, replica: Replica, *, timeline: WorkerTimeline, snapshots: "SnapshotTaker") -> None:
        self._replica, self._timeline, self._snapshots = replica, timeline, snapshots
        self._after_step: Callable[[StepProgress], None] = lambda progress: None

    def after_step(self, look: Callable[[StepProgress], None]) -> None:
        self._after_step = look

    def step(self, progress: StepProgress) -> None:
        if self._replica.gradients_finite():
            self._replica.stepper.step()
        else:
            self._timeline.refuse(progress.clock, self._replica.refusal(progress.loss))
        self._replica.optimizer.zero_grad(set_to_none=True)
        self._snapshots.offer(progress.global_samples, at_s=progress.at_s, state=self._replica.state)
        self._after_step(progress)

    def shared(self) -> State | None:
        return self._replica.state()

    def snapshots(self) -> list[SharedState]:
        return self._snapshots.take()


class Gauge(Protocol):
    """Looks at a worker's own gradients before they are exchanged, where the policy adapts to what it sees."""

    def weight(self, ranks: Sequence[int] | None) -> float:
        """Return the factor of this rank's gradient before the mean over some of the ranks, or all, is taken."""
        ...

    def measure(self, parts: Sequence[torch.Tensor], *, scale: float = 1.0) -> bool:
        """Measure some or all of the gradient, times ``scale``, of the step under way; returns whether it is finite.

        They are always the same parts in the same order. An extraordinary gradient is scaled down in place.
        """
        ...

    def exchanged(self, clock: int, *, took_s: float) -> None:
        """Record how long the exchange that this rank began after step ``clock`` took until it was complete."""
        ...


class SnapshotTaker:
    """Keeps copies of the state whenever the number of samples passes a multiple of ``every`` (None: never).

    Every worker computes from the samples of all when one is due.
    """

    def __init__(self, every: int | None, *, keeps: bool = True) -> None:
        self._every, self._keeps = every, keeps
        self._passed = 0
        self._taken: list[SharedState] = []

    def due(self, samples: int | None) -> bool:
        return self._every is not None and samples is not None and samples // self._every > self._passed

    def offer(self, samples: int | None, *, at_s: float, state: Callable[[], State]) -> None:
        """Take a snapshot if one is due; ``state`` is called on the worker that keeps them."""
        if self._every is not None and samples is not None and self.due(samples):
            self.passed(samples)
            if self._keeps:
                self._taken.append(SharedState(samples, at_s, state()))

    def passed(self, samples: int) -> None:
        """Skip the snapshots up to here, which others have taken."""
        if self._every is not None:
            self._passed = samples // self._every

    def take_over(self, samples: int) -> None:
        if not self._keeps:
            self._keeps = True
            self.passed(samples)

    def take(self) -> list[SharedState]:
        taken, self._taken = self._taken, []
        return taken
