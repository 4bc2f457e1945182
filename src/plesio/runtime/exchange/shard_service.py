"""A server's parameter part: tensors arrive and leave here, and what the run's decisions say is done to them.

It decides nothing. torch takes seconds to import, in which a server answers nobody: it is loaded before a run begins
that will need it (`ShardService.load`), and a server that only accompanies collectives never pays for it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plesio.core.clock import Clock
from plesio.policies import Arrived
from plesio.runtime.effects import Order, Snapshot
from plesio.runtime.exchange.connection import WorkerConnections
from plesio.runtime.exchange.transport import Bulk, Header
from plesio.runtime.messages import BulkKind, worker_identity

if TYPE_CHECKING:
    from plesio.runtime.exchange.shard_host import Answer, ShardHost

__all__ = ["Arrival", "ShardService"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """This server has its part of an update of ``num_samples`` samples.

    ``finished`` are the (plan, block, number) of the leased ones among them.
    """

    event: Arrived
    num_samples: int
    finished: list[list[int]]


class ShardService:
    """Serves one server's shard to the workers, one run after the other.

    Args:
        endpoint: Where bulk messages come from and go to.
        clock: Tells how long an answer was held back.
    """

    def __init__(self, endpoint: WorkerConnections, *, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._host: ShardHost | None = None

    def load(self) -> None:
        """Import what a shard is made of, so that no run stands still for it later."""
        import torch

        import plesio.runtime.exchange.shard_host  # noqa: F401

        torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer of a process imports torch's compiler

    def take(self, message: Bulk, *, snapshots: Sequence[Snapshot]) -> Arrival | None:
        """Act on a worker's message; what has to be decided on is returned.

        Args:
            message: What arrived.
            snapshots: Those of the run, where this server knows them.
        """
        match BulkKind(message.header.kind):
            case BulkKind.INITIAL:
                self._begin_run(message)
            case BulkKind.PUSH if self._host is not None:
                self._host.push(message)
                return _arrival(message)
            case BulkKind.PULL if self._host is not None:
                self._pull(self._host, message)
            case BulkKind.SHARED if self._host is not None:
                self._share(self._host, message, snapshots=snapshots)
            case _:
                self._endpoint.release(message)  # no run, or no message for a server
        return None

    def _begin_run(self, message: Bulk) -> None:
        import torch

        from plesio.runtime.exchange.layout import slices_from_json
        from plesio.runtime.exchange.shard import OptimizerSpec
        from plesio.runtime.exchange.shard_host import ShardHost

        torch.set_num_threads(1)
        meta = message.meta
        optimizer = meta["optimizer"]
        self._host = ShardHost(
            slices_from_json(meta["slices"]),
            packed=torch.from_numpy(message.payload),
            update=meta["update"],
            optimizer=None if optimizer is None else OptimizerSpec(optimizer["name"], tuple(optimizer["groups"])),
            state=meta.get("state"),
            release=self._endpoint.release,
            allocate=lambda num_bytes: torch.from_numpy(self._endpoint.stage(num_bytes)),
        )
        self._endpoint.release(message)
        self._endpoint.send(message.peer, self._reply(message, version=0))

    def _pull(self, host: "ShardHost", message: Bulk) -> None:
        from plesio.runtime.exchange.shard_host import PullRequest

        now_s = self._clock.now_s()
        header, meta = message.header, message.meta
        request = PullRequest(
            worker=header.worker,
            after=meta["after"],
            clock=header.clock,
            known_version=meta["known"],
            request=header.request,
            asked_s=now_s,
        )
        self._endpoint.release(message)
        self._answer(host.pull(request, now_s=now_s))

    def _share(self, host: "ShardHost", message: Bulk, *, snapshots: Sequence[Snapshot]) -> None:
        pulled = host.shared(snapshot=message.meta["snapshot"], optimizer=message.meta.get("optimizer", False))
        meta: dict[str, Any] = {"present": pulled.present, "snapshots": [asdict(one) for one in snapshots]}
        if pulled.state is not None:
            meta["state"] = pulled.state
        self._endpoint.release(message)
        reply = self._reply(message, version=pulled.version)
        self._endpoint.send(message.peer, reply, meta=meta, payload=pulled.payload.numpy())

    def _reply(self, message: Bulk, *, version: int) -> Header:
        header = message.header
        return Header(
            kind=BulkKind.PULLED,
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
            header = Header(
                kind=BulkKind.PULLED,
                generation=self._endpoint.generation,
                worker=request.worker,
                base_version=pulled.version,
                request=request.request,
            )
            meta = {"present": pulled.present, "credit": answer.credit, "held_s": answer.held_s}
            if answer.halted:
                meta["halted"] = True
            peer = worker_identity(request.worker).encode()
            self._endpoint.send(peer, header, meta=meta, payload=pulled.payload.numpy())

    def end_run(self) -> None:
        """Forget the parameters: the next run brings its own."""
        self._host = None


def _arrival(message: Bulk) -> Arrival:
    header, meta = message.header, message.meta
    event = Arrived(
        worker=header.worker, clock=header.clock, num_steps=meta["num_steps"], base_version=header.base_version
    )
    return Arrival(event, meta["num_samples"], meta["finished"])
