"""A replicated server's connections to its workers: its messages are numbered, and wait for its backup.

The `JobServer` behind it cannot tell that it has a backup. Both are given the same entries, in the same order and with
the same times, and both send the same. Of the two

- the *primary* sends a message only after the backup has the entry that it followed from: the backup has logged
  all that a worker has received;
- the *backup* sends nothing, and keeps its messages until the worker has received them from the primary. When it has
  taken over, a worker that comes is sent what it has missed.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.protocol.peers import worker_of
from plesio.protocol.replication import ReplicationEntry
from plesio.runtime.transport import Bulk, Header
from plesio.runtime.transport.connection import WorkerConnections
from plesio.runtime.transport.numbered import RESUMED, Kept, Received, numbered
from plesio.runtime.transport.wire import EMPTY


@dataclass(frozen=True, slots=True)
class _Control:
    kind: int
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Bulk:
    header: Header
    meta: Mapping[str, Any] | None
    payload: NDArray[Any]


@dataclass(slots=True)
class _Conversation:
    """With one peer."""

    controls: Kept[_Control] = field(default_factory=Kept)
    bulks: Kept[_Bulk] = field(default_factory=Kept)
    received_control: Received = field(default_factory=Received)
    received_bulk: Received = field(default_factory=Received)


class ReplicatedConnections:
    """The connections through which a `JobServer` speaks, at the primary and at its backup."""

    def __init__(self, endpoint: WorkerConnections, *, primary: bool) -> None:
        self._endpoint = endpoint
        self.traffic = endpoint.traffic
        self.refused = endpoint.refused
        self._is_primary = self._serves = primary
        self._generation = endpoint.generation
        self._conversations: dict[bytes, _Conversation] = defaultdict(_Conversation)
        self._entry = 0
        self._waiting: deque[tuple[int, bytes, int, int, _Control | _Bulk]] = deque()
        """The primary's messages: after which entry, to which peer, number, latest number received, and content."""
        self._safe = 0
        self._resumed: set[bytes] = set()
        """Peers that have come to the backup that has taken over."""

    @property
    def generation(self) -> int:
        """Generation of the membership; the backup's own connections are in it when it has taken over."""
        return self._generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self._generation = generation
        if self._serves:
            self._endpoint.generation = generation

    def take_in(self, entry: ReplicationEntry) -> bool:
        """Take in the numbers of what is acted on now; whether it is new, or was acted on before."""
        self._entry = entry.number
        if entry.what not in ("control", "bulk"):
            return True
        conversation = self._conversations[entry.peer.encode()]
        if entry.what == "control":
            conversation.controls.acknowledge(entry.received)
            return conversation.received_control.is_new(entry.serial)
        conversation.bulks.acknowledge(entry.received)
        return conversation.received_bulk.is_new(entry.serial)

    def let_in(self) -> None:
        self._endpoint.let_in()

    def send_control(self, peer: bytes, kind: int, body: Mapping[str, Any]) -> bool:
        """Send a control message; True, since it is not known yet whether the peer is there."""
        if worker_of(peer) is None:  # an observer: it has no numbers, and asks again if it must
            return self._endpoint.send_control(peer, kind, body)
        conversation = self._conversations[peer]
        message = _Control(kind, body)
        self._enqueue(peer, conversation.controls.add(message), conversation.received_control.last, message)
        return True

    def send(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = EMPTY
    ) -> None:
        conversation = self._conversations[peer]
        message = _Bulk(header, meta, payload)
        self._enqueue(peer, conversation.bulks.add(message), conversation.received_bulk.last, message)

    def _enqueue(self, peer: bytes, number: int, received: int, message: _Control | _Bulk) -> None:
        if self._is_primary:
            self._waiting.append((self._entry, peer, number, received, message))
            self.let_out(self._safe)
        elif peer in self._resumed:
            self._send(peer, number, received, message)

    def let_out(self, entry: int) -> None:
        """Send what has followed from entries up to this one, which the backup has, or which need no backup."""
        self._safe = entry
        while self._waiting and self._waiting[0][0] <= entry:
            self._send(*self._waiting.popleft()[1:])

    def _send(self, peer: bytes, number: int, received: int, message: _Control | _Bulk) -> None:
        """Send, and forget: this server will not send it again."""
        conversation = self._conversations[peer]
        if isinstance(message, _Control):
            conversation.controls.acknowledge(number)
            body = numbered(message.body, number=number, received=received)
            self._endpoint.send_control(peer, message.kind, body)
        else:
            conversation.bulks.acknowledge(number)
            meta = numbered(message.meta, number=number, received=received)
            self._endpoint.send(peer, message.header, meta=meta, payload=message.payload)

    def take_over(self) -> None:
        """Go on with the lost primary's conversations here, with each worker that comes."""
        self._serves = True
        self._endpoint.generation = self._generation

    def resume(self, peer: bytes, received: Mapping[str, int]) -> None:
        """Send a worker that has come to the backup, after its takeover, the messages that it has not received."""
        self._resumed.add(peer)
        conversation = self._conversations[peer]
        conversation.controls.acknowledge(received.get("control", 0))
        conversation.bulks.acknowledge(received.get("bulk", 0))
        mine = {"control": conversation.received_control.last, "bulk": conversation.received_bulk.last}
        self._endpoint.send_control(peer, RESUMED, mine)
        for number, control in conversation.controls:
            self._send(peer, number, conversation.received_control.last, control)
        for number, bulk in conversation.bulks:
            self._send(peer, number, conversation.received_bulk.last, bulk)

    def stage(self, num_bytes: int, *, peer: bytes) -> NDArray[np.uint8]:
        """Return memory to fill and `send`: its own, since it may have to be kept."""
        return np.empty(num_bytes, dtype=np.uint8)

    def release(self, bulk: Bulk) -> None:
        self._endpoint.release(bulk)
