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
from plesio.runtime.effects import Order
from plesio.runtime.exchange.layout import Slice
from plesio.runtime.exchange.optimizer_state import Table
from plesio.runtime.exchange.shard import Allocate, OptimizerSpec, Pulled, Shard, empty_payload
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

    def push(self, bulk: Bulk) -> None:
        """Keep an update until it is decided on.

        Raises:
            ExchangeError: The payload does not fit the slices that it names.
        """
        header, meta = bulk.header, bulk.meta
        self._shard.push(
            header.worker,
            clock=header.clock,
            payload=torch.from_numpy(bulk.payload),
            present=meta["present"],
            groups=meta.get("groups"),
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
        body = order.body
        match order.kind:
            case "apply":
                updates = [(worker, clock) for worker, clock in body["updates"]]
                self._shard.apply(
                    updates,
                    weight=body["weight"],
                    version=body["version"],
                    num_live=body["num_live"],
                    num_workers=body.get("num_workers"),
                    share=body.get("share", 1.0),
                    age=body.get("age", 0.0),
                )
                for worker, clock in updates:
                    self._decide(worker, clock=clock)
            case "drop":
                self._shard.drop(body["worker"], clock=body["clock"])
                self._refused.add(body["worker"])
                self._decide(body["worker"], clock=body["clock"])
            case "admit":
                # its clock may have gone back: what it sent before its rest says nothing about what it sends now
                self._decided[body["worker"]] = body["clock"]
            case "credit":
                self._credit[body["worker"]] = body["clock"]
            case "halt":
                self._halted = True
            case "stay":
                self._halted = False
            case "snapshot":
                self._shard.snapshot(body["number"])

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
