"""The ranks of a collective exchange, in whichever world they are."""

import math
import time
from typing import Protocol

import torch
import torch.distributed as dist

__all__ = ["Gathering", "Group", "TorchGroup", "Work"]


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Return when its result is there."""
        ...

    def took_s(self) -> float:
        """Seconds from when this rank began it until its result was there; call it after `wait`."""
        ...


class Gathering(Protocol):
    """An all-gather under way."""

    def wait(self) -> list[torch.Tensor]:
        """All ranks' tensors in their order, when they are there."""
        ...


class Group(Protocol):
    """All ranks call the same operations in the same order, on tensors that are alike."""

    @property
    def rank(self) -> int:
        """This process's or thread's number."""
        ...

    @property
    def size(self) -> int:
        """Ranks in all."""
        ...

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Overwrite ``tensor`` with rank 0's."""
        ...

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Begin to overwrite ``tensor`` with the sum over the ranks."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> Gathering:
        """Begin to collect every rank's ``tensor``; it must stay as it is until they are there."""
        ...


class _TorchWork:
    """A collective of torch.distributed's, timed by whichever of its threads completes it.

    On a device the result may be there only later than it is known to come; for that the time waited counts.
    """

    def __init__(self, work: dist.Work) -> None:
        self._work = work
        self._began_s = time.perf_counter()
        self._ended_s = math.inf
        self._waited_s = math.inf
        work.get_future().then(self._end)

    def _end(self, _future: object) -> None:
        self._ended_s = time.perf_counter()

    def wait(self) -> None:
        """Return when its result is there."""
        self._work.wait()
        self._waited_s = time.perf_counter()

    def took_s(self) -> float:
        """Seconds from when this rank began it until its result was there."""
        return min(self._ended_s, self._waited_s) - self._began_s


class _TorchGathering:
    def __init__(self, work: dist.Work, parts: list[torch.Tensor]) -> None:
        self._work = work
        self._parts = parts

    def wait(self) -> list[torch.Tensor]:
        """All ranks' tensors in their order, when they are there."""
        self._work.wait()
        return self._parts


class TorchGroup:
    """The ranks of a torch.distributed process group.

    Args:
        process_group: The group.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.process_group = process_group
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Overwrite ``tensor`` with rank 0's."""
        dist.broadcast(tensor, group=self.process_group, group_src=0)

    def all_reduce(self, tensor: torch.Tensor) -> _TorchWork:
        """Begin to overwrite ``tensor`` with the sum over the ranks."""
        work = dist.all_reduce(tensor, group=self.process_group, async_op=True)
        assert work is not None, "this process is a member of the group"
        return _TorchWork(work)

    def all_gather(self, tensor: torch.Tensor) -> _TorchGathering:
        """Begin to collect every rank's ``tensor``; it must stay as it is until they are there."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        work = dist.all_gather(parts, tensor, group=self.process_group, async_op=True)
        assert work is not None, "this process is a member of the group"
        return _TorchGathering(work, parts)
