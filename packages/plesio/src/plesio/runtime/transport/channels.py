"""Control messages over a ZeroMQ socket; servers route by peer, workers have the one server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from plesio.runtime.transport.sockets import CONTROL_FRAME_BYTES, Socket, Traffic
from plesio.runtime.transport.wire import (
    MAX_CONTROL_BYTES,
    OWN_KINDS,
    Control,
    Refusal,
    WireError,
    decode_control,
    encode_control,
)

SERVER = b""
"""The one peer of a client's channel."""

HELLO = OWN_KINDS
"""A client's first control message: over which link its data will come, if any will, and what memory it offers."""

WELCOME = OWN_KINDS + 1
"""The server's answer to it: the ticket for the data connection, the generation, what memory it offers, and whether it
can open the client's."""

DATA_HELLO = OWN_KINDS + 2
"""A client's first bulk message, without a payload: silent connections count as failed handshakes. Tells
whether the client can open the server's memory."""

FREED = OWN_KINDS + 3
"""A bulk message without a payload: its sender no longer uses the receiver's segment of serial ``header.request``."""

_CURVE_BYTES = 33  # RFC 26: a MESSAGE command's name, nonce, authenticator and flags
MANY = 64
"""Messages that are read from a socket before its owner goes on."""


@dataclass(slots=True)
class Membership:
    """The job and generation that every message of an endpoint carries and is checked against.

    Attributes:
        job: `job_digest` of the job.
        generation: Number of the membership; the owner of the endpoint moves it on.
    """

    job: int
    generation: int


def zmtp_bytes(num_bytes: int, *, encrypted: bool) -> int:
    """Count the bytes that ZMTP 3.1 adds to a frame: flags, a length of 1 or 8 bytes, and the envelope of CURVE."""
    envelope = _CURVE_BYTES if encrypted else 0
    return envelope + (2 if num_bytes + envelope < 256 else 9)


class ControlChannel:
    """Control messages over a CURVE socket.

    Args:
        socket: A ROUTER or a DEALER, connected or bound.
        membership: Checked on each message received, and put on each sent.
        on_refused: Called with the reason for each message that is thrown away.
        on_received: Called with the peer and the file descriptor of its connection for each message.
        routed: Whether frames begin with the peer's identity (a ROUTER's do).
    """

    def __init__(
        self,
        socket: Socket,
        *,
        membership: Membership,
        traffic: Traffic,
        on_refused: Callable[[Refusal], None],
        on_received: Callable[[bytes, int], None],
        routed: bool,
    ) -> None:
        self.socket = socket
        self._membership = membership
        self._bytes = traffic.of("tcp")
        self._on_refused = on_refused
        self._on_received = on_received
        self._routed = routed

    def send(self, peer: bytes, kind: int, body: Mapping[str, Any]) -> bool:
        """Send; returns False when the peer is not connected."""
        text = encode_control(kind, body, job=self._membership.job, generation=self._membership.generation)
        frames = [text[start : start + CONTROL_FRAME_BYTES] for start in range(0, len(text), CONTROL_FRAME_BYTES)]
        try:
            self.socket.send_multipart([peer, *frames] if self._routed else frames)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        self._bytes.sent_payload += len(text)
        self._bytes.sent_framing += sum(zmtp_bytes(len(frame), encrypted=True) for frame in frames)
        return True

    def receive(self) -> tuple[list[Control], bool]:
        """Return the messages that are here, at most a few dozen, and whether that was all."""
        messages: list[Control] = []
        for _ in range(MANY):
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
        peer = frames.pop(0).bytes if self._routed else SERVER
        if not frames:
            raise WireError(Refusal.MALFORMED, "a control message without a frame")
        descriptor = frames[0].get(zmq.SRCFD)
        assert isinstance(descriptor, int)
        self._on_received(peer, descriptor)
        if self._routed and frames[0].get("User-Id") != peer.decode(errors="replace"):
            raise WireError(Refusal.KEY, "a member that speaks for another")
        num_bytes = sum(map(len, frames))
        if num_bytes > MAX_CONTROL_BYTES:
            raise WireError(Refusal.OVERSIZE, f"a control message of {num_bytes} bytes")
        self._bytes.received_payload += num_bytes
        self._bytes.received_framing += sum(zmtp_bytes(len(frame), encrypted=True) for frame in frames)
        # The server tells the generation, so a client takes its messages of any.
        generation = self._membership.generation if self._routed else None
        text = b"".join(frame.bytes for frame in frames)
        return decode_control(text, peer=peer, job=self._membership.job, generation=generation)
