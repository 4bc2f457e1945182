"""ZeroMQ sockets as this transport sets them up, the test for one host, and the bytes on the wire."""

import contextlib
import functools
import os
import socket as tcp
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import zmq

from plesio.core.errors import TransportError

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]
Link = Literal["ipc", "tcp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """How the payloads that go through a socket are cut.

    ZeroMQ takes the memory of a frame before it knows who sends it. So the largest piece, times the connections that
    may wait to be let in, is what strangers can occupy.

    Attributes:
        whole_bytes: Payloads up to here go in one piece and are read where they arrive: that spares the receiver the
            copy, half of its processor time.
        chunk_bytes: Body of a chunk of those that are larger.
        num_waiting: Pieces that may wait in a receiver, per connection, before TCP holds the sender back.
    """

    whole_bytes: int
    chunk_bytes: int
    num_waiting: int

    @property
    def max_bytes(self) -> int:
        return max(self.whole_bytes, self.chunk_bytes)


SEALED = Pieces(whole_bytes=0, chunk_bytes=2**20, num_waiting=16)
"""Pieces of encrypted payloads, and of all payloads at a server that encrypts between hosts. Decrypting is the copy
from a chunk to its place. Larger chunks are a little quicker, and strangers could occupy more."""

PLAIN = Pieces(whole_bytes=24 * 2**20, chunk_bytes=2**22, num_waiting=4)
"""Pieces of payloads at a server that does not encrypt. Larger payloads in one piece would be allocated anew each time
(see `keep_received_memory`), which costs more than the copy of chunks. Chunks of 1 and 2 MiB take more processor time,
those of 8 and 16 MiB lose the overlap of receiving a chunk with copying the one before."""

IN_PLACE_FROM_BYTES = 2**16
"""Smaller payloads are copied: that costs less than a message that gives shared memory back, and aligns them."""

_HEARTBEAT_MS = 5_000
_HEARTBEAT_TIMEOUT_MS = 30_000
"""Far above a lease: this clears away dead connections; whether a worker is alive is decided by its lease."""

_HANDSHAKE_MS = 60_000
"""Longer than any client waits: a server that loads torch on a busy host answers late, which is no refusal."""

_BACKLOG = 1024
"""Connections that the kernel holds while ZeroMQ is busy accepting others."""

CONTROL_FRAME_BYTES = 2**14
"""A larger control message goes in several frames: ZeroMQ takes the memory of a frame before it knows who sends it."""

_ENVELOPE_BYTES = 2**10
"""More than the head of a chunk, CURVE and a seal add to a frame."""


def configure(socket: Socket, *, pieces: Pieces | None) -> None:
    """Set the options all sockets share.

    Nothing is ever dropped for a full queue: senders queue without limit (references, not copies) and receivers hold
    the sender back. A frame larger than any of this protocol ends its connection before memory is taken.

    The socket is not connected or bound yet; ``pieces`` is None where it carries control messages.
    """
    socket.linger = 0
    socket.sndhwm = 0
    socket.rcvhwm = pieces.num_waiting if pieces else 0
    socket.maxmsgsize = (pieces.max_bytes if pieces else CONTROL_FRAME_BYTES) + _ENVELOPE_BYTES
    socket.backlog = _BACKLOG
    socket.handshake_ivl = _HANDSHAKE_MS
    socket.heartbeat_ivl = _HEARTBEAT_MS
    socket.heartbeat_timeout = _HEARTBEAT_TIMEOUT_MS
    socket.heartbeat_ttl = _HEARTBEAT_TIMEOUT_MS


@functools.cache
def keep_received_memory() -> None:
    """Let the C library keep the memory of received chunks; the first call in a process does it.

    ZeroMQ allocates each chunk it receives. At first glibc takes such blocks from the kernel and gives them back at
    once, with a page fault for every 4 KiB in between: measured, up to half of the time of an exchange. It stops when
    the program has freed a larger block (up to 32 MiB, see mallopt(3), M_MMAP_THRESHOLD), so here is one.
    """
    np.empty(2**25 - 2**13, dtype=np.uint8)


def bind(socket: Socket, *, host: str) -> int:
    """Bind to any free port of ``host``, and return it.

    Raises:
        TransportError: ``host`` is not an address of this machine.
    """
    try:
        socket.bind(f"tcp://{host}:*")
    except zmq.ZMQError as error:
        raise TransportError(f'cannot listen on "{host}" ({error}); give an address of this machine') from error
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return int(endpoint.rsplit(b":", 1)[1].rstrip(b"\0"))


def can_connect(host: str, port: int, *, timeout_s: float) -> bool:
    try:
        tcp.create_connection((host, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def end_connection(descriptor: int) -> None:
    """End a connection of ZeroMQ's, which closes the descriptor itself when it notices."""
    with contextlib.suppress(OSError):  # it has ended by itself
        connection = tcp.socket(fileno=descriptor)
        try:
            connection.shutdown(tcp.SHUT_RDWR)
        finally:
            connection.detach()


def host_identity() -> str:
    """Return a text that two processes share if and only if they run on one machine and in one network namespace.

    The kernel's boot id tells machines apart, also those cloned from one image; the namespace's inode tells apart the
    hosts of a testbed and most containers.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def choose_link(addresses: Mapping[str, str]) -> Link:
    """Return ``ipc`` when the server is on this host and its socket file can be reached from here, else ``tcp``."""
    path = addresses.get("data_ipc", "")
    if not path or addresses["host"] != host_identity():
        return "tcp"
    try:
        return "ipc" if stat.S_ISSOCK(os.stat(path).st_mode) else "tcp"
    except OSError:  # a container that shares the network but not the file system
        return "tcp"


@dataclass(slots=True)
class LinkBytes:
    """Bytes over one class of link, as counted by the endpoint.

    Over ``ipc`` most payloads cross shared memory, not a socket. They count all the same: they are exchanged, and over
    any other link they would be sent.

    Attributes:
        sent_payload: Payloads of bulk messages, and JSON.
        sent_framing: Heads, and what ZMTP and CURVE add to each frame.
    """

    sent_payload: int = 0
    sent_framing: int = 0
    received_payload: int = 0
    received_framing: int = 0

    @property
    def sent(self) -> int:
        return self.sent_payload + self.sent_framing

    @property
    def received(self) -> int:
        return self.received_payload + self.received_framing


@dataclass(slots=True)
class Traffic:
    """Bytes by class of link. Handshakes, heartbeats and the headers of TCP and IP are not counted."""

    ipc: LinkBytes = field(default_factory=LinkBytes)
    tcp: LinkBytes = field(default_factory=LinkBytes)

    def of(self, link: Link) -> LinkBytes:
        return self.ipc if link == "ipc" else self.tcp
