"""Where a server's shard is while a run has one: the one place that imports what a shard is made of, when it is needed.

torch takes seconds to import, in which a server answers nobody: it is loaded before a run begins that will need it
(`ShardSlot.load`), and a server that only accompanies collectives never pays for it.
"""

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from plesio.core.clock import Clock
from plesio.core.errors import TransportError
from plesio.protocol.bulk import BulkFromWorker, Initial
from plesio.protocol.effects import Order
from plesio.protocol.figures import Snapshot
from plesio.protocol.message import decode
from plesio.protocol.peers import worker_of
from plesio.protocol.to_server import PartArrived
from plesio.runtime.transport import Bulk
from plesio.runtime.transport.connection import WorkerConnections

if TYPE_CHECKING:
    from plesio.runtime.server.shard_server import ShardServer

__all__ = ["ShardSlot"]


class ShardSlot:
    """One server's shard, of one run after the other.

    Args:
        endpoint: Where bulk messages come from and go to.
        index: Number of the server.
        clock: The server's time.
    """

    def __init__(self, endpoint: WorkerConnections, *, index: int, clock: Clock) -> None:
        self._endpoint = endpoint
        self._index = index
        self._clock = clock
        self._shard: ShardServer | None = None

    def load(self) -> None:
        """Import what a shard is made of, so that no run stands still for it later; done already, it takes no time."""
        import_module("plesio.runtime.server.shard_server").warm_up()

    def take(self, bulk: Bulk, *, snapshots: Sequence[Snapshot]) -> PartArrived | None:
        """Act on a worker's message; what has to be decided on is returned.

        Args:
            bulk: What arrived.
            snapshots: Those of the run, where this server knows them.

        Raises:
            TransportError: It cannot be read.
        """
        message = self._read(bulk)
        if bulk.header.worker != worker_of(bulk.peer):
            self._endpoint.release(bulk)
            raise TransportError(f"{bulk.peer.decode(errors='replace')} speaks for worker {bulk.header.worker}")
        if isinstance(message, Initial):
            self._begin(bulk, message)
        elif self._shard is None:
            self._endpoint.release(bulk)  # no run
        else:
            return self._shard.take(bulk, message, snapshots=snapshots)
        return None

    def _read(self, bulk: Bulk) -> BulkFromWorker:
        try:
            peer = bulk.peer.decode(errors="replace")
            message: BulkFromWorker = decode(bulk.header.kind, bulk.meta, BulkFromWorker, peer=peer)
        except TransportError:
            self._endpoint.release(bulk)
            raise
        return message

    def _begin(self, bulk: Bulk, initial: Initial) -> None:
        if initial.again:
            if self._shard is not None:
                self._shard.begin_again(bulk, initial)
            return
        make: type[ShardServer] = import_module("plesio.runtime.server.shard_server").ShardServer
        self._shard = make(bulk, initial, endpoint=self._endpoint, index=self._index, clock=self._clock)

    def carry_out(self, orders: Iterable[Order]) -> None:
        """Do to the shard what was decided, and answer the pulls that this makes possible."""
        if self._shard is not None:
            self._shard.carry_out(orders)

    def end_run(self) -> None:
        """Forget the parameters: the next run brings its own."""
        self._shard = None
