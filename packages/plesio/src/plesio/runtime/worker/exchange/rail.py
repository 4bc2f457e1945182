"""The ranks of one number in all islands: their sums, for which the ranks of an island wait together."""

from collections.abc import Callable
from typing import TypeVar

import torch

from plesio.runtime.worker.exchange.group import Group, Work
from plesio.runtime.worker.island import Island

__all__ = ["Rail", "together"]

T = TypeVar("T")


def together(island: Island | None, wait: Callable[[], T]) -> T:
    """Return what ``wait`` returns of other workers: on all ranks of an island, or on none (`Island.together`)."""
    return wait() if island is None else island.together(wait)


class Rail:
    """A group of ranks of different islands.

    Args:
        group: The ranks.
        island: This rank's.
    """

    def __init__(self, group: Group, island: Island) -> None:
        self._group, self._island = group, island
        self.rank, self.size = group.rank, group.size

    def all_reduce(self, tensor: torch.Tensor) -> "_Awaited":
        """Begin to overwrite ``tensor`` with the sum over the ranks."""
        return _Awaited(self._group.all_reduce(tensor), self._island)


class _Awaited:
    def __init__(self, work: Work, island: Island) -> None:
        self._work, self._island = work, island
        self.took_s = work.took_s

    def wait(self) -> object:
        return self._island.together(self._work.wait)
