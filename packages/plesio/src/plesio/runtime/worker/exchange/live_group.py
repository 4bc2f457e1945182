"""The workers that meet in collectives now: a group that another one takes the place of when one of them is lost."""

from collections.abc import Sequence

import torch

from plesio.runtime.worker.exchange.group import Gathering, Group, Work

__all__ = ["LiveGroup"]


class LiveGroup:
    """Does what the present group does. An exchange is built on `current`, and built anew when that changes.

    Args:
        first: The group that the run begins with.
        workers: Its members, by rank in it.
    """

    def __init__(self, first: Group, workers: Sequence[int]) -> None:
        self.current = first
        self.workers = tuple(workers)

    def become(self, group: Group, workers: Sequence[int]) -> None:
        """Change to these workers from now on."""
        self.current, self.workers = group, tuple(workers)

    @property
    def worker(self) -> int:
        """This one's number in the run, whatever its rank here is."""
        return self.workers[self.current.rank]

    @property
    def rank(self) -> int:
        """This worker's place among those that are there."""
        return self.current.rank

    @property
    def size(self) -> int:
        """Workers that are there."""
        return self.current.size

    @property
    def rack(self) -> int:
        """The place of this worker."""
        return self.current.rack

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        """Overwrite ``tensor`` with the source's."""
        self.current.broadcast(tensor, source=source)

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Begin to overwrite ``tensor`` with the sum over the ranks."""
        return self.current.all_reduce(tensor)

    def all_gather(self, tensor: torch.Tensor) -> Gathering:
        """Begin to collect every rank's ``tensor``."""
        return self.current.all_gather(tensor)

    def all_to_all(self, rows: torch.Tensor) -> Gathering:
        """Begin to send row r of ``rows`` to rank r."""
        return self.current.all_to_all(rows)

    def split(self, parts: Sequence[Sequence[int]]) -> Group | None:
        """Return this worker's part of the present group."""
        return self.current.split(parts)
