"""Collectives among the threads of the virtual world: the sums are real, their times are modelled."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Protocol

import torch

from plesio.cost.buckets import DDP_FIRST_CAP_BYTES, ddp_exposed_s
from plesio.runtime.worker.exchange.group import CutOffError
from plesio.runtime.worlds.virtual.scheduler import Scheduler, ThreadTurn


@dataclass(slots=True)
class _Operation:
    """One collective: the tensors of the ranks that have come, and whether it is over."""

    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    waiting: list[ThreadTurn] = field(default_factory=list)
    began_s: float = 0.0
    ended_s: float = 0.0
    done: bool = False


@dataclass(eq=False)
class Meeting:
    """The common state of a group's ranks.

    Args:
        all_reduce_s: Seconds of an all-reduce of so many bytes that begins at a moment, when all have come.
        bucket_s: The same for one of DDP's buckets.
        broadcast_s: The same for a broadcast.
        all_gather_s: The same for an all-gather, of so many bytes in all.
    """

    size: int
    _: KW_ONLY
    scheduler: Scheduler
    all_reduce_s: Callable[[int, float], float]
    bucket_s: Callable[[int, float], float]
    broadcast_s: Callable[[int, float], float]
    all_gather_s: Callable[[int, float], float]

    def __post_init__(self) -> None:
        self.broken = False
        self._operations: dict[int, _Operation] = {}
        self._free_at_s = 0.0

    def come(
        self,
        number: int,
        rank: int,
        tensor: torch.Tensor,
        *,
        at_s: float,
        duration_s: Callable[[float], float],
        result: Callable[[dict[int, torch.Tensor]], None],
    ) -> _Operation:
        """Add a rank that has come to the group's ``number``-th collective at ``at_s``; the last one starts it.

        ``duration_s`` is called with the moment when it starts.
        """
        operation = self._operations.setdefault(number, _Operation())
        operation.began_s = max(operation.began_s, at_s)
        operation.tensors[rank] = tensor
        if len(operation.tensors) == self.size:
            del self._operations[number]
            kernel = self.scheduler.kernel
            # a group's collectives run one after the other
            starts_s = max(self._free_at_s, operation.began_s)
            self._free_at_s = starts_s + duration_s(starts_s)
            operation.ended_s = self._free_at_s
            kernel.at(self._free_at_s, lambda: self._finish(operation, result))
        return operation

    def _finish(self, operation: _Operation, result: Callable[[dict[int, torch.Tensor]], None]) -> None:
        with torch.no_grad():
            result(operation.tensors)
        operation.tensors.clear()
        operation.done = True
        for turn in operation.waiting:
            self.scheduler.wake(turn)

    def wait(self, operation: _Operation, turn: ThreadTurn) -> None:
        operation.waiting.append(turn)
        while not operation.done:
            if self.broken:
                raise CutOffError("the collective was aborted: a worker is lost")
            self.scheduler.wait(turn)


@dataclass(eq=False)
class _Pending:
    meeting: Meeting
    operation: _Operation
    turn: ThreadTurn
    _: KW_ONLY
    began_s: float

    def wait(self) -> None:
        self.meeting.wait(self.operation, self.turn)

    def took_s(self) -> float:
        """Return the seconds from when this rank began it until it was over."""
        return self.operation.ended_s - self.began_s


class _Gathering:
    def __init__(self, pending: _Pending, parts: torch.Tensor) -> None:
        self._pending = pending
        self._parts = parts

    def wait(self) -> list[torch.Tensor]:
        """Wait for all ranks' tensors, and return them in their order."""
        self._pending.wait()
        return list(self._parts)

    def took_s(self) -> float:
        return self._pending.took_s()


class _PartMaker(Protocol):
    """Makes this rank's view of the group of ``ranks``, beside which others do the same."""

    def __call__(self, ranks: Sequence[int], beside: Sequence[Sequence[int]]) -> "VirtualGroup": ...


@dataclass(eq=False)
class VirtualGroup:
    """One rank's view of the group.

    Args:
        count_bytes: Called with the payload of each collective that begins.
        backward_s: Returns the seconds of this rank's latest backward pass in which DDP sends.
        rack: Number of the rank's rack.
        part: Makes groups of some of the ranks.
    """

    rank: int
    _: KW_ONLY
    meeting: Meeting
    turn: ThreadTurn
    count_bytes: Callable[[str, int], None]
    backward_s: Callable[[], float]
    rack: int
    part: _PartMaker

    def __post_init__(self) -> None:
        self.size = self.meeting.size
        self._parts: dict[tuple[tuple[int, ...], ...], VirtualGroup | None] = {}
        self._num_collectives = 0

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        num_bytes = tensor.numel() * tensor.element_size()
        self.count_bytes("broadcast", num_bytes)
        self._begin(
            tensor, duration_s=partial(self.meeting.broadcast_s, num_bytes), result=partial(_copy_from, source)
        ).wait()

    def all_reduce(self, tensor: torch.Tensor) -> _Pending:
        """Begin to overwrite ``tensor`` with the sum over the ranks, added up in their order."""
        num_bytes = tensor.numel() * tensor.element_size()
        self.count_bytes("all_reduce", num_bytes)
        return self._begin(tensor, duration_s=partial(self.meeting.all_reduce_s, num_bytes), result=_sum)

    def all_reduce_gradient(self, gradient: torch.Tensor) -> _Pending:
        """Begin to overwrite ``gradient`` with the sum over the ranks, in DDP's buckets behind the backward pass.

        A gradient within the first bucket is one message, which goes as any other does.
        """
        num_bytes = gradient.numel() * gradient.element_size()
        if num_bytes <= DDP_FIRST_CAP_BYTES:
            return self.all_reduce(gradient)
        self.count_bytes("all_reduce", num_bytes)
        return self._begin(
            gradient,
            duration_s=partial(_ddp_s, num_bytes, backward_s=self.backward_s(), bucket_s=self.meeting.bucket_s),
            result=_sum,
        )

    def all_gather(self, tensor: torch.Tensor) -> _Gathering:
        num_bytes = self.size * tensor.numel() * tensor.element_size()
        self.count_bytes("all_gather", num_bytes)
        parts = tensor.new_empty((self.size, *tensor.shape))
        parts[self.rank].copy_(tensor)
        duration_s = partial(self.meeting.all_gather_s, num_bytes)
        return _Gathering(self._begin(parts, duration_s=duration_s, result=_copy_own), parts)

    def all_to_all(self, rows: torch.Tensor) -> _Gathering:
        """Begin to send row r of ``rows`` to rank r; takes as long as an all-gather of as many bytes."""
        num_bytes = rows.numel() * rows.element_size()
        self.count_bytes("all_to_all", num_bytes)
        rows = rows.clone()
        duration_s = partial(self.meeting.all_gather_s, num_bytes)
        return _Gathering(self._begin(rows, duration_s=duration_s, result=_transpose), rows)

    def split(self, parts: Sequence[Sequence[int]]) -> "VirtualGroup | None":
        """Return this rank's part of the group, the same for the same parts; None if it is in none."""
        key = tuple(tuple(part) for part in parts)
        if key not in self._parts:
            own = next((part for part in key if self.rank in part), None)
            others = [part for part in key if part != own]
            self._parts[key] = None if own is None else self.part(own, others)
        return self._parts[key]

    def _begin(
        self,
        tensor: torch.Tensor,
        *,
        duration_s: Callable[[float], float],
        result: Callable[[dict[int, torch.Tensor]], None],
    ) -> _Pending:
        number, self._num_collectives = self._num_collectives, self._num_collectives + 1
        at_s = self.meeting.scheduler.now_s(self.turn)
        operation = self.meeting.come(number, self.rank, tensor, at_s=at_s, duration_s=duration_s, result=result)
        return _Pending(self.meeting, operation, self.turn, began_s=at_s)


def _ddp_s(num_bytes: int, since_s: float, *, backward_s: float, bucket_s: Callable[[int, float], float]) -> float:
    """Return the seconds from the end of a backward pass, at ``since_s``, until all buckets are added up.

    All have the links of that moment; the rank that comes last says how long the backward pass was.
    """
    return ddp_exposed_s(num_bytes, backward_s=backward_s, all_reduce_s=lambda size: bucket_s(round(size), since_s))


def _copy_from(source: int, tensors: dict[int, torch.Tensor]) -> None:
    for rank, tensor in tensors.items():
        if rank != source:
            tensor.copy_(tensors[source])


def _copy_own(tensors: dict[int, torch.Tensor]) -> None:
    """Exchange parts: each rank brings a tensor with a part for every rank, its own filled in."""
    for rank, parts in tensors.items():
        for source, theirs in tensors.items():
            if source != rank:
                parts[source].copy_(theirs[source])


def _transpose(tensors: dict[int, torch.Tensor]) -> None:
    """Exchange rows: each rank brings a row for every rank, and takes away every rank's row for it."""
    sent = {rank: rows.clone() for rank, rows in tensors.items()}
    for rank, rows in tensors.items():
        for source, theirs in sent.items():
            rows[source].copy_(theirs[rank])


def _sum(tensors: dict[int, torch.Tensor]) -> None:
    ordered = [tensors[rank] for rank in sorted(tensors)]
    first = ordered[0]
    # 16-bit numbers are added up in 32 bits, and rounded once
    wide = first.is_floating_point() and first.dtype.itemsize == 2
    total = first.to(torch.float32 if wide else first.dtype, copy=True)
    for tensor in ordered[1:]:
        total.add_(tensor)
    for tensor in ordered:
        tensor.copy_(total)
