"""How much memory this process has, or torch on its GPU: in use now, and at most since the session was joined."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"
"""The value that makes the kernel forget the peak (proc(5))."""


class Heap(NamedTuple):
    """Bytes that an allocator has given out, and bytes that it has taken from the system for that."""

    live_bytes: int
    taken_bytes: int


class ProcessMemory:
    """Memory of this process: the figures of glibc's allocator, and of the kernel on what is resident.

    Making it gives back to the system what earlier runs in this process have freed, and forgets their peak. Where the
    kernel does not let a process forget its peak, the peak is the most that was seen.
    """

    device_type = "cpu"

    def __init__(self) -> None:
        self._seen = 0
        self._process = psutil.Process()
        self._kernel_knows = True
        self._shared_before = _status_bytes("RssShmem")
        if (malloc_trim := _from_libc("malloc_trim")) is not None:
            malloc_trim(ctypes.c_size_t(0))
        self.forget()

    def heap(self) -> Heap | None:
        return _glibc_heap()

    def resident_bytes(self) -> int:
        """Return the bytes that are taken now, as `peak_bytes` counts them."""
        return int(self._process.memory_info().rss)

    def shared_bytes(self) -> int:
        """Return the shared memory, less what was there when this was made."""
        return max(0, _status_bytes("RssShmem") - self._shared_before)

    def peak_bytes(self) -> int:
        """Return the most bytes since these readings were made, or since `forget`."""
        if self._kernel_knows:
            return _status_bytes("VmHWM")
        self._seen = max(self._seen, self.resident_bytes())
        return self._seen

    def forget(self) -> None:
        self._seen = 0
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK)
        except OSError:
            self._kernel_knows = False


class CudaMemory:
    """Memory that torch has reserved on the current GPU; making it forgets torch's peak."""

    device_type = "cuda"

    def __init__(self) -> None:
        self.forget()

    def heap(self) -> Heap | None:
        return Heap(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())

    def resident_bytes(self) -> int:
        return torch.cuda.memory_reserved()

    def shared_bytes(self) -> int:
        return 0

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_reserved()

    def forget(self) -> None:
        torch.cuda.reset_peak_memory_stats()


MemoryReadings = ProcessMemory | CudaMemory
"""Readings of one memory, all in bytes."""


def _status_bytes(name: str) -> int:
    text = _STATUS.read_text(encoding="utf-8")
    return 1024 * int(text.partition(f"\n{name}:")[2].split(maxsplit=1)[0])


class _MallInfo(ctypes.Structure):
    """Glibc's ``struct mallinfo2`` (mallinfo(3)), over all arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


@functools.cache
def _from_libc(name: str) -> Callable[..., object] | None:
    return getattr(ctypes.CDLL(None), name, None)


def _glibc_heap() -> Heap | None:
    mallinfo2 = _from_libc("mallinfo2")
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _MallInfo  # type: ignore[attr-defined]
    found = mallinfo2()
    assert isinstance(found, _MallInfo)
    return Heap(int(found.uordblks + found.hblkhd), int(found.arena + found.hblkhd))
