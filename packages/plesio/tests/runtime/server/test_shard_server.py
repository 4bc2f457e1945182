import threading
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import zmq

from plesio.protocol.bulk import Initial, IslandPart, Pull, Pulled, Push, Shared, SharedRequest
from plesio.protocol.effects import AdmitOrder, ApplyOrder, CreditOrder, DropOrder, Order, SnapshotOrder
from plesio.protocol.message import Message, decode, kind_of
from plesio.protocol.peers import part_identity, worker_identity
from plesio.protocol.to_server import PartArrived
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.server.shard import Shard
from plesio.runtime.server.shard_server import ShardFailedError, ShardServer
from plesio.runtime.transport import Bulk, Header
from plesio.testing import FakeClock
from support.endpoints import KeepingEndpoint
from support.transport import PATIENCE_S, EchoServer, control_to

LAYOUT = SliceLayout.of([("w", torch.zeros(4), "parameter", 0)], num_servers=1)


@dataclass(frozen=True)
class Answer:
    """A message that a worker was sent."""

    worker: int
    request: int
    version: int
    credit: int
    held_s: float
    values: list[float]


class Host:
    """A shard with the values 0, 1, 2, 3, and its workers."""

    def __init__(self) -> None:
        self.endpoint = KeepingEndpoint()
        self.clock = FakeClock()
        initial = Initial(slices=LAYOUT.rows(0), update="delta", optimizer=None, state=None)
        payload = np.arange(4, dtype=np.float32)
        self.shard = ShardServer(self.endpoint, index=0, clock=self.clock)
        self.shard.take(self.message(0, initial, clock=0, payload=payload))
        self.endpoint.bulks.clear()
        self.endpoint.released.clear()

    @property
    def released(self) -> list[tuple[int, int]]:
        """Updates whose payload is no longer needed."""
        pushed = kind_of(Push)
        headers = [bulk.header for bulk in self.endpoint.released if bulk.header.kind == pushed]
        return [(header.worker, header.clock) for header in headers]

    def message(
        self, worker: int, message: Message, *, clock: int, payload: np.ndarray | None = None, request: int = 0
    ) -> Bulk:
        header = Header(kind=kind_of(type(message)), generation=0, worker=worker, clock=clock, request=request)
        numbers = np.empty(0, np.uint8) if payload is None else payload.view(np.uint8)
        return Bulk(peer=worker_identity(worker).encode(), header=header, meta=message.body(), payload=numbers)

    def answers(self) -> list[Answer]:
        """Return the messages that have been sent since the last call."""
        sent, self.endpoint.bulks = self.endpoint.bulks, []
        found = []
        for _, header, meta, payload in sent:
            pulled = decode(header.kind, meta, Pulled, peer="server 0")
            values = payload.view(np.float32).tolist()
            found.append(
                Answer(header.worker, header.request, header.base_version, pulled.credit, pulled.held_s, values)
            )
        return found

    def push(self, worker: int, *, clock: int, value: float) -> None:
        push = Push(num_steps=1, num_samples=1, present=None, finished=())
        bulk = self.message(worker, push, clock=clock, payload=np.full(4, value, dtype=np.float32))
        part = self.shard.take(bulk)
        assert isinstance(part, PartArrived)
        assert (part.event.worker, part.event.clock, part.server) == (worker, clock, 0)

    def pull(self, worker: int, *, after: int, clock: int, known: int | None = 0) -> list[Answer]:
        pull = Pull(after=after, known=known)
        self.shard.take(self.message(worker, pull, clock=clock, request=worker * 100 + clock))
        return self.answers()

    def order(self, order: Order) -> list[Answer]:
        self.shard.carry_out([order])
        return self.answers()

    def apply(self, *updates: tuple[int, int], version: int) -> list[Answer]:
        return self.order(ApplyOrder(updates=updates, weight=1.0, version=version, num_live=1))

    def shared(self, *, snapshot: int | None) -> list[float]:
        request = SharedRequest(snapshot=snapshot, optimizer=False)
        bulk = self.message(0, request, clock=0)
        assert self.shard.take(bulk) == request
        self.shard.share(bulk, request, snapshots=())
        [(_, header, meta, payload)] = self.endpoint.bulks
        self.endpoint.bulks.clear()
        decode(header.kind, meta, Shared, peer="server 0")
        return payload.view(np.float32).tolist()


def test_pull_waits_for_the_decision_on_the_update_and_for_credit():
    host = Host()
    host.order(CreditOrder(worker=0, clock=1))
    host.push(0, clock=1, value=1.0)
    assert host.pull(0, after=1, clock=1) == []
    host.clock.sleep_s(1.0)
    assert host.apply((0, 1), version=1) == [], "decided, but no credit for a second step"
    host.clock.sleep_s(2.0)
    [answer] = host.order(CreditOrder(worker=0, clock=3))
    assert (answer.request, answer.credit, answer.held_s) == (1, 3, 3.0)
    assert answer.values == [1.0, 2.0, 3.0, 4.0]
    assert host.released == [(0, 1)]


def test_credit_alone_is_not_enough_either():
    host = Host()
    host.order(CreditOrder(worker=0, clock=9))
    host.push(0, clock=2, value=1.0)
    assert host.pull(0, after=2, clock=2) == []
    [answer] = host.apply((0, 2), version=1)
    assert answer.version == 1


def test_pull_with_nothing_outstanding_is_answered_at_once():
    host = Host()
    host.order(CreditOrder(worker=0, clock=2))
    [answer] = host.pull(0, after=0, clock=0, known=None)
    assert answer.values == [0.0, 1.0, 2.0, 3.0]
    assert answer.held_s == 0.0


def test_orders_for_one_worker_do_not_answer_another():
    host = Host()
    assert host.pull(0, after=0, clock=0) == []
    assert host.pull(1, after=0, clock=0) == []
    answers = host.order(CreditOrder(worker=1, clock=1))
    assert [answer.worker for answer in answers] == [1]


def test_refused_update_is_decided_and_the_worker_is_rid_of_its_steps():
    host = Host()
    host.order(CreditOrder(worker=0, clock=5))
    host.push(0, clock=1, value=7.0)
    assert host.pull(0, after=1, clock=1, known=0) == []
    [answer] = host.order(DropOrder(worker=0, clock=1))
    # nothing has changed since version 0, but the worker's replica has: it gets everything
    assert answer.values == [0.0, 1.0, 2.0, 3.0]
    assert host.released == [(0, 1)]
    [answer] = host.pull(0, after=1, clock=2, known=0)
    assert answer.values == [], "once is enough"


def test_admission_takes_the_clock_back():
    host = Host()
    host.order(CreditOrder(worker=0, clock=9))
    host.push(0, clock=8, value=1.0)
    host.apply((0, 8), version=1)
    host.order(AdmitOrder(worker=0, clock=3))
    host.push(0, clock=4, value=1.0)
    assert host.pull(0, after=4, clock=4) == [], "what it sent before its rest says nothing about this update"
    [answer] = host.apply((0, 4), version=2)
    assert answer.version == 2


def test_snapshot_can_be_asked_for_later():
    host = Host()
    host.order(SnapshotOrder(number=0))
    host.push(0, clock=1, value=5.0)
    host.apply((0, 1), version=1)
    assert host.shared(snapshot=0) == [0.0, 1.0, 2.0, 3.0]
    assert host.shared(snapshot=None) == [5.0, 6.0, 7.0, 8.0]


@pytest.mark.parametrize("fails", ["pull", "snapshot", "apply"])
def test_what_fails_after_a_message_was_accepted_is_no_fault_of_its_sender(fails: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("of the server")

    host = Host()
    host.push(0, clock=1, value=1.0)
    assert host.pull(1, after=0, clock=0) == []
    monkeypatch.setattr(Shard, fails, fail)
    orders = {
        "pull": CreditOrder(worker=1, clock=1),
        "snapshot": SnapshotOrder(number=0),
        "apply": ApplyOrder(updates=((0, 1),), weight=1.0, version=1, num_live=1),
    }
    with pytest.raises(ShardFailedError, match="of the server"):
        host.order(orders[fails])


def test_another_worker_s_answer_that_fails_is_no_fault_of_the_one_that_asks(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("of the server")

    host = Host()
    host.order(CreditOrder(worker=0, clock=1))
    monkeypatch.setattr(Shard, "pull", fail)
    with pytest.raises(ShardFailedError, match="of the server"):
        host.pull(0, after=0, clock=0)


def test_an_island_takes_back_a_stage_though_another_begins_the_next_between_its_ranks():
    host = Host()
    peers = (worker_identity(1).encode(), part_identity(3).encode())
    for number, peer in enumerate(peers):
        rows = ((1, 2 * number, 2, 0, 1),)
        pull = Pull(after=0, known=None, part=IslandPart(number=number, count=2, sent=rows, received=rows))
        host.shard.take(replace(host.message(1, pull, clock=0), peer=peer))
    host.order(CreditOrder(worker=1, clock=1))
    host.endpoint.bulks.clear()

    request = SharedRequest(snapshot=None, optimizer=False)
    first, second = (replace(host.message(1, request, clock=0, request=1), peer=peer) for peer in peers)
    assert host.shard.take(first) is None
    initial = Initial(slices=LAYOUT.rows(0), update="delta", optimizer=None, state=None)
    host.shard.take(host.message(0, initial, clock=0, payload=np.arange(4, dtype=np.float32)))
    host.endpoint.bulks.clear()
    assert host.shard.take(second) == request
    host.shard.share(second, request, snapshots=())
    answers = {peer: payload.view(np.float32).tolist() for peer, _, _, payload in host.endpoint.bulks}
    assert answers == {peers[0]: [0.0, 1.0], peers[1]: [2.0, 3.0]}


def test_workers_are_let_in_while_a_server_imports_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun, connected = threading.Event(), threading.Event()

    def import_slowly() -> None:
        begun.set()
        connected.wait(PATIENCE_S)

    monkeypatch.setattr("plesio.runtime.server.shard.warm_up", import_slowly)
    with closing(EchoServer(tmp_path)) as server, zmq.Context() as context:
        load = partial(server.run, lambda endpoint: ShardServer(endpoint, index=0, clock=FakeClock()).load())
        loading = threading.Thread(target=load)
        loading.start()
        begun.wait(PATIENCE_S)
        with control_to(server, context) as client:
            client.send(1, {"sent": "early"})
            assert loading.is_alive()
            connected.set()
            loading.join()
            [answer] = client.poll(PATIENCE_S)
        assert answer.body == {"sent": "early"}
