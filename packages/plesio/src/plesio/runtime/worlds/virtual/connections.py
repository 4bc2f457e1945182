"""Both ends of the modelled connections between workers and servers.

The ends have the methods of `ClientEndpoint`, `ControlClient` and `ServerEndpoint`, so sessions and servers work as on
sockets. A message's bytes on the wire are counted as there; payloads are handed over and not copied, as in shared
memory.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.cost.host_costs import HostCosts
from plesio.protocol.message import kind_of
from plesio.protocol.to_server import Join
from plesio.runtime.server.job_server import JobServer
from plesio.runtime.transport import Bulk, Control, Gone, Header, Incoming, Refusal, Traffic
from plesio.runtime.transport.wire import EMPTY
from plesio.runtime.worlds.virtual.fabric import Fabric

_CONTROL_BYTES = 60
"""Head and encryption of a control message on the wire."""
_JOIN_BYTES = 500
"""Size of a worker's message to join: whichever folder and machine it names, a simulation stays the same."""
BULK_BYTES = 80
"""Heads and framing of a bulk message."""


class _JsonBytes:
    """The lengths of messages as JSON; asked for the same object again, as when all servers get it, it has it."""

    def __init__(self) -> None:
        self._encode = json.JSONEncoder(separators=(",", ":")).encode
        self._latest: Mapping[str, Any] | None = None
        self._num_bytes = 0

    def __call__(self, body: Mapping[str, Any] | None) -> int:
        if not body:
            return 0
        if body is not self._latest:
            self._num_bytes = len(self._encode(body))
            self._latest = body
        return self._num_bytes


json_bytes = _JsonBytes()


class ArrayPool:
    """Arrays to send in, used again when the receiver is done with them.

    A returned array is a view of a view, and the next user's is another: the pool keeps the array itself.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._in_use: dict[int, NDArray[np.uint8]] = {}
        """By address."""

    def stage(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return an array with arbitrary content."""
        free = self._free.get(num_bytes)
        array = free.pop() if free else np.empty(num_bytes, np.uint8)
        if num_bytes:
            self._in_use[_address(array)] = array
        return array

    def release(self, bulk: Bulk) -> None:
        """Free the payload of a message for use again, if it was staged here."""
        array = self._in_use.pop(_address(bulk.payload), None)
        if array is not None:
            self._free.setdefault(array.size, []).append(array)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class ServerConnections:
    """A server's ends of all its connections.

    Args:
        queue: The server's work: a bulk message leaves when it has had the time to make it.
    """

    def __init__(self, *, host: int, fabric: Fabric, memory: ArrayPool, queue: "WorkQueue") -> None:
        self.host = host
        self.fabric = fabric
        self.memory = memory
        self.traffic = Traffic()
        self.refused: Counter[Refusal] = Counter()
        self.generation = 0
        self.lines: dict[bytes, ControlLine] = {}
        self._queue = queue

    def let_in(self) -> None:
        """Do nothing: peers are there from the beginning."""

    def send_control(self, peer: bytes, kind: int, body: Mapping[str, Any]) -> bool:
        line = self.lines.get(peer)
        if line is None:
            return False
        num_bytes = _CONTROL_BYTES + json_bytes(body)
        self.traffic.tcp.sent_payload += num_bytes
        control = Control(peer=b"", kind=kind, generation=self.generation, body=body)
        line.to_worker.send(num_bytes, lambda: line.deliver(control))
        return True

    def send(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = EMPTY
    ) -> object:
        line = self.lines.get(peer)
        if line is None:
            return None
        bulk = Bulk(peer=b"", header=header, meta=meta or {}, payload=payload.reshape(-1).view(np.uint8))
        num_bytes = BULK_BYTES + json_bytes(meta) + payload.nbytes
        self.traffic.of("ipc" if line.host == self.host else "tcp").sent_payload += num_bytes
        self._queue.answer(lambda: line.bulk_to_worker.send(num_bytes, lambda: line.deliver(bulk)))
        return bulk

    def stage(self, num_bytes: int, *, peer: bytes) -> NDArray[np.uint8]:
        return self.memory.stage(num_bytes)

    def release(self, bulk: Bulk) -> None:
        self.memory.release(bulk)


class WorkQueue:
    """The work of a server: its messages and answers one after the other, each for as long as it would take.

    Args:
        process: Has the host's processors do so many seconds of work, and then calls the function.
    """

    def __init__(self, costs: HostCosts, *, process: Callable[[float, Callable[[], None]], None]) -> None:
        self._costs = costs
        self._process = process
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        """The acts that are to be done, and how long each takes."""
        self._answers: list[tuple[float, Callable[[], None]]] = []
        self._busy = False

    def answer(self, send: Callable[[], None]) -> None:
        """Send a bulk message when it has been made."""
        self._answers.append((self._costs.serve(0), send))
        if not self._busy:
            self._do_next()

    def do(self, num_bytes: int | None, act: Callable[[], None]) -> None:
        """Act on a message with a payload of so many bytes when those before it are done with; None takes no time."""
        self._waiting.append((0.0 if num_bytes is None else self._costs.serve(num_bytes), act))
        if not self._busy:
            self._do_next()

    def _do_next(self) -> None:
        if self._answers:  # to a message: they leave one by one before the next message is looked at
            self._waiting.extendleft(reversed(self._answers))
            self._answers.clear()
        self._busy = bool(self._waiting)
        if self._waiting:
            work_s, act = self._waiting.popleft()

            def done() -> None:
                act()
                self._do_next()

            self._process(work_s, done)


class VirtualServer:
    """A server behind the queue of what it has to do."""

    def __init__(
        self,
        index: int,
        *,
        connections: ServerConnections,
        queue: WorkQueue,
        make: Callable[["VirtualServer"], JobServer],
    ) -> None:
        self.index = index
        self.connections = connections
        self._queue = queue
        self.proper = make(self)
        self._due_s: float | None = None
        """When it acts next though nothing comes."""

    def receive(self, incoming: Incoming, *, num_bytes: int) -> None:
        """Receive a message, and act on it when those before it are done with."""
        # a request without a payload costs what its answer does
        free = isinstance(incoming, Bulk) and not num_bytes
        self._queue.do(None if free else num_bytes, lambda: self._act(incoming))

    def _act(self, incoming: Incoming) -> None:
        self.proper.handle([incoming])
        self._be_there_when_due()

    def _be_there_when_due(self) -> None:
        due_s, kernel = self.proper.run.due_s, self.connections.fabric.kernel
        if due_s is not None and due_s != self._due_s:
            self._due_s = due_s
            kernel.at(max(due_s, kernel.now_s), lambda: self._queue.do(None, self._elapse))

    def _elapse(self) -> None:
        self._due_s = None
        self.proper.run.elapse()
        self._be_there_when_due()

    def obey(self, incoming: Control | Bulk) -> None:
        """Receive a decision of server 0."""
        if isinstance(incoming, Control):
            self._queue.do(0, lambda: self.proper.obey([incoming]))


class ControlLine:
    """A connection for control messages alone.

    Args:
        on_arrival: Called with what the server sends.
    """

    def __init__(
        self, identity: bytes, *, host: int, server: VirtualServer, on_arrival: Callable[[Control | Bulk], None]
    ) -> None:
        self.identity = identity
        self.host = host
        self.traffic = Traffic()
        self._server = server
        self._on_arrival = on_arrival
        self._open = True
        fabric, there = server.connections.fabric, server.connections.host
        # control and bulk messages have connections of their own, as on sockets: they overtake each other
        self.to_worker, self.bulk_to_worker = fabric.channel(there, host), fabric.channel(there, host)
        self._to_server, self._bulk_to_server = fabric.channel(host, there), fabric.channel(host, there)
        self.generation = server.connections.generation
        server.connections.lines[identity] = self

    def deliver(self, incoming: Control | Bulk) -> None:
        if self._open and (isinstance(incoming, Control) or incoming.header.generation == self.generation):
            self._on_arrival(incoming)

    def send(self, kind: int, body: Mapping[str, Any]) -> None:
        num_bytes = _JOIN_BYTES if kind == kind_of(Join) else _CONTROL_BYTES + json_bytes(body)
        self.traffic.tcp.sent_payload += num_bytes
        self._carry(Control(peer=self.identity, kind=kind, generation=self.generation, body=body), num_bytes, work=0)

    def _begin(self, action: Callable[[], None]) -> None:
        action()

    def _carry(self, incoming: Control | Bulk, num_bytes: int, *, work: int) -> None:
        server = self._server
        channel = self._bulk_to_server if isinstance(incoming, Bulk) else self._to_server

        def send() -> None:
            if self._open:  # it may have been cut while the worker was still packing
                channel.send(num_bytes, lambda: server.receive(incoming, num_bytes=work))

        if self._open:
            self._begin(send)

    def cut(self) -> None:
        """Cut this end; the server notices as soon as the news can travel."""
        if self._open:
            self._open = False
            server, gone = self._server, Gone(peer=self.identity)
            server.connections.lines.pop(self.identity, None)
            self._to_server.send(0, lambda: server.receive(gone, num_bytes=0))

    def close(self) -> None:
        """Leave the server; it does not act on it."""
        self._open = False
        self._server.connections.lines.pop(self.identity, None)
