"""How workers of a grid put something together: one collects, the others send it what they have and wait for its word.

It is the first stage of the first group that is there. If it is lost meanwhile, all begin anew with the next one, as
each has still got all that is its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from plesio.core.errors import WorkerLostError
from plesio.runtime.grid.formation import Formation
from plesio.runtime.grid.messages import Incoming, Outgoing, PeerFailedError, as_tensor, as_text
from plesio.runtime.worker.exchange.links import Links, PeerGoneError
from plesio.runtime.worker.peer_watch import Watch

_STATE_TAG, _RESULT_TAG = 4, 5

T = TypeVar("T")


@dataclass(slots=True)
class Collector:
    """One worker's side of putting things together.

    Attributes:
        links: To the others; None for a worker by itself.
        lost: Groups that are gone, as far as is known.
        known: Ranks of all that have been there.
        num_gathered: How often all have told something.
    """

    links: Links | None
    rank: int
    formation: Formation
    watch: Watch
    lost: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    num_gathered: int = 0

    def __post_init__(self) -> None:
        self.known.update(self.formation.workers)

    def regrouped(self, formation: Formation, links: Links | None, watch: Watch) -> None:
        self.formation, self.links, self.watch = formation, links, watch
        self.known.update(formation.workers)

    @property
    def collects(self) -> bool:
        return self.rank == self._one

    @property
    def _one(self) -> int:
        """The worker that collects: of the groups that are there; of the first of all if none is."""
        groups = self.formation.groups
        return self.formation.worker(next((group for group in groups if group not in self.lost), groups[0]), 0)

    @property
    def there(self) -> list[int]:
        """The ranks of groups that are not known to be gone."""
        return [rank for rank in self.formation.workers if self._is_there(rank)]

    def _is_there(self, rank: int) -> bool:
        return self._group_of(rank) not in self.lost

    def _group_of(self, rank: int) -> int:
        return rank // self.formation.setting.stages

    def lose(self, group: int) -> None:
        """Count a group as lost.

        Raises:
            WorkerLostError: The others have given up this worker instead.
        """
        if self.watch.is_given_up():
            raise WorkerLostError.expelled(self.rank)
        self.lost.add(group)

    def retried(self, action: Callable[[], T]) -> T:
        """Do ``action``, and begin it anew, as all that are there do, if the worker that collects turns out to be gone.

        Raises:
            PeerGoneError: It was of this worker's own group.
        """
        begun = self.num_gathered
        while True:
            self.num_gathered, one = begun, self._one
            try:
                return action()
            except PeerGoneError as gone:
                if gone.rank != one or self._group_of(one) == self._group_of(self.rank):
                    raise
                self.lose(self._group_of(one))

    def gather(self, tensors: Sequence[Tensor]) -> dict[int, list[Tensor]] | None:
        """Return all workers' tensors by rank, on the collector; None elsewhere. Lost groups' are missing.

        Raises:
            PeerGoneError: The collector is gone, see `retried`; or no group is left.
        """
        self.num_gathered += 1
        if not self.collects:
            assert self.links is not None, "there are others"
            Outgoing(self.links, self._one, _STATE_TAG).deliver(tensors, number=self.num_gathered)
            return None
        gathered = {self.rank: list(tensors)}
        for rank in self.formation.workers:
            if rank != self.rank and self._is_there(rank):
                self._take(rank, gathered)
        found = {rank: theirs for rank, theirs in gathered.items() if self._is_there(rank)}
        if not found:
            raise PeerGoneError(next(rank for rank in self.formation.workers if rank != self.rank))
        return found

    def _take(self, rank: int, gathered: dict[int, list[Tensor]]) -> None:
        assert self.links is not None, "there are others"
        number = 0
        try:
            while number != self.num_gathered:  # an earlier one was sent when another collector was gone
                gathered[rank], header = Incoming(self.links, rank, _STATE_TAG).take(more=False)
                number = int(str(header["number"]))
        except (PeerGoneError, PeerFailedError):
            self.lose(self._group_of(rank))

    def leave(self, reason: str) -> None:
        if self.links is not None and not self.collects:
            Outgoing(self.links, self._one, _STATE_TAG).fail(reason)

    def tell(self, text: str | None) -> str:
        """Send the collector's text to all that are there, and return it.

        Raises:
            PeerGoneError: The collector is gone; see `retried`.
        """
        if self.links is None:
            assert text is not None, "a worker by itself collects"
            return text
        if text is None:
            [received], _ = Incoming(self.links, self._one, _RESULT_TAG).take(more=False)
            return as_text(received)
        for rank in self.formation.workers:
            if rank != self.rank and self._is_there(rank):
                try:
                    Outgoing(self.links, rank, _RESULT_TAG).deliver([as_tensor(text)])
                except PeerGoneError:
                    self.lose(self._group_of(rank))
        return text
