"""A worker's connections to the servers of its job: requests out, answers sorted to whoever waits for them."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.core.clock import Clock
from plesio.core.errors import PlesioError, TransportError
from plesio.policies import Arrived
from plesio.runtime.effects import Snapshot
from plesio.runtime.exchange.connection import ServerConnection
from plesio.runtime.exchange.optimizer_state import Table
from plesio.runtime.exchange.transport import Bulk, Control, Header
from plesio.runtime.leases import Block
from plesio.runtime.messages import BulkKind, ControlKind
from plesio.runtime.remainder import PlanFigures

__all__ = ["Leases", "Reply", "StoreClient"]

POLL_S = 0.5
"""How often a waiting worker looks whether the wait has become pointless."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One server's answer to a pull.

    Attributes:
        version: Of the parameters.
        present: The slices in the payload; None for all.
        payload: Those, packed, and the optimizer's state if it was asked for.
        credit: The clock up to which the worker may run.
        held_s: Seconds that the answer was held back for others.
        halted: Whether the worker stops here, whatever its credit.
        state: The table of the optimizer's state.
    """

    version: int
    present: Sequence[int] | None
    payload: NDArray[np.uint8]
    credit: int
    held_s: float
    halted: bool
    state: Table


class StoreClient:
    """One worker's end of all its connections. Used by the training thread only.

    Args:
        endpoints: Connections, server 0 first.
        rank: This worker.
        clock: For time limits.
        failure: Says why waiting has become pointless (the job's server is gone, a worker is lost), or None.
        on_refused: Called with clock and reason when the policy refused an update of this worker.
    """

    def __init__(
        self,
        endpoints: Sequence[ServerConnection],
        *,
        rank: int,
        clock: Clock,
        failure: Callable[[], PlesioError | None],
        on_refused: Callable[[int, str], None],
    ) -> None:
        self.endpoints = list(endpoints)
        self._rank = rank
        self._clock = clock
        self._failure = failure
        self._on_refused = on_refused
        self._controls: dict[int, deque[Mapping[str, Any]]] = defaultdict(deque)
        self._bulks: list[dict[int, Bulk]] = [{} for _ in self.endpoints]
        self._held: list[Bulk | None] = [None for _ in self.endpoints]
        self._ignored: Counter[int] = Counter()
        self._num_requests = 0
        self._finished: list[list[int]] = []
        self._evaluates: bool | None = None
        self._snapshots: list[Snapshot] = []

    def tell(self, kind: ControlKind, body: Mapping[str, Any]) -> None:
        """Send a control message to server 0."""
        self.endpoints[0].send_control(kind, body)

    def await_control(
        self, kind: ControlKind, *, timeout_s: float | None = None, explain: Callable[[], str] = str
    ) -> Mapping[str, Any]:
        """The next control message of this kind from server 0.

        Args:
            kind: Which.
            timeout_s: How long to wait; None for ever.
            explain: What to add to the error when it does not come.

        Raises:
            TransportError: It did not come within ``timeout_s``.
            PlesioError: The run cannot go on, or the server refused the request.
        """
        deadline_s = None if timeout_s is None else self._clock.now_s() + timeout_s
        while not self._controls[kind]:
            if self._controls[ControlKind.FAILED]:
                raise TransportError(self._controls[ControlKind.FAILED].popleft()["message"])
            if deadline_s is not None and self._clock.now_s() > deadline_s:
                raise TransportError(
                    f"the job's server has not answered within {timeout_s:g} s ({kind.name.lower()}){explain()}"
                )
            self._wait(0)
        return self._controls[kind].popleft()

    def heard(self, kind: ControlKind) -> Mapping[str, Any] | None:
        """A control message of this kind that came while something else was waited for, if there is one."""
        return self._controls[kind].popleft() if self._controls[kind] else None

    def ignore_next(self, kind: ControlKind) -> None:
        """The next control message of this kind answers a question that nobody has any more."""
        if self._controls[kind]:
            self._controls[kind].popleft()
        else:
            self._ignored[kind] += 1

    def _wait(self, server: int) -> None:
        arrived = self.endpoints[server].poll(POLL_S)
        for incoming in arrived:
            if isinstance(incoming, Bulk):
                self._bulks[server][incoming.header.request] = incoming
            elif isinstance(incoming, Control):
                kind = ControlKind(incoming.kind)
                if self._ignored[kind] > 0:
                    self._ignored[kind] -= 1
                elif kind is ControlKind.REFUSED:
                    self._on_refused(incoming.body["clock"], incoming.body["reason"])
                else:
                    self._controls[kind].append(incoming.body)
        failure = None if arrived else self._failure()
        if failure is not None:
            raise failure

    def _request(self, kind: BulkKind, *, clock: int = 0, meta: Mapping[str, Any]) -> list[Bulk]:
        """Ask every server the same and collect the answers (valid until the next request)."""
        number = self._new_request()
        header = self._header(kind, clock=clock, request=number)
        for endpoint in self.endpoints:
            endpoint.push(header, meta=meta)
        return self._collect(number)

    def _new_request(self) -> int:
        self._num_requests += 1
        return self._num_requests

    def _collect(self, number: int) -> list[Bulk]:
        answers = []
        for server, waiting in enumerate(self._bulks):
            while number not in waiting:
                self._wait(server)
            held = self._held[server]
            if held is not None:
                self.endpoints[server].release(held)
            self._held[server] = waiting.pop(number)
            answers.append(self._held[server])
        return [answer for answer in answers if answer is not None]

    def _header(self, kind: BulkKind, *, clock: int = 0, base_version: int = 0, request: int = 0) -> Header:
        return Header(
            kind=kind,
            generation=self.endpoints[0].generation,
            worker=self._rank,
            clock=clock,
            base_version=base_version,
            request=request,
        )

    def initialise(
        self,
        layout: Sequence[Sequence[Any]],
        *,
        update: str,
        optimizer: Mapping[str, Any] | None,
        states: Sequence[Table],
        payloads: Sequence[NDArray[np.uint8]],
    ) -> None:
        """Give every server its slices' initial values, and the optimizer's state; returns when all have them."""
        number = self._new_request()
        for endpoint, slices, state, payload in zip(self.endpoints, layout, states, payloads, strict=True):
            meta = {"slices": slices, "update": update, "optimizer": optimizer, **({"state": state} if state else {})}
            endpoint.push(self._header(BulkKind.INITIAL, request=number), meta=meta, payload=payload)
        self._collect(number)

    def push(
        self,
        *,
        clock: int,
        base_version: int,
        meta: Mapping[str, Any],
        present: Sequence[Sequence[int] | None],
        payloads: Sequence[NDArray[np.uint8]],
    ) -> None:
        """Send an update, in payloads that were staged by the servers' endpoints."""
        header = self._header(BulkKind.PUSH, clock=clock, base_version=base_version)
        whole = {**meta, "present": None, "finished": self.take_finished()}
        for endpoint, here, payload in zip(self.endpoints, present, payloads, strict=True):
            endpoint.push(header, meta=whole if here is None else {**whole, "present": here}, payload=payload)

    def note_finished(self, plan: int, block: int, num_samples: int) -> None:
        """These leased samples are part of the update under way: they are finished when it has arrived."""
        self._finished.append([plan, block, num_samples])

    def take_finished(self) -> list[list[int]]:
        """What was noted since the last call."""
        taken, self._finished = self._finished, []
        return taken

    def tell_finished(self) -> None:
        """Report samples that have no update of their own."""
        for plan, block, num_samples in self.take_finished():
            self.tell(ControlKind.FINISH, {"plan": plan, "block": block, "num_samples": num_samples})

    def not_finite(self, *, clock: int, base_version: int) -> None:
        """Say that there is no update at this clock because it was not finite."""
        event = asdict(Arrived(worker=self._rank, clock=clock, base_version=base_version))
        del event["finite"]
        self.tell(ControlKind.NOT_FINITE, {"event": event, "finished": self.take_finished()})

    def pull(self, *, after: int, clock: int, known_version: int | None) -> list[Reply]:
        """The parameters after this worker's update at clock ``after``, when it has credit beyond ``clock``.

        The payloads are valid until the next request.
        """
        answers = self._request(BulkKind.PULL, clock=clock, meta={"after": after, "known": known_version})
        return [self._reply(answer) for answer in answers]

    def shared(self, *, snapshot: int | None, optimizer: bool = False) -> list[Reply]:
        """Everything the servers hold, now (also of the optimizer, if asked for) or at a snapshot."""
        answers = self._request(
            BulkKind.SHARED, meta={"snapshot": snapshot, **({"optimizer": True} if optimizer else {})}
        )
        self._snapshots = [Snapshot(**one) for one in answers[0].meta["snapshots"]]
        return [self._reply(answer) for answer in answers]

    def _reply(self, bulk: Bulk) -> Reply:
        meta = bulk.meta
        return Reply(
            version=bulk.header.base_version,
            present=meta["present"],
            payload=bulk.payload,
            credit=meta.get("credit", 0),
            held_s=meta.get("held_s", 0.0),
            halted=meta.get("halted", False),
            state=meta.get("state", []),
        )

    def leave(self) -> None:
        """Say that this worker has trained all it will; on the worker that evaluates, wait until all have."""
        self.tell(ControlKind.LEAVE, {})
        self._evaluates = self.await_control(ControlKind.LEFT)["evaluates"]

    def evaluates(self) -> bool:
        """Whether evaluating is this worker's: rank 0's, unless the server has decided otherwise."""
        return self._rank == 0 if self._evaluates is None else self._evaluates

    def snapshots(self) -> list[Snapshot]:
        """The snapshots that the servers hold, as of the last `shared`."""
        return self._snapshots


class Leases:
    """The coordinator's leases for one plan, seen from this worker.

    Args:
        client: How to reach it.
        plan: Which loop of the session.
        figures: What is dealt out.
        on_admitted: Called with the clock when a rest is over.
        before_rest: Called before the worker asks for samples with nothing left to train on.
        on_halt: Called when there are no samples because the stage on the store ends.
    """

    def __init__(
        self,
        client: StoreClient,
        *,
        plan: int,
        figures: PlanFigures,
        on_admitted: Callable[[int], None],
        before_rest: Callable[[], None],
        on_halt: Callable[[], None],
    ) -> None:
        self._client = client
        self._on_halt = on_halt
        self._plan = plan
        self._figures = asdict(figures)
        self._on_admitted = on_admitted
        self._before_rest = before_rest
        self._asked = False

    def request(self, *, idle: bool) -> None:
        """Ask for the next block."""
        if idle:
            self._before_rest()
            self._client.tell_finished()  # what the loop took and made no step of
        self._client.tell(ControlKind.LEASE, {"plan": self._plan, "idle": idle, "figures": self._figures})
        self._asked = True

    def receive(self) -> Block | None:
        """The answer."""
        self._asked = False
        body = self._client.await_control(ControlKind.BLOCK)
        if body.get("clock") is not None:
            self._on_admitted(body["clock"])
        if body.get("halted"):
            self._on_halt()
        return None if body["block"] is None else Block(**body["block"])

    def finish(self, block: int, *, num_samples: int) -> None:
        """Note progress on a block; it counts when the update that it is part of has arrived."""
        self._client.note_finished(self._plan, block, num_samples)

    def release(self) -> None:
        """Give back all that is leased and not finished."""
        if self._asked:
            self._asked = False
            self._client.ignore_next(ControlKind.BLOCK)  # not waited for: the worker may be on its way out
        self._client.tell_finished()  # their update is still this worker's to push
        self._client.tell(ControlKind.RELEASE, {})
