"""Messages from one worker to another, in whichever world they are."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from plesio.runtime.worker.exchange.group import CutOffError, TorchGroup


class PeerGoneError(CutOffError):
    """The worker at the other end is gone."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"worker {rank} is gone")
        self.rank = rank


class Inbox(Protocol):
    """A message that is expected."""

    def wait(self) -> torch.Tensor: ...


class Links(Protocol):
    """Point-to-point messages of bytes. Those between two workers under one tag arrive in the order of sending.

    Raises:
        PeerGoneError: The worker at the other end is gone.
    """

    @property
    def rank(self) -> int: ...

    def send(self, message: torch.Tensor, *, to: int, tag: int, most: int = 2) -> None:
        """Begin to send ``message`` (uint8, one-dimensional), which must stay as it is.

        Of those under a tag ``most`` may be on their way; a further one waits. 2 are double buffers.
        """
        ...

    def expect(self, num_bytes: int, *, source: int, tag: int) -> Inbox:
        """Make room for the next message from ``source``, of exactly ``num_bytes``."""
        ...

    def flush(self, to: int, *, tag: int) -> None:
        """Return when all that was sent to a worker under ``tag`` has left."""
        ...


class _TorchInbox:
    def __init__(self, buffer: torch.Tensor, work: dist.Work, *, source: int, device: torch.device) -> None:
        self._buffer, self._work, self._source, self._device = buffer, work, source, device

    def wait(self) -> torch.Tensor:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise PeerGoneError(self._source) from error
        return self._buffer.to(self._device)


class TorchLinks:
    """Messages over a torch.distributed process group, from and to the main memory with Gloo.

    NCCL has no tags, and does the messages between two workers one after the other, in both directions: with room made
    ahead, each would wait for the other.

    Args:
        workers: Their ranks in the job, by place in the group.
    """

    def __init__(self, group: TorchGroup, *, device: torch.device, workers: Sequence[int]) -> None:
        self.rank = workers[group.rank]
        self._group = group.process_group
        self._device = device
        self._place_of = {worker: place for place, worker in enumerate(workers)}
        self._sends: dict[tuple[int, int], deque[tuple[torch.Tensor, dist.Work]]] = {}

    def send(self, message: torch.Tensor, *, to: int, tag: int, most: int = 2) -> None:
        message = message.cpu()
        under_way = self._sends.setdefault((to, tag), deque())
        try:
            while len(under_way) >= most:
                under_way.popleft()[1].wait()
            work = dist.isend(message, group=self._group, group_dst=self._place_of[to], tag=tag)
        except RuntimeError as error:
            raise PeerGoneError(to) from error
        assert work is not None, "this process is a member of the group"
        under_way.append((message, work))

    def expect(self, num_bytes: int, *, source: int, tag: int) -> _TorchInbox:
        buffer = torch.empty(num_bytes, dtype=torch.uint8)
        try:
            work = dist.irecv(buffer, group=self._group, group_src=self._place_of[source], tag=tag)
        except RuntimeError as error:
            raise PeerGoneError(source) from error
        assert work is not None, "this process is a member of the group"
        return _TorchInbox(buffer, work, source=source, device=self._device)

    def flush(self, to: int, *, tag: int) -> None:
        under_way = self._sends.get((to, tag), deque())
        while under_way:
            try:
                under_way.popleft()[1].wait()
            except RuntimeError as error:
                under_way.clear()
                raise PeerGoneError(to) from error
