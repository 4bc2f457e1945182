"""Segments of peers, mapped here: the receiver's half of an exchange without sockets.

A peer names a segment by two numbers, its serial and its descriptor; everything else comes from the offer that it
made over the encrypted control channel. ``/proc/PID/fd/N`` is first opened as a mere location (``O_PATH``, which has no
effect, whatever is there). Only what is a memfd of exactly the expected name, is sealed against shrinking and is no
larger than was agreed on is then mapped. What lies in a segment is used as numbers only.

The owner of a segment may write to it again when it is *given back*, which happens when the receiver releases the
message, or drops the last array that refers to it. It stays mapped for the messages to come, until another segment has
to be mapped: memory that is mapped counts as the process's.
"""

import fcntl
import mmap
import os
import weakref
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plesio.runtime.transport.segments import MemoryOffer, segment_name
from plesio.runtime.transport.wire import Reference, Refusal, WireError


@dataclass(slots=True)
class _Peer:
    offer: MemoryOffer
    mapped: dict[int, mmap.mmap] = field(default_factory=dict)


class Mappings:
    """The segments of all peers of an endpoint."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_segment_bytes = 2 * max_bytes + mmap.PAGESIZE  # an owner may use one for a payload half its size
        self._peers: dict[bytes, _Peer] = {}
        self._lent: dict[int, tuple[bytes, int, weakref.ref[NDArray[np.uint8]]]] = {}
        self._dropped: deque[tuple[bytes, int]] = deque()

    def admit(self, peer: bytes, offer: MemoryOffer | None) -> bool:
        """Tell whether the memory that ``peer`` offers can be opened from here, and forget its earlier offer."""
        self.forget(peer)
        if offer is None:
            return False
        try:
            _map(offer, Reference(serial=0, descriptor=offer.probe), max_bytes=mmap.PAGESIZE)
        except (OSError, WireError):
            return False
        self._peers[peer] = _Peer(offer)
        return True

    def open(self, peer: bytes, reference: Reference, *, num_bytes: int) -> NDArray[np.uint8]:
        """Open the first ``num_bytes`` bytes of a segment of ``peer``, in place and writable.

        Raises:
            WireError: The peer has not offered any, or this is not a segment of its, or it is too short.
            OSError: It cannot be opened any more: the peer is gone.
        """
        owner = self._peers.get(peer)
        if owner is None:
            raise WireError(Refusal.SEGMENT, "a segment of a peer that has offered none")
        memory = owner.mapped.get(reference.serial)
        if memory is None:
            in_use = {serial for lender, serial, _ in list(self._lent.values()) if lender == peer}
            owner.mapped = {serial: one for serial, one in owner.mapped.items() if serial in in_use}
            owner.mapped[reference.serial] = memory = _map(owner.offer, reference, max_bytes=self._max_segment_bytes)
        if num_bytes > len(memory):
            raise WireError(Refusal.SEGMENT, f"{num_bytes} bytes in a segment of {len(memory)}")
        # an array of its own for each message: views of it refer to it, so its end is the end of all of them
        array = np.frombuffer(memory, dtype=np.uint8, count=num_bytes)
        key = id(array)
        self._lent[key] = (peer, reference.serial, weakref.ref(array, lambda _: self._drop(key)))
        return array

    def _drop(self, key: int) -> None:
        peer, serial, _ = self._lent.pop(key)
        self._dropped.append((peer, serial))

    def give_back(self, array: NDArray[np.uint8]) -> tuple[bytes, int] | None:
        """Give back what `open` returned: the owner, and the serial. None for any other array."""
        lent = self._lent.get(id(array))
        if lent is None or lent[2]() is not array:
            return None
        del self._lent[id(array)]
        return lent[0], lent[1]

    def take_dropped(self) -> list[tuple[bytes, int]]:
        """Return owners and serials of segments that no array refers to any more, since the last call."""
        dropped = []
        while self._dropped:
            dropped.append(self._dropped.popleft())
        return dropped

    def forget(self, peer: bytes) -> None:
        """Unmap what this peer has offered, as soon as no array refers to it."""
        self._peers.pop(peer, None)

    def close(self) -> None:
        self._peers.clear()


def _map(offer: MemoryOffer, reference: Reference, *, max_bytes: int) -> mmap.mmap:
    location = os.open(f"/proc/{offer.process}/fd/{reference.descriptor}", os.O_PATH | os.O_CLOEXEC)
    try:
        here = f"/proc/self/fd/{location}"
        if os.readlink(here) != f"/memfd:{segment_name(offer.token, reference.serial)} (deleted)":
            raise WireError(Refusal.SEGMENT, f"descriptor {reference.descriptor} is not segment {reference.serial}")
        descriptor = os.open(here, os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(location)
    try:
        num_bytes = os.fstat(descriptor).st_size
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK or not 0 < num_bytes <= max_bytes:
            raise WireError(Refusal.SEGMENT, f"a segment of {num_bytes} bytes that is too large, or not sealed")
        return mmap.mmap(descriptor, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(descriptor)
