"""What a server of a job does, whatever carries its messages: hold a shard and, as server 0, decide the runs.

The loop is thin: what arrives is handed on to a `Coordinator` (server 0) and a `ShardService`, and what they answer is
sent.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from plesio.core.clock import Clock
from plesio.core.errors import DataError, PlesioError, TransportError
from plesio.core.results import RunResult, write_results
from plesio.policies import write_log
from plesio.protocol.effects import Effect, EndRun, FromFirst, Orders, Tell
from plesio.protocol.message import Message, decode, encode
from plesio.protocol.peers import heartbeat_identity, server_identity, worker_identity, worker_of
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
from plesio.runtime.coordinator import Coordinator
from plesio.runtime.exchange.connection import ControlConnection, WorkerConnections
from plesio.runtime.exchange.shard_service import ShardService
from plesio.runtime.exchange.transport import Bulk, Control, Gone, Incoming, Refusal
from plesio.runtime.ledger import World

__all__ = ["JobServer"]

_log = logging.getLogger(__name__)


class JobServer:
    """One server's part in run after run.

    Args:
        index: Number of the server; 0 decides.
        endpoint: Connections to the workers, and of server 0 to the other servers.
        first: Connection to server 0; None for server 0 itself.
        clock: The server's time.
        world: For the results.
        cross_rack_bytes: Tells what has gone from rack to rack so far, where that is known.
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
    ) -> None:
        self._cross_rack_bytes = cross_rack_bytes
        self._cross_rack_before = 0
        self._index = index
        self._endpoint = endpoint
        self._first = first
        self._clock = clock
        self._world: World = world
        self._coordinator: Coordinator | None = None
        self._folder: Path | None = None
        self._shard = ShardService(endpoint, index=index, clock=clock)
        self._others: set[bytes] = set()
        self._holders: list[str] = []
        self._ending: Coordinator | None = None
        self._awaited: set[bytes] = set()
        self._closing: list[int] = []
        self._sent_before: Counter[str] = Counter()
        self._sent_elsewhere: Counter[str] = Counter()
        self._refused_elsewhere: Counter[str] = Counter()
        self._refused_before: Counter[str] = Counter()
        self.results: list[RunResult] = []
        """Of the runs that have ended (server 0)."""
        if first is not None:
            endpoint.generation = first.generation
            first.send(*encode(Serves()))

    @property
    def mean_staleness(self) -> float:
        """Of the run under way, in versions (server 0)."""
        return 0.0 if self._coordinator is None else self._coordinator.ledger.progress().staleness

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
                self._first.send(*encode(self._traffic_of_run()))
                self._begin_generation()
                self._first.generation = self._endpoint.generation

    def end(self) -> None:
        """The job is over: close the records of a run that is under way."""
        self._end_run()
        if self._ending is not None:  # nobody is left to wait for the other servers
            self._close_records(self._ending)

    def _refuse(self, error: PlesioError) -> None:
        """Say in one line what cannot be read, and count it; what its sender was promised is not touched."""
        self._endpoint.refused[Refusal.MALFORMED] += 1
        _log.warning("server %d: %s", self._index, error)

    def _on_control(self, control: Control) -> None:
        try:
            message: ToServer = decode(control.kind, control.body, ToServer, peer=control.peer.decode(errors="replace"))
        except TransportError as error:
            self._refuse(error)
            return
        worker = worker_of(control.peer)
        match message:
            case PartArrived():
                self._arrived(message)
            case Serves():
                self._others.add(control.peer)
            case Ended():
                self._ended_at(control.peer, message)
            case ResultRequest() | ProgressRequest():
                self._answer_figures(control.peer, message)
            case Join():
                if worker is not None and self._ending is None:
                    coordinator = self._begin_run(message) if self._coordinator is None else self._coordinator
                    self._hand_on(coordinator, message, worker=worker)
            case _:
                if worker is not None and self._coordinator is not None:
                    self._hand_on(self._coordinator, message, worker=worker)

    def _hand_on(self, coordinator: Coordinator, message: FromWorker | Join, *, worker: int) -> None:
        if isinstance(message, Goodbye):
            if not coordinator.is_live(worker):  # counted lost, or never let in: the run goes on without it
                self._send(worker_identity(worker), RunEnded(result=self._result(coordinator)))
                return
            self._closing.append(worker)
        self._act(coordinator.handle(message, worker=worker, now_s=self._clock.now_s()))

    def _begin_run(self, join: Join) -> Coordinator:
        """The coordinator of the run that its first worker describes."""
        self._coordinator = coordinator = Coordinator.of(join, clock=self._clock, world=self._world)
        self._folder = None if join.folder is None else Path(join.folder)
        self._holders = [server_identity(index) for index in range(1, join.num_servers)]
        if coordinator.policy.pushes:  # at once or later in the run: then everybody would wait for it
            self.load()
        return coordinator

    def _answer_figures(self, peer: bytes, request: ResultRequest | ProgressRequest) -> None:
        coordinator = self._coordinator
        answer: Result | Progress
        if isinstance(request, ProgressRequest):
            answer = Progress(figures=None if coordinator is None else coordinator.ledger.progress())
        else:
            answer = Result(result=None if coordinator is None else self._result(coordinator))
        self._endpoint.send_control(peer, *encode(answer))

    def _on_gone(self, message: Gone) -> None:
        """A connection ended. A heartbeat's ends with its process only, so that loss need not wait for the lease."""
        if message.peer in self._others:
            self._others.discard(message.peer)
            self._ended_at(message.peer, Ended(sent={}, refused={}))
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
            effects = self._coordinator.handle(part, worker=part.event.worker, now_s=self._clock.now_s())
            self._act(effects)
        elif self._first is not None:
            self._first.send(*encode(part))

    def _act(self, effects: list[Effect]) -> None:
        orders = [effect for effect in effects if not isinstance(effect, Tell)]
        if orders:
            if self._holders:
                kind, body = encode(Orders.of(orders))
                for peer in self._holders:
                    self._endpoint.send_control(peer.encode(), kind, body)
            self._shard.carry_out(orders)
        for effect in effects:
            if isinstance(effect, Tell):
                identity = heartbeat_identity if effect.message.urgent else worker_identity
                self._send(identity(effect.worker), effect.message)
        if self._coordinator is not None and self._coordinator.state == "ended":
            self._end_run()

    def _send(self, peer: str, message: Message) -> None:
        self._endpoint.send_control(peer.encode(), *encode(message))

    def _traffic_of_run(self) -> Ended:
        """What this server has sent in the run under way, and whom it has turned away."""
        sent = Counter({"ipc": self._endpoint.traffic.ipc.sent, "tcp": self._endpoint.traffic.tcp.sent})
        refused = Counter({str(reason): count for reason, count in self._endpoint.refused.items()})
        return Ended(sent=dict(sent - self._sent_before), refused=dict(refused - self._refused_before))

    def _begin_generation(self) -> None:
        self._sent_before = Counter({"ipc": self._endpoint.traffic.ipc.sent, "tcp": self._endpoint.traffic.tcp.sent})
        self._refused_before = Counter({str(reason): count for reason, count in self._endpoint.refused.items()})
        self._cross_rack_before = self._cross_rack_bytes()
        self._endpoint.generation += 1

    def _result(self, coordinator: Coordinator) -> RunResult:
        own, ledger = self._traffic_of_run(), coordinator.ledger
        ledger.server_bytes = Counter(own.sent) + self._sent_elsewhere
        ledger.cross_rack_bytes = self._cross_rack_bytes() - self._cross_rack_before
        ledger.refused_peers = Counter(own.refused) + self._refused_elsewhere
        return ledger.result(status=coordinator.status, error=coordinator.error)

    def _end_run(self) -> None:
        """The run is over when every server has forgotten it: only then may the next one's messages reach them."""
        self._ending, self._coordinator = self._coordinator, None
        if self._ending is None:
            return
        self._shard.end_run()
        self._awaited = set(self._others)
        for peer in self._others:
            self._endpoint.send_control(peer, *encode(EndRun()))
        if not self._awaited:
            self._close_records(self._ending)

    def _ended_at(self, peer: bytes, traffic: Ended) -> None:
        """Another server has ended the run, or is gone."""
        self._sent_elsewhere.update(traffic.sent)
        self._refused_elsewhere.update(traffic.refused)
        self._awaited.discard(peer)
        if self._ending is not None and not self._awaited:
            self._close_records(self._ending)

    def _close_records(self, coordinator: Coordinator) -> None:
        """Write the run's figures, let its workers go, and be ready for the next run."""
        self._ending = None
        coordinator.trace.close()
        result = self._result(coordinator)
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                write_results(self._folder / "results.json", [result])
                write_log(self._folder / "events.jsonl", coordinator.recorder.log)
            except (OSError, DataError) as error:
                _log.warning("the run's figures could not be written to %s: %s", self._folder, error)
        self.results.append(result)
        for worker in self._closing:
            self._send(worker_identity(worker), RunEnded(result=result))
        self._closing.clear()
        self._sent_elsewhere.clear()
        self._refused_elsewhere.clear()
        self._begin_generation()
