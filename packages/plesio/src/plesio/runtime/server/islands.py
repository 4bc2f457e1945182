"""The ranks of islands at a shard, to which an island is one worker.

Each rank sends its own part of an update and receives its own part of the parameters (`IslandPart`), by a connection of
its own. An update is complete when all ranks have sent their parts of it. A pull is answered when all have asked for
it, at one moment and with one version.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from plesio.core.errors import TransportError
from plesio.protocol.bulk import BulkFromWorker, Initial, IslandPart, Pull, Push
from plesio.protocol.peers import worker_of
from plesio.runtime.transport import Bulk


class Told(NamedTuple):
    """A message of a worker, or of one rank of an island with its part."""

    bulk: Bulk
    message: BulkFromWorker
    part: IslandPart | None = None


@dataclass(slots=True)
class Islands:
    """The parts of ranks by their connections, and messages of which some ranks have yet to send theirs."""

    _members: dict[bytes, tuple[int, IslandPart]] = field(default_factory=dict)
    _gathering: dict[tuple[int, type, int, int], dict[int, Told]] = field(default_factory=dict)

    def take(self, bulk: Bulk, message: BulkFromWorker) -> tuple[Told, ...] | None:
        """Take in a message; returns it, and those of all other ranks of its island in their order when all are there.

        Raises:
            TransportError: The sender is another worker than its message says.
        """
        header, worker = bulk.header, bulk.header.worker
        part, own = message.part if isinstance(message, Initial | Pull) else None, worker_of(bulk.peer)
        if part is not None and own in (worker, None):
            self._members[bulk.peer] = worker, part
        known, part = self._members.get(bulk.peer, (own, None))
        if worker != known:
            raise TransportError(f"{bulk.peer.decode(errors='replace')} speaks for worker {worker}")
        if part is None:
            return (Told(bulk, message),)
        number, fragment = header.request, 0
        if isinstance(message, Push):
            number, fragment = header.clock, message.fragment
        key = worker, type(message), number, fragment
        come = self._gathering.setdefault(key, {})
        come[part.number] = Told(bulk, message, part)
        return None if len(come) < part.count else tuple(told for _, told in sorted(self._gathering.pop(key).items()))

    def forget(self, *, but: type[BulkFromWorker] | None = None) -> list[Bulk]:
        """Forget messages of which parts are missing, but those of one kind; returns what has come of them."""
        gone = [key for key in self._gathering if key[1] is not but]
        return [told.bulk for key in gone for told in self._gathering.pop(key).values()]
