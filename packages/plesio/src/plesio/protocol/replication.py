"""Messages from a server to its backup: everything that it receives itself, in the order in which it acts on it."""

from typing import Annotated, Any, Literal

import msgspec

from plesio.core.records import Record
from plesio.protocol.message import Message


class ReplicationEntry(Record, frozen=True, kw_only=True):
    """One thing that a server acts on; of a bulk message all but the payload.

    Attributes:
        number: 1, 2, 3 ...
        now_s: By the server's clock; nothing else tells the time while the entry is acted on.
        what: A message of a worker, the end of a worker's connection, the lapse of time, a folder for results, or
            the end of the job.
        peer: Whose message or connection.
        serial: The message's number among the peer's, on its channel.
        received: Number up to which the peer has received the server's messages.
        kind: The message's.
        generation: The same.
        header: Header of a bulk message: worker, clock, base version, request.
        body: The message's JSON.
        folder: Folder for results.
    """

    number: int
    now_s: float
    what: Literal["control", "bulk", "gone", "time", "folder", "over"]
    peer: str = ""
    serial: int = 0
    received: int = 0
    kind: int = 0
    generation: int = 0
    header: tuple[int, int, int, int] = (0, 0, 0, 0)
    body: dict[str, Any] = msgspec.field(default_factory=dict)
    folder: str = ""


class EntryAcknowledged(Message, frozen=True, kw_only=True, tag=50):
    """The backup has all entries up to this number; what follows from them may be sent."""

    number: Annotated[int, msgspec.Meta(ge=1)]
