"""The ranks of a collective exchange, in whichever world they are."""

from typing import Protocol

import torch
import torch.distributed as dist

__all__ = ["Group", "TorchGroup", "Work"]


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Return when its result is there."""
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

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Begin to overwrite ``tensor`` with the sum over the ranks."""
        work: Work | None = dist.all_reduce(tensor, group=self.process_group, async_op=True)
        assert work is not None, "this process is a member of the group"
        return work
