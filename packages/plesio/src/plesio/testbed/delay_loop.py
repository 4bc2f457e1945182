"""The process behind `plesio.testbed.delay_line`: holds what comes in at one end of a line, and lets the rest through.

The loop is compiled, and calls the C library: a gigabit a second in packets of a switch is a hundred thousand a second.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numba.core.types import ExternalFunction, int32, int64, uint64
from numpy.typing import NDArray

from plesio.sim.compiled import compiled
from plesio.testbed.delay_line import READY, Line
from plesio.testbed.namespaces import in_namespace

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_TUNSETVNETHDRSZ = 0x400454D8
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_OFFLOADS = 0x01 | 0x02 | 0x04
"""Checksums, and TCP's segmentation over IPv4 and IPv6, are left to the other end."""
_HEADER_BYTES = 10
_MOST_PACKET_BYTES = 65_536 + 256
_MOST_HELD_S = 0.1
"""A queue's capacity beyond its latency, at the bandwidth of its line; packets beyond it are dropped."""
_MOST_PACKETS = 16_384
"""That one line holds."""
_PR_SET_TIMERSLACK = 29
_NEVER_NS = 2**62

_LIBC = ctypes.CDLL(None, use_errno=True)
_read: Callable[..., int] = ExternalFunction("read", int64(int32, uint64, uint64))
_write: Callable[..., int] = ExternalFunction("write", int64(int32, uint64, uint64))
_ppoll: Callable[..., int] = ExternalFunction("ppoll", int32(uint64, uint64, uint64, uint64))
_clock_gettime: Callable[..., int] = ExternalFunction("clock_gettime", int32(int32, uint64))
"""The C library's function; addresses are whole numbers here."""


@compiled
def _now_ns(clock: NDArray[np.int64]) -> int:
    _clock_gettime(1, clock.ctypes.data)
    return int(clock[0] * 1_000_000_000 + clock[1])


class _Held(NamedTuple):
    """The packets that lines hold, each line's a ring in ``bytes``; arrays have a row, or a number, for each line."""

    bytes: NDArray[np.uint8]
    start: NDArray[np.int64]
    at: NDArray[np.int64]
    length: NDArray[np.int64]
    due_ns: NDArray[np.int64]
    first: NDArray[np.int64]
    number: NDArray[np.int64]
    head: NDArray[np.int64]
    last_ns: NDArray[np.int64]

    @classmethod
    def nothing(cls, capacity: Sequence[int]) -> "_Held":
        number = len(capacity)
        start = np.concatenate([[0], np.cumsum(capacity)]).astype(np.int64)
        each = [np.zeros((number, _MOST_PACKETS), np.int64) for _ in range(3)]
        return cls(np.zeros(start[-1], np.uint8), start, *each, *(np.zeros(number, np.int64) for _ in range(4)))


@compiled
def _place(held: _Held, line: int, size: int) -> int:
    """Return the place of a packet of this size in its line's ring; -1 if there is no room."""
    number, head, room = held.number[line], held.head[line], held.start[line + 1] - held.start[line]
    if number == _MOST_PACKETS or size > room:
        return -1
    if number == 0:
        return 0
    tail = held.at[line, held.first[line]]
    if tail >= head:  # what is held goes round the end
        return int(head) if head + size < tail else -1
    if head + size <= room:
        return int(head)
    return 0 if size < tail else -1


@compiled
def _hold(held: _Held, line: int, packet: NDArray[np.uint8], size: int, due_ns: int) -> bool:
    """Keep a packet until it is due, and not before the one before it; False if there is no room."""
    begin = _place(held, line, size)
    if begin < 0:
        return False
    base = held.start[line] + begin
    held.bytes[base : base + size] = packet[:size]
    held.last_ns[line] = max(held.last_ns[line], due_ns)
    place = (held.first[line] + held.number[line]) % _MOST_PACKETS
    held.at[line, place], held.length[line, place], held.due_ns[line, place] = begin, size, held.last_ns[line]
    held.number[line] += 1
    held.head[line] = begin + size
    return True


@compiled
def _deliver(held: _Held, far: NDArray[np.int32], now_ns: int) -> int:
    """Send what is due; returns when something is again."""
    next_ns = _NEVER_NS
    for line in range(len(far)):
        while held.number[line]:
            one = held.first[line]
            if held.due_ns[line, one] > now_ns:
                next_ns = min(next_ns, held.due_ns[line, one])
                break
            address = held.bytes.ctypes.data + held.start[line] + held.at[line, one]
            _write(far[line], address, held.length[line, one])
            held.first[line] = (one + 1) % _MOST_PACKETS
            held.number[line] -= 1
    return next_ns


@compiled
def _carry(
    near: NDArray[np.int32],
    far: NDArray[np.int32],
    latency_ns: NDArray[np.int64],
    jitter_ns: NDArray[np.int64],
    held: _Held,
    dropped: NDArray[np.int64],
    stop: int,
) -> None:
    """Carry packets until descriptor ``stop`` has something to say.

    Each line has a near end, whose packets are held for the latency, and a far end, whose packets are not. Packets that
    there was no room for are counted in ``dropped``.
    """
    number = len(near)
    packet = np.empty(_MOST_PACKET_BYTES, np.uint8)
    polled = np.zeros((2 * number + 1, 2), np.int32)  # C's struct pollfd
    polled[:number, 0], polled[number : 2 * number, 0], polled[2 * number, 0] = near, far, stop
    clock, wait = np.zeros(2, np.int64), np.zeros(2, np.int64)
    while True:
        next_ns = _deliver(held, far, _now_ns(clock))
        wait_ns = min(max(next_ns - _now_ns(clock), 0), 1_000_000_000)
        wait[0], wait[1] = wait_ns // 1_000_000_000, wait_ns % 1_000_000_000
        polled[:, 1] = 1  # POLLIN is asked for, and the answer in the upper half cleared
        _ppoll(polled.ctypes.data, 2 * number + 1, wait.ctypes.data, 0)
        if polled[2 * number, 1] >> 16:
            return
        for line in range(number):
            while polled[number + line, 1] >> 16:
                size = _read(far[line], packet.ctypes.data, _MOST_PACKET_BYTES)
                if size <= 0:
                    break
                _write(near[line], packet.ctypes.data, size)
            while polled[line, 1] >> 16:
                size = _read(near[line], packet.ctypes.data, _MOST_PACKET_BYTES)
                if size <= 0:
                    break
                due_ns = _now_ns(clock) + latency_ns[line]
                if jitter_ns[line]:
                    due_ns += int(max(-latency_ns[line], np.random.normal(0.0, jitter_ns[line])))
                if not _hold(held, line, packet, size, due_ns):
                    dropped[line] += 1


def _tap(namespace: str, name: str) -> int:
    """Make a TAP device in a namespace and return the descriptor of its other end."""
    with in_namespace(namespace):
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(descriptor, _TUNSETVNETHDRSZ, struct.pack("i", _HEADER_BYTES))
        fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _OFFLOADS)
    return descriptor


def _in_time() -> None:
    """Have this process woken when it asks to be, also where others compute on all cores."""
    _LIBC.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with contextlib.suppress(PermissionError):  # in a container without real time: less exact
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))


def main() -> None:
    """Make the lines that the first line of standard input names, say so, and carry until there is no more input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this ends it
    with open(0, "rb", buffering=0, closefd=False) as told:
        lines = msgspec.json.decode(told.readline(), type=list[Line])
    near = np.array([_tap(*line.near) for line in lines], np.int32)
    far = np.array([_tap(*line.far) for line in lines], np.int32)
    latency_ns = np.array([round(1e9 * line.latency_s) for line in lines], np.int64)
    jitter_ns = np.array([round(1e9 * line.jitter_s) for line in lines], np.int64)
    capacity = [round(line.bytes_per_s * (line.latency_s + 6 * line.jitter_s + _MOST_HELD_S)) for line in lines]
    held = _Held.nothing([max(one, 16 * _MOST_PACKET_BYTES) for one in capacity])
    dropped = np.zeros(len(lines), np.int64)
    done, other = os.pipe()
    os.write(other, b".")
    _carry(near, far, latency_ns, jitter_ns, held, dropped, done)  # compiles it
    _in_time()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    _carry(near, far, latency_ns, jitter_ns, held, dropped, sys.stdin.fileno())
    if dropped.any():
        print(f"delay lines: dropped {dropped.tolist()} packets", file=sys.stderr)
