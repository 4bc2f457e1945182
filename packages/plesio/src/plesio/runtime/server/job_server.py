"""A server of a job, whatever carries its messages: hands each message to its part, and carries out the answer.

Every server has a shard of the parameters, where they are shared through servers. Server 0 decides, on one run after
the other (`CurrentRun`); the others do to their shards what it orders.
"""

from collections.abc import Callable, Iterable

from plesio.core.clock import Clock
from plesio.core.errors import DataError, TransportError
from plesio.core.results import RunResult
from plesio.protocol.bulk import SharedRequest
from plesio.protocol.effects import FromFirst, Orders
from plesio.protocol.message import decode, encode
from plesio.protocol.peers import server_identity, worker_of
from plesio.protocol.to_server import Distrusted, Ended, PartArrived, ProgressRequest, ResultRequest, Serves, ToServer
from plesio.protocol.to_worker import Progress, Result
from plesio.runtime.coordinator.ledger import World
from plesio.runtime.server.current_run import CurrentRun
from plesio.runtime.server.effect_carrier import EffectCarrier
from plesio.runtime.server.refusals import Refusals
from plesio.runtime.server.run_end import RunEnd
from plesio.runtime.server.server_traffic import ServerTraffic
from plesio.runtime.server.shard_server import ShardServer
from plesio.runtime.transport import Bulk, Control, Gone, Incoming
from plesio.runtime.transport.connection import ControlConnection, WorkerConnections

_SERVERS = server_identity(0).rstrip("0").encode()


class JobServer:
    """One server's part in run after run.

    Args:
        index: Number of the server; 0 decides.
        endpoint: Connections to the workers, and of server 0 to the other servers.
        first: Connection to server 0; None for server 0 itself.
        cross_rack_bytes: Tells what has gone from rack to rack so far, where that is known.
        folders: Where results may be written, see `CurrentRun.may_write`; None for anywhere.
        writes: Whether it writes anything; a backup does when it has taken over.

    Attributes:
        run: The run that is under way (server 0).
    """

    def __init__(
        self,
        index: int,
        *,
        endpoint: WorkerConnections,
        first: ControlConnection | None,
        clock: Clock,
        world: World = "process",
        cross_rack_bytes: Callable[[], int] = int,
        folders: set[str] | None = None,
        writes: bool = True,
    ) -> None:
        self._endpoint = endpoint
        self._first = first
        self._refusals = Refusals(endpoint, index=index)
        self._shard = ShardServer(endpoint, index=index, clock=clock)
        self._carrier = EffectCarrier(endpoint, shard=self._shard)
        self._traffic = ServerTraffic(endpoint, cross_rack_bytes=cross_rack_bytes)
        self._end = RunEnd(self._traffic, self._carrier, writes=writes)
        # a server other than 0 makes these too, but no worker joins a run there
        self.run = CurrentRun(
            self._shard,
            self._carrier,
            self._end,
            self._refusals,
            clock=clock,
            world=world,
            folders=folders,
            writes=writes,
        )
        # the others carry out server 0's orders, and begin in its generation
        if first is not None:
            endpoint.generation = first.generation
            first.send(*encode(Serves()))

    @property
    def results(self) -> list[RunResult]:
        return self._end.results

    def load(self) -> None:
        """Make ready to hold a shard, which takes seconds; done already, it takes no time."""
        self._shard.load()

    def handle(self, arrived: Iterable[Incoming]) -> None:
        for incoming in arrived:
            match incoming:
                case Control():
                    self._on_control(incoming)
                case Bulk():
                    self._on_bulk(incoming)
                case Gone(peer=peer):
                    self._end.gone(peer)
                    self._shard.forget(peer)
                    self.run.gone(peer)

    def distrust(self, peer: bytes, error: Exception) -> None:
        """Refuse a message that could be read and not be acted on; server 0 loses the worker that sent it.

        Raises:
            ShardFailedError: The error is one.
        """
        self.run.distrust(peer, error)
        worker = worker_of(peer)
        if self._first is not None and worker is not None:
            self._first.send(*encode(Distrusted(worker=worker)))

    def obey(self, controls: Iterable[Control]) -> None:
        assert self._first is not None
        for control in controls:
            try:
                message: FromFirst = decode(control.kind, control.body, FromFirst, peer=server_identity(0))
                orders = message.unpacked() if isinstance(message, Orders) else []
            except (TransportError, DataError) as error:
                self._refusals.refuse(error)
                continue
            if isinstance(message, Orders):
                self._shard.carry_out(orders)
            else:
                self._shard.end_run()
                self._first.send(*encode(self._traffic.own()))
                self._traffic.begin_run()
                self._first.generation = self._endpoint.generation

    def _on_control(self, control: Control) -> None:
        name = control.peer.decode(errors="replace")
        try:
            message: ToServer = decode(control.kind, control.body, ToServer, peer=name)
        except TransportError as error:
            self._refusals.refuse(error)
            return
        match message:
            case PartArrived() | Serves() | Ended() | Distrusted() if not control.peer.startswith(_SERVERS):
                self._refusals.refuse(TransportError(f"{name} speaks as if it were a server"))
            case PartArrived():
                self._arrived(message)
            case Serves():
                self._end.serves(control.peer)
            case Ended():
                self._end.ended_at(control.peer, message)
            case Distrusted(worker=worker):
                self.run.lose(worker)
            case ProgressRequest():
                self._carrier.tell(control.peer, Progress(figures=self.run.progress()))
            case ResultRequest(report=report):
                self._carrier.tell(control.peer, Result(result=self.run.result(control.peer, report)))
            case _:
                self.run.handle(control.peer, message)

    def _on_bulk(self, bulk: Bulk) -> None:
        try:
            taken = self._shard.take(bulk)
            if isinstance(taken, SharedRequest):
                self._shard.share(bulk, taken, snapshots=self.run.snapshots)
        except TransportError as error:
            self._refusals.refuse(error)
            return
        if isinstance(taken, PartArrived):
            self._arrived(taken)

    def _arrived(self, part: PartArrived) -> None:
        if not self.run.arrived(part) and self._first is not None:
            self._first.send(*encode(part))
