"""The seal that keeps bulk data secret and whole between hosts: each frame is encrypted, and opens once, in its place.

The cipher is AES-256 in Galois/counter mode (NIST SP 800-38D), by way of the ``cryptography`` package, hence OpenSSL's:
with a processor's AES instructions it is several times as fast as the network, and as CURVE, which the control channel
has. The server draws a key for each data connection and sends it over the control channel; from it follow one key for
each direction. A nonce is the number of the chunk and of the frame in it, so none is used twice under a key, and a
frame that is repeated, left out, brought forward or turned round does not open. TCP keeps the order, so a frame that
does not open has been tampered with: the receiver counts it and ends the connection.
"""

import hashlib
import os
import secrets
import struct
from collections.abc import Mapping

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from plesio.runtime.transport.wire import Refusal, WireError

UNENCRYPTED_VARIABLE = "PLESIO_UNENCRYPTED"
"""``1``, for all processes of a job: bulk data cross the network as they are, and whoever is on it can change them."""

SEAL_BYTES = 16
"""Bytes that sealing adds to a frame."""

_NONCE = struct.Struct("<QI")
_HEAD, _BODY = 0, 1


def wants_encryption(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether bulk data are to be encrypted between hosts: unless the user has opted out."""
    return environ.get(UNENCRYPTED_VARIABLE) != "1"


def new_seal_key() -> str:
    return secrets.token_hex(32)


class Seal:
    """One end of a data connection.

    Args:
        key: Of the connection, see `new_seal_key`.

    >>> ours, theirs = Seal("00" * 32, at_server=False), Seal("00" * 32, at_server=True)
    >>> head, body = ours.close_chunk(b"head", memoryview(b"body"))
    >>> theirs.open_head(head), theirs.open_body(body.data, into=np.empty(4, np.uint8)).tobytes()
    (b'head', b'body')
    """

    def __init__(self, key: str, *, at_server: bool) -> None:
        to_server, to_client = (
            AESGCM(hashlib.blake2b(key=bytes.fromhex(key), digest_size=32, person=direction).digest())
            for direction in (b"plesio up", b"plesio down")
        )
        self._closing, self._opening = (to_client, to_server) if at_server else (to_server, to_client)
        self._num_closed = 0
        self._num_opened = 0

    def close_chunk(self, head: bytes, body: memoryview) -> tuple[bytes, NDArray[np.uint8]]:
        self._num_closed += 1
        sealed = np.empty(len(body) + SEAL_BYTES, dtype=np.uint8)
        self._closing.encrypt_into(_NONCE.pack(self._num_closed, _BODY), body, None, sealed.data)
        return self._closing.encrypt(_NONCE.pack(self._num_closed, _HEAD), head, None), sealed

    def open_head(self, frame: bytes | memoryview) -> bytes:
        """Open the head of the next chunk.

        Raises:
            WireError: It is not the frame that the other end has sent next.
        """
        self._num_opened += 1
        try:
            return self._opening.decrypt(_NONCE.pack(self._num_opened, _HEAD), frame, None)
        except InvalidTag:
            raise _broken() from None

    def open_body(self, frame: memoryview, *, into: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Open the body of the chunk whose head was opened last, into the beginning of ``into``.

        Raises:
            WireError: It is not the frame that the other end has sent, or there is no room for it.
        """
        num_bytes = len(frame) - SEAL_BYTES
        if num_bytes > into.size:
            raise WireError(Refusal.MALFORMED, f"a chunk of {num_bytes} bytes where {into.size} are still due")
        opened = into[: max(num_bytes, 0)]
        try:
            self._opening.decrypt_into(_NONCE.pack(self._num_opened, _BODY), frame, None, opened.data)
        except (InvalidTag, ValueError):  # the latter where it is shorter than a seal
            raise _broken() from None
        return opened


def _broken() -> WireError:
    return WireError(Refusal.SEAL, "a frame that was changed, repeated or left out on its way")
