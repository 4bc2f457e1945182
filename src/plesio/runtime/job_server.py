"""What a server of a job does, whatever carries its messages: hold a shard and, as server 0, decide the runs.

The loop is thin: what arrives is handed on to a `Coordinator` (server 0) and a `ShardService`, and what they answer is
sent.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from plesio.core.clock import Clock
from plesio.core.errors import DataError
from plesio.core.results import Environment, Evaluation, RunResult, write_results
from plesio.policies import Arrived, Reviewed, decode_event, parse_policy, write_log
from plesio.runtime.coordinator import Coordinator
from plesio.runtime.effects import Effect, Order, Tell
from plesio.runtime.exchange.connection import ControlConnection, WorkerConnections
from plesio.runtime.exchange.shard_service import ShardService
from plesio.runtime.exchange.transport import Bulk, Control, Gone, Incoming
from plesio.runtime.ledger import Report, RunInfo, World
from plesio.runtime.messages import (
    ControlKind,
    heartbeat_identity,
    server_identity,
    worker_identity,
    worker_of,
)
from plesio.runtime.remainder import PlanFigures
from plesio.runtime.stage import Standing

__all__ = ["JobServer"]


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
        self._shard = ShardService(endpoint, clock=clock)
        self._others: set[bytes] = set()
        self._holders: list[bytes] = []
        self._ending: Coordinator | None = None
        self._awaited: set[bytes] = set()
        self._num_servers = 1
        self._layout = ""
        self._closing: list[int] = []
        self._sent_before: Counter[str] = Counter()
        self._sent_elsewhere: Counter[str] = Counter()
        self._refused_elsewhere: Counter[str] = Counter()
        self._refused_before: Counter[str] = Counter()
        self.results: list[RunResult] = []
        """Of the runs that have ended (server 0)."""
        if first is not None:
            endpoint.generation = first.generation
            first.send(ControlKind.SERVES, {})

    @property
    def mean_staleness(self) -> float:
        """Of the run under way, in versions (server 0)."""
        return 0.0 if self._coordinator is None else self._coordinator.ledger.progress()["staleness"]

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
            if control.kind == ControlKind.ORDERS:
                self._shard.carry_out([Order(kind, body) for kind, body in control.body["orders"]])
            elif control.kind == ControlKind.ENDED:
                self._shard.end_run()
                self._first.send(ControlKind.ENDED, self._traffic_of_run())
                self._begin_generation()
                self._first.generation = self._endpoint.generation

    def end(self) -> None:
        """The job is over: close the books of a run that is under way."""
        self._end_run()
        if self._ending is not None:  # nobody is left to wait for the other servers
            self._close_books(self._ending)

    def _on_control(self, message: Control) -> None:
        now_s = self._clock.now_s()
        worker = worker_of(message.peer)
        body = message.body
        kind = ControlKind(message.kind)
        if kind is ControlKind.ARRIVED:
            event = Arrived(**body["event"])
            self._arrived(event, num_samples=body["num_samples"], finished=body["finished"], server=body["server"])
        elif kind is ControlKind.SERVES:
            self._others.add(message.peer)
        elif kind is ControlKind.ENDED:
            self._ended_at(message.peer, body)
        elif kind is ControlKind.JOIN and worker is not None and self._ending is None:
            self._join(worker, body)
        elif kind is ControlKind.RESULT or kind is ControlKind.PROGRESS:
            self._answer_figures(message, kind)
        elif self._coordinator is not None and worker is not None:
            self._on_worker(self._coordinator, worker, kind, body, now_s=now_s)

    def _on_worker(
        self, coordinator: Coordinator, worker: int, kind: ControlKind, body: Mapping[str, Any], *, now_s: float
    ) -> None:
        match kind:
            case ControlKind.HEARTBEAT:
                effects = coordinator.heard(worker, now_s=now_s, report=Report.from_json(body["report"]))
                self._act(effects)
                if not effects:
                    lease = {"lease_s": coordinator.lease_s}
                    self._endpoint.send_control(heartbeat_identity(worker).encode(), ControlKind.ALIVE, lease)
            case ControlKind.LEASE:
                figures = PlanFigures(**body["figures"])
                self._act(coordinator.lease(worker, plan=body["plan"], idle=body["idle"], figures=figures, now_s=now_s))
            case ControlKind.FINISH:
                self._act(
                    coordinator.finish(
                        worker, plan=body["plan"], block=body["block"], num_samples=body["num_samples"], now_s=now_s
                    )
                )
            case ControlKind.RELEASE:
                self._act(coordinator.release(worker, now_s=now_s))
            case ControlKind.NOT_FINITE:
                arrived = Arrived(**body["event"], finite=False)
                self._arrived(arrived, num_samples=0, finished=body["finished"], server=0)
            case ControlKind.LEAVE:
                self._act(coordinator.leave(worker, now_s=now_s))
            case ControlKind.EVALUATED:
                coordinator.ledger.evaluations += [Evaluation(**point) for point in body["evaluations"]]
                coordinator.ledger.parameters_sha256 = body["parameters_sha256"] or coordinator.ledger.parameters_sha256
                for point in body["evaluations"]:
                    self._act(coordinator.evaluated(point["metric"], now_s=now_s))
            case ControlKind.REVIEW:
                event = decode_event(body["event"])
                assert isinstance(event, Reviewed), event
                self._act(coordinator.reviewed(event, now_s=now_s))
            case ControlKind.READY:
                self._act(coordinator.ready(worker, Standing.from_json(body), now_s=now_s))
            case ControlKind.BYE:
                if not coordinator.is_live(worker):  # counted lost, or never let in: the run goes on without it
                    self._send_result(worker, self._result(coordinator))
                    return
                coordinator.heard(worker, now_s=now_s, report=Report.from_json(body["report"]))
                self._closing.append(worker)
                self._act(coordinator.bye(worker, status=body["status"], error=body["error"], now_s=now_s))

    def _join(self, worker: int, body: Mapping[str, Any]) -> None:
        if self._coordinator is None:
            folder = None if body["folder"] is None else Path(body["folder"])
            policy = parse_policy(body["policy"])
            self._num_servers = body["num_servers"]
            self._coordinator = Coordinator(
                policy,
                info=RunInfo(**body["info"]),
                expected=range(body["num_workers"]),
                num_servers=self._num_servers,
                snapshot_every=body["snapshot_every"] if policy.pushes else None,
                folder=folder,
                clock=self._clock,
                world=self._world,
            )
            self._folder = folder
            self._holders = [server_identity(index).encode() for index in range(1, self._num_servers)]
            self._layout = body["layout"]
            if policy.pushes:  # at once or later in the run: then everybody would wait for it, and see no progress
                self.load()
        now_s = self._clock.now_s()
        problem = self._disagreement(self._coordinator, body)
        if problem is not None:
            self._act(self._coordinator.reject(worker, problem, now_s=now_s))
            return
        if worker == 0:
            self._coordinator.ledger.environment = Environment(**body["environment"])
        effects = self._coordinator.join(
            worker, now_s=now_s, rack=body["rack"], normalises=body["normalises"], sparse=body["sparse"]
        )
        self._act(effects)

    def _disagreement(self, coordinator: Coordinator, body: Mapping[str, Any]) -> str | None:
        if body["policy"] != coordinator.policy.spec:
            return (
                f'this worker runs policy "{body["policy"]}", the others "{coordinator.policy.spec}"; use one for all'
            )
        if body["layout"] != self._layout:
            return "this worker's model differs from the others' (names, shapes, dtypes, or the number of servers)"
        return None

    def _answer_figures(self, message: Control, kind: ControlKind) -> None:
        coordinator = self._coordinator
        body: dict[str, Any] = {}
        if coordinator is not None and kind is ControlKind.PROGRESS:
            body = {"policy": coordinator.policy.spec, **coordinator.ledger.progress()}
        elif coordinator is not None:
            body = self._result(coordinator).to_json()
        self._endpoint.send_control(message.peer, kind, body)

    def _on_gone(self, message: Gone) -> None:
        """A connection ended. A heartbeat's ends with its process only, so that loss need not wait for the lease."""
        if message.peer in self._others:
            self._others.discard(message.peer)
            self._ended_at(message.peer, {"sent": {}, "refused": {}})
        worker = worker_of(message.peer)
        if self._coordinator is not None and worker is not None and message.peer.startswith(b"heartbeat"):
            self._act(self._coordinator.lose(worker, now_s=self._clock.now_s()))

    def _on_bulk(self, message: Bulk) -> None:
        snapshots = [] if self._coordinator is None else self._coordinator.snapshots
        arrival = self._shard.take(message, snapshots=snapshots)
        if arrival is not None:
            self._arrived(arrival.event, num_samples=arrival.num_samples, finished=arrival.finished, server=self._index)

    def _arrived(self, event: Arrived, *, num_samples: int, finished: list[list[int]], server: int) -> None:
        if self._coordinator is not None:
            now_s = self._clock.now_s()
            effects = self._coordinator.arrived(
                event, num_samples=num_samples, finished=finished, server=server, now_s=now_s
            )
            self._act(effects)
        elif self._first is not None:
            fields = {name: getattr(event, name) for name in Arrived.__slots__}
            body = {"event": fields, "num_samples": num_samples, "finished": finished, "server": server}
            self._first.send(ControlKind.ARRIVED, body)

    def _act(self, effects: list[Effect]) -> None:
        orders = [effect for effect in effects if isinstance(effect, Order)]
        if orders:
            body = {"orders": [[order.kind, order.body] for order in orders]}
            for peer in self._holders:
                self._endpoint.send_control(peer, ControlKind.ORDERS, body)
            self._shard.carry_out(orders)
        for effect in effects:
            if isinstance(effect, Tell):
                self._tell(effect)
        if self._coordinator is not None and self._coordinator.state == "ended":
            self._end_run()

    def _tell(self, effect: Tell) -> None:
        kind = ControlKind[effect.kind.upper()]
        by_thread = kind in (ControlKind.LOST, ControlKind.EXPELLED)
        identity = heartbeat_identity(effect.worker) if by_thread else worker_identity(effect.worker)
        self._endpoint.send_control(identity.encode(), kind, effect.body)

    def _traffic_of_run(self) -> dict[str, dict[str, int]]:
        """What this server has sent in the run under way, and whom it has turned away."""
        sent = Counter({"ipc": self._endpoint.traffic.ipc.sent, "tcp": self._endpoint.traffic.tcp.sent})
        refused = Counter({str(reason): count for reason, count in self._endpoint.refused.items()})
        return {"sent": dict(sent - self._sent_before), "refused": dict(refused - self._refused_before)}

    def _begin_generation(self) -> None:
        self._sent_before = Counter({"ipc": self._endpoint.traffic.ipc.sent, "tcp": self._endpoint.traffic.tcp.sent})
        self._refused_before = Counter({str(reason): count for reason, count in self._endpoint.refused.items()})
        self._cross_rack_before = self._cross_rack_bytes()
        self._endpoint.generation += 1

    def _result(self, coordinator: Coordinator) -> RunResult:
        own, ledger = self._traffic_of_run(), coordinator.ledger
        ledger.server_bytes = Counter(own["sent"]) + self._sent_elsewhere
        ledger.cross_rack_bytes = self._cross_rack_bytes() - self._cross_rack_before
        ledger.refused_peers = Counter(own["refused"]) + self._refused_elsewhere
        return ledger.result(status=coordinator.status, error=coordinator.error)

    def _send_result(self, worker: int, result: RunResult) -> None:
        self._endpoint.send_control(worker_identity(worker).encode(), ControlKind.BYE, result.to_json())

    def _end_run(self) -> None:
        """The run is over when every server has forgotten it: only then may the next one's messages reach them."""
        self._ending, self._coordinator = self._coordinator, None
        if self._ending is None:
            return
        self._shard.end_run()
        self._awaited = set(self._others)
        for peer in self._others:
            self._endpoint.send_control(peer, ControlKind.ENDED, {})
        if not self._awaited:
            self._close_books(self._ending)

    def _ended_at(self, peer: bytes, traffic: Mapping[str, Mapping[str, int]]) -> None:
        """Another server has ended the run, or is gone."""
        self._sent_elsewhere.update(traffic["sent"])
        self._refused_elsewhere.update(traffic["refused"])
        self._awaited.discard(peer)
        if self._ending is not None and not self._awaited:
            self._close_books(self._ending)

    def _close_books(self, coordinator: Coordinator) -> None:
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
                print(f"plesio: the run's figures could not be written to {self._folder}: {error}", file=sys.stderr)
        self.results.append(result)
        for worker in self._closing:
            self._send_result(worker, result)
        self._closing.clear()
        self._sent_elsewhere.clear()
        self._refused_elsewhere.clear()
        self._begin_generation()
