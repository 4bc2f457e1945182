"""A shard and those who wait for it: pushes come in, orders change it, pulls are answered when they may be.

A pull says after which of the worker's own updates it wants the parameters and at which clock it will go on from. It is
answered as soon as that update has been decided on (applied or refused) and the worker has credit for its next step. So
parameters and the right to run on them come together, in one message: a worker that must wait holds nothing that could
grow stale meanwhile, and no step costs a round trip of its own for permission. When the stage that the shard is for
ends (`halt`), no answer waits for credit: it says that the worker stops.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from plesio.policies import UpdateKind
from plesio.protocol.bulk import OptimizerSpec, Push, Table
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
from plesio.runtime.exchange.layout import Slice
from plesio.runtime.exchange.shard import Allocate, Pulled, Shard, empty_payload
from plesio.runtime.exchange.transport import Bulk

__all__ = ["Answer", "PullRequest", "ShardHost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """A worker asks for the parameters.

    Attributes:
        after: The clock of its own last update, which must have been decided on.
        clock: Its clock; it needs credit for one step more.
        known_version: Version it holds, so that only what changed since is sent; None for everything.
        request: Repeated in the answer.
        asked_s: When the request came in.
    """

    worker: int
    after: int
    clock: int
    known_version: int | None
    request: int
    asked_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send to whoever pulled; ``halted`` if it stops here, whatever its credit."""

    request: PullRequest
    pulled: Pulled
    credit: int
    held_s: float
    halted: bool


class ShardHost:
    """Runs one shard.

    Args:
        slices: The server's part of the layout.
        packed: Their initial values, packed (uint8), and the optimizer's state.
        update: What updates are.
        optimizer: For gradients.
        state: Table of the optimizer's state.
        release: Called with every push whose payload is no longer needed.
        allocate: Gives the memory that an answer is packed into.
    """

    def __init__(
        self,
        slices: tuple[Slice, ...],
        *,
        packed: torch.Tensor,
        update: UpdateKind,
        optimizer: OptimizerSpec | None,
        state: Table | None = None,
        release: Callable[[Bulk], None],
        allocate: Allocate = empty_payload,
    ) -> None:
        block = torch.zeros(slices[-1].offset + slices[-1].num_bytes if slices else 0, dtype=torch.uint8)
        position = 0
        for piece in slices:
            block[piece.offset : piece.offset + piece.num_bytes] = packed[position : position + piece.num_bytes]
            position += piece.num_bytes
        self._shard = Shard(slices, block=block, update=update, optimizer=optimizer, allocate=allocate)
        if state:
            self._shard.load_state(state, packed[position:])
        self._halted = False
        self._release = release
        self._pushes: dict[tuple[int, int], Bulk] = {}
        self._decided: dict[int, int] = defaultdict(int)
        self._credit: dict[int, int] = defaultdict(int)
        self._waiting: list[PullRequest] = []
        self._refused: set[int] = set()

    def push(self, bulk: Bulk, push: Push) -> None:
        """Keep an update until it is decided on.

        Args:
            bulk: The message.
            push: What it says beside its payload.

        Raises:
            ExchangeError: The payload does not fit the slices that it names.
        """
        header = bulk.header
        self._shard.push(
            header.worker,
            clock=header.clock,
            payload=torch.from_numpy(bulk.payload),
            present=push.present,
            groups=push.groups,
        )
        self._pushes[header.worker, header.clock] = bulk

    def pull(self, request: PullRequest, *, now_s: float) -> list[Answer]:
        """Answer now, or when an order makes it possible."""
        self._waiting.append(request)
        return self._answers(now_s=now_s)

    def shared(self, *, snapshot: int | None, optimizer: bool = False) -> Pulled:
        """Everything, as it is now (with the optimizer's state, if asked for) or was at a snapshot."""
        if optimizer:
            return self._shard.pull_all()
        return self._shard.pull(None) if snapshot is None else self._shard.pull_snapshot(snapshot)

    def carry_out(self, orders: Iterable[Order], *, now_s: float) -> list[Answer]:
        """Do what the coordinator decided; returns the answers that this makes possible.

        Orders that belong together are given together: an answer then has the credit that came with the update.
        """
        for order in orders:
            self._carry_out(order)
        return self._answers(now_s=now_s)

    def _carry_out(self, order: Order) -> None:
        match order:
            case ApplyOrder(updates=updates):
                self._shard.apply(
                    updates,
                    weight=order.weight,
                    version=order.version,
                    num_live=order.num_live,
                    num_workers=order.num_workers,
                    share=order.share,
                    age=order.age,
                )
                for worker, clock in updates:
                    self._decide(worker, clock=clock)
            case DropOrder(worker=worker, clock=clock):
                self._shard.drop(worker, clock=clock)
                self._refused.add(worker)
                self._decide(worker, clock=clock)
            case AdmitOrder(worker=worker, clock=clock):
                # its clock may have gone back: what it sent before its rest says nothing about what it sends now
                self._decided[worker] = clock
            case CreditOrder(worker=worker, clock=clock):
                self._credit[worker] = clock
            case HaltOrder():
                self._halted = True
            case StayOrder():
                self._halted = False
            case SnapshotOrder(number=number):
                self._shard.snapshot(number)

    def _known_version(self, request: PullRequest) -> int | None:
        """The worker's version; before all versions if it made steps that were refused, so that it gets rid of them."""
        if request.worker not in self._refused or request.known_version is None:
            return request.known_version
        self._refused.discard(request.worker)
        return -1

    def _decide(self, worker: int, *, clock: int) -> None:
        self._decided[worker] = max(self._decided[worker], clock)
        bulk = self._pushes.pop((worker, clock), None)
        if bulk is not None:
            self._release(bulk)

    def _answers(self, *, now_s: float) -> list[Answer]:
        answers, waiting = [], []
        for request in self._waiting:
            credit = self._credit[request.worker]
            if self._decided[request.worker] >= request.after and (credit > request.clock or self._halted):
                pulled = self._shard.pull(self._known_version(request))
                answers.append(Answer(request, pulled, credit, now_s - request.asked_s, self._halted))
            else:
                waiting.append(request)
        self._waiting = waiting
        return answers
