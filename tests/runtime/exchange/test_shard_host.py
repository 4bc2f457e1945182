import numpy as np
import torch

from plesio.protocol.bulk import Push
from plesio.protocol.effects import AdmitOrder, ApplyOrder, CreditOrder, DropOrder, Order, SnapshotOrder
from plesio.protocol.message import kind_of
from plesio.runtime.exchange.layout import Layout
from plesio.runtime.exchange.shard_host import Answer, PullRequest, ShardHost
from plesio.runtime.exchange.transport import Bulk, Header

LAYOUT = Layout.of([("w", torch.zeros(4), "parameter", 0)], num_servers=1)


class Host:
    def __init__(self) -> None:
        self.released: list[tuple[int, int]] = []
        self.host = ShardHost(
            LAYOUT.servers[0],
            packed=torch.arange(4.0).view(torch.uint8),
            update="delta",
            optimizer=None,
            release=lambda bulk: self.released.append((bulk.header.worker, bulk.header.clock)),
        )

    def push(self, worker: int, *, clock: int, value: float) -> None:
        header = Header(kind=kind_of(Push), generation=0, worker=worker, clock=clock)
        payload = np.full(4, value, dtype=np.float32).view(np.uint8)
        push = Push(num_steps=1, num_samples=1, present=None, finished=())
        self.host.push(Bulk(peer=b"", header=header, meta=push.body(), payload=payload), push)

    def pull(self, worker: int, *, after: int, clock: int, known: int | None = 0, now_s: float = 0.0) -> list[Answer]:
        request = PullRequest(
            worker=worker, after=after, clock=clock, known_version=known, request=worker * 100 + clock, asked_s=now_s
        )
        return self.host.pull(request, now_s=now_s)

    def order(self, order: Order, *, now_s: float = 0.0) -> list[Answer]:
        return self.host.carry_out([order], now_s=now_s)

    def apply(self, *updates: tuple[int, int], version: int, now_s: float = 0.0) -> list[Answer]:
        return self.order(ApplyOrder(updates=updates, weight=1.0, version=version, num_live=1), now_s=now_s)


def values(answer: Answer) -> list[float]:
    return answer.pulled.payload.view(torch.float32).tolist()


def test_pull_waits_for_the_decision_on_the_update_and_for_credit():
    host = Host()
    host.order(CreditOrder(worker=0, clock=1))
    host.push(0, clock=1, value=1.0)
    assert host.pull(0, after=1, clock=1, now_s=1.0) == []
    assert host.apply((0, 1), version=1, now_s=2.0) == [], "decided, but no credit for a second step"
    [answer] = host.order(CreditOrder(worker=0, clock=3), now_s=4.0)
    assert (answer.request.request, answer.credit, answer.held_s) == (1, 3, 3.0)
    assert values(answer) == [1.0, 2.0, 3.0, 4.0]
    assert host.released == [(0, 1)]


def test_credit_alone_is_not_enough_either():
    host = Host()
    host.order(CreditOrder(worker=0, clock=9))
    host.push(0, clock=2, value=1.0)
    assert host.pull(0, after=2, clock=2) == []
    [answer] = host.apply((0, 2), version=1)
    assert answer.pulled.version == 1


def test_pull_with_nothing_outstanding_is_answered_at_once():
    host = Host()
    host.order(CreditOrder(worker=0, clock=2))
    [answer] = host.pull(0, after=0, clock=0, known=None)
    assert values(answer) == [0.0, 1.0, 2.0, 3.0]
    assert answer.held_s == 0.0


def test_orders_for_one_worker_do_not_answer_another():
    host = Host()
    assert host.pull(0, after=0, clock=0) == []
    assert host.pull(1, after=0, clock=0) == []
    answers = host.order(CreditOrder(worker=1, clock=1))
    assert [answer.request.worker for answer in answers] == [1]


def test_refused_update_is_decided_and_the_worker_is_rid_of_its_steps():
    host = Host()
    host.order(CreditOrder(worker=0, clock=5))
    host.push(0, clock=1, value=7.0)
    assert host.pull(0, after=1, clock=1, known=0) == []
    [answer] = host.order(DropOrder(worker=0, clock=1))
    # nothing has changed since version 0, but the worker's replica has: it gets everything
    assert values(answer) == [0.0, 1.0, 2.0, 3.0]
    assert host.released == [(0, 1)]
    [answer] = host.pull(0, after=1, clock=2, known=0)
    assert answer.pulled.payload.numel() == 0, "once is enough"


def test_admission_takes_the_clock_back():
    host = Host()
    host.order(CreditOrder(worker=0, clock=9))
    host.push(0, clock=8, value=1.0)
    host.apply((0, 8), version=1)
    host.order(AdmitOrder(worker=0, clock=3))
    host.push(0, clock=4, value=1.0)
    assert host.pull(0, after=4, clock=4) == [], "what it sent before its rest says nothing about this update"
    [answer] = host.apply((0, 4), version=2)
    assert answer.pulled.version == 2


def test_snapshot_can_be_asked_for_later():
    host = Host()
    host.order(SnapshotOrder(number=0))
    host.push(0, clock=1, value=5.0)
    host.apply((0, 1), version=1)
    assert host.host.shared(snapshot=0).payload.view(torch.float32).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert host.host.shared(snapshot=None).payload.view(torch.float32).tolist() == [5.0, 6.0, 7.0, 8.0]
