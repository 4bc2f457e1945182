"""A worker's connections to the servers of its job: requests out, answers sorted to the calls that wait for them."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from plesio.core.clock import Clock
from plesio.core.errors import PlesioError, TransportError
from plesio.core.results import Found
from plesio.protocol.bulk import Initial, Pull, Pulled, Push, Shared, SharedRequest, Table
from plesio.protocol.figures import Snapshot
from plesio.protocol.message import Message, decode, encode
from plesio.protocol.peers import server_identity
from plesio.protocol.plans import Block, PlanFigures
from plesio.protocol.to_server import (
    EvaluationRequest,
    Evaluations,
    Finish,
    Finished,
    LeaseRequest,
    Leave,
    NotFinite,
    Release,
    UpdateHead,
)
from plesio.protocol.to_worker import Failed, KnownEvaluation, Lease, MayLeave, ToWorker, UpdateRefused
from plesio.runtime.transport import Bulk, Control, Header
from plesio.runtime.transport.connection import ServerConnection
from plesio.runtime.worker.exchange.island_parts import IslandLayout

M = TypeVar("M", bound=Message)

Present = Sequence[Sequence[int] | None]
"""By server, the indices of its slices that a message is about; None is all."""
POLL_S = 0.5
"""How often a waiting worker looks whether the wait has become pointless."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One server's answer to a pull.

    Attributes:
        payload: The slices, packed, and the optimizer's state if it was asked for.
        state: The table of that state; None if there is none.
    """

    version: int
    told: Pulled
    payload: NDArray[np.uint8]
    state: Table | None = None


class StoreClient:
    """One worker's end of all its connections. Used by the training thread only.

    Args:
        failure: Returns why waiting has become pointless (the job's server is gone, a worker is lost), or None.
        disconnected: Explains the end of a connection.
        on_refused: Called with clock, reason and the samples given back when the policy refused an update of this
            worker.
    """

    def __init__(
        self,
        endpoints: Sequence[ServerConnection],
        *,
        rank: int,
        clock: Clock,
        failure: Callable[[], PlesioError | None],
        disconnected: Callable[[TransportError], PlesioError],
        on_refused: Callable[[int, str, int], None],
    ) -> None:
        self.endpoints = list(endpoints)
        self.divided: IslandLayout | None = None
        """This rank's share of what is sent and received, where the worker is an island."""
        self.rank, self._clock, self._failure = rank, clock, failure
        self._disconnected, self._on_refused = disconnected, on_refused
        self._controls: dict[type[Message], deque[Message]] = defaultdict(deque)
        self._bulks: list[dict[int, Bulk]] = [{} for _ in self.endpoints]
        self._held: list[tuple[ServerConnection, Bulk]] = []
        """Answers that are in use, and where they came from."""
        self._ignored: Counter[type[Message]] = Counter()
        self._numbers = count(1)
        self.samples = 0
        """Samples of all workers that the parameters pulled last contain."""
        self.own_since = 0
        """Samples of this worker that they do not contain yet."""
        self._finished: list[Finished] = []
        self._evaluates: bool | None = None
        self._snapshots: list[Snapshot] = []

    def send(self, message: Message) -> None:
        self.endpoints[0].send_control(*encode(message))

    def await_message(
        self,
        kind: type[M],
        *,
        timeout_s: float | None = None,
        explain: Callable[[], str] = str,
        check: Callable[[], None] = lambda: None,
    ) -> M:
        """Wait for the next control message of this type from server 0.

        Raises:
            TransportError: It did not come within ``timeout_s``.
            PlesioError: The run cannot go on, or the server refused the request.
        """
        deadline_s = None if timeout_s is None else self._clock.now_s() + timeout_s
        while (message := self.received(kind)) is None:
            if (failed := self.received(Failed)) is not None:
                raise TransportError(failed.message)
            if deadline_s is not None and self._clock.now_s() > deadline_s:
                waited_for = kind.__name__.lower()
                raise TransportError(
                    f"the job's server has not answered within {timeout_s:g} s ({waited_for}){explain()}"
                )
            check()
            self._wait(0)
        return message

    def await_alone(self, kind: type[M], *, timeout_s: float | None = None) -> M:
        """Wait for a message, as `await_message`, on a process that fails: those of its worker are not with it."""
        return self.await_message(kind, timeout_s=timeout_s)

    def received(self, kind: type[M]) -> M | None:
        """Return a control message of this type that came while something else was waited for, if there is one."""
        messages = self._controls[kind]
        if not messages:
            return None
        message = messages.popleft()
        assert isinstance(message, kind)
        return message

    def ignore_next(self, kind: type[Message]) -> None:
        """Ignore the next control message of this type: its question is no longer asked."""
        if self.received(kind) is None:
            self._ignored[kind] += 1

    def _wait(self, server: int) -> None:
        try:
            arrived = self.endpoints[server].poll(POLL_S)
            for incoming in arrived:
                if isinstance(incoming, Bulk):
                    self._bulks[server][incoming.header.request] = incoming
                elif isinstance(incoming, Control):
                    self._take(decode(incoming.kind, incoming.body, ToWorker, peer=server_identity(server)))
            if arrived:
                return
            failure = self._failure()
            if failure is not None:
                raise failure
            for endpoint in self.endpoints:  # this server may wait for one that is lost
                endpoint.check()
        except TransportError as error:
            raise self._disconnected(error) from error

    def _take(self, message: ToWorker) -> None:
        kind = type(message)
        if self._ignored[kind] > 0:
            self._ignored[kind] -= 1
        elif isinstance(message, UpdateRefused):
            self._on_refused(message.clock, message.reason.value, message.num_returned)
        else:
            self._controls[kind].append(message)

    def _ask(self, message: Message, *, clock: int = 0, present: Present | None = None) -> int:
        """Ask every server the same, of its slices in ``present``; returns the number of the answers."""
        self._let_go()
        number = next(self._numbers)
        kind, whole = encode(message)
        header = self._header(kind, clock=clock, request=number)
        for endpoint, here in zip(self.endpoints, present or [None for _ in self.endpoints], strict=True):
            endpoint.push(header, meta=whole if here is None else {**whole, "present": here})
        return number

    def _collect(self, number: int) -> list[Bulk]:
        answers = []
        for server, waiting in enumerate(self._bulks):
            while number not in waiting:
                self._wait(server)
            answers.append(waiting.pop(number))
        self._held += zip(self.endpoints, answers, strict=True)
        return answers

    def _let_go(self) -> None:
        """Give back the memory of the last answers: a server has the next one in its place."""
        for endpoint, bulk in self._held:
            endpoint.release(bulk)
        self._held.clear()

    def _header(self, kind: int, *, clock: int = 0, base_version: int = 0, request: int = 0) -> Header:
        return Header(
            kind=kind,
            generation=self.endpoints[0].generation,
            worker=self.rank,
            clock=clock,
            base_version=base_version,
            request=request,
        )

    def initialise(self, initials: Sequence[Initial], *, payloads: Sequence[NDArray[np.uint8]]) -> None:
        """Give every server its slices' initial values, and the optimizer's state; returns when all have them."""
        self._let_go()
        number = next(self._numbers)
        for endpoint, initial, payload in zip(self.endpoints, initials, payloads, strict=True):
            kind, meta = encode(initial)
            endpoint.push(self._header(kind, request=number), meta=meta, payload=payload)
        self._collect(number)

    def push(
        self, push: Push, *, clock: int, base_version: int, present: Present, payloads: Sequence[NDArray[np.uint8]]
    ) -> None:
        """Send an update, in payloads staged by the servers' endpoints; ``present`` has their slices, None for all."""
        kind, whole = encode(push)
        header = self._header(kind, clock=clock, base_version=base_version)
        for endpoint, here, payload in zip(self.endpoints, present, payloads, strict=True):
            endpoint.push(header, meta=whole if here is None else {**whole, "present": here}, payload=payload)

    def note_finished(self, plan: int, block: int, num_samples: int) -> None:
        """Note that these leased samples are part of the update under way: they are finished when it has arrived."""
        self._finished.append((plan, block, num_samples))

    def take_finished(self) -> tuple[Finished, ...]:
        taken, self._finished = self._finished, []
        return tuple(taken)

    def tell_finished(self) -> None:
        """Report samples that have no update of their own."""
        for plan, block, num_samples in self.take_finished():
            self.send(Finish(plan=plan, block=block, num_samples=num_samples))

    def not_finite(self, *, clock: int, base_version: int, fragment: int) -> None:
        """Report that there is no update at this clock because it was not finite."""
        head = UpdateHead(worker=self.rank, clock=clock, base_version=base_version, fragment=fragment)
        self.send(NotFinite(event=head, finished=self.take_finished()))

    def ask(
        self,
        *,
        after: int,
        clock: int,
        known_version: int | None,
        present: Present | None = None,
        compressed: str | None = None,
    ) -> int:
        """Ask for the parameters after this worker's update at clock ``after``, when it has credit beyond ``clock``.

        Returns:
            The number by which `pulled` waits for them.
        """
        return self._ask(Pull(after=after, known=known_version, compressed=compressed), clock=clock, present=present)

    def pulled(self, number: int) -> list[Reply]:
        """Return the parameters that were asked for; the payloads are valid until something else is asked."""
        replies = []
        for server, bulk in enumerate(self._collect(number)):
            pulled: Pulled = decode(bulk.header.kind, bulk.meta, Pulled, peer=server_identity(server))
            self.samples = max(self.samples, pulled.samples)
            replies.append(Reply(bulk.header.base_version, pulled, bulk.payload))
        return replies

    def shared(self, *, snapshot: int | None, optimizer: bool = False) -> list[Reply]:
        """Fetch everything the servers hold, now (also of the optimizer, if asked for) or at a snapshot."""
        answers = self._collect(self._ask(SharedRequest(snapshot=snapshot, optimizer=optimizer)))
        replies = []
        for server, bulk in enumerate(answers):
            shared: Shared = decode(bulk.header.kind, bulk.meta, Shared, peer=server_identity(server))
            if server == 0:
                self._snapshots = list(shared.snapshots)
            told = Pulled(present=shared.present, credit=0, held_s=0.0)
            replies.append(Reply(bulk.header.base_version, told, bulk.payload, shared.state))
        return replies

    def leave(self, *, samples: int, check: Callable[[], None]) -> None:
        """Report that this worker's training is over; on the worker that evaluates, wait until all is."""
        self.send(Leave(samples=samples))
        self._evaluates = self.await_message(MayLeave, check=check).evaluates

    @contextmanager
    def evaluating(self, number: int) -> Iterator[Found]:
        """Give the result that another worker finds in this evaluation; if it is None, this one evaluates in here."""
        self.send(EvaluationRequest(number=number))
        known = self.await_message(KnownEvaluation).evaluation
        before, self._evaluates = self._evaluates, known is None
        try:
            yield None if known is None else known.found
        except BaseException:
            self.send(Evaluations(evaluations=(), parameters_sha256=None, number=number))
            raise
        finally:
            self._evaluates = before

    def evaluates(self) -> bool:
        """Tell whether this worker evaluates: rank 0 does, unless the server has decided otherwise."""
        return self.rank == 0 if self._evaluates is None else self._evaluates

    def common(self, found: Found) -> Found:
        """Return the metric of all processes of this worker."""
        return found

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots that the servers hold, as of the last `shared`."""
        return self._snapshots


class Leases:
    """The coordinator's leases for one plan, seen from this worker.

    Args:
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
        self._client, self._on_halt, self._plan, self._figures = client, on_halt, plan, figures
        self._on_admitted, self._before_rest = on_admitted, before_rest
        self._asked = False

    def request(self, *, idle: bool) -> None:
        if idle:
            self._before_rest()
            self._client.tell_finished()  # what the loop took and made no step of
        self._client.send(LeaseRequest(plan=self._plan, idle=idle, figures=self._figures))
        self._asked = True

    def receive(self) -> Block | None:
        self._asked = False
        lease = self._client.await_message(Lease)
        if lease.clock is not None:
            self._on_admitted(lease.clock)
        if lease.halted:
            self._on_halt()
        return lease.block

    def finish(self, block: int, *, num_samples: int) -> None:
        """Note progress on a block; it counts when the update that it is part of has arrived."""
        self._client.note_finished(self._plan, block, num_samples)

    def release(self) -> None:
        """Give back all that is leased and not finished."""
        if self._asked:
            self._asked = False
            self._client.ignore_next(Lease)  # not waited for: the worker may be on its way out
        self._client.tell_finished()  # their update is still this worker's to push
        self._client.send(Release())
