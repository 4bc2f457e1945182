"""Bytes that collectives send, counted where they leave: at the process group's own TCP connections.

torch.distributed counts nothing, and what an algorithm sends is its secret. But the kernel counts for every connection
(``TCP_INFO``), so the connections that a process group opens are found once, as those that are there after it is made
and were not there before. Those of a group that the script has made are the ones from worker to worker.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Container, Iterator, Mapping

_BYTES_ACKED = struct.Struct("=Q")
_DRAIN_BYTES = 1 << 20
_BYTES_ACKED_AT = 120
"""Offset of ``tcpi_bytes_acked`` in Linux's ``struct tcp_info`` (since 4.1)."""


class TcpTraffic:
    """The TCP connections that were opened while it was `recording`."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._ends: dict[int, tuple[str, str]] = {}
        """Both ends of the connection of each descriptor: once it is closed, its number may be another's."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Count the connections opened in this context from their beginning."""
        before = dict(_connections())
        yield
        # the number of one that was closed meanwhile may be another's by now
        self._count({number: ends for number, ends in _connections() if before.get(number) != ends})

    def adopt(self, far: Container[str]) -> None:
        """Count those open connections, too, whose far ends are among these."""
        self._count({number: ends for number, ends in _connections() if ends[1] in far})

    def _count(self, opened: Mapping[int, tuple[str, str]]) -> None:
        self._ends |= opened
        self._descriptors += [number for number in sorted(opened) if number not in self._descriptors]

    def bytes_sent(self) -> int:
        """Count the payload bytes that the other ends have acknowledged."""
        return sum(_acked(descriptor) for descriptor in self._descriptors)

    def own_ends(self) -> list[str]:
        """Return the addresses and ports of this process's ends; the other process has each as its far end."""
        return sorted(own for own, _ in self._ends.values())

    def shut(self, *, towards: Container[str] | None = None) -> None:
        """End the connections: every wait for one of them, here or there, ends.

        Args:
            towards: Far ends of those that are meant; None for all.
        """
        for descriptor in list(self._descriptors):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                ends = _ends(connection)
                if ends == self._ends.get(descriptor) and (towards is None or ends[1] in towards):
                    connection.shutdown(socket.SHUT_RDWR)
                    while connection.recv(_DRAIN_BYTES, socket.MSG_DONTWAIT):
                        pass  # what Gloo read now it would answer in vain, and forget; see `exchange.group`

    def clear(self) -> None:
        """Forget the connections, which are closed."""
        self._descriptors.clear()
        self._ends.clear()


def present_ends() -> list[str]:
    """List this process's ends of its open connections."""
    return [own for _, (own, _) in _connections()]


def _connections() -> Iterator[tuple[int, tuple[str, str]]]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor, and what others close meanwhile
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    yield int(name), _ends(connection)  # raises for sockets that listen


def _ends(connection: socket.socket) -> tuple[str, str]:
    """Return this process's end and the far one, as text."""
    own, far = (f"{name[0]}:{name[1]}" for name in (connection.getsockname(), connection.getpeername()))
    return own, far


def _acked(descriptor: int) -> int:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return 0  # closed: a lost peer's connection
    return int(_BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0]) if len(info) >= _BYTES_ACKED_AT + 8 else 0
