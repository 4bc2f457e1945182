"""Stand-ins for a collective's exchange, and for its group, while the workers have yet to form one."""

from collections.abc import Sequence
from typing import NoReturn

import torch

from plesio.runtime.worker.exchange.exchange import CollectiveExchange, StepProgress
from plesio.runtime.worker.exchange.group import CutOffError

__all__ = ["AwaitedGroup", "NoGroup"]


class NoGroup(CollectiveExchange):
    """Cuts off whatever needs the others, so that it is done again in the group that is formed then.

    Args:
        size: Workers that have come to one state, and to whom an exchange has yet to be given; 0 where none have.
    """

    def __init__(self, size: int = 0) -> None:
        self._size = size

    def step(self, progress: StepProgress) -> NoReturn:
        raise CutOffError("the workers have yet to form a group")

    def shared(self) -> NoReturn:
        raise CutOffError("the workers have yet to form a group")

    def finish(self) -> NoReturn:
        raise CutOffError("the workers have yet to form a group")

    def units(self) -> list[int]:
        return [0] * self._size


class AwaitedGroup:
    """The group of a worker that has none, as one that joins: it is cut off from whatever needs the others."""

    def __init__(self, *, rack: int, rank: int = 0, size: int = 1) -> None:
        self.rack, self.rank, self.size = rack, rank, size

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> NoReturn:
        raise CutOffError("this worker has yet to join the others' group")

    def all_reduce(self, tensor: torch.Tensor) -> NoReturn:
        raise CutOffError("this worker has yet to join the others' group")

    def all_reduce_gradient(self, gradient: torch.Tensor) -> NoReturn:
        self.all_reduce(gradient)

    def all_gather(self, tensor: torch.Tensor) -> NoReturn:
        raise CutOffError("this worker has yet to join the others' group")

    def all_to_all(self, rows: torch.Tensor) -> NoReturn:
        raise CutOffError("this worker has yet to join the others' group")

    def split(self, parts: Sequence[Sequence[int]]) -> NoReturn:
        raise CutOffError("this worker has yet to join the others' group")
