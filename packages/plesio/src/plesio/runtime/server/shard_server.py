"""A shard and the workers that wait for it: pushes come in, orders change it, pulls are answered when they may be.

A pull has after which of the worker's own updates it wants the parameters and at which clock it will go on from. It is
answered as soon as that update has been decided on (applied or refused) and the worker has credit for its next step. So
parameters and the right to run on them come together, in one message: a worker that must wait holds nothing that could
grow stale meanwhile, and no step costs a round trip of its own for permission. When the stage that the shard is for
ends (`halt`), no answer waits for credit: it tells the worker to stop.

torch takes seconds to import, a busy machine half a minute: it is loaded before a run begins that will need it
(`load`), while the server lets workers in, which would give it up; one that only accompanies collectives never pays.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec.structs import replace

from plesio.core.clock import Clock
from plesio.core.errors import TransportError
from plesio.policies import Arrived
from plesio.protocol.bulk import BulkFromWorker, Initial, Initialised, Pull, Pulled, Push, Shared, SharedRequest
from plesio.protocol.effects import (
    AdmitOrder,
    ApplyOrder,
    CreditOrder,
    DropOrder,
    HaltOrder,
    Order,
    SnapshotOrder,
    StayOrder,
)
from plesio.protocol.figures import Snapshot
from plesio.protocol.message import decode, encode
from plesio.protocol.peers import worker_of
from plesio.protocol.to_server import PartArrived
from plesio.runtime.server.islands import Islands, Told
from plesio.runtime.transport import Bulk, Header
from plesio.runtime.transport.connection import WorkerConnections

if TYPE_CHECKING:
    from plesio.runtime.server.payloads import Payload
    from plesio.runtime.server.shard import Shard

LOOK_S = 0.02
"""How often workers are let in while torch is imported."""
_SHARD = "plesio.runtime.server.shard"
_PAYLOADS = "plesio.runtime.server.payloads"
_STATE = "plesio.runtime.server.island_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A worker asks for the parameters.

    Attributes:
        after: The clock of its own last update, which must have been decided on.
        clock: Its clock; it needs credit for one step more.
        known_version: Version it holds, so that only what changed since is sent; None for everything.
        number: Repeated in the answer.
        asked_s: When the request came in.
        present: The slices that it asks for; None for all.
        compressed: The compression in which it asks for changes; None for none.
        of: What has been sent, by each rank of an island.
    """

    worker: int
    after: int
    clock: int
    known_version: int | None
    number: int
    asked_s: float
    present: tuple[int, ...] | None
    compressed: str | None
    of: tuple[Told, ...]


class ShardFailedError(Exception):
    """Orders cannot be carried out, or a pull not be answered: no worker's fault, and others wait for it."""


class ShardServer:
    """Serves one server's shard, of one run after the other, and of one stage of a run after the other.

    Args:
        clock: Tells how long an answer was held back.
    """

    def __init__(self, endpoint: WorkerConnections, *, index: int, clock: Clock) -> None:
        self._endpoint = endpoint
        self._index = index
        self._clock = clock
        self._shard: Shard | None = None
        self._halted = False
        self._samples = 0
        """Samples of all workers that the parameters contain."""
        self._pushes: dict[tuple[int, int], Bulk] = {}
        self._decided: dict[int, int] = defaultdict(int)
        self._credit: dict[int, int] = defaultdict(int)
        self._waiting: list[_Request] = []
        self._refused: set[int] = set()
        self._islands = Islands()
        self._shares: dict[tuple[int, int], tuple[Told, ...]] = {}
        """Requests of islands that `share` is to answer, by worker and number."""

    def load(self) -> None:
        """Import what a shard is made of, and let workers in meanwhile; done already, it takes no time."""
        with ThreadPoolExecutor(1) as executor:
            loading = executor.submit(lambda: import_module(_SHARD).warm_up())
            while not wait([loading], LOOK_S).done:
                self._endpoint.let_in()
        loading.result()

    def take(self, bulk: Bulk) -> PartArrived | SharedRequest | None:
        """Act on a worker's message.

        Returns:
            An update that has to be decided on, or a request that `share` answers. Those of an island when the last of
            its ranks has sent it.

        Raises:
            TransportError: It cannot be read.
            ExchangeError: An update does not fit the slices that it names.
        """
        try:
            peer = bulk.peer.decode(errors="replace")
            message: BulkFromWorker = decode(bulk.header.kind, bulk.meta, BulkFromWorker, peer=peer)
            told = self._islands.take(bulk, message)
        except TransportError:
            self._endpoint.release(bulk)
            raise
        if told is None:
            return None
        message = told[0].message  # of an island, its leader's
        if isinstance(message, Initial):
            self._begin(told, message)
        elif self._shard is None:
            self._release(told)  # no run
        elif isinstance(message, Push):
            return self._push(self._shard, told, message)
        elif isinstance(message, SharedRequest):
            if told[0].part is not None:
                self._shares[bulk.header.worker, bulk.header.request] = told
            return message
        else:
            self._pull(told, message)
        return None

    def _release(self, told: Iterable[Told]) -> None:
        for one in told:
            self._endpoint.release(one.bulk)

    def _begin(self, told: tuple[Told, ...], initial: Initial) -> None:
        """Hold what a worker brings; the first one of a run or a stage begins it, the others bring the same."""
        payload = told[0].bulk.payload
        if initial.part is not None:
            initials = [one.message for one in told if isinstance(one.message, Initial)]
            state, payload = import_module(_STATE).initial_of(initials, _payloads(told))
            initial = replace(initial, state=state)
        if not initial.again:
            make: type[Shard] = import_module(_SHARD).Shard
            shard = make.of(initial, payload)
            # another island may be about to take back what the stage before came to, which this one brings
            self.end_run(but=SharedRequest)
            self._shard = shard
        elif self._shard is None:
            return
        else:
            self._shard.begin_again(initial, payload)
        self._release(told)
        kind, meta = encode(Initialised())
        for one in told:
            reply = self._reply(one.bulk.header, kind, version=self._shard.version)
            self._endpoint.send(one.bulk.peer, reply, meta=meta)

    def forget(self, peer: bytes) -> None:
        """Forget what a worker that is gone has of the parameters."""
        worker = worker_of(peer)
        if self._shard is not None and worker is not None:
            self._shard.forget(worker)

    def end_run(self, *, but: type[SharedRequest] | None = None) -> None:
        """Forget the parameters: the next run or stage brings its own. An island's halves of one kind may stay."""
        self._shard, self._halted, self._samples = None, False, 0
        for bulk in self._islands.forget(but=but):
            self._endpoint.release(bulk)
        for kept in (self._pushes, self._decided, self._credit, self._waiting, self._refused, self._shares):
            kept.clear()

    def _push(self, shard: "Shard", told: tuple[Told, ...], push: Push) -> PartArrived:
        bulk = told[0].bulk
        header = bulk.header
        shard.push(
            header.worker, clock=header.clock, payloads=_payloads(told), groups=push.groups, num_steps=push.num_steps
        )
        if told[0].part is None:
            self._pushes[header.worker, header.clock] = bulk
        else:
            self._release(told)
        event = Arrived(
            worker=header.worker,
            clock=header.clock,
            num_steps=push.num_steps,
            base_version=header.base_version,
            step_s=push.step_s,
            fragment=push.fragment,
        )
        rates = None if push.groups is None else tuple(float(group["lr"]) for group in push.groups if "lr" in group)
        return PartArrived(
            event=event, num_samples=push.num_samples, finished=push.finished, server=self._index, rates=rates
        )

    def _pull(self, told: tuple[Told, ...], pull: Pull) -> None:
        header = told[0].bulk.header
        self._waiting.append(
            _Request(
                worker=header.worker,
                after=pull.after,
                clock=header.clock,
                known_version=pull.known,
                number=header.request,
                asked_s=self._clock.now_s(),
                present=pull.present,
                compressed=pull.compressed,
                of=told,
            )
        )
        self._release(told)
        self.carry_out(())

    def share(self, bulk: Bulk, request: SharedRequest, *, snapshots: Sequence[Snapshot]) -> None:
        """Send everything that moves, as it is now (with the optimizer's state, if asked for) or was at a snapshot.

        ``snapshots`` are the run's, if this server has them.
        """
        shard = self._shard
        assert shard is not None
        told = self._shares.pop((bulk.header.worker, bulk.header.request), (Told(bulk, request),))
        for one in told:
            blocks = None if one.part is None else one.part.received
            if request.optimizer:
                pulled = shard.pull_all(blocks=blocks)
            else:
                pulled = shard.pull_shared(request.snapshot, blocks=blocks)
            kind, meta = encode(Shared(present=pulled.present, snapshots=tuple(snapshots), state=pulled.state))
            reply = self._reply(one.bulk.header, kind, version=pulled.version)
            payload = pulled.packed(partial(self._endpoint.stage, peer=one.bulk.peer))
            self._endpoint.send(one.bulk.peer, reply, meta=meta, payload=payload.numpy())
        self._release(told)

    def _reply(self, header: Header, kind: int, *, version: int) -> Header:
        return Header(
            kind=kind, generation=header.generation, worker=header.worker, base_version=version, request=header.request
        )

    def carry_out(self, orders: Iterable[Order]) -> None:
        """Do what was decided, and answer the pulls that this makes possible.

        Orders that belong together are given together: an answer then has the credit that came with the update.

        Raises:
            ShardFailedError: It cannot be done, and the parameters may be half-way.
        """
        if self._shard is None:
            return
        try:
            for order in orders:
                self._carry_out(self._shard, order)
            self._answer()
        except Exception as error:
            raise ShardFailedError(f"the shard has failed: {error}") from error

    def _carry_out(self, shard: "Shard", order: Order) -> None:
        match order:
            case ApplyOrder(updates=updates):
                shard.apply(order)
                self._samples = order.samples
                for worker, clock in updates:
                    self._decide(worker, clock=clock)
            case DropOrder(worker=worker, clock=clock):
                shard.drop(worker, clock=clock)
                self._refused.add(worker)
                self._decide(worker, clock=clock)
            case AdmitOrder(worker=worker, clock=clock):
                # its clock may have gone back: what it sent before its rest tells nothing about its messages now
                self._decided[worker] = clock
            case CreditOrder(worker=worker, clock=clock):
                self._credit[worker] = clock
            case HaltOrder():
                self._halted = True
            case StayOrder():
                self._halted = False
            case SnapshotOrder(number=number):
                shard.snapshot(number)

    def _decide(self, worker: int, *, clock: int) -> None:
        self._decided[worker] = max(self._decided[worker], clock)
        bulk = self._pushes.pop((worker, clock), None)
        if bulk is not None:
            self._endpoint.release(bulk)

    def _answer(self) -> None:
        now_s = self._clock.now_s()
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            credit = self._credit[request.worker]
            waits = self._decided[request.worker] < request.after or (request.worker, request.after) in self._pushes
            if not waits and (credit > request.clock or self._halted):
                self._send_parameters(request, credit=credit, held_s=now_s - request.asked_s)
            else:
                self._waiting.append(request)

    def _send_parameters(self, request: _Request, *, credit: int, held_s: float) -> None:
        assert self._shard is not None
        known = request.known_version
        if known is not None and request.worker in self._refused:
            self._refused.discard(request.worker)
            known = -1  # before all versions, so that the worker gets rid of its steps that were refused
        replies = self._shard.pull(
            known,
            among=request.present,
            worker=request.worker,
            compressed=request.compressed,
            parts=[None if one.part is None else one.part.received for one in request.of],
        )
        for one, pulled in zip(request.of, replies, strict=True):
            answer = Pulled(
                present=pulled.present,
                credit=credit,
                held_s=held_s,
                halted=self._halted,
                samples=self._samples,
                compressed=pulled.compressed,
            )
            kind, meta = encode(answer)
            header = Header(
                kind=kind,
                generation=self._endpoint.generation,
                worker=request.worker,
                base_version=pulled.version,
                request=request.number,
            )
            payload = pulled.packed(partial(self._endpoint.stage, peer=one.bulk.peer))
            self._endpoint.send(one.bulk.peer, header, meta=meta, payload=payload.numpy())


def _payloads(told: Iterable[Told]) -> "list[Payload]":
    """Return the payload of a worker, or of each rank of an island."""
    make: type[Payload] = import_module(_PAYLOADS).Payload
    payloads = []
    for bulk, message, part in told:
        present, compressed = (message.present, message.compressed) if isinstance(message, Push) else (None, None)
        payloads.append(make(bulk.payload, present, compressed, None if part is None else part.sent))
    return payloads
