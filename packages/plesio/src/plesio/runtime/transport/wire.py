"""The bytes of a message: fixed binary heads, JSON for the small rest, and a reason for everything that is refused.

A *bulk* message (a push, or the answer to a pull) travels as one or more chunks, each a ZeroMQ message of two frames:

    head   64 bytes, little endian, then (first chunk only) the JSON of ``meta``
    body   the bytes of this chunk

Between hosts both frames are encrypted (see `Seal`). The head says which form the body has: a part of the payload, the
whole of it, or, between processes of one host, a *reference* to shared memory: 12 bytes that name a segment (see
`Mappings`).

A *control* message is one frame: a head of 20 bytes, then a JSON object. Heads name the job by a digest and carry the
generation of the membership, so that a message of another job, or one that was on its way when the membership changed,
is recognised before anything in it is used. Decoding never runs code from the message: ``struct`` and ``json`` alone.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_CONTROL_BYTES = 4 * 2**20
"""Largest control message; ample for the manifest of a model with ten thousand tensors."""

MAX_META_BYTES = 256 * 2**10
"""Largest JSON beside a bulk payload."""

OWN_KINDS = 240
"""Kinds from here to 255 are the transport's own; they are valid in every generation."""

EMPTY: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
"""No payload."""

_MAGIC = b"PLZ1"
_CHUNK = struct.Struct("<4sBB2xIIQQQQQQ")
_FORM_AT = 5
_REFERENCE = struct.Struct("<QI")

REFERENCE_BYTES = _REFERENCE.size
"""Length of a reference."""
_CONTROL = struct.Struct("<4sB3xIQ")


class Form(IntEnum):
    """The form of a chunk's body."""

    PART = 0
    """A part of the payload, to be copied to its place; also an empty payload."""
    WHOLE = 1
    """All of it, which the receiver may leave where it is."""
    REFERENCE = 2
    """A `Reference` to all of it."""


class Refusal(StrEnum):
    """Why a connection or a message was turned away; the endpoints count each.

    A bulk message whose head is at fault (malformed, foreign) counts once for each of its chunks.
    """

    HANDSHAKE = "handshake"
    """It never became a connection: not ZeroMQ, no encryption where it is required, or a wrong server key."""
    KEY = "key"
    """A CURVE key that is not this job's."""
    TICKET = "ticket"
    """A data connection without a ticket of this server, or speaking for another worker."""
    SEAL = "seal"
    """A bulk message that was tampered with on its way; its connection is ended."""
    FOREIGN_JOB = "foreign_job"
    """A message of another job."""
    FOREIGN_GENERATION = "foreign_generation"
    """A message of another generation of the membership."""
    MALFORMED = "malformed"
    """Not a message of this protocol, or JSON that cannot be read."""
    OVERSIZE = "oversize"
    """More bytes than the receiver has agreed to."""
    SEGMENT = "segment"
    """A reference to shared memory that its sender has not offered."""
    OUT_OF_ORDER = "out_of_order"
    """A chunk that does not continue what its peer has sent before (its connection was cut in between)."""


class WireError(Exception):
    """A message that must be refused."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The description that every bulk message carries.

    Attributes:
        kind: Number whose meaning is up to the users (below `OWN_KINDS`).
        base_version: Version of the parameters it is based on, or contains.
        request: Chosen in the request, repeated in its answer.
    """

    kind: int
    generation: int
    worker: int = 0
    clock: int = 0
    base_version: int = 0
    request: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One decoded chunk head.

    Attributes:
        total_bytes: Payload of the whole message.
        offset: Where this chunk's body begins in it.
        meta: The message's JSON; empty in all but the first chunk.
    """

    header: Header
    total_bytes: int
    offset: int
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A segment of the sender's, which the payload lies at the beginning of.

    Attributes:
        serial: Names the segment among the sender's.
        descriptor: Where the sender has it open.
    """

    serial: int
    descriptor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A complete control message.

    Attributes:
        kind: What it is; the meaning is its users' (below `OWN_KINDS`).
        generation: Generation of the membership that it was sent in.
    """

    peer: bytes
    kind: int
    generation: int
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """A complete bulk message.

    Attributes:
        payload: uint8, contiguous and writable. Unless the receiver named a destination it is lent, by the endpoint's
            pool or, in shared memory, by the sender: hand it back with ``endpoint.release(bulk)`` when done, so that
            the next message needs no new memory. Dropping all references to it does the same, later.
    """

    peer: bytes
    header: Header
    meta: Mapping[str, Any]
    payload: NDArray[np.uint8] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """This peer's control connection has ended: it closed, crashed, or was cut off. Comes after all that it sent."""

    peer: bytes


Incoming = Control | Bulk | Gone


def job_digest(job: str) -> int:
    """Hash a job's name to the 64 bits in every head.

    >>> job_digest("a") != job_digest("b")
    True
    """
    return int.from_bytes(hashlib.blake2b(job.encode(), digest_size=8).digest(), "little")


def encode_chunk(
    header: Header, *, job: int, total_bytes: int, offset: int, meta: Mapping[str, Any] | None, form: Form = Form.PART
) -> bytes:
    """Encode the head frame of a chunk.

    ``meta`` is of a message's first chunk alone; ``job`` is the job's `job_digest`.

    Raises:
        ValueError: ``meta`` is larger than `MAX_META_BYTES`, or a field of the header is out of its range.
    """
    # only the first chunk of a message has any
    text = _encode_json(meta, limit_bytes=MAX_META_BYTES) if meta else b""
    try:
        head = _CHUNK.pack(
            _MAGIC,
            header.kind,
            form,
            header.generation,
            header.worker,
            job,
            header.clock,
            header.base_version,
            header.request,
            total_bytes,
            offset,
        )
    except struct.error as error:
        raise ValueError(f"a header field is out of range ({error}): {header}") from error
    return head + text


def decode_chunk(frame: bytes | memoryview, *, job: int, generation: int) -> Chunk:
    """Decode and check the head of a chunk.

    Raises:
        WireError: Malformed, or of another job or generation.
    """
    if len(frame) < _CHUNK.size:
        raise WireError(Refusal.MALFORMED, f"a chunk head of {len(frame)} bytes where at least {_CHUNK.size} are due")
    magic, kind, _, sent_in, worker, sent_by, clock, base_version, request, total_bytes, offset = _CHUNK.unpack_from(
        frame
    )
    _check_origin(magic, job=(sent_by, job), generation=(sent_in, sent_in if kind >= OWN_KINDS else generation))
    text = bytes(frame[_CHUNK.size :])
    return Chunk(
        header=Header(
            kind=kind, generation=sent_in, worker=worker, clock=clock, base_version=base_version, request=request
        ),
        total_bytes=total_bytes,
        offset=offset,
        meta=_decode_json(text, limit_bytes=MAX_META_BYTES) if text else {},
    )


def form_of(frame: bytes | memoryview) -> Form:
    """Return the form of the body that follows this chunk head.

    Raises:
        WireError: Malformed.
    """
    if len(frame) < _CHUNK.size or bytes(frame[:4]) != _MAGIC or frame[_FORM_AT] >= len(Form):
        raise WireError(Refusal.MALFORMED, f"a chunk head of {len(frame)} bytes that is none of this protocol")
    return Form(frame[_FORM_AT])


def encode_reference(reference: Reference) -> bytes:
    """Encode the body frame that stands for a payload in shared memory.

    >>> decode_reference(encode_reference(Reference(serial=3, descriptor=9)))
    Reference(serial=3, descriptor=9)
    """
    return _REFERENCE.pack(reference.serial, reference.descriptor)


def decode_reference(frame: bytes) -> Reference:
    """Decode a reference.

    Raises:
        WireError: Malformed.
    """
    if len(frame) != _REFERENCE.size:
        raise WireError(Refusal.MALFORMED, f"a reference of {len(frame)} bytes where {_REFERENCE.size} are due")
    serial, descriptor = _REFERENCE.unpack(frame)
    return Reference(serial=serial, descriptor=descriptor)


def encode_control(kind: int, body: Mapping[str, Any], *, job: int, generation: int) -> bytes:
    """Encode the frame of a control message.

    >>> frame = encode_control(3, {"clock": 7}, job=1, generation=2)
    >>> decode_control(frame, peer=b"w0", job=1, generation=2)
    Control(peer=b'w0', kind=3, generation=2, body={'clock': 7})

    Raises:
        ValueError: The body is larger than `MAX_CONTROL_BYTES`, or ``kind`` or ``generation`` is out of range.
    """
    try:
        head = _CONTROL.pack(_MAGIC, kind, generation, job)
    except struct.error as error:
        raise ValueError(f"kind {kind} or generation {generation} is out of range ({error})") from error
    return head + _encode_json(body, limit_bytes=MAX_CONTROL_BYTES - _CONTROL.size)


def decode_control(frame: bytes, *, peer: bytes, job: int, generation: int | None) -> Control:
    """Decode and check a control message.

    ``generation`` is the one that it must belong to, unless it is one of the transport's own; None for any.

    Raises:
        WireError: Malformed, or of another job or generation.
    """
    if len(frame) < _CONTROL.size:
        raise WireError(Refusal.MALFORMED, f"a control message of {len(frame)} bytes where a head has {_CONTROL.size}")
    magic, kind, sent_in, sent_by = _CONTROL.unpack_from(frame)
    any_generation = generation is None or kind >= OWN_KINDS
    _check_origin(magic, job=(sent_by, job), generation=(sent_in, sent_in if any_generation else generation))
    body = _decode_json(frame[_CONTROL.size :], limit_bytes=MAX_CONTROL_BYTES - _CONTROL.size)
    return Control(peer=peer, kind=kind, generation=sent_in, body=body)


def _check_origin(magic: bytes, *, job: tuple[int, int], generation: tuple[int, int | None]) -> None:
    if magic != _MAGIC:
        raise WireError(Refusal.MALFORMED, f"a message that begins with {magic!r} where {_MAGIC!r} is due")
    if job[0] != job[1]:
        raise WireError(Refusal.FOREIGN_JOB, "a message of another job")
    if generation[0] != generation[1]:
        text = f"a message of generation {generation[0]} where generation {generation[1]} is due"
        raise WireError(Refusal.FOREIGN_GENERATION, text)


def _encode_json(value: Mapping[str, Any], *, limit_bytes: int) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    if len(text) > limit_bytes:
        raise ValueError(f"{len(text)} bytes of JSON where at most {limit_bytes} fit; send bulk data as a payload")
    return text


def _decode_json(text: bytes, *, limit_bytes: int) -> Mapping[str, Any]:
    if len(text) > limit_bytes:
        raise WireError(Refusal.OVERSIZE, f"{len(text)} bytes of JSON where at most {limit_bytes} are accepted")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(Refusal.MALFORMED, f"JSON that cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise WireError(Refusal.MALFORMED, f"JSON that is a {type(value).__name__} where an object is due")
    return value
