"""A server of a job, whatever carries its messages: hands what arrives to whom it concerns, and has the answer done.

Server 0 has a `Coordinator` for each run, which decides. Every server has a shard of the parameters, where they are
shared through servers, and does to it what server 0 says.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from plesio.core.clock import Clock
from plesio.core.errors import DataError, PlesioError, TransportError
from plesio.core.results import RunResult
from plesio.protocol.effects import Effect, FromFirst, Orders
from plesio.protocol.figures import Report
from plesio.protocol.message import decode, encode
from plesio.protocol.peers import server_identity, worker_identity, worker_of
from plesio.protocol.to_server import (
    Ended,
    FromWorker,
    Goodbye,
    Join,
    PartArrived,
    ProgressRequest,
    ResultRequest,
    Serves,
    ToServer,
)
from plesio.protocol.to_worker import Progress, Result, RunEnded
from plesio.runtime.coordinator.coordinator import Coordinator
from plesio.runtime.coordinator.ledger import World
from plesio.runtime.server.effect_carrier import EffectCarrier
from plesio.runtime.server.run_end import RunEnd
from plesio.runtime.server.server_traffic import ServerTraffic
from plesio.runtime.server.shard_slot import ShardSlot
from plesio.runtime.transport import Bulk, Control, Gone, Incoming, Refusal
from plesio.runtime.transport.connection import ControlConnection, WorkerConnections

__all__ = ["MAX_SAID", "JobServer"]

_log = logging.getLogger(__name__)

MAX_SAID = 20
"""Messages that make no sense and are told of: whoever sends them does not decide how much is logged."""
_SERVERS = server_identity(0).rstrip("0").encode()


class JobServer:
    """One server's part in run after run.

    Args:
        index: Number of the server; 0 decides.
        endpoint: Connections to the workers, and of server 0 to the other servers.
        first: Connection to server 0; None for server 0 itself.
        clock: The server's time.
        world: For the results.
        cross_rack_bytes: Tells what has gone from rack to rack so far, where that is known.
        folders: Where results may be written, see `may_write`; None for anywhere.
        writes: Whether it writes anything; a backup does when it has taken over.
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
        self._writes = writes
        self._folders = folders
        self._early: dict[bytes, Join] = {}
        self._index = index
        self._endpoint = endpoint
        self._first = first
        self._clock = clock
        self._world: World = world
        self._coordinator: Coordinator | None = None
        self._folder: Path | None = None
        self._shard = ShardSlot(endpoint, index=index, clock=clock)
        self._carrier = EffectCarrier(endpoint, shard=self._shard)
        self._traffic = ServerTraffic(endpoint, cross_rack_bytes=cross_rack_bytes)
        self._end = RunEnd(self._traffic, tell=self._carrier.tell, on_over=self._begin_generation, writes=writes)
        if first is not None:
            endpoint.generation = first.generation
            first.send(*encode(Serves()))

    @property
    def results(self) -> list[RunResult]:
        """Of the runs that have ended (server 0)."""
        return self._end.results

    @property
    def mean_staleness(self) -> float:
        """Of the run under way, in versions (server 0)."""
        return 0.0 if self._coordinator is None else self._coordinator.ledger.progress().staleness

    def enter(self, worker: int, report: Report) -> None:
        """Take in a worker's figures that come without a message (server 0 of a simulation)."""
        if self._coordinator is not None:
            self._coordinator.ledger.report(worker, report)

    def load(self) -> None:
        """Make ready to hold a shard, which takes seconds; done already, it takes no time."""
        self._shard.load()

    def handle(self, arrived: Iterable[Incoming]) -> None:
        """Act on what has arrived."""
        for incoming in arrived:
            match incoming:
                case Control():
                    self._on_control(incoming)
                case Bulk():
                    self._on_bulk(incoming)
                case Gone():
                    self._on_gone(incoming)

    def may_write(self, folder: str) -> None:
        """Results of runs may go to ``folder``.

        Whoever has the job's secret can ask for any folder, and the server has the rights of the user whose process
        started it. So it is that process which says where they may go; workers that ask for a folder wait until then.
        """
        assert self._folders is not None, "anywhere"
        self._folders.add(folder)
        self._hear_early()

    def _hear_early(self) -> None:
        early, self._early = self._early, {}
        for peer, join in early.items():
            try:
                self._on_worker(peer, join)
            except Exception as error:
                self.distrust(peer, error)

    def distrust(self, peer: bytes, error: Exception) -> None:
        """A message of ``peer`` could not be acted on, although it could be read: refuse it, and lose that worker.

        The others go on. Its sender would wait for an answer in vain, and what it is waiting for is no longer clear.
        """
        name = peer.decode(errors="replace")
        self._refuse(TransportError(f"{name} sent what makes no sense ({type(error).__name__}: {error})"))
        _log.debug("where it went wrong:", exc_info=error)
        worker = worker_of(peer)
        if self._coordinator is not None and worker is not None and self._coordinator.is_live(worker):
            self._act(self._coordinator.lose(worker, now_s=self._clock.now_s()))

    def check_leases(self, *, busy_s: float) -> None:
        """Lose the workers that have been silent for a lease; for ``busy_s`` seconds the server did not listen."""
        if self._coordinator is not None:
            self._coordinator.excuse(busy_s)
            self._act(self._coordinator.tick(now_s=self._clock.now_s()))

    def obey(self, controls: Iterable[Control]) -> None:
        """Do what server 0 has decided."""
        assert self._first is not None
        for control in controls:
            try:
                message: FromFirst = decode(control.kind, control.body, FromFirst, peer=server_identity(0))
                orders = message.unpacked() if isinstance(message, Orders) else []
            except (TransportError, DataError) as error:
                self._refuse(error)
                continue
            if isinstance(message, Orders):
                self._shard.carry_out(orders)
            else:
                self._shard.end_run()
                self._first.send(*encode(self._traffic.own()))
                self._begin_generation()
                self._first.generation = self._endpoint.generation

    def take_over(self, line: str) -> None:
        """The server that this one is a backup of is lost; ``line`` says so in the results."""
        self._writes = True
        self._end.take_over()
        self.note(line)

    def discard(self) -> None:
        """The job is over, and this server was not needed: what it has put aside goes."""
        if self._coordinator is not None:
            self._coordinator.trace.close()
            self._coordinator.log.close()
        self._end.discard()

    @property
    def live_workers(self) -> frozenset[int]:
        """Who takes part in the run under way."""
        return frozenset() if self._coordinator is None else frozenset(self._coordinator.live)

    def note(self, line: str) -> bool:
        """Enter a sentence in the records of the run under way; whether there is one."""
        if self._coordinator is None:
            return False
        self._coordinator.ledger.fallbacks.append(line)
        return True

    def end(self) -> None:
        """The job is over: close the records of a run that is under way."""
        self._end_run()
        self._end.give_up_waiting()

    def _refuse(self, error: PlesioError) -> None:
        """Say in one line what cannot be read, and count it; what its sender was promised is not touched."""
        self._endpoint.refused[Refusal.MALFORMED] += 1
        if self._endpoint.refused[Refusal.MALFORMED] <= MAX_SAID:
            _log.warning("server %d: %s", self._index, error)
        elif self._endpoint.refused[Refusal.MALFORMED] == MAX_SAID + 1:
            _log.warning("server %d: more messages that make no sense; they are only counted from here on", self._index)

    def _on_control(self, control: Control) -> None:
        try:
            message: ToServer = decode(control.kind, control.body, ToServer, peer=control.peer.decode(errors="replace"))
        except TransportError as error:
            self._refuse(error)
            return
        match message:
            case PartArrived() | Serves() | Ended() if not control.peer.startswith(_SERVERS):
                self._refuse(TransportError(f"{control.peer.decode(errors='replace')} speaks as if it were a server"))
            case PartArrived():
                self._arrived(message)
            case Serves():
                self._end.serves(control.peer)
            case Ended():
                self._end.ended_at(control.peer, message)
            case ProgressRequest():
                figures = None if self._coordinator is None else self._coordinator.ledger.progress()
                self._carrier.tell(control.peer, Progress(figures=figures))
            case ResultRequest():
                result = None if self._coordinator is None else self._end.result(self._coordinator)
                self._carrier.tell(control.peer, Result(result=result))
            case _:
                self._on_worker(control.peer, message)

    def _on_worker(self, peer: bytes, message: FromWorker | Join) -> None:
        worker = worker_of(peer)
        if self._coordinator is None and isinstance(message, Join) and worker is not None and not self._end.under_way:
            if self._folders is not None and message.folder is not None and message.folder not in self._folders:
                self._early[peer] = message
                return
            self._begin_run(message)
            self._hear_early()
        if self._coordinator is None or worker is None:
            return
        if isinstance(message, Goodbye):
            if not self._coordinator.is_live(worker):  # counted lost, or never let in: the run goes on without it
                farewell = RunEnded(result=self._end.result(self._coordinator))
                self._carrier.tell(worker_identity(worker).encode(), farewell)
                return
            self._end.let_go(worker)
        self._act(self._coordinator.handle(message, worker=worker, now_s=self._clock.now_s()))

    def _begin_run(self, join: Join) -> None:
        """The run that its first worker describes."""
        self._folder = None if join.folder is None else Path(join.folder)
        aside = None if self._folder is None or self._writes else self._end.aside(self._folder)
        told = join if aside is None else replace(join, folder=str(aside))
        self._coordinator = Coordinator.of(told, clock=self._clock, world=self._world)
        self._carrier.begin_run(join.num_servers)
        if self._coordinator.policy.pushes:  # at once or later in the run: then everybody would wait for it
            self.load()

    def _on_gone(self, message: Gone) -> None:
        """A connection ended. A heartbeat's ends with its process only, so that loss need not wait for the lease."""
        self._end.gone(message.peer)
        self._early.pop(message.peer, None)
        worker = worker_of(message.peer)
        if self._coordinator is not None and worker is not None and message.peer.startswith(b"heartbeat"):
            self._act(self._coordinator.lose(worker, now_s=self._clock.now_s()))

    def _on_bulk(self, bulk: Bulk) -> None:
        snapshots = [] if self._coordinator is None else self._coordinator.snapshots
        try:
            part = self._shard.take(bulk, snapshots=snapshots)
        except TransportError as error:
            self._refuse(error)
            return
        if part is not None:
            self._arrived(part)

    def _arrived(self, part: PartArrived) -> None:
        if self._coordinator is not None:
            now_s = self._clock.now_s()
            self._act(self._coordinator.handle(part, worker=part.event.worker, now_s=now_s))
        elif self._first is not None:
            self._first.send(*encode(part))

    def _act(self, effects: list[Effect]) -> None:
        self._carrier.carry_out(effects)
        if self._coordinator is not None and self._coordinator.state == "ended":
            self._end_run()

    def _end_run(self) -> None:
        if self._coordinator is not None:
            coordinator, self._coordinator = self._coordinator, None
            self._shard.end_run()
            self._end.begin(coordinator, folder=self._folder)

    def _begin_generation(self) -> None:
        self._traffic.begin_run()
        self._endpoint.generation += 1
