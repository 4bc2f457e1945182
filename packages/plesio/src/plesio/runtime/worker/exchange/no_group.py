"""Stand-ins for a collective's exchange, and for its group, while the workers have yet to form one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import torch

from plesio.runtime.worker.exchange.exchange import HeldSteps, SharedState, StepProgress
from plesio.runtime.worker.exchange.group import CutOffError

__all__ = ["AwaitedGroup", "NoGroup"]


class NoGroup:
    """Cuts off whatever needs the others, so that it is done again in the group that is formed then.

    Args:
        size: Workers that have come to one state, and to whom an exchange has yet to be given; 0 where none have.
    """

    ready_s: float | None = None

    def __init__(self, size: int = 0) -> None:
        self._size = size

    def step(self, progress: StepProgress) -> NoReturn:
        """Refuse: there is no worker to exchange with yet."""
        raise CutOffError("the workers have yet to form a group")

    def shared(self) -> NoReturn:
        """Refuse, like `step`."""
        raise CutOffError("the workers have yet to form a group")

    def finish(self) -> NoReturn:
        """Refuse, like `step`."""
        raise CutOffError("the workers have yet to form a group")

    def settle(self) -> NoReturn:
        """Refuse, like `step`."""
        raise CutOffError("the workers have yet to form a group")

    def held_steps(self) -> HeldSteps | None:
        """Return None: it has made no step."""
        return None

    def units(self) -> list[int]:
        """Return one unit for all ranks."""
        return [0] * self._size

    def count_as(self, share: float) -> None:
        """Do nothing."""

    def accumulating(self) -> AbstractContextManager[None]:
        """Do nothing: gradients stay on the worker."""
        return nullcontext()

    def admitted_at(self, clock: int) -> None:
        """Do nothing: the worker never rests."""

    def snapshots(self) -> list[SharedState]:
        """Return none: no snapshots were taken."""
        return []

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


class AwaitedGroup:
    """The group of a worker that joins: it is alone in it.

    Args:
        rack: The worker's rack.
    """

    rank, size = 0, 1

    def __init__(self, *, rack: int) -> None:
        self.rack = rack

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> NoReturn:
        """Refuse: there is no other worker yet."""
        raise CutOffError("this worker has yet to join the others' group")

    def all_reduce(self, tensor: torch.Tensor) -> NoReturn:
        """Refuse, like `broadcast`."""
        raise CutOffError("this worker has yet to join the others' group")

    def all_gather(self, tensor: torch.Tensor) -> NoReturn:
        """Refuse, like `broadcast`."""
        raise CutOffError("this worker has yet to join the others' group")

    def all_to_all(self, rows: torch.Tensor) -> NoReturn:
        """Refuse, like `broadcast`."""
        raise CutOffError("this worker has yet to join the others' group")

    def split(self, parts: Sequence[Sequence[int]]) -> NoReturn:
        """Refuse, like `broadcast`."""
        raise CutOffError("this worker has yet to join the others' group")
