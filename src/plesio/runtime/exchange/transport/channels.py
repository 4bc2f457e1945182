"""Control and bulk messages over one ZeroMQ socket each; servers route by peer, workers have the one server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from plesio.runtime.exchange.transport.assembly import Assembler
from plesio.runtime.exchange.transport.sockets import CHUNK_BYTES, Link, Socket, Traffic
from plesio.runtime.exchange.transport.wire import (
    OWN_KINDS,
    Bulk,
    Control,
    Header,
    Refusal,
    WireError,
    decode_chunk,
    decode_control,
    encode_chunk,
    encode_control,
)

__all__ = ["DATA_HELLO", "HELLO", "SERVER", "WELCOME", "ControlChannel", "DataChannel", "Membership", "Sending"]

SERVER = b""
"""The one peer of a client's channel."""

HELLO = OWN_KINDS
"""A client's first control message: over which link its data will come, if any will."""

WELCOME = OWN_KINDS + 1
"""The server's answer to it: the ticket for the data connection, and the generation."""

DATA_HELLO = OWN_KINDS + 2
"""A client's first bulk message, empty: connections that say nothing count as failed handshakes."""

_CURVE_BYTES = 33  # RFC 26: a MESSAGE command's name, nonce, authenticator and flags
_MANY = 64


@dataclass(slots=True)
class Membership:
    """What every message of an endpoint carries and is checked against.

    Attributes:
        job: `job_digest` of the job.
        generation: Of the membership; whoever owns the endpoint moves it on.
    """

    job: int
    generation: int


class Sending:
    """A bulk message on its way. Until `done`, its payload must not be changed."""

    __slots__ = ("_tracker",)

    def __init__(self, tracker: zmq.MessageTracker | None) -> None:
        self._tracker = tracker

    @property
    def done(self) -> bool:
        """Whether the operating system has all of it, or the connection is gone."""
        return self._tracker is None or self._tracker.done

    def wait(self, timeout_s: float) -> bool:
        """Wait until `done`, at most ``timeout_s``; returns `done`."""
        if self._tracker is not None:
            try:
                self._tracker.wait(timeout_s)
            except zmq.NotDone:
                return False
        return True


def _zmtp_bytes(num_bytes: int, *, encrypted: bool) -> int:
    """What ZMTP 3.1 adds to a frame: flags, a length of 1 or 8 bytes, and the envelope of CURVE."""
    envelope = _CURVE_BYTES if encrypted else 0
    return envelope + (2 if num_bytes + envelope < 256 else 9)


class ControlChannel:
    """Control messages over a CURVE socket.

    Args:
        socket: A ROUTER or a DEALER, connected or bound.
        membership: Checked on each message received, and put on each sent.
        traffic: Where bytes are counted.
        on_refused: Called with the reason for each message that is thrown away.
        on_heard: Called with the peer and the file descriptor of its connection for each message.
        routed: Whether frames begin with the peer's identity (a ROUTER's do).
    """

    def __init__(
        self,
        socket: Socket,
        *,
        membership: Membership,
        traffic: Traffic,
        on_refused: Callable[[Refusal], None],
        on_heard: Callable[[bytes, int], None],
        routed: bool,
    ) -> None:
        self.socket = socket
        self._membership = membership
        self._bytes = traffic.of("tcp")
        self._on_refused = on_refused
        self._on_heard = on_heard
        self._routed = routed

    def send(self, peer: bytes, kind: int, body: Mapping[str, Any]) -> bool:
        """Send; returns False when the peer is not connected."""
        frame = encode_control(kind, body, job=self._membership.job, generation=self._membership.generation)
        try:
            self.socket.send_multipart([peer, frame] if self._routed else [frame])
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        self._bytes.sent_payload += len(frame)
        self._bytes.sent_framing += _zmtp_bytes(len(frame), encrypted=True)
        return True

    def receive(self) -> tuple[list[Control], bool]:
        """The messages that are here, at most a few dozen, and whether that was all."""
        messages: list[Control] = []
        for _ in range(_MANY):
            try:
                frames = self.socket.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return messages, True
            try:
                messages.append(self._decode(frames))
            except WireError as error:
                self._on_refused(error.reason)
        return messages, False

    def _decode(self, frames: list[zmq.Frame]) -> Control:
        *route, frame = frames
        peer = route[0].bytes if route else SERVER
        descriptor = frame.get(zmq.SRCFD)
        assert isinstance(descriptor, int)
        self._on_heard(peer, descriptor)
        if len(route) != int(self._routed):
            raise WireError(Refusal.MALFORMED, f"a control message of {len(frames)} frames")
        self._bytes.received_payload += len(frame)
        self._bytes.received_framing += _zmtp_bytes(len(frame), encrypted=True)
        # The server says which generation it is, so a client hears it in any.
        generation = self._membership.generation if self._routed else None
        return decode_control(frame.bytes, peer=peer, job=self._membership.job, generation=generation)


class DataChannel:
    """Bulk messages over a socket, in chunks that are received straight to their place.

    Args:
        socket: A ROUTER or a DEALER, connected or bound.
        membership: Checked on each chunk received, and put on each sent.
        traffic: Where bytes are counted.
        link_of: The class of link to a peer.
        assembler: Puts the chunks together.
        on_refused: Called with the reason for each message that is thrown away.
        on_heard: Called with the peer and the file descriptor of its connection when a message begins.
        routed: Whether frames begin with the peer's identity (a ROUTER's do).
    """

    def __init__(
        self,
        socket: Socket,
        *,
        membership: Membership,
        traffic: Traffic,
        link_of: Callable[[bytes], Link],
        assembler: Assembler,
        on_refused: Callable[[Refusal], None],
        on_heard: Callable[[bytes, int], None],
        routed: bool,
    ) -> None:
        self.socket = socket
        self._membership = membership
        self._traffic = traffic
        self._link_of = link_of
        self._assembler = assembler
        self._on_refused = on_refused
        self._on_heard = on_heard
        self._routed = routed

    def send(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None, payload: NDArray[Any]
    ) -> Sending | None:
        """Queue a message without copying ``payload``; None when the peer is not connected."""
        if not payload.flags.c_contiguous:
            raise ValueError("a payload must be contiguous; numpy.ascontiguousarray makes it so")
        tracker: zmq.MessageTracker | None = None
        view = payload.reshape(-1).view(np.uint8).data
        total_bytes = len(view)
        counted = self._traffic.of(self._link_of(peer))
        for offset in range(0, max(total_bytes, 1), CHUNK_BYTES):
            head = encode_chunk(
                header,
                job=self._membership.job,
                total_bytes=total_bytes,
                offset=offset,
                meta=meta if offset == 0 else None,
            )
            body = view[offset : offset + CHUNK_BYTES]
            try:
                if self._routed:
                    self.socket.send(peer, zmq.SNDMORE)
            except zmq.ZMQError as error:
                if error.errno == zmq.EHOSTUNREACH:
                    return None
                raise
            self.socket.send(head, zmq.SNDMORE)
            tracker = self.socket.send(body, copy=False, track=True)
            counted.sent_payload += len(body)
            counted.sent_framing += (
                len(head) + _zmtp_bytes(len(head), encrypted=False) + _zmtp_bytes(len(body), encrypted=False)
            )
        return Sending(tracker)

    def receive(self) -> tuple[list[Bulk], bool]:
        """The messages that the chunks which are here complete, at most a few dozen, and whether these were all."""
        messages: list[Bulk] = []
        for _ in range(_MANY):
            try:
                message = self._receive_chunk()
            except zmq.Again:
                return messages, True
            except WireError as error:
                self._on_refused(error.reason)
                self._skip_rest()
            else:
                if message is not None and message.header.kind < OWN_KINDS:
                    messages.append(message)
        return messages, False

    def _receive_chunk(self) -> Bulk | None:
        peer = self.socket.recv(zmq.DONTWAIT) if self._routed else SERVER
        head = self.socket.recv(0 if self._routed else zmq.DONTWAIT, copy=False)
        if not head.more:
            raise WireError(Refusal.MALFORMED, "a chunk without a body")
        chunk = decode_chunk(head.buffer, job=self._membership.job, generation=self._membership.generation)
        if chunk.offset == 0:
            if self._routed and head.get("User-Id") != peer.decode(errors="replace"):
                raise WireError(Refusal.TICKET, "a worker that speaks for another")
            descriptor = head.get(zmq.SRCFD)
            assert isinstance(descriptor, int)
            self._on_heard(peer, descriptor)
        place = self._assembler.place(peer, chunk)
        counted = self._traffic.of(self._link_of(peer))
        counted.received_framing += len(head) + _zmtp_bytes(len(head), encrypted=False)
        if place is None:
            self._skip_rest()
            return None
        num_bytes = self.socket.recv_into(place.data) if place.size else len(self.socket.recv())
        counted.received_payload += num_bytes
        counted.received_framing += _zmtp_bytes(num_bytes, encrypted=False)
        if self.socket.rcvmore:
            self._assembler.refuse(peer, chunk.header)
            raise WireError(Refusal.MALFORMED, "a chunk with more than one body")
        return self._assembler.commit(peer, num_bytes)

    def _skip_rest(self) -> None:
        while self.socket.rcvmore:
            self.socket.recv(copy=False)
