"""A server's parameter part: tensors arrive and leave here, and what the run's decisions say is done to them.

It decides nothing. torch takes seconds to import, in which a server answers nobody: it is loaded before a run begins
that will need it (`ShardService.load`), and a server that only accompanies collectives never pays for it.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from plesio.core.clock import Clock
from plesio.core.errors import TransportError
from plesio.policies import Arrived
from plesio.protocol.bulk import (
    BulkFromWorker,
    Initial,
    Initialised,
    Pull,
    Pulled,
    Push,
    Shared,
    SharedRequest,
)
from plesio.protocol.effects import Order
from plesio.protocol.figures import Snapshot
from plesio.protocol.message import decode, encode
from plesio.protocol.peers import worker_identity
from plesio.protocol.to_server import PartArrived
from plesio.runtime.exchange.connection import WorkerConnections
from plesio.runtime.exchange.transport import Bulk, Header

if TYPE_CHECKING:
    from plesio.runtime.exchange.shard_host import Answer, ShardHost

__all__ = ["ShardService"]


class ShardService:
    """Serves one server's shard to the workers, one run after the other.

    Args:
        endpoint: Where bulk messages come from and go to.
        index: Number of the server.
        clock: Tells how long an answer was held back.
    """

    def __init__(self, endpoint: WorkerConnections, *, index: int, clock: Clock) -> None:
        self._index = index
        self._endpoint = endpoint
        self._clock = clock
        self._host: ShardHost | None = None

    def load(self) -> None:
        """Import what a shard is made of, so that no run stands still for it later."""
        import torch

        import plesio.runtime.exchange.shard_host  # noqa: F401

        torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer of a process imports torch's compiler

    def take(self, bulk: Bulk, *, snapshots: Sequence[Snapshot]) -> PartArrived | None:
        """Act on a worker's message; what has to be decided on is returned.

        Args:
            bulk: What arrived.
            snapshots: Those of the run, where this server knows them.

        Raises:
            TransportError: It cannot be read.
        """
        message = self._read(bulk)
        match message:
            case Initial():
                self._begin_run(bulk, message)
            case Push() if self._host is not None:
                self._host.push(bulk, message)
                return self._arrival(bulk.header, message)
            case Pull() if self._host is not None:
                self._pull(self._host, bulk, message)
            case SharedRequest() if self._host is not None:
                self._share(self._host, bulk, message, snapshots=snapshots)
            case _:
                self._endpoint.release(bulk)  # no run
        return None

    def _read(self, bulk: Bulk) -> BulkFromWorker:
        try:
            peer = bulk.peer.decode(errors="replace")
            message: BulkFromWorker = decode(bulk.header.kind, bulk.meta, BulkFromWorker, peer=peer)
        except TransportError:
            self._endpoint.release(bulk)
            raise
        return message

    def _begin_run(self, bulk: Bulk, initial: Initial) -> None:
        import torch

        from plesio.runtime.exchange.layout import slices_of
        from plesio.runtime.exchange.shard_host import ShardHost

        torch.set_num_threads(1)
        self._host = ShardHost(
            slices_of(initial.slices),
            packed=torch.from_numpy(bulk.payload),
            update=initial.update,
            optimizer=initial.optimizer,
            state=initial.state,
            release=self._endpoint.release,
            allocate=lambda num_bytes: torch.from_numpy(self._endpoint.stage(num_bytes)),
        )
        self._endpoint.release(bulk)
        kind, meta = encode(Initialised())
        self._endpoint.send(bulk.peer, self._reply(bulk, kind, version=0), meta=meta)

    def _pull(self, host: "ShardHost", bulk: Bulk, pull: Pull) -> None:
        from plesio.runtime.exchange.shard_host import PullRequest

        now_s = self._clock.now_s()
        header = bulk.header
        request = PullRequest(
            worker=header.worker,
            after=pull.after,
            clock=header.clock,
            known_version=pull.known,
            request=header.request,
            asked_s=now_s,
        )
        self._endpoint.release(bulk)
        self._answer(host.pull(request, now_s=now_s))

    def _share(self, host: "ShardHost", bulk: Bulk, request: SharedRequest, *, snapshots: Sequence[Snapshot]) -> None:
        pulled = host.shared(snapshot=request.snapshot, optimizer=request.optimizer)
        kind, meta = encode(Shared(present=_tuple(pulled.present), snapshots=tuple(snapshots), state=pulled.state))
        self._endpoint.release(bulk)
        reply = self._reply(bulk, kind, version=pulled.version)
        self._endpoint.send(bulk.peer, reply, meta=meta, payload=pulled.payload.numpy())

    def _reply(self, bulk: Bulk, kind: int, *, version: int) -> Header:
        header = bulk.header
        return Header(
            kind=kind,
            generation=header.generation,
            worker=header.worker,
            base_version=version,
            request=header.request,
        )

    def carry_out(self, orders: Iterable[Order]) -> None:
        """Do to the shard what was decided, and answer the pulls that this makes possible."""
        if self._host is not None:
            self._answer(self._host.carry_out(orders, now_s=self._clock.now_s()))

    def _answer(self, answers: Iterable["Answer"]) -> None:
        for answer in answers:
            request, pulled = answer.request, answer.pulled
            kind, meta = encode(
                Pulled(present=_tuple(pulled.present), credit=answer.credit, held_s=answer.held_s, halted=answer.halted)
            )
            header = Header(
                kind=kind,
                generation=self._endpoint.generation,
                worker=request.worker,
                base_version=pulled.version,
                request=request.request,
            )
            peer = worker_identity(request.worker).encode()
            self._endpoint.send(peer, header, meta=meta, payload=pulled.payload.numpy())

    def end_run(self) -> None:
        """Forget the parameters: the next run brings its own."""
        self._host = None

    def _arrival(self, header: Header, push: Push) -> PartArrived:
        event = Arrived(
            worker=header.worker, clock=header.clock, num_steps=push.num_steps, base_version=header.base_version
        )
        return PartArrived(event=event, num_samples=push.num_samples, finished=push.finished, server=self._index)


def _tuple(present: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if present is None else tuple(present)
