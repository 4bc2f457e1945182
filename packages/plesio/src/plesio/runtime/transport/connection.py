"""The two ends of a connection between a worker and a server, on real sockets or modelled links."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plesio.runtime.transport import Bulk, Control, Header, Refusal, Traffic


class ControlConnection(Protocol):
    """A connection for control messages alone; see `ControlClient`, the one on real sockets."""

    generation: int
    """Generation of the messages that are sent."""

    def send(self, kind: int, body: Mapping[str, Any]) -> None: ...


class ServerConnection(Protocol):
    """A worker's connection to one server; see `ClientEndpoint`, the one on real sockets."""

    generation: int
    """Generation of the messages that are sent."""

    def send_control(self, kind: int, body: Mapping[str, Any]) -> None: ...

    def stage(self, num_bytes: int) -> NDArray[np.uint8]: ...

    def push(self, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = ...) -> object: ...

    def poll(self, timeout_s: float) -> list[Control | Bulk]:
        """Return the messages that have arrived complete; wait for the first at most ``timeout_s``."""
        ...

    def check(self) -> None:
        """Raise when the connection is lost, though nothing is waited for from it.

        Raises:
            TransportError: It is.
        """
        ...

    def release(self, bulk: Bulk) -> None: ...


class WorkerConnections(Protocol):
    """A server's connections to all its peers; see `ServerEndpoint`, those on real sockets."""

    traffic: Traffic
    refused: Counter[Refusal]

    generation: int
    """Generation of the messages that are sent."""

    def let_in(self) -> None:
        """Let in the peers that are connecting; what has arrived is kept for later."""
        ...

    def send_control(self, peer: bytes, kind: int, body: Mapping[str, Any]) -> bool: ...

    def send(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = ...
    ) -> object: ...

    def stage(self, num_bytes: int, *, peer: bytes) -> NDArray[np.uint8]:
        """Return memory to fill and `send` to this peer."""
        ...

    def release(self, bulk: Bulk) -> None: ...
