"""Bulk messages over one ZeroMQ socket: in chunks, in one piece, or in shared memory with a reference on the socket."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from plesio.runtime.transport.assembly import Assembler
from plesio.runtime.transport.channels import DATA_HELLO, FREED, MANY, SERVER, Membership, zmtp_bytes
from plesio.runtime.transport.mappings import Mappings
from plesio.runtime.transport.outbox import Outbox, Sending
from plesio.runtime.transport.segments import Segment
from plesio.runtime.transport.sockets import (
    CHUNK_BYTES,
    IN_PLACE_FROM_BYTES,
    WHOLE_BYTES,
    Link,
    Socket,
    Traffic,
)
from plesio.runtime.transport.wire import (
    OWN_KINDS,
    REFERENCE_BYTES,
    Bulk,
    Chunk,
    Form,
    Header,
    Reference,
    Refusal,
    WireError,
    decode_chunk,
    decode_reference,
    encode_chunk,
    encode_reference,
    form_of,
)

__all__ = ["DataChannel"]


class DataChannel:
    """Bulk messages, received straight to their place or read where the sender has packed them.

    Args:
        socket: A ROUTER or a DEALER, connected or bound.
        membership: Checked on each chunk received, and put on each sent.
        traffic: Where bytes are counted.
        link_of: The class of link to a peer.
        assembler: Puts the chunks together.
        outbox: What is sent from, and who can open our segments.
        mappings: The peers' segments.
        destination: Where a payload that came in one piece is copied to; None when it is to be read in place.
        on_refused: Called with the reason for each message that is thrown away.
        on_abandoned: Called for each message whose sender was gone before its payload could be opened.
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
        outbox: Outbox,
        mappings: Mappings,
        destination: Callable[[Header, int], NDArray[np.uint8] | None],
        on_refused: Callable[[Refusal], None],
        on_abandoned: Callable[[], None],
        on_heard: Callable[[bytes, int], None],
        routed: bool,
    ) -> None:
        self.socket = socket
        self._membership = membership
        self._traffic = traffic
        self._link_of = link_of
        self._assembler = assembler
        self._outbox = outbox
        self._mappings = mappings
        self._destination = destination
        self._on_refused = on_refused
        self._on_abandoned = on_abandoned
        self._on_heard = on_heard
        self._routed = routed

    def send(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None, payload: NDArray[Any]
    ) -> Sending | None:
        """Send a message; None when the peer is not connected.

        To a peer that can open our memory the payload goes through a segment: the one that it was staged in, or one
        that it is copied to. To any other it is queued without copying it.
        """
        if not payload.flags.c_contiguous:
            raise ValueError("a payload must be contiguous; numpy.ascontiguousarray makes it so")
        view = payload.reshape(-1).view(np.uint8)
        if view.size >= IN_PLACE_FROM_BYTES and self._outbox.shares(peer):
            head = self._head(header, meta=meta, num_bytes=view.size, form=Form.REFERENCE)
            segment = self._outbox.to_segment(view)
            if segment is not None:
                return self._send_reference(peer, head, segment, num_bytes=view.size)
        return self._send_chunks(peer, header, meta=meta, view=view)

    def _head(
        self, header: Header, *, meta: Mapping[str, Any] | None, num_bytes: int, form: Form, offset: int = 0
    ) -> bytes:
        return encode_chunk(
            header,
            job=self._membership.job,
            total_bytes=num_bytes,
            offset=offset,
            meta=meta if offset == 0 else None,
            form=form,
        )

    def _send_reference(self, peer: bytes, head: bytes, segment: Segment, *, num_bytes: int) -> Sending | None:
        body = encode_reference(Reference(serial=segment.serial, descriptor=segment.descriptor))
        self._outbox.lend(segment, peer=peer)
        if not self._open_route(peer):
            self._outbox.take_back(peer, segment.serial)
            return None
        self.socket.send(head, zmq.SNDMORE)
        self.socket.send(body)
        counted = self._traffic.of(self._link_of(peer))
        counted.sent_payload += num_bytes
        counted.sent_framing += _framing(len(head), len(body)) + len(body)
        return Sending(None)

    def _send_chunks(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None, view: NDArray[np.uint8]
    ) -> Sending | None:
        whole = IN_PLACE_FROM_BYTES <= view.size <= WHOLE_BYTES
        form, chunk_bytes = (Form.WHOLE, view.size) if whole else (Form.PART, CHUNK_BYTES)
        offsets = range(0, max(view.size, 1), chunk_bytes)
        heads = [self._head(header, meta=meta, num_bytes=view.size, form=form, offset=offset) for offset in offsets]
        staged = self._outbox.claim(view)
        tracker: zmq.MessageTracker | None = None
        counted = self._traffic.of(self._link_of(peer))
        connected = True
        for offset, head in zip(offsets, heads, strict=True):
            connected = self._open_route(peer)
            if not connected:
                break
            body = view.data[offset : offset + chunk_bytes]
            self.socket.send(head, zmq.SNDMORE)
            tracker = self.socket.send(body, copy=False, track=True)
            counted.sent_payload += len(body)
            counted.sent_framing += _framing(len(head), len(body))
        sending = Sending(tracker)
        if staged is not None:
            self._outbox.follow(staged, sending)
        return sending if connected else None

    def _open_route(self, peer: bytes) -> bool:
        """Begin a message; False when the peer is not connected."""
        if self._routed:
            try:
                self.socket.send(peer, zmq.SNDMORE)
            except zmq.ZMQError as error:
                if error.errno == zmq.EHOSTUNREACH:
                    return False
                raise
        return True

    def release(self, payload: NDArray[np.uint8]) -> bool:
        """Give a payload that is read in place back to its sender; False when this is no such payload."""
        lent = self._mappings.give_back(payload)
        if lent is not None:
            self._free(*lent)
        return lent is not None

    def free_dropped(self) -> None:
        """Give back what is read in place and nobody refers to any more."""
        for peer, serial in self._mappings.take_dropped():
            self._free(peer, serial)

    def _free(self, peer: bytes, serial: int) -> None:
        header = Header(kind=FREED, generation=self._membership.generation, request=serial)
        self._send_chunks(peer, header, meta=None, view=np.empty(0, dtype=np.uint8))

    def receive(self) -> tuple[list[Bulk], bool]:
        """The messages that the chunks which are here complete, at most a few dozen, and whether these were all."""
        self.free_dropped()
        messages: list[Bulk] = []
        for _ in range(MANY):
            try:
                message = self._receive_one()
            except zmq.Again:
                return messages, True
            except WireError as error:
                self._on_refused(error.reason)
                self._skip_rest()
                continue
            if message is not None and message.header.kind < OWN_KINDS:
                messages.append(message)
            elif message is not None:
                self._obey(message)
        return messages, False

    def _obey(self, message: Bulk) -> None:
        if message.header.kind == FREED:
            self._outbox.take_back(message.peer, message.header.request)
        elif message.header.kind == DATA_HELLO and message.meta.get("opens") is True:
            self._outbox.allow(message.peer)

    def _receive_one(self) -> Bulk | None:
        peer = self.socket.recv(zmq.DONTWAIT) if self._routed else SERVER
        head = self.socket.recv(0 if self._routed else zmq.DONTWAIT, copy=False)
        if not head.more:
            raise WireError(Refusal.MALFORMED, "a chunk without a body")
        form = form_of(head.buffer)
        if form is Form.PART:
            return self._receive_part(peer, head)
        if form is Form.WHOLE:
            return self._receive_whole(peer, head)
        reference = decode_reference(self.socket.recv())
        try:
            return self._receive_reference(peer, head, reference)
        except WireError:
            self._free(peer, reference.serial)
            raise

    def _receive_part(self, peer: bytes, head: zmq.Frame) -> Bulk | None:
        chunk = decode_chunk(head.buffer, job=self._membership.job, generation=self._membership.generation)
        if chunk.offset == 0:
            self._note_origin(peer, head)
        counted = self._traffic.of(self._link_of(peer))
        place = self._assembler.place(peer, chunk)
        counted = self._traffic.of(self._link_of(peer))
        if place is None:
            counted.received_framing += len(head) + zmtp_bytes(len(head), encrypted=False)
            self._skip_rest()
            return None
        num_bytes = self.socket.recv_into(place.data) if place.size else len(self.socket.recv())
        counted.received_payload += num_bytes
        counted.received_framing += _framing(len(head), num_bytes)
        if self.socket.rcvmore:
            self._assembler.refuse(peer, chunk.header)
            raise WireError(Refusal.MALFORMED, "a chunk with more than one body")
        return self._assembler.commit(peer, num_bytes)

    def _receive_whole(self, peer: bytes, head: zmq.Frame) -> Bulk:
        chunk = self._begin(peer, head)
        body = self.socket.recv(copy=False)
        if len(body) != chunk.total_bytes or body.more:
            raise WireError(Refusal.MALFORMED, f"a body of {len(body)} bytes where {chunk.total_bytes} are due")
        counted = self._traffic.of(self._link_of(peer))
        counted.received_payload += len(body)
        counted.received_framing += _framing(len(head), len(body))
        return self._delivered(peer, chunk, np.frombuffer(body.buffer, dtype=np.uint8))

    def _receive_reference(self, peer: bytes, head: zmq.Frame, reference: Reference) -> Bulk | None:
        chunk = self._begin(peer, head)
        if self.socket.rcvmore:
            raise WireError(Refusal.MALFORMED, "a reference with more than one body")
        try:
            payload = self._mappings.open(peer, reference, num_bytes=chunk.total_bytes)
        except OSError:
            self._on_abandoned()
            return None
        counted = self._traffic.of(self._link_of(peer))
        counted.received_payload += chunk.total_bytes
        counted.received_framing += _framing(len(head), REFERENCE_BYTES) + REFERENCE_BYTES
        return self._delivered(peer, chunk, payload)

    def _begin(self, peer: bytes, head: zmq.Frame) -> Chunk:
        """The head of a message that is one chunk, accepted."""
        chunk = decode_chunk(head.buffer, job=self._membership.job, generation=self._membership.generation)
        self._note_origin(peer, head)
        self._assembler.drop(peer)
        self._assembler.check_size(chunk.total_bytes)
        return chunk

    def _delivered(self, peer: bytes, chunk: Chunk, payload: NDArray[np.uint8]) -> Bulk:
        """The message, with its payload where it lies, or where the receiver wants it."""
        into = self._destination(chunk.header, chunk.total_bytes)
        if into is not None:
            np.copyto(into, payload)
            self.release(payload)
            payload = into
        return Bulk(peer=peer, header=chunk.header, meta=chunk.meta, payload=payload)

    def _note_origin(self, peer: bytes, head: zmq.Frame) -> None:
        if self._routed and head.get("User-Id") != peer.decode(errors="replace"):
            raise WireError(Refusal.TICKET, "a worker that speaks for another")
        descriptor = head.get(zmq.SRCFD)
        assert isinstance(descriptor, int)
        self._on_heard(peer, descriptor)

    def _skip_rest(self) -> None:
        while self.socket.rcvmore:
            self.socket.recv(copy=False)


def _framing(head_bytes: int, body_bytes: int) -> int:
    return head_bytes + zmtp_bytes(head_bytes, encrypted=False) + zmtp_bytes(body_bytes, encrypted=False)
