"""Bulk messages over one ZeroMQ socket: in chunks, in one piece, or in shared memory with a reference on the socket."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from plesio.runtime.transport.bulk_memory import BulkMemory
from plesio.runtime.transport.channels import DATA_HELLO, FREED, MANY, SERVER, Membership, zmtp_bytes
from plesio.runtime.transport.numbered import RESUME
from plesio.runtime.transport.outbox import Sending
from plesio.runtime.transport.seal import SEAL_BYTES, Seal
from plesio.runtime.transport.segments import Segment
from plesio.runtime.transport.sockets import (
    IN_PLACE_FROM_BYTES,
    SEALED,
    Link,
    LinkBytes,
    Pieces,
    Socket,
    Traffic,
    end_connection,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLink:
    """The link between an endpoint and one peer.

    Attributes:
        pieces: The cut of payloads where they are not sealed.
        seal: Encrypts and decrypts all that crosses it; None where nothing does.
    """

    link: Link
    pieces: Pieces
    seal: Seal | None = None


class DataChannel:
    """Bulk messages, received straight to their place or read where the sender has packed them.

    Args:
        socket: A ROUTER or a DEALER, connected or bound.
        membership: Checked on each chunk received, and put on each sent.
        on_refused: Called with the reason for each message that is thrown away.
        on_received: Called with the peer and the file descriptor of its connection when a message begins.
        routed: Whether frames begin with the peer's identity (a ROUTER's do).
    """

    def __init__(
        self,
        socket: Socket,
        *,
        membership: Membership,
        traffic: Traffic,
        link_to: Callable[[bytes], PeerLink],
        memory: BulkMemory,
        on_refused: Callable[[Refusal], None],
        on_received: Callable[[bytes, int], None],
        routed: bool,
    ) -> None:
        self.socket = socket
        self._membership = membership
        self._traffic = traffic
        self._link_to = link_to
        self._memory = memory
        self._on_refused = on_refused
        self._on_received = on_received
        self._routed = routed

    def send(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None, payload: NDArray[Any]
    ) -> Sending | None:
        """Send a message; None when the peer is not connected.

        To a peer that can open our memory the payload goes through a segment: the one that it was staged in, or one
        that it is copied to. To any other host it is encrypted into new memory, or, where it is not to be encrypted,
        queued without copying it.
        """
        if not payload.flags.c_contiguous:
            raise ValueError("a payload must be contiguous; numpy.ascontiguousarray makes it so")
        view = payload.reshape(-1).view(np.uint8)
        if view.size >= IN_PLACE_FROM_BYTES and self._memory.outbox.shares(peer):
            head = self._head(header, meta=meta, num_bytes=view.size, form=Form.REFERENCE)
            segment = self._memory.outbox.to_segment(view, peer=peer)
            if segment is not None:
                return self._send_reference(peer, head, segment, num_bytes=view.size)
        return self._send_pieces(peer, header, meta=meta, view=view)

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
        self._memory.outbox.lend(segment, peer=peer)
        if not self._open_route(peer):
            self._memory.outbox.take_back(peer, segment.serial)
            return None
        self.socket.send(head, zmq.SNDMORE)
        self.socket.send(body)
        counted = self._counted(peer)
        counted.sent_payload += num_bytes
        counted.sent_framing += _framing(len(head), len(body)) + len(body)
        return Sending(None)

    def _send_pieces(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None, view: NDArray[np.uint8]
    ) -> Sending | None:
        link = self._link_to(peer)
        seal, pieces = link.seal, link.pieces if link.seal is None else SEALED
        whole = IN_PLACE_FROM_BYTES <= view.size <= pieces.whole_bytes
        form, piece_bytes = (Form.WHOLE, view.size) if whole else (Form.PART, pieces.chunk_bytes)
        # all heads before the first frame: one that is refused must leave no half of a message behind
        offsets = range(0, max(view.size, 1), piece_bytes)
        heads = [self._head(header, meta=meta, num_bytes=view.size, form=form, offset=at) for at in offsets]
        # a staged buffer is free again when ZeroMQ has sent the last piece; sealed pieces are copies
        staged = self._memory.outbox.claim(view)
        tracker: zmq.MessageTracker | None = None
        counted = self._counted(peer)
        connected = True
        for offset, head in zip(offsets, heads, strict=True):
            connected = self._open_route(peer)
            if not connected:
                break
            body = view.data[offset : offset + piece_bytes]
            counted.sent_payload += len(body)
            if seal is None:
                self.socket.send(head, zmq.SNDMORE)
                tracker = self.socket.send(body, copy=False, track=True)
                counted.sent_framing += _framing(len(head), len(body))
            else:
                sealed_head, sealed = seal.close_chunk(head, body)
                self.socket.send(sealed_head, zmq.SNDMORE)
                self.socket.send(sealed.data, copy=False)
                counted.sent_framing += _framing(len(sealed_head), sealed.size) + SEAL_BYTES
        sending = Sending(tracker)
        if staged is not None:
            self._memory.outbox.follow(staged, sending)
        return sending if connected else None

    def _counted(self, peer: bytes) -> LinkBytes:
        return self._traffic.of(self._link_to(peer).link)

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

    def release(self, payload: NDArray[np.uint8]) -> None:
        """Take a received payload back, which must not be used any more: for its sender, or for the next message."""
        lent = self._memory.mappings.give_back(payload)
        if lent is not None:
            self._free(*lent)
        else:
            self._memory.pool.give_back(payload)

    def free_dropped(self) -> None:
        """Give back what was read in place and is no longer referred to."""
        for peer, serial in self._memory.mappings.take_dropped():
            self._free(peer, serial)

    def _free(self, peer: bytes, serial: int) -> None:
        header = Header(kind=FREED, generation=self._membership.generation, request=serial)
        self._send_pieces(peer, header, meta=None, view=np.empty(0, dtype=np.uint8))

    def receive(self) -> tuple[list[Bulk], bool]:
        """Return the messages that the chunks here complete, at most a few dozen, and whether these were all."""
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
            if message is not None and (message.header.kind < OWN_KINDS or message.header.kind == RESUME):
                messages.append(message)
            elif message is not None:
                self._obey(message)
        return messages, False

    def _obey(self, message: Bulk) -> None:
        if message.header.kind == FREED:
            self._memory.outbox.take_back(message.peer, message.header.request)
        elif message.header.kind == DATA_HELLO and message.meta.get("opens") is True:
            self._memory.outbox.allow(message.peer)

    def _receive_one(self) -> Bulk | None:
        peer = self.socket.recv(zmq.DONTWAIT) if self._routed else SERVER
        frame = self.socket.recv(0 if self._routed else zmq.DONTWAIT, copy=False)
        if not frame.more:
            raise WireError(Refusal.MALFORMED, "a chunk without a body")
        self._check_origin(peer, frame)
        seal = self._link_to(peer).seal
        if seal is not None:
            try:
                return self._receive_part(peer, frame, seal.open_head(frame.buffer), seal=seal)
            except WireError as error:
                if error.reason is Refusal.SEAL:
                    self._memory.assembler.drop(peer)
                    end_connection(_descriptor(frame))
                raise
        form = form_of(frame.buffer)
        if form is Form.PART:
            return self._receive_part(peer, frame, frame.buffer, seal=None)
        if form is Form.WHOLE:
            return self._receive_whole(peer, frame)
        reference = decode_reference(self.socket.recv())
        try:
            return self._receive_reference(peer, frame, reference)
        except WireError:
            self._free(peer, reference.serial)
            raise

    def _receive_part(
        self, peer: bytes, frame: zmq.Frame, head: bytes | memoryview, *, seal: Seal | None
    ) -> Bulk | None:
        if form_of(head) is not Form.PART:
            raise WireError(Refusal.MALFORMED, "what is sealed comes in parts")
        chunk = decode_chunk(head, job=self._membership.job, generation=self._membership.generation)
        if chunk.offset == 0:
            self._on_received(peer, _descriptor(frame))
        place = self._memory.assembler.place(peer, chunk)
        counted = self._counted(peer)
        if place is None:
            counted.received_framing += len(frame) + zmtp_bytes(len(frame), encrypted=False)
            self._skip_rest()
            return None
        if seal is not None:
            num_bytes = self._receive_sealed(peer, chunk, seal, place=place)
            counted.received_framing += _framing(len(frame), num_bytes + SEAL_BYTES) + SEAL_BYTES
        else:
            num_bytes = self.socket.recv_into(place.data) if place.size else len(self.socket.recv())
            counted.received_framing += _framing(len(frame), num_bytes)
        counted.received_payload += num_bytes
        if self.socket.rcvmore:
            self._memory.assembler.refuse(peer, chunk.header)
            raise WireError(Refusal.MALFORMED, "a chunk with more than one body")
        return self._memory.assembler.commit(peer, num_bytes)

    def _receive_sealed(self, peer: bytes, chunk: Chunk, seal: Seal, *, place: NDArray[np.uint8]) -> int:
        body = self.socket.recv(copy=False)
        try:
            return seal.open_body(body.buffer, into=place).size
        except WireError:
            self._memory.assembler.refuse(peer, chunk.header)
            raise

    def _receive_whole(self, peer: bytes, frame: zmq.Frame) -> Bulk:
        chunk = self._begin(peer, frame)
        body = self.socket.recv(copy=False)
        if len(body) != chunk.total_bytes or body.more:
            raise WireError(Refusal.MALFORMED, f"a body of {len(body)} bytes where {chunk.total_bytes} are due")
        counted = self._counted(peer)
        counted.received_payload += len(body)
        counted.received_framing += _framing(len(frame), len(body))
        payload = np.frombuffer(body.buffer, dtype=np.uint8)
        return Bulk(peer=peer, header=chunk.header, meta=chunk.meta, payload=payload)

    def _receive_reference(self, peer: bytes, frame: zmq.Frame, reference: Reference) -> Bulk | None:
        chunk = self._begin(peer, frame)
        if self.socket.rcvmore:
            raise WireError(Refusal.MALFORMED, "a reference with more than one body")
        try:
            payload = self._memory.mappings.open(peer, reference, num_bytes=chunk.total_bytes)
        except OSError:
            self._memory.assembler.abandon()  # the peer was gone before it could be opened
            return None
        counted = self._counted(peer)
        counted.received_payload += chunk.total_bytes
        counted.received_framing += _framing(len(frame), REFERENCE_BYTES) + REFERENCE_BYTES
        return Bulk(peer=peer, header=chunk.header, meta=chunk.meta, payload=payload)

    def _begin(self, peer: bytes, frame: zmq.Frame) -> Chunk:
        """Accept the head of a message that is one chunk."""
        chunk = decode_chunk(frame.buffer, job=self._membership.job, generation=self._membership.generation)
        self._on_received(peer, _descriptor(frame))
        self._memory.assembler.drop(peer)
        self._memory.assembler.check_size(chunk.total_bytes)
        return chunk

    def _check_origin(self, peer: bytes, frame: zmq.Frame) -> None:
        if self._routed and frame.get("User-Id") != peer.decode(errors="replace"):
            raise WireError(Refusal.TICKET, "a worker that speaks for another")

    def _skip_rest(self) -> None:
        while self.socket.rcvmore:
            self.socket.recv(copy=False)


def _descriptor(frame: zmq.Frame) -> int:
    descriptor = frame.get(zmq.SRCFD)
    assert isinstance(descriptor, int)
    return descriptor


def _framing(head_bytes: int, body_bytes: int) -> int:
    return head_bytes + zmtp_bytes(head_bytes, encrypted=False) + zmtp_bytes(body_bytes, encrypted=False)
