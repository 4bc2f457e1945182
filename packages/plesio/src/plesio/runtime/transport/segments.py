"""Memory that another process on this host can map: the sender's half of an exchange without sockets.

A *segment* is a memfd (memfd_create(2)): memory with a file descriptor but no name in any file system. The owner's peer
opens it as ``/proc/PID/fd/N`` (see `Mappings`). So there is nothing to clean up: the kernel frees a segment when the
last process that has it open or mapped is gone, however that ended; and its size is bounded by the machine's memory,
not by how large a container's ``/dev/shm`` happens to be. Segments are sealed against shrinking: a peer that reads one
cannot be hit by SIGBUS.

An endpoint *offers* its memory when it connects, over the encrypted control channel: its process, a random token that
is part of the name of each of its segments, and a first segment to try. A peer that can open this one can open all; one
that cannot (another user, another PID namespace, a hardened kernel) reports that and gets chunks over the socket.
"""

import fcntl
import mmap
import os
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from plesio.core.errors import DataError
from plesio.core.records import Record, from_values

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_TOKEN_DIGITS = 32
_PAGE = mmap.PAGESIZE


def segment_name(token: str, serial: int) -> str:
    """Name a segment, as /proc shows it."""
    return f"plesio-{token}-{serial}"


class MemoryOffer(Record, frozen=True, kw_only=True):
    """The key to an endpoint's segments.

    Attributes:
        token: Part of the name of each segment, which shows when a process id has come to mean another process.
        probe: Descriptor of segment 0, for peers to try.
    """

    process: Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
    token: Annotated[str, msgspec.Meta(pattern=f"^[0-9A-Za-z]{{{_TOKEN_DIGITS}}}$")]
    probe: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

    @classmethod
    def read(cls, values: object) -> "MemoryOffer | None":
        """Return the offer that a peer sent as JSON values; None when it is anything else."""
        try:
            offer: MemoryOffer = from_values(values, cls)
        except DataError:
            return None
        return offer


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Memory of this process that a peer can map.

    Attributes:
        serial: Names it; never used again by the same pool.
        descriptor: Of the memfd, in this process.
    """

    serial: int
    descriptor: int
    array: NDArray[np.uint8]


class SegmentPool:
    """Segments that are used again, so that payloads of steady sizes allocate nothing after the first round.

    Args:
        max_free_bytes: Segments handed back beyond this are freed.

    Raises:
        OSError: The kernel gives no such memory.
    """

    def __init__(self, *, max_free_bytes: int) -> None:
        self._max_free_bytes = max_free_bytes
        self._token = secrets.token_hex(_TOKEN_DIGITS // 2)
        self._free: list[Segment] = []
        self._live: dict[int, Segment] = {}
        self._num_made = 0
        self.offer = MemoryOffer(process=os.getpid(), token=self._token, probe=self._make(_PAGE).descriptor)
        """The key by which peers open the segments."""

    @property
    def num_allocated(self) -> int:
        """Segments made so far, without the one to try."""
        return self._num_made - 1

    def take(self, num_bytes: int, *, rather: Collection[int] = ()) -> Segment:
        """Return a segment of at least ``num_bytes`` bytes with arbitrary content, ``rather`` one with such a serial.

        Raises:
            OSError: The machine has no memory for it (or no descriptor).
        """
        most = 2 * max(num_bytes, _PAGE)  # a segment is whole pages, however little it is for
        # the one that came back last first: as few as can be are in use, and mapped by peers
        fitting = [one for one in reversed(self._free) if num_bytes <= one.array.size <= most]
        if fitting:
            best = min(fitting, key=lambda one: (one.serial not in rather, one.array.size))
            self._free.remove(best)
            return best
        return self._make(-(-num_bytes // _PAGE) * _PAGE)

    def _make(self, num_bytes: int) -> Segment:
        descriptor = os.memfd_create(segment_name(self._token, self._num_made), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)  # now or never: later a full machine would mean SIGBUS
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            memory = mmap.mmap(descriptor, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            os.close(descriptor)
            raise
        segment = Segment(self._num_made, descriptor, np.frombuffer(memory, dtype=np.uint8))
        self._live[segment.serial] = segment
        self._num_made += 1
        return segment

    def give_back(self, segment: Segment) -> None:
        """Take back what `take` returned, which must not be used any more."""
        if segment.array.size + sum(free.array.size for free in self._free) <= self._max_free_bytes:
            self._free.append(segment)
        else:
            self.discard(segment)

    def discard(self, segment: Segment) -> None:
        """Never use this segment again. A peer that has it mapped may go on reading it; then the kernel frees it."""
        if self._live.pop(segment.serial, None) is not None:
            os.close(segment.descriptor)

    def close(self) -> None:
        """Discard all segments; may be called twice."""
        self._free.clear()
        for segment in list(self._live.values()):
            self.discard(segment)


def make_pool(*, max_free_bytes: int) -> SegmentPool | None:
    """Make a pool, or return None where the kernel gives no such memory; then payloads go in chunks."""
    try:
        return SegmentPool(max_free_bytes=max_free_bytes)
    except OSError:
        return None
