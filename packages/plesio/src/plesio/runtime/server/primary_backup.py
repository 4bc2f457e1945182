"""A server and its backup: the same entries, in the same order and at the same times, make both alike.

All that the primary receives becomes an entry, which it passes on to the backup before it acts on it itself; what
follows is sent when the backup has the entry (`ReplicatedConnections`)::

    primary   gets a message -> passes the entry on -> acts | the backup has it -> answers the workers
    backup    gets the entry -> confirms it -> acts, and keeps what it would have answered

So the backup has logged everything that a worker may have received. The primary is lost when its connection ends; the
backup takes over when workers come, too, and report that they have lost the primary. While the two have lost each other
only, no worker comes, and the primary goes on alone. So does a backup that has taken over.

A network may be cut in two, with workers and a server on either side. So each of the two goes on only with half of the
workers that both knew of, at least: the primary ends where fewer are left to it, and the backup waits for so many. If
the cut leaves exactly half on either side, both go on; two servers cannot tell that from the loss of the other host.

The pushes are passed on, and not what becomes of them: that is as many bytes as the worker has sent, where parameters
and an optimizer's state are two to three times as many. In return the backup does the work of the primary, on the same
numbers. On processors that round alike it comes to the same to the bit; on others a takeover is a step to parameters
that differ in the last bits, for all workers at once, and no update is lost or counts twice.

Nothing here opens a socket or reads a clock; `plesio.runtime.server.primary_backup_process` does.
"""

import logging
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plesio.core.clock import MonotonicClock
from plesio.core.errors import TransportError
from plesio.protocol.message import encode
from plesio.protocol.peers import server_identity, worker_of
from plesio.protocol.replication import EntryAcknowledged, ReplicationEntry
from plesio.runtime.server.job_server import JobServer
from plesio.runtime.server.refusals import Refusals
from plesio.runtime.server.replicated_connections import ReplicatedConnections
from plesio.runtime.transport import Bulk, Control, Gone, Header, Incoming
from plesio.runtime.transport.connection import WorkerConnections
from plesio.runtime.transport.numbered import RESUME, RESUMED, unnumbered

_log = logging.getLogger(__name__)

PRIMARY = server_identity(0).encode()
"""The name of the primary's connection to its backup."""


class PassOn(Protocol):
    """Sends an entry, and the payload that it comes with, to the backup."""

    def __call__(self, entry: ReplicationEntry, payload: NDArray[np.uint8] | None, /) -> None:
        """Send; returns at once."""
        ...


class EntryClock(MonotonicClock):
    """Tells the time of the entry that is acted on, at the primary and at its backup."""

    __slots__ = ("_now_s",)

    def __init__(self) -> None:
        self._now_s = 0.0

    def set(self, now_s: float) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s


class _Replicated:
    """A `JobServer` that acts on entries alone."""

    def __init__(self, endpoint: WorkerConnections, *, primary: bool) -> None:
        self._endpoint = endpoint
        self._refusals = Refusals(endpoint, index=0)
        self._clock = EntryClock()
        self._connections = ReplicatedConnections(endpoint, primary=primary)
        self._num_entries = 0
        self.server = JobServer(
            0, endpoint=self._connections, first=None, clock=self._clock, folders=set(), writes=primary
        )

    def _act(self, entry: ReplicationEntry, payload: NDArray[np.uint8] | None) -> None:
        self._clock.set(entry.now_s)
        incoming = _incoming(entry, payload)
        if not self._connections.take_in(entry):
            if isinstance(incoming, Bulk):
                self._connections.release(incoming)
        elif incoming is not None:
            try:
                self.server.handle([incoming])
            except Exception as error:
                self.server.distrust(incoming.peer, error)
        elif entry.what == "folder":
            self.server.run.may_write(entry.folder)
        elif entry.what == "time":
            self.server.run.check_leases(busy_s=0.0)

    def take(self, incoming: Incoming, *, now_s: float) -> None:
        """Make an entry of what has come from a worker, and act on it; observers make none."""
        fields: dict[str, Any] = {"peer": incoming.peer.decode(errors="replace")}
        payload = None
        if worker_of(incoming.peer) is None:
            if isinstance(incoming, Control) and incoming.peer.startswith(b"observer"):
                self.server.handle([incoming])
            return
        try:
            match incoming:
                case Control(kind=kind, generation=generation):
                    serial, received, body = unnumbered(incoming.body)
                    fields |= {"what": "control", "kind": kind, "generation": generation}
                case Bulk(header=head):
                    serial, received, body = unnumbered(incoming.meta)
                    payload = incoming.payload
                    fields |= {"what": "bulk", "kind": head.kind, "generation": head.generation}
                    fields["header"] = (head.worker, head.clock, head.base_version, head.request)
                case Gone():
                    serial, received, body = 0, 0, {}
                    fields["what"] = "gone"
            self._enter(now_s, payload, serial=serial, received=received, body=dict(body), **fields)
        except (TransportError, ValueError) as error:
            self.refuse(incoming, error)

    def refuse(self, incoming: Incoming, error: Exception) -> None:
        name = incoming.peer.decode(errors="replace")
        self._refusals.refuse(TransportError(f"{name} sent what makes no sense: {error}"))

    def tick(self, *, now_s: float) -> None:
        """Enter that time has passed."""
        self._enter(now_s, what="time")

    def _enter(self, now_s: float, payload: NDArray[np.uint8] | None = None, /, **fields: Any) -> None:
        entry = ReplicationEntry(number=self._num_entries + 1, now_s=now_s, **fields)
        self._passed_on(entry, payload)  # what cannot be passed on is refused, and counts for nothing
        self._num_entries += 1
        self._act(entry, payload)

    def _passed_on(self, entry: ReplicationEntry, payload: NDArray[np.uint8] | None) -> None:
        """Send it to the backup, if there is one."""


class PrimaryServer(_Replicated):
    """The server that the workers speak to."""

    def __init__(self, endpoint: WorkerConnections, *, pass_on: PassOn) -> None:
        super().__init__(endpoint, primary=True)
        self._pass_on: PassOn | None = pass_on
        self._num_acknowledged = 0
        self._is_cut_off = False
        self._known: frozenset[int] = frozenset()
        """Workers that take part by what the backup has as well."""
        self._changes: deque[tuple[int, frozenset[int]]] = deque()
        """After which entries there were others, beyond that."""

    def _passed_on(self, entry: ReplicationEntry, payload: NDArray[np.uint8] | None) -> None:
        if self._pass_on is not None:
            self._pass_on(entry, payload)

    def _act(self, entry: ReplicationEntry, payload: NDArray[np.uint8] | None) -> None:
        super()._act(entry, payload)
        live = self.server.run.live_workers
        if live != (self._changes[-1][1] if self._changes else self._known):
            self._changes.append((entry.number, live))

    def may_write(self, folder: str, *, now_s: float) -> None:
        self._enter(now_s, what="folder", folder=folder)

    def acknowledge(self, number: int) -> None:
        """Take note that the backup has all entries up to this one."""
        self._num_acknowledged = number
        while self._changes and self._changes[0][0] <= number:
            _, self._known = self._changes.popleft()
        self._connections.let_out(number)

    @property
    def safe(self) -> bool:
        """True if the backup has all entries, or there is none."""
        return self._pass_on is None or self._num_acknowledged == self._num_entries

    def go_on_alone(self) -> bool:
        """Drop the lost backup, and tell whether to go on, which takes half of the workers or more."""
        self._pass_on = None
        if 2 * len(self._known & self.server.run.live_workers) < len(self._known):
            _log.warning("the job's server is cut off from its backup and from most of the workers, and ends")
            self._is_cut_off = True
            return False
        line = "the backup of the job's server was lost: the run goes on without one"
        if self.server.run.note(line):
            _log.warning("%s", line)
        self._connections.let_out(sys.maxsize)
        return True

    def end(self, *, now_s: float) -> None:
        """End the job: what is under way is closed here, and not at the backup."""
        if self._is_cut_off:
            self.server.run.discard()
            return
        self._enter(now_s, what="over")
        self.server.run.end()


class BackupServer(_Replicated):
    """The server that takes over.

    Args:
        endpoint: Its connections to the primary, and to workers that have lost that.
    """

    def __init__(self, endpoint: WorkerConnections) -> None:
        super().__init__(endpoint, primary=False)
        self._allowed: set[str] = set()
        self._waiting: list[tuple[ReplicationEntry, Bulk]] = []
        self._primary_s = 0.0
        self._taken_over_s: float | None = None
        self._primary_is_lost = self._job_is_over = False
        self._asking: dict[bytes, Mapping[str, int]] = {}

    @property
    def serves(self) -> bool:
        """True if it has taken over."""
        return self._taken_over_s is not None

    @property
    def follows(self) -> bool:
        """True if the primary is there."""
        return not self._primary_is_lost

    def may_write(self, folder: str) -> None:
        """Allow a folder that the starter of this server has named, before the primary's word counts here."""
        self._allowed.add(folder)

    def follow(self, arrived: Sequence[tuple[ReplicationEntry, Bulk]]) -> None:
        """Confirm at once that these entries, with what brought them, are here, and then act on them."""
        self._waiting += arrived
        ready = []
        while self._waiting and not self.serves and self._can_follow(self._waiting[0][0]):
            ready.append(self._waiting.pop(0))
            self._num_entries += 1
        if ready:
            self._endpoint.send_control(PRIMARY, *encode(EntryAcknowledged(number=self._num_entries)))
        for entry, bulk in ready:
            self._primary_s = entry.now_s
            self._job_is_over = self._job_is_over or entry.what == "over"
            if entry.what != "bulk":
                self._endpoint.release(bulk)
            self._act(entry, bulk.payload)

    def _can_follow(self, entry: ReplicationEntry) -> bool:
        """Tell whether to act on an entry: not after a missing one, which its dying sender could not hand over."""
        return entry.number == self._num_entries + 1 and (entry.what != "folder" or entry.folder in self._allowed)

    def take_in(self, incoming: Incoming, *, now_s: float) -> None:
        """Act on what has come otherwise.

        ``now_s`` is by this server's own clock.
        """
        match incoming:
            case Gone(peer=peer) if peer == PRIMARY:
                self._primary_is_lost = True
            case (
                Control(peer=peer, body=received, kind=kind) | Bulk(peer=peer, meta=received, header=Header(kind=kind))
            ) if kind == RESUME and worker_of(peer) is not None:
                self._asking[peer] = {channel: int(number) for channel, number in received.items()}
            case _ if self.serves:
                self.take(incoming, now_s=self.time_s(now_s))
        if self._asking and self._primary_is_lost and self._are_enough:
            self._answer(now_s)

    @property
    def _are_enough(self) -> bool:
        """True if so many workers have come that the primary has not half of them."""
        known = self.server.run.live_workers
        come = known & {worker for peer in self._asking if (worker := worker_of(peer)) is not None}
        return self.serves or self._job_is_over or 2 * len(come) >= len(known)

    def _answer(self, now_s: float) -> None:
        if not (self.serves or self._job_is_over):
            self._take_over(now_s)
        asking, self._asking = self._asking, {}
        for peer, received in asking.items():
            if self._job_is_over:
                self._endpoint.send_control(peer, RESUMED, {"over": True})
            else:
                self._connections.resume(peer, received)

    def _take_over(self, now_s: float) -> None:
        self._taken_over_s = now_s
        line = "the job's server was lost: its backup has taken over, and the run goes on without one"
        _log.warning("%s", line)
        self._connections.take_over()
        self.server.run.take_over(line)

    def time_s(self, now_s: float) -> float:
        """Return the run's time, which did not pass while no server served."""
        assert self._taken_over_s is not None
        return self._primary_s + now_s - self._taken_over_s


def _incoming(entry: ReplicationEntry, payload: NDArray[np.uint8] | None) -> Incoming | None:
    peer = entry.peer.encode()
    match entry.what:
        case "control":
            return Control(peer=peer, kind=entry.kind, generation=entry.generation, body=entry.body)
        case "bulk":
            assert payload is not None
            worker, clock, base_version, request = entry.header
            header = Header(
                kind=entry.kind,
                generation=entry.generation,
                worker=worker,
                clock=clock,
                base_version=base_version,
                request=request,
            )
            return Bulk(peer=peer, header=header, meta=entry.body, payload=payload)
        case "gone":
            return Gone(peer=peer)
    return None
