"""A server and its backup, without sockets: either is lost at any moment, and every update counts exactly once.

The world delivers one message at a time, on a connection chosen at random, in order on each connection. Killing the
primary loses what was on its way to it, and all of what it has sent on a connection from some message on.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from plesio.core.errors import TransportError
from plesio.core.records import from_values, to_values
from plesio.protocol.bulk import BulkFromServer, Initial, Initialised, OptimizerSpec, Pull, Pulled, Push
from plesio.protocol.figures import RunInfo
from plesio.protocol.message import decode, encode, kind_of
from plesio.protocol.peers import worker_identity
from plesio.protocol.replication import EntryAcknowledged, ReplicationEntry
from plesio.protocol.to_server import Join
from plesio.protocol.to_worker import Start
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.server.primary_backup import PRIMARY, BackupServer, PrimaryServer
from plesio.runtime.server.shard import Shard
from plesio.runtime.server.shard_server import ShardFailedError
from plesio.runtime.transport import Bulk, Control, Gone, Header, Refusal, Traffic
from plesio.runtime.transport.failover import FailoverConnection
from plesio.runtime.worker.machine import environment

NUM_WORKERS = 2
NUM_PUSHES = 6
LAYOUT = SliceLayout.of([("w", torch.zeros(1), "parameter", 0)], num_servers=1)
EMPTY = np.empty(0, np.uint8)


class Endpoint:
    """A server's connections."""

    def __init__(self, world: "World", name: str) -> None:
        self.traffic, self.refused, self.generation = Traffic(), Counter[Refusal](), 0
        self._world, self._name = world, name

    def send_control(self, peer: bytes, kind: int, body: Mapping[str, Any]) -> bool:
        message = Control(peer=b"", kind=kind, generation=self.generation, body=body)
        self._world.send(self._name, peer, "control", message)
        return True

    def send(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = EMPTY
    ) -> None:
        message = Bulk(peer=b"", header=header, meta=meta or {}, payload=payload.reshape(-1).view(np.uint8).copy())
        self._world.send(self._name, peer, "bulk", message)

    def stage(self, num_bytes: int, *, peer: bytes) -> NDArray[np.uint8]:
        return np.empty(num_bytes, np.uint8)

    def release(self, bulk: Bulk) -> None:
        """Nothing is lent."""


class Link:
    """A worker's connection to one of the servers."""

    def __init__(self, world: "World", peer: bytes, server: str) -> None:
        self.generation, self.traffic, self.lost = 0, Traffic(), False
        self.inbox: list[Control | Bulk] = []
        self._world, self._peer, self._server = world, peer, server
        world.links[peer, server] = self

    def send_control(self, kind: int, body: Mapping[str, Any]) -> None:
        message = Control(peer=self._peer, kind=kind, generation=0, body=body)
        self._world.send(self._peer, self._server, "control", message)

    def push(self, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = EMPTY) -> None:
        message = Bulk(peer=self._peer, header=header, meta=meta or {}, payload=payload.view(np.uint8).copy())
        self._world.send(self._peer, self._server, "bulk", message)

    def poll(self, timeout_s: float) -> list[Control | Bulk]:
        if timeout_s > 0 and not self.inbox:  # this worker waits, and meanwhile
            self._world.deliver()
            self._world.let_another_act()
        arrived, self.inbox = self.inbox, []
        if not arrived and self.lost:
            raise TransportError("lost")
        return arrived

    def release(self, bulk: Bulk) -> None:
        """Nothing is lent."""

    def close(self) -> None:
        """Nothing is open."""


class World:
    """Two servers, their workers, and what is on its way between them."""

    def __init__(self, rng: random.Random, *, policy: str) -> None:
        self._rng, self._now_s = rng, 0.0
        self._queues: dict[tuple[Any, Any, str], deque[Any]] = defaultdict(deque)
        self.links: dict[tuple[bytes, str], Link] = {}
        self.primary: PrimaryServer | None = PrimaryServer(Endpoint(self, "primary"), pass_on=self._pass_on)
        self.backup: BackupServer | None = BackupServer(Endpoint(self, "backup"))
        self.workers = [Worker(self, rank, policy=policy) for rank in range(NUM_WORKERS)]

    def _pass_on(self, entry: ReplicationEntry, payload: NDArray[np.uint8] | None) -> None:
        values = from_values(to_values(entry), ReplicationEntry)
        self.send("primary", "backup", "entries", (values, EMPTY if payload is None else payload.copy()))

    def send(self, source: Any, target: Any, channel: str, message: Any) -> None:
        lost = {"primary": self.primary, PRIMARY: self.primary, "backup": self.backup}.get(target, self) is None
        if not lost:
            self._queues[source, target, channel].append(message)

    def deliver(self) -> bool:
        """Deliver one message; whether there was one."""
        waiting = [key for key, queue in self._queues.items() if queue]
        if not waiting:
            return False
        self._now_s += 1e-4
        source, target, channel = key = self._rng.choice(waiting)
        message = self._queues[key].popleft()
        if channel == "entries":
            if isinstance(message, Gone):
                self.backup.take_in(message, now_s=self._now_s)
            else:
                entry, payload = message
                header = Header(kind=11, generation=0)
                self.backup.follow([(entry, Bulk(peer=PRIMARY, header=header, meta={}, payload=payload))])
        elif target == "primary":
            self.primary.take(message, now_s=self._now_s)
        elif target == "backup":
            self.backup.take_in(message, now_s=self._now_s)
        elif target == PRIMARY:
            self.primary.acknowledge(decode(message.kind, message.body, EntryAcknowledged, peer="backup").number)
        elif message is None:
            self.links[target, source].lost = not self._queues[source, target, "bulk"]
            if not self.links[target, source].lost:
                self._queues[key].append(None)
        else:
            self.links[target, source].inbox.append(message)
        return True

    def let_another_act(self) -> None:
        idle = [worker for worker in self.workers if not worker.acts]
        if idle:
            self._rng.choice(idle).act()

    def tick(self) -> None:
        if self.primary is not None:
            self.primary.tick(now_s=self._now_s)
        elif self.backup is not None and self.backup.serves:
            self.backup.tick(now_s=self.backup.time_s(self._now_s))

    def kill_primary(self) -> None:
        self.primary = None
        for (source, target, _), queue in self._queues.items():
            if target in ("primary", PRIMARY):
                queue.clear()
            elif source == "primary":
                for _ in range(self._rng.randint(0, len(queue))):
                    queue.pop()
        self._queues["primary", "backup", "entries"].append(Gone(peer=PRIMARY))
        for worker in self.workers:
            self._queues["primary", worker.peer, "control"].append(None)

    def kill_backup(self) -> None:
        self.backup = None
        for (source, target, _), queue in self._queues.items():
            if "backup" in (source, target):
                queue.clear()
        self.primary.go_on_alone()


class Worker:
    """Pushes a gradient of exactly -1, as often as it may; then it has done its part."""

    def __init__(self, world: World, rank: int, *, policy: str) -> None:
        self.peer, self._rank = worker_identity(rank).encode(), rank
        self._connection = FailoverConnection(
            Link(world, self.peer, "primary"), dial=lambda: Link(world, self.peer, "backup")
        )
        self.clock = self._request = 0
        self.versions: list[int] = []
        self.value = 0.0
        self.acts = False
        if rank == 0:
            optimizer = OptimizerSpec(names=("SGD",), groups=({"lr": 1.0},))
            initial = Initial(slices=LAYOUT.rows(0), update="gradient", optimizer=optimizer)
            self._send(initial, payload=np.zeros(1, np.float32))
        else:
            self._join(policy)
        self._policy = policy

    def _join(self, policy: str) -> None:
        join = Join(
            policy=policy,
            info=RunInfo(),
            num_workers=NUM_WORKERS,
            num_servers=1,
            snapshot_every=None,
            folder=None,
            layout="",
            rack=0,
            environment=environment(),
        )
        self._connection.send_control(*encode(join))

    def _send(self, message: Initial | Push | Pull, *, payload: NDArray[Any] = EMPTY) -> None:
        kind, meta = encode(message)
        self._request += 1
        version = self.versions[-1] if self.versions else 0
        header = Header(
            kind=kind,
            generation=0,
            worker=self._rank,
            clock=self.clock,
            base_version=version,
            request=self._request,
        )
        self._connection.push(header, meta=meta, payload=payload)

    @property
    def done(self) -> bool:
        return self.clock == NUM_PUSHES and len(self.versions) == NUM_PUSHES + 1

    def act(self) -> None:
        self.acts = True
        try:
            self._act()
        finally:
            self.acts = False

    def _act(self) -> None:
        for incoming in self._connection.poll(0.0):
            if isinstance(incoming, Control):
                if incoming.kind == kind_of(Start):
                    self._send(Pull(after=0, known=None))
                continue
            answer = decode(incoming.header.kind, incoming.meta, BulkFromServer, peer="server")
            if isinstance(answer, Initialised):
                self._join(self._policy)
            elif isinstance(answer, Pulled):
                assert incoming.header.request == self._request, "the answer to another question"
                self.versions.append(incoming.header.base_version)
                if incoming.payload.size:
                    self.value = float(incoming.payload.view(np.float32)[0])
                if self.clock < NUM_PUSHES:
                    self.clock += 1
                    push = Push(num_steps=1, num_samples=1, present=None, finished=())
                    self._send(push, payload=np.full(1, -1.0, np.float32))
                    self._send(Pull(after=self.clock, known=None))


def play(seed: int, policy: str, kill: Callable[[World], None] | None) -> World:
    rng = random.Random(seed)
    world = World(rng, policy=policy)
    at = rng.randint(0, 250)
    for moment in range(20_000):
        if moment == at and kill is not None:
            kill(world)
        choice = rng.random()
        if choice < 0.2:
            rng.choice(world.workers).act()
        elif choice < 0.22:
            world.tick()
        else:
            world.deliver()
        if moment > at and all(worker.done for worker in world.workers):
            return world
    raise AssertionError(f"not done: {[(worker.clock, worker.versions) for worker in world.workers]}")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", ["asp", "ssp:1", "bsp,exchange=store"])
@pytest.mark.parametrize("kill", [None, World.kill_primary, World.kill_backup])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_every_update_counts_once_whenever_a_server_is_lost(
    policy: str, kill: Callable[[World], None] | None, seed: int
):
    world = play(seed, policy, kill)
    rounds = NUM_PUSHES if policy.startswith("bsp") else NUM_PUSHES * NUM_WORKERS
    assert max(worker.versions[-1] for worker in world.workers) == rounds
    # each update moves the parameter by 1 / workers, a round of all of them by 1
    assert max(worker.value for worker in world.workers) == NUM_PUSHES
    for worker in world.workers:
        assert worker.versions == sorted(worker.versions), "a worker was given parameters older than it had"
        own = range(NUM_PUSHES + 1)
        assert all(version >= clock for version, clock in zip(worker.versions, own, strict=True))


@pytest.mark.parametrize("fails", ["apply", "pull"])
@pytest.mark.parametrize("kill", [None, World.kill_primary])
def test_neither_server_takes_a_worker_for_the_cause_of_a_failure_of_its_own(
    fails: str, kill: Callable[[World], None] | None, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("of the server")

    monkeypatch.setattr(Shard, fails, fail)
    with pytest.raises(ShardFailedError, match="of the server"):
        play(1, "bsp,exchange=store", kill)
