"""Buffers for what is sent: staged by the caller, on their way, lent to a peer, and back again.

    free --stage--> staged --send--> on its way (chunks) or lent (a segment) --> free

A buffer is free again when ZeroMQ has sent all chunks of it, or when the peer that reads the segment in place gives it
back. If that peer goes first, the segment is discarded instead: the peer may still be reading.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import zmq
from numpy.typing import NDArray

from plesio.runtime.transport.assembly import BufferPool
from plesio.runtime.transport.segments import Segment, SegmentPool


class Sending:
    """A bulk message on its way. Until `done`, its payload must not be changed."""

    __slots__ = ("_tracker",)

    def __init__(self, tracker: zmq.MessageTracker | None) -> None:
        self._tracker = tracker

    @property
    def done(self) -> bool:
        """True if the operating system has all of it, or it was copied, or the connection is gone."""
        return self._tracker is None or self._tracker.done


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A staged buffer; without a segment it is ordinary memory."""

    array: NDArray[np.uint8]
    segment: Segment | None


class Outbox:
    """The buffers that one endpoint sends from.

    Args:
        segments: Where segments come from; None where no peer can be on this host.
        max_free_bytes: Buffers handed back beyond this are freed.
    """

    def __init__(self, *, segments: SegmentPool | None, max_free_bytes: int) -> None:
        self.segments = segments
        self.num_unshared = 0
        """Payloads that went through the socket because there was no memory for a segment."""
        self._heap = BufferPool(max_free_bytes=max_free_bytes)
        self._sharing: set[bytes] = set()
        self._staged: dict[int, Staged] = {}
        self._sending: list[tuple[Sending, Staged]] = []
        self._lent: defaultdict[bytes, dict[int, Segment]] = defaultdict(dict)
        self._had: defaultdict[bytes, set[int]] = defaultdict(set)
        """Serials of the segments that were lent to each peer last: it has them mapped."""

    def allow(self, peer: bytes) -> None:
        if self.segments is not None:
            self._sharing.add(peer)

    def shares(self, peer: bytes) -> bool:
        return peer in self._sharing

    @property
    def num_lent(self) -> int:
        """Segments that peers have not given back yet."""
        return sum(len(segments) for segments in self._lent.values())

    def stage(self, num_bytes: int, *, peer: bytes) -> NDArray[np.uint8]:
        """Return a contiguous writable array with arbitrary content, to be filled and sent to a peer without a copy."""
        self._reclaim()
        segment = self._take_segment(num_bytes, peer) if self._sharing and num_bytes else None
        array = self._heap.take(num_bytes) if segment is None else segment.array[:num_bytes]
        if num_bytes:
            self._staged[_address(array)] = Staged(array, segment)
        return array

    def _take_segment(self, num_bytes: int, peer: bytes) -> Segment | None:
        assert self.segments is not None
        try:
            return self.segments.take(num_bytes, rather=self._had[peer])
        except OSError:
            self.num_unshared += 1
            return None

    def claim(self, payload: NDArray[np.uint8]) -> Staged | None:
        """Hand over the staged buffer that ``payload`` is the beginning of; it is the caller's now."""
        return self._staged.pop(_address(payload), None) if payload.size else None

    def to_segment(self, payload: NDArray[np.uint8], *, peer: bytes) -> Segment | None:
        """Return the segment that ``payload`` was staged in, or one with a copy of it; None when there is no memory."""
        staged = self._staged.get(_address(payload))
        if staged is not None:
            if staged.segment is not None:
                del self._staged[_address(payload)]
            return staged.segment
        segment = self._take_segment(payload.size, peer)
        if segment is not None:
            np.copyto(segment.array[: payload.size], payload)
        return segment

    def lend(self, segment: Segment, *, peer: bytes) -> None:
        self._lent[peer][segment.serial] = segment
        for had in self._had.values():
            had.discard(segment.serial)
        self._had[peer].add(segment.serial)

    def take_back(self, peer: bytes, serial: int) -> None:
        """Take back a segment from ``peer``; one that it never had is ignored."""
        segment = self._lent[peer].pop(serial, None) if peer in self._lent else None
        if segment is not None:
            self.put(Staged(segment.array, segment))

    def follow(self, staged: Staged, sending: Sending) -> None:
        self._sending.append((sending, staged))

    def put(self, staged: Staged) -> None:
        if staged.segment is None:
            self._heap.give_back(staged.array)
        elif self.segments is not None:
            self.segments.give_back(staged.segment)

    def _reclaim(self) -> None:
        sending, self._sending = self._sending, []
        for one, staged in sending:
            if one.done:
                self.put(staged)
            else:
                self._sending.append((one, staged))

    def forget(self, peer: bytes) -> None:
        """Forget this peer, which is gone, or begins anew."""
        self._sharing.discard(peer)
        self._had.pop(peer, None)
        for segment in self._lent.pop(peer, {}).values():
            assert self.segments is not None
            self.segments.discard(segment)

    def close(self) -> None:
        """Free everything; may be called twice. Nothing is sent any more."""
        if self.segments is not None:
            self.segments.close()
        self._sharing.clear()
        self._staged.clear()
        self._sending.clear()
        self._lent.clear()
        self._had.clear()


def _address(array: NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])
