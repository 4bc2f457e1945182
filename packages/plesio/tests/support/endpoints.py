"""A server's connections that keep what is sent, for tests of what a server does."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.runtime.transport import Bulk, Header, Refusal, Traffic


class KeepingEndpoint:
    """Every peer is connected."""

    def __init__(self) -> None:
        self.generation = 0
        self.traffic = Traffic()
        self.refused: Counter[Refusal] = Counter()
        self.controls: list[tuple[bytes, int, Mapping[str, Any]]] = []
        self.bulks: list[tuple[bytes, Header, Mapping[str, Any], NDArray[np.uint8]]] = []
        self.released: list[Bulk] = []

    def let_in(self) -> None:
        pass

    def send_control(self, peer: bytes, kind: int, body: Mapping[str, Any]) -> bool:
        self.controls.append((peer, kind, body))
        return True

    def send(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] | None = None
    ) -> object:
        sent = np.empty(0, np.uint8) if payload is None else payload.reshape(-1).view(np.uint8).copy()
        self.bulks.append((peer, header, meta or {}, sent))
        return header

    def stage(self, num_bytes: int, *, peer: bytes) -> NDArray[np.uint8]:
        return np.empty(num_bytes, np.uint8)

    def release(self, bulk: Bulk) -> None:
        self.released.append(bulk)
