"""Chunks to messages: one open message per peer, each chunk received straight to its place in one buffer.

Within a connection ZeroMQ keeps order and loses nothing, but when a connection is cut and comes back, what was on its
way is missing. So a chunk must begin exactly where the last one ended; otherwise the open message is dropped.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.runtime.transport.wire import Bulk, Chunk, Header, Refusal, WireError

_SMALLEST_BYTES = 4096


class BufferPool:
    """Buffers that are used again, so that messages of steady sizes allocate nothing after the first round.

    A new buffer costs a page fault for every 4 KiB, which on the receiving side takes longer than the copy itself.

    Args:
        max_free_bytes: Buffers handed back beyond this are left to the garbage collector.
    """

    def __init__(self, *, max_free_bytes: int) -> None:
        self._max_free_bytes = max_free_bytes
        self._free: list[NDArray[np.uint8]] = []
        self._free_bytes = 0
        self._lent: weakref.WeakValueDictionary[int, NDArray[np.uint8]] = weakref.WeakValueDictionary()
        self.num_allocated = 0

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return a contiguous writable array of ``num_bytes`` bytes with arbitrary content."""
        if num_bytes == 0:
            return np.empty(0, dtype=np.uint8)
        fitting = [
            i for i, buffer in enumerate(self._free) if num_bytes <= buffer.size <= max(2 * num_bytes, _SMALLEST_BYTES)
        ]
        if fitting:
            buffer = self._free.pop(min(fitting, key=lambda i: self._free[i].size))
            self._free_bytes -= buffer.size
        else:
            self.num_allocated += 1
            buffer = np.empty(max(num_bytes, _SMALLEST_BYTES), dtype=np.uint8)
        self._lent[id(buffer)] = buffer
        return buffer[:num_bytes]

    def give_back(self, array: NDArray[np.uint8]) -> None:
        """Take back what `take` returned, which must not be used any more. Any other array is left alone."""
        buffer = self._lent.pop(id(array.base), None)
        if buffer is not None and self._free_bytes + buffer.size <= self._max_free_bytes:
            self._free.append(buffer)
            self._free_bytes += buffer.size


@dataclass(slots=True)
class _Open:
    header: Header
    meta: Mapping[str, Any]
    total_bytes: int
    payload: NDArray[np.uint8]
    num_received: int = 0


class Assembler:
    """Puts the chunks of each peer together.

    Per chunk: `place` returns the place of its body, then `commit` takes its length.
    """

    def __init__(self, pool: BufferPool, *, max_bytes: int) -> None:
        self.num_abandoned = 0
        """Messages that began and will never be complete, because their sender was cut off."""
        self._pool = pool
        self._max_bytes = max_bytes
        self._open: dict[bytes, _Open] = {}
        self._refused: dict[bytes, Header] = {}

    def place(self, peer: bytes, chunk: Chunk) -> NDArray[np.uint8] | None:
        """Return the place of this chunk's body: all of the buffer that is still to be filled.

        Returns:
            None for a later chunk of a message that has been refused already; its body is to be thrown away.

        Raises:
            WireError: Too large, or not where the last chunk ended; counts once for the whole message.
        """
        if self._refused.get(peer) == chunk.header and chunk.offset > 0:
            return None
        if chunk.offset == 0:
            return self._begin(peer, chunk)
        message = self._open.get(peer)
        if message is None or (message.header, message.total_bytes, message.num_received) != (
            chunk.header,
            chunk.total_bytes,
            chunk.offset,
        ):
            self.refuse(peer, chunk.header)
            raise WireError(Refusal.OUT_OF_ORDER, f"a chunk at {chunk.offset} that continues nothing")
        return message.payload[message.num_received :]

    def check_size(self, total_bytes: int) -> None:
        """Raise when a payload of this size is not accepted.

        Raises:
            WireError: Too large.
        """
        if total_bytes > self._max_bytes:
            text = f"a payload of {total_bytes} bytes where at most {self._max_bytes} are accepted"
            raise WireError(Refusal.OVERSIZE, text)

    def _begin(self, peer: bytes, chunk: Chunk) -> NDArray[np.uint8]:
        self.drop(peer)
        try:
            self.check_size(chunk.total_bytes)
            payload = self._pool.take(chunk.total_bytes)
        except WireError:
            self.refuse(peer, chunk.header)
            raise
        except MemoryError:
            self.refuse(peer, chunk.header)
            raise WireError(Refusal.OVERSIZE, f"no memory for a payload of {chunk.total_bytes} bytes") from None
        self._open[peer] = _Open(chunk.header, chunk.meta, chunk.total_bytes, payload)
        return payload

    def commit(self, peer: bytes, num_bytes: int) -> Bulk | None:
        """Note that the body of the chunk last placed had ``num_bytes`` bytes.

        Returns:
            The message, when this was its last chunk.

        Raises:
            WireError: More bytes than were announced, or none at all where some are still due.
        """
        message = self._open[peer]
        due = message.total_bytes - message.num_received
        if num_bytes > due or (num_bytes == 0 and due > 0):
            self.refuse(peer, message.header)
            raise WireError(Refusal.MALFORMED, f"a chunk of {num_bytes} bytes where {due} are still due")
        message.num_received += num_bytes
        if message.num_received < message.total_bytes:
            return None
        del self._open[peer]
        return Bulk(peer=peer, header=message.header, meta=message.meta, payload=message.payload)

    def refuse(self, peer: bytes, header: Header) -> None:
        """Drop what this peer has open, and throw away what follows under the same header."""
        self.drop(peer)
        self._refused[peer] = header

    def drop(self, peer: bytes) -> None:
        self._refused.pop(peer, None)
        message = self._open.pop(peer, None)
        if message is not None:
            self.abandon()
            self._pool.give_back(message.payload)

    def abandon(self) -> None:
        self.num_abandoned += 1
