"""Messages between the threads of the virtual world: handed over as they are, at the time a modelled link takes."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable

import torch

from plesio.runtime.worker.exchange.links import PeerGoneError
from plesio.runtime.worlds.virtual.fabric import Channel, Fabric
from plesio.runtime.worlds.virtual.scheduler import Scheduler, ThreadTurn

_Box = tuple[int, int, int]
"""Sender, receiver and tag."""


class PostOffice:
    """The post office by which the workers of a simulation send each other messages."""

    def __init__(self, scheduler: Scheduler, fabric: Fabric, host_of: Callable[[int], int]) -> None:
        self.scheduler = scheduler
        self.gone: set[int] = set()
        self._fabric = fabric
        self._host_of = host_of
        self._channels: dict[tuple[int, int], Channel] = {}
        self._arrived: dict[_Box, deque[torch.Tensor]] = defaultdict(deque)
        self._under_way: Counter[_Box] = Counter()
        self._waiting: dict[int, ThreadTurn] = {}

    def send(self, message: torch.Tensor, *, box: _Box, turn: ThreadTurn) -> None:
        """Put a message on its way; it arrives even if its sender is gone by then."""
        source, target, _ = box
        if (source, target) not in self._channels:
            self._channels[source, target] = self._fabric.channel(self._host_of(source), self._host_of(target))
        channel = self._channels[source, target]

        self._under_way[box] += 1

        def arrive() -> None:
            self._under_way[box] -= 1
            self._arrived[box].append(message)
            self._wake(target)

        self.scheduler.do(turn, lambda: channel.send(message.numel(), arrive))

    def take(self, *, box: _Box, turn: ThreadTurn) -> torch.Tensor:
        source, target, _ = box
        while not self._arrived[box]:
            if source in self.gone and not self._under_way[box]:
                raise PeerGoneError(source)
            self._waiting[target] = turn
            self.scheduler.wait(turn)
        return self._arrived[box].popleft()

    def leave(self, rank: int) -> None:
        """Remove a worker that is gone: nothing will come from it any more but what is on its way."""
        self.gone.add(rank)
        for target in list(self._waiting):
            self._wake(target)

    def _wake(self, rank: int) -> None:
        if rank in self._waiting:
            self.scheduler.wake(self._waiting.pop(rank))


class _Expected:
    def __init__(self, office: PostOffice, box: _Box, turn: ThreadTurn) -> None:
        self._office, self._box, self._turn = office, box, turn

    def wait(self) -> torch.Tensor:
        return self._office.take(box=self._box, turn=self._turn)


class VirtualLinks:
    """One worker's links."""

    def __init__(self, rank: int, *, office: PostOffice, turn: ThreadTurn, count_bytes: Callable[[int], None]) -> None:
        self.rank = rank
        self._office = office
        self._turn = turn
        self._count_bytes = count_bytes

    def send(self, message: torch.Tensor, *, to: int, tag: int, most: int = 2) -> None:
        """Put a message on its way; there is room for any number."""
        if to in self._office.gone:
            raise PeerGoneError(to)
        self._count_bytes(message.numel())
        self._office.send(message, box=(self.rank, to, tag), turn=self._turn)

    def expect(self, num_bytes: int, *, source: int, tag: int) -> _Expected:
        """Return the expected message: messages wait here until they are asked for."""
        return _Expected(self._office, (source, self.rank, tag), self._turn)

    def flush(self, to: int, *, tag: int) -> None:
        """Do nothing: messages on their way arrive."""
