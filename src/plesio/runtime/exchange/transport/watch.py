"""Connections as ZeroMQ's socket monitor reports them: which were refused, and whose have ended."""

from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from plesio.core.errors import TransportError
from plesio.runtime.exchange.transport.sockets import Socket

__all__ = ["ClientWatch", "ServerWatch"]

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class _Monitor:
    """The event stream of one socket."""

    def __init__(self, socket: Socket) -> None:
        self._watched = socket
        address = f"inproc://plesio-monitor-{id(self)}"
        socket.monitor(address, zmq.EVENT_ALL)
        self.socket: Socket = socket.context.socket(zmq.PAIR)
        self.socket.linger = 0
        self.socket.rcvhwm = 0  # a full queue would stop ZeroMQ's own thread
        self.socket.connect(address)

    def read(self) -> list[tuple[int, int]]:
        """The events since the last call, each with its value."""
        events = []
        while self.socket.poll(0):
            message = parse_monitor_message(self.socket.recv_multipart())
            events.append((int(message["event"]), int(message["value"])))
        return events

    def close(self) -> None:
        """Stop the stream."""
        self._watched.disable_monitor()
        self.socket.close()


@dataclass(slots=True)
class _Connection:
    peer: bytes


class ServerWatch:
    """Follows the connections of a server's socket, each known by its file descriptor.

    ZeroMQ does not report each failed handshake (a sender of garbage just ends), nor which connection a successful one
    belongs to. But a worker's connection says something as soon as it stands. So a connection that ends without a word
    has been refused; and if the ZAP handler did that, `note_denied` has said so and it is not counted again.

    Args:
        socket: Before it is bound.
        on_failed_handshake: Called for each connection that never was one.
    """

    def __init__(self, socket: Socket, *, on_failed_handshake: Callable[[], None]) -> None:
        self._monitor = _Monitor(socket)
        self.socket = self._monitor.socket
        self._on_failed_handshake = on_failed_handshake
        self._spoken: dict[int, _Connection] = {}
        self._latest: dict[bytes, _Connection] = {}
        self._ended: list[_Connection] = []
        self._num_denied = 0

    def note_denied(self) -> None:
        """The ZAP handler has refused one of the connections that are in their handshake."""
        self._num_denied += 1

    def note_heard(self, peer: bytes, descriptor: int) -> None:
        """``peer`` begins a message over the connection that is now known as ``descriptor``."""
        self.read()  # descriptors are used again: whatever ended under this number before is reported by now
        connection = self._spoken.setdefault(descriptor, _Connection(peer))
        self._latest[connection.peer] = connection

    def read(self) -> None:
        """Take in what has happened."""
        for event, value in self._monitor.read():
            if event == zmq.EVENT_DISCONNECTED:
                self._end(value)

    def _end(self, descriptor: int) -> None:
        connection = self._spoken.pop(descriptor, None)
        if connection is not None:
            self._ended.append(connection)
        elif self._num_denied > 0:
            self._num_denied -= 1
        else:
            self._on_failed_handshake()

    def take_gone(self, *, num_ended: int) -> list[bytes]:
        """Peers whose last connection is among the first ``num_ended`` that ended; they are forgotten.

        What a connection brought is still to be read when its end is known: note `num_ended`, read the socket until it
        is empty, then take the peers.
        """
        gone = []
        for connection in self._ended[:num_ended]:
            if self._latest.get(connection.peer) is connection:
                del self._latest[connection.peer]
                gone.append(connection.peer)
        del self._ended[:num_ended]
        return gone

    @property
    def num_ended(self) -> int:
        """Connections that have ended and are not taken yet."""
        return len(self._ended)

    def close(self) -> None:
        """Stop watching."""
        self._monitor.close()


class ClientWatch:
    """Follows the one connection of a client's socket.

    Args:
        socket: Before it is connected.
    """

    def __init__(self, socket: Socket) -> None:
        self._monitor = _Monitor(socket)
        self.socket = self._monitor.socket
        self.established = False
        """The handshake was completed; stays true."""
        self.refused = False
        """The server ended the handshake."""
        self.lost = False
        """It stood, and has ended."""

    def read(self) -> None:
        """Take in what has happened."""
        for event, _ in self._monitor.read():
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.established = True
            elif event & _FAILED or event == zmq.EVENT_DISCONNECTED:
                self.lost = self.established
                self.refused = not self.established

    def check(self, address: str) -> None:
        """Raise when the connection is lost.

        Raises:
            TransportError: It stood, and has ended.
        """
        self.read()
        if self.lost:
            raise TransportError(f"the server at {address} has ended the connection")

    def close(self) -> None:
        """Stop watching."""
        self._monitor.close()
