"""Connections as ZeroMQ's socket monitor reports them: which were refused, and whose have ended.

Anybody can open a connection, and each costs a descriptor and memory until it is let in. ZeroMQ has no limit for that,
so `ServerWatch` keeps one: beyond it, it ends the connection that has waited longest among those of the address that
has most of them waiting. So a flood of a server is in nobody's way, except at the same address; and there a worker
needs a few milliseconds to be let in, and tries again if it was in the crowd.
"""

import contextlib
import heapq
import resource
import socket as tcp
import struct
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from plesio.core.errors import TransportError
from plesio.runtime.transport.sockets import Socket, end_connection

_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_OF_CLIENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | _REFUSED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
_OF_SERVERS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
"""Not what fails to be accepted: without a descriptor to be had ZeroMQ reports that as fast as it can."""

_EVENT = struct.Struct("=HI")
"""The event and its value, in the first frame of two (zmq_socket_monitor(3))."""

_WAITING_PART = 8
_MAX_CUT = 5
"""How often a client's handshake may be cut off until that counts as refused: a crowd may be the reason."""


class _Monitor:
    """The event stream of one socket."""

    def __init__(self, socket: Socket, *, events: int) -> None:
        self._watched = socket
        address = f"inproc://plesio-monitor-{id(self)}"
        socket.monitor(address, events)
        self.socket: Socket = socket.context.socket(zmq.PAIR)
        self.socket.linger = 0
        self.socket.rcvhwm = 0  # a full queue would stop ZeroMQ's own thread
        self.socket.connect(address)

    def read(self) -> list[tuple[int, int]]:
        """Return the events since the last call, each with its value."""
        events: list[tuple[int, int]] = []
        while True:
            try:
                event, _ = self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return events
            events.append(_EVENT.unpack(event))

    def close(self) -> None:
        self._watched.disable_monitor()
        self.socket.close()


@dataclass(slots=True, eq=False)
class _Connection:
    serial: int
    descriptor: int
    address: str = ""
    peer: bytes | None = None
    dismissed: bool = False


class ServerWatch:
    """Follows the connections of a server's socket, each known by its file descriptor.

    ZeroMQ does not report each failed handshake (a sender of garbage just ends), nor which connection a successful one
    belongs to. But a client sends something as soon as its connection is established. So one that ends without any has
    been refused; and if the ZAP handler did that, `note_denied` was called and it is not counted again.

    The end of a connection is known before what it brought is read, and its descriptor is used again at once. So an
    ended connection is kept until the socket has been read to the end: see `take_gone`.

    Args:
        socket: Before it is bound.
        max_waiting: Connections that may wait to be let in; fewer where the process may have few descriptors.
        on_failed_handshake: Called for each connection that never was one.
    """

    def __init__(self, socket: Socket, *, max_waiting: int, on_failed_handshake: Callable[[], None]) -> None:
        self._monitor = _Monitor(socket, events=_OF_SERVERS)
        self._max_waiting = min(max_waiting, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _WAITING_PART)
        self.socket = self._monitor.socket
        self._on_failed_handshake = on_failed_handshake
        self._num_accepted = 0
        self._live: dict[int, _Connection] = {}
        self._ended: list[_Connection] = []
        self._latest: dict[bytes, _Connection] = {}
        self._num_denied = 0

    def note_denied(self) -> None:
        """Count a connection in its handshake that the ZAP handler has refused."""
        self._num_denied += 1

    def note_received(self, peer: bytes, descriptor: int) -> None:
        """Take note that ``peer`` begins a message over a connection that had ``descriptor`` when it arrived."""
        self.read()
        connection = self._origin(peer, descriptor)
        connection.peer = peer
        latest = self._latest.get(peer)
        if latest is None or latest.serial < connection.serial:
            self._latest[peer] = connection

    def _origin(self, peer: bytes, descriptor: int) -> _Connection:
        live = self._live.get(descriptor)
        if live is not None and live.peer == peer:
            return live
        ended = [connection for connection in self._ended if connection.descriptor == descriptor]
        for connection in ended:
            if connection.peer in (None, peer):
                return connection
        if live is None:  # flushed after its connection's end had been reported and taken
            live = _Connection(self._next_serial(), descriptor)
            self._ended.append(live)
        return live

    def read(self) -> None:
        for event, value in self._monitor.read():
            if event == zmq.EVENT_ACCEPTED:
                self._live[value] = _Connection(self._next_serial(), value, _address(value))
            elif event == zmq.EVENT_DISCONNECTED and value in self._live:
                self._ended.append(self._live.pop(value))

    def thin_out(self) -> None:
        """End connections that wait to be let in, where there are too many.

        To be called when the socket has been read to the end, so that all that were let in are known.
        """
        waiting = [one for one in self._live.values() if one.peer is None and not one.dismissed]
        num_over = len(waiting) - self._max_waiting
        if num_over <= 0:
            return
        crowds: defaultdict[str, deque[_Connection]] = defaultdict(deque)  # by address, the oldest first
        for one in waiting:
            crowds[one.address].append(one)
        largest = [(-len(crowd), address) for address, crowd in crowds.items()]
        heapq.heapify(largest)
        for _ in range(num_over):
            size, address = largest[0]
            oldest = crowds[address].popleft()
            oldest.dismissed = True
            end_connection(oldest.descriptor)
            heapq.heapreplace(largest, (size + 1, address))

    def _next_serial(self) -> int:
        self._num_accepted += 1
        return self._num_accepted

    @property
    def num_ended(self) -> int:
        """Connections that have ended and are not taken yet."""
        return len(self._ended)

    def take_gone(self, *, num_ended: int) -> list[bytes]:
        """Take out the peers whose last connection is among the first ``num_ended`` that ended; they are forgotten.

        Note `num_ended`, read the socket until it is empty, then call this: now all is read that these brought.
        """
        ended, self._ended = self._ended[:num_ended], self._ended[num_ended:]
        gone = []
        for connection in ended:
            if connection.peer is None:
                self._count_refused()
            elif self._latest.get(connection.peer) is connection:
                del self._latest[connection.peer]
                gone.append(connection.peer)
        return gone

    def _count_refused(self) -> None:
        if self._num_denied > 0:
            self._num_denied -= 1
        else:
            self._on_failed_handshake()

    def close(self) -> None:
        self._monitor.close()


class ClientWatch:
    """Follows the one connection of a client's socket.

    Args:
        socket: Before it is connected.
    """

    def __init__(self, socket: Socket) -> None:
        self._monitor = _Monitor(socket, events=_OF_CLIENTS)
        self._num_cut = 0
        self.socket = self._monitor.socket
        self.established = False
        """The handshake was completed; stays true."""
        self.refused = False
        """The server ended the handshake."""
        self.retries = False
        """A connection could not be opened, and is tried again."""
        self.lost = False
        """It was established, and has ended."""

    def read(self) -> None:
        for event, _ in self._monitor.read():
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.established = True
            elif event == zmq.EVENT_CONNECT_RETRIED:
                self.retries = True
            elif self.established:
                self.lost = True
            else:
                self._num_cut += 1
                self.refused = self.refused or bool(event & _REFUSED) or self._num_cut == _MAX_CUT

    def check(self, address: str) -> None:
        """Raise when the connection is lost.

        Raises:
            TransportError: It was established, and has ended.
        """
        self.read()
        if self.lost:
            raise TransportError(f"the server at {address} has ended the connection")

    def close(self) -> None:
        self._monitor.close()


def _address(descriptor: int) -> str:
    """Return the address a connection comes from; empty on this host's own socket file, or when it has ended."""
    with contextlib.suppress(OSError):
        connection = tcp.socket(fileno=descriptor)
        try:
            return str(connection.getpeername()[0]) if connection.family != tcp.AF_UNIX else ""
        finally:
            connection.detach()
    return ""
