"""The time between two steps of a loop: a batch is fetched, and the session does what is due."""

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import torch.distributed as dist

from plesio.policies import Policy
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.loading import BatchSource
from plesio.runtime.worker.registered import Keeper
from plesio.runtime.worker.step_times import StepClock, StepTimes

__all__ = ["BetweenSteps"]

T = TypeVar("T")


class BetweenSteps:
    """The time between two steps: a loop fetches its next batch, and the session does what is due.

    Args:
        replica: Counts writes to parameters in this time as the session's, and has gradients after a backward pass.
        policy: Tells whether workers may have unequally many batches.
        saver: Takes the checkpoint that is due, if one is; None where the session has none.
    """

    def __init__(
        self,
        times: StepTimes,
        *,
        steps: StepClock,
        replica: Replica,
        policy: Policy,
        saver: Keeper | None,
    ) -> None:
        self._times = times
        self._steps = steps
        self._changes = replica.changes
        self.has_gradients = replica.has_gradients
        self._checkpoint = None if saver is None else partial(times.save, saver.take)
        self.policy = policy.spec
        self.unequal = not policy.synchronous and not policy.has_collectives and replica.island is None
        """True if workers may have unequally many batches, and all collectives would be among them."""

    def num_collectives(self) -> int:
        """Count the collectives of the script's group so far."""
        group = dist.group.WORLD if dist.is_initialized() else None
        return 0 if group is None else int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Begin computing: loading data is a part of the next step."""
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
