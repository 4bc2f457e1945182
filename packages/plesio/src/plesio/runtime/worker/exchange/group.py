"""The ranks of a collective exchange, in whichever world they are."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

__all__ = ["CutOffError", "Gathering", "Group", "TorchGroup", "Work"]

SPLIT_TIMEOUT = timedelta(seconds=10)
"""How long ranks wait for each other when they make parts of their group: one may be lost meanwhile."""


class CutOffError(RuntimeError):
    """The workers' group is no more."""


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Return when its result is there."""
        ...

    def took_s(self) -> float:
        """Return the seconds from when this rank began it until its result was there; call it after `wait`."""
        ...


class Gathering(Protocol):
    """An all-gather or all-to-all under way."""

    def wait(self) -> list[torch.Tensor]:
        """Wait for all ranks' tensors, and return them in their order."""
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

    @property
    def rack(self) -> int:
        """Number of the place of this rank: equal on ranks whose ways to each other are short."""
        ...

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        """Overwrite ``tensor`` with the source's."""
        ...

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Begin to overwrite ``tensor`` with the sum over the ranks."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> Gathering:
        """Begin to collect every rank's ``tensor``; it must stay as it is until they are there."""
        ...

    def all_to_all(self, rows: torch.Tensor) -> Gathering:
        """Begin to send row r of ``rows`` to rank r; collects every rank's row for this one."""
        ...

    def split(self, parts: Sequence[Sequence[int]]) -> "Group | None":
        """Split a job's group into groups of some ranks each, whose collectives run side by side.

        Args:
            parts: Ranks in ascending order, no rank twice.

        Returns:
            The group that this rank is in, the same for the same parts; None if it is in none.
        """
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
        """Return the seconds from when this rank began it until its result was there."""
        return min(self._ended_s, self._waited_s) - self._began_s


class _TorchGathering:
    def __init__(self, work: dist.Work, parts: list[torch.Tensor]) -> None:
        self._work = work
        self._parts = parts

    def wait(self) -> list[torch.Tensor]:
        """Wait for all ranks' tensors, and return them in their order."""
        self._work.wait()
        return self._parts


class TorchGroup:
    """The ranks of a torch.distributed process group.

    Args:
        process_group: The group.
        rack: Where this process is.
        connecting: A context in which connections of further groups are opened.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        *,
        rack: int = 0,
        connecting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.process_group = process_group
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)
        self.rack = rack
        self._connecting = connecting
        self._aborted = False
        self._parts: dict[tuple[tuple[int, ...], ...], TorchGroup | None] = {}

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        """Overwrite ``tensor`` with the source's."""
        self._enter()
        dist.broadcast(tensor, group=self.process_group, group_src=source)

    def all_reduce(self, tensor: torch.Tensor) -> _TorchWork:
        """Begin to overwrite ``tensor`` with the sum over the ranks."""
        self._enter()
        work = dist.all_reduce(tensor, group=self.process_group, async_op=True)
        assert work is not None, "this process is a member of the group"
        return _TorchWork(work)

    def all_gather(self, tensor: torch.Tensor) -> _TorchGathering:
        """Begin to collect every rank's ``tensor``; it must stay as it is until they are there."""
        self._enter()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        work = dist.all_gather(parts, tensor, group=self.process_group, async_op=True)
        assert work is not None, "this process is a member of the group"
        return _TorchGathering(work, parts)

    def all_to_all(self, rows: torch.Tensor) -> _TorchGathering:
        """Begin to send row r of ``rows`` to rank r; collects every rank's row for this one."""
        self._enter()
        received = torch.empty_like(rows)
        work = dist.all_to_all_single(received, rows.contiguous(), group=self.process_group, async_op=True)
        assert work is not None, "this process is a member of the group"
        return _TorchGathering(work, list(received))

    def split(self, parts: Sequence[Sequence[int]]) -> "TorchGroup | None":
        """Return this rank's part of the group, the same for the same parts; None if it is in none. All call it."""
        key = tuple(tuple(part) for part in parts)
        self._enter()
        if key not in self._parts:
            with self._connecting():
                groups = [dist.new_group(list(part), timeout=SPLIT_TIMEOUT) for part in key]  # every rank makes all
                own = next((group for group, part in zip(groups, key, strict=True) if self.rank in part), None)
                if own is not None:
                    dist.barrier(group=own)  # connections are made at the first use
                    dist.distributed_c10d._set_pg_timeout(dist.default_pg_timeout, own)
            self._parts[key] = None if own is None else TorchGroup(own, rack=self.rack)
            self._enter()  # what would have woken this rank came before the part's connections were known
        return self._parts[key]

    def _enter(self) -> None:
        if self._aborted:
            raise CutOffError("the group was called off")

    def abort(self) -> None:
        """Have every collective that begins from now on raise `CutOffError`, and wake those blocked on a GPU."""
        self._aborted = True
        if torch.cuda.is_available():
            self.process_group._get_backend(torch.device("cuda")).abort()
        for part in list(self._parts.values()):  # the training thread may be making one
            if part is not None:
                part.abort()
