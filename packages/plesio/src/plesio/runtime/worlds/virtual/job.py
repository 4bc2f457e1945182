"""A virtual worker's membership in its job: what `plesio.runtime.job.Job` is on real sockets."""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from plesio.core.clock import Clock
from plesio.core.errors import PlesioError, TransportError, WorkerLostError
from plesio.protocol.figures import Report
from plesio.protocol.message import decode, encode
from plesio.protocol.peers import heartbeat_identity, worker_identity
from plesio.protocol.to_server import Heartbeat, Holding
from plesio.protocol.to_worker import Alive, Expelled, Hold, Lost, Regrouping
from plesio.runtime.coordinator.ledger import World
from plesio.runtime.transport import Bulk, Control, Header
from plesio.runtime.transport.wire import EMPTY
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.group import CutOffError
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worker.peer_watch import Watch
from plesio.runtime.worker.rack_choice import RackChoice, RackWish
from plesio.runtime.worlds.virtual.board import VirtualBoard
from plesio.runtime.worlds.virtual.connections import BULK_BYTES, ControlLine, VirtualServer, json_bytes
from plesio.runtime.worlds.virtual.deployment import Deployment
from plesio.runtime.worlds.virtual.group import VirtualGroup
from plesio.runtime.worlds.virtual.links import VirtualLinks
from plesio.runtime.worlds.virtual.scheduler import ThreadTurn

LATE_S = 60.0
"""How long a worker that comes late waits for the run that it joins: as long as in real time (`plesio.runtime.job`)."""


class WorkerLine(ControlLine):
    """A worker's connection to one server, for control and bulk messages."""

    def __init__(
        self, identity: bytes, *, host: int, server: VirtualServer, deployment: Deployment, turn: ThreadTurn
    ) -> None:
        self._inbox: deque[Control | Bulk] = deque()
        self._polled = False
        self._deployment, self._turn = deployment, turn
        super().__init__(identity, host=host, server=server, on_arrival=self._take_in)

    def _take_in(self, incoming: Control | Bulk) -> None:
        self._inbox.append(incoming)
        if self._polled:
            self._deployment.scheduler.wake(self._turn)

    def _begin(self, action: Callable[[], None]) -> None:
        self._deployment.scheduler.do(self._turn, action)

    def send_control(self, kind: int, body: Mapping[str, Any]) -> None:
        self.send(kind, body)

    def stage(self, num_bytes: int) -> NDArray[np.uint8]:
        return self._deployment.memory.stage(num_bytes)

    def push(self, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = EMPTY) -> object:
        """Queue a bulk message; the worker spends the time that packing it takes."""
        view = payload.reshape(-1).view(np.uint8)
        if view.size:
            self._work_on(view.size)
        num_bytes = BULK_BYTES + json_bytes(meta) + view.size
        link: Literal["ipc", "tcp"] = "ipc" if self.host == self._server.connections.host else "tcp"
        self.traffic.of(link).sent_payload += num_bytes
        bulk = Bulk(peer=self.identity, header=header, meta=meta or {}, payload=view)
        self._carry(bulk, num_bytes, work=view.size)
        return bulk

    def _work_on(self, num_bytes: int) -> None:
        work_s = self._deployment.costs.pack(num_bytes, further=self._server.index > 0)
        self._deployment.work(self._turn, host=self.host, work_s=work_s)

    def poll(self, timeout_s: float) -> list[Control | Bulk]:
        """Return what has arrived; wait for the first at most ``timeout_s`` virtual seconds, or until woken."""
        if not self._open:
            self._deployment.scheduler.meet(self._turn)
            raise TransportError("this worker has left the job")
        if not self._inbox and timeout_s > 0:
            self._polled = True
            self._deployment.scheduler.wait(self._turn, timeout_s)
            self._polled = False
        arrived = list(self._inbox)
        self._inbox.clear()
        unpacked = sum(one.payload.size for one in arrived if isinstance(one, Bulk))
        if unpacked:
            self._work_on(unpacked)
        return arrived

    def check(self) -> None:
        """Do nothing: no server is lost here."""

    def release(self, bulk: Bulk) -> None:
        self._deployment.memory.release(bulk)


class VirtualClock:
    """A worker's time.

    Args:
        host: The worker's, which shares its cores.
    """

    def __init__(self, deployment: Deployment, turn: ThreadTurn, *, host: int) -> None:
        self._deployment = deployment
        self._turn = turn
        self._host = host
        self._computed_s = 0.0

    @property
    def backward_s(self) -> float:
        """Seconds of the latest step's backward pass in which DDP sends."""
        return self._deployment.cluster.backward_share * self._computed_s

    def now_s(self) -> float:
        return self._deployment.scheduler.now_s(self._turn)

    def unix_s(self) -> float:
        """Return the virtual time: a simulation begins at 0."""
        return self.now_s()

    def sleep_s(self, duration_s: float) -> None:
        """Compute for as long as ``duration_s`` takes on a core, shared or not."""
        if duration_s > 0:
            self._deployment.compute(self._turn, host=self._host, duration_s=duration_s)

    def sleep_until_s(self, deadline_s: float, *, share: float = 1.0) -> None:
        """Compute a step, or a share of one, until ``deadline_s``, or for as long as that takes on a shared core.

        Then wind it up.
        """
        costs, began_s = self._deployment.costs, self.now_s()
        if costs.cores is None:
            self.sleep_s(max(deadline_s - self.now_s(), share * costs.gradient_s))
        else:
            self._deployment.work(self._turn, host=self._host, work_s=share * costs.gradient_s)
            self.sleep_s(deadline_s - self.now_s())
        self._computed_s = self.now_s() - began_s
        self._deployment.work(self._turn, host=self._host, work_s=share * costs.step_s)


class _Pulse:
    """Receives what a worker must know at once; in a simulation no sign of life is needed."""

    def __init__(self, deployment: Deployment, turn: ThreadTurn, *, rank: int, host: int) -> None:
        self._deployment = deployment
        self._turn = turn
        self._abort: Callable[[], None] = lambda: None
        self._hold: Callable[[int], int] = lambda generation: 0
        self._lost: Callable[[Sequence[int]], None] = lambda workers: None
        self._meter: Meter | None = None
        self._rank = rank
        self.failure: PlesioError | None = None
        self.generation = 0
        self.server_lost = False
        self.doubtful = self.overslept = False
        """Never: nobody is silent here and lives."""
        self.line = ControlLine(
            heartbeat_identity(rank).encode(), host=host, server=deployment.server(0), on_arrival=self._receive
        )

    def begin(
        self,
        meter: Meter,
        *,
        abort: Callable[[], None],
        hold: Callable[[int], int],
        lost: Callable[[Sequence[int]], None],
        on_server_lost: Callable[[], None] | None,
    ) -> None:
        """Begin for a run; no server is ever lost."""
        self.failure = None
        self.generation = 0
        self._abort, self._hold, self._lost = abort, hold, lost
        self._meter = meter
        self._deployment.meters[self._turn] = meter
        meter.hand_on(self._enter)

    def _enter(self, report: Report) -> None:
        self._deployment.server(0).proper.run.enter(self._rank, report)

    def wait_for_failure(self) -> PlesioError | None:
        while self.failure is None:
            self._deployment.scheduler.wait(self._turn)
        return self.failure

    def quiet(self) -> None:
        """Send no more figures: the training thread sends the last itself."""
        self._meter = None

    def beat(self) -> None:
        """Send the figures up to now, as a process does several times a lease."""
        if self._meter is not None:
            self.line.send(*encode(Heartbeat(report=self._meter.take())))

    def _receive(self, incoming: Control | Bulk) -> None:
        if not isinstance(incoming, Control):
            return
        match decode(incoming.kind, incoming.body, Alive | Lost | Regrouping | Hold | Expelled, peer="server 0"):
            case Lost(workers=workers, fatal=fatal, error=error):
                self._lost(workers)
                if not fatal:
                    return
                self.failure = WorkerLostError.of(workers, error=error)
            case Expelled(over=over):
                self.failure = WorkerLostError.expelled(self._rank, over=over)
            case Regrouping(generation=generation):
                self.generation = generation
            case Hold(generation=generation):
                self.line.send(*encode(Holding(generation=generation, begun=self._hold(generation))))
                return
            case _:
                return
        self._abort()
        self._deployment.scheduler.wake(self._turn)


class _AllStarted:
    """The start of a job whose workers are all there."""

    def missing(self) -> list[int]:
        """Return none: all workers come."""
        return []

    def begun(self) -> None:
        """Do nothing: no launcher waits for it."""

    def assure_all_come(self) -> None:
        """Do nothing: all workers come."""

    def finished_without(self, lost: Sequence[int]) -> None:
        """Do nothing: no launcher has started it."""


class VirtualJob:
    """One virtual worker's membership."""

    world: World = "virtual"
    start = _AllStarted()
    shares_gpus = False

    def __init__(self, deployment: Deployment, place: WorkerPlace, turn: ThreadTurn) -> None:
        self.place = place
        self.meet_s = LATE_S if place.late else math.inf
        self._deployment = deployment
        self._turn = turn
        self._host = deployment.host_of(place.rank)
        self.rack = deployment.cluster.rack_of_host(self._host)
        self._computing = VirtualClock(deployment, turn, host=self._host)
        self.clock: Clock = self._computing
        self._lines: list[WorkerLine] = []
        self._pulse: _Pulse | None = None
        self._group: VirtualGroup | None = None
        self._generation = 0
        self._collective_bytes = self._message_bytes = 0

    def servers(self, count: int, *, folder: Path | None, replicas: int = 1) -> Sequence[WorkerLine]:
        """Connect to the first ``count`` servers; none is ever lost, so there are no replicas."""
        while len(self._lines) < count:
            self._lines.append(
                WorkerLine(
                    worker_identity(self.place.rank).encode(),
                    host=self._host,
                    server=self._deployment.server(len(self._lines)),
                    deployment=self._deployment,
                    turn=self._turn,
                )
            )
        return self._lines[:count]

    def heartbeat(self) -> _Pulse:
        """Start the sign of life, which also receives what this worker must know at once."""
        if self._pulse is None:
            self._pulse = _Pulse(self._deployment, self._turn, rank=self.place.rank, host=self._host)
        return self._pulse

    def group(self, device_type: str) -> VirtualGroup:
        """Return the group of all ranks that the job began with."""
        if self._group is None:
            self._group = self._group_of(range(self.place.num_workers))
        return self._group

    def _group_of(self, ranks: Sequence[int], beside: Sequence[Sequence[int]] = ()) -> VirtualGroup:
        return VirtualGroup(
            ranks.index(self.place.rank),
            meeting=self._deployment.meeting(ranks, beside=beside, generation=self._generation),
            turn=self._turn,
            count_bytes=partial(self._count, ranks),
            backward_s=lambda: self._computing.backward_s,
            rack=self.rack,
            part=lambda part, beside: self._group_of(
                [ranks[rank] for rank in part], [[ranks[rank] for rank in other] for other in beside]
            ),
        )

    def _count(self, ranks: Sequence[int], operation: str, num_bytes: int) -> None:
        self._collective_bytes += self._deployment.count_collective(ranks, self.place.rank, operation, num_bytes)

    def links(self, device: torch.device) -> VirtualLinks:
        def count(num_bytes: int) -> None:
            self._message_bytes += num_bytes

        return VirtualLinks(self.place.rank, office=self._deployment.office, turn=self._turn, count_bytes=count)

    def watch_peers(self, step_s: Callable[[], float]) -> Watch:
        """Return a watch that notices nothing: no worker stops unnoticed here."""
        return Watch()

    def board(self) -> VirtualBoard:
        return VirtualBoard(self._deployment.notes, turn=self._turn)

    def meeting(self) -> str:
        """Return a placeholder: no worker has to look for another here."""
        return "virtual"

    def regroup(
        self, members: Sequence[int], *, at: str, generation: int, device_type: str, called_off: Callable[[], bool]
    ) -> VirtualGroup:
        self._generation = generation
        self._group = self._group_of(members)
        if called_off():
            raise CutOffError("the group was called off: another worker is lost")
        return self._group

    def settle_racks(self, wish: RackWish, *, device_type: str) -> RackChoice | None:
        """Return None: the cluster has the racks."""
        return None

    def abort_collectives(self) -> None:
        """Wake whoever is blocked in a collective with this worker, with an error."""
        self._deployment.abort_collectives(self.place.rank)

    def bytes_sent(self) -> Counter[str]:
        sent: Counter[str] = Counter(collective=self._collective_bytes + self._message_bytes)
        for line in self._lines:
            sent.update(ipc=line.traffic.ipc.sent, tcp=line.traffic.tcp.sent)
        return sent

    def bytes_sent_since(self, before: Counter[str]) -> Callable[[], dict[str, int]]:
        return lambda: dict(self.bytes_sent() - before)

    def memory_bytes(self) -> int:
        """Return the configured need of a worker: this process's memory cannot be divided among workers."""
        return self._deployment.costs.memory_bytes

    def let_servers_go_on(self) -> None:
        """Do nothing: no worker has started the servers."""

    def next_run(self) -> None:
        """Prepare for the next run: messages from now on belong to it."""
        for line in (*self._lines, *(() if self._pulse is None else (self._pulse.line,))):
            line.generation += 1

    def close(self) -> None:
        self._deployment.office.leave(self.place.rank)
        for line in self._lines:
            line.close()
        if self._pulse is not None:
            self._pulse.line.close()

    def die(self) -> None:
        self._deployment.office.leave(self.place.rank)
        if self._pulse is not None:
            self._pulse.beat()
            self._pulse.line.cut()
        for line in self._lines:
            line.cut()
