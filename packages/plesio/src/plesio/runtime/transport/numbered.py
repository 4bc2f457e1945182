"""Numbered messages: what makes a conversation with a server go on with its backup, each message exactly once.

A server that has a backup may be lost in the middle of anything. So in a job with replicas every message of a worker
and of a server has a number, in its direction and on its channel (control and bulk messages go by connections of their
own), and the latest number that its sender has received from the other::

    {"number": 12, "received": 7, "body": the message itself}

The sender keeps a message until the other side has confirmed it. When the primary is lost, the worker connects to the
backup and sends `RESUME`: the latest numbers that it has received. The backup, which has logged all that the lost one
had acted on visibly, and has made the same answers, sends `RESUMED`, the latest numbers that *it* has received, and
sends what it has kept beyond the worker's numbers. The worker sends what it has kept. What arrives twice is known by
its number.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from plesio.core.errors import TransportError
from plesio.runtime.transport.wire import OWN_KINDS

RESUME = OWN_KINDS + 4
"""A client to a backup: it goes on here. Its body has the latest number received on each channel.

A client with a data connection shows it by that: a server can send by a connection only when something came over it.
"""
RESUMED = OWN_KINDS + 5
"""The answer: the same from the other side, or that the job is over."""

T = TypeVar("T")


class Kept(Generic[T]):
    """Messages that were sent on one channel and may have to be sent again."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, T]] = deque()
        self.last = 0
        """Number of the latest message."""

    def add(self, message: T) -> int:
        """Return the number of this message, which is to be sent now."""
        self.last += 1
        self._messages.append((self.last, message))
        return self.last

    def acknowledge(self, number: int) -> None:
        """Forget the messages up to this one: the other side has received them."""
        while self._messages and self._messages[0][0] <= number:
            self._messages.popleft()

    def __iter__(self) -> Iterator[tuple[int, T]]:
        return iter(list(self._messages))


class Received:
    """The number of the latest message received on one channel."""

    def __init__(self) -> None:
        self.last = 0
        """Number of the latest message."""

    def is_new(self, number: int) -> bool:
        """Tell whether the message of this number is new, and count it as received."""
        if number <= self.last:
            return False
        self.last = number
        return True

    def is_next(self, number: int) -> bool:
        """Tell whether the message is new and follows the last one: a missing one's sender has died meanwhile."""
        return number == self.last + 1 and self.is_new(number)


def numbered(body: Mapping[str, Any] | None, *, number: int, received: int) -> dict[str, Any]:
    """Return a message's JSON with its number.

    >>> unnumbered(numbered({"clock": 7}, number=3, received=2))
    (3, 2, {'clock': 7})
    """
    return {"number": number, "received": received, "body": {} if body is None else dict(body)}


def unnumbered(body: Mapping[str, Any]) -> tuple[int, int, Mapping[str, Any]]:
    """Return the number, the latest number that its sender has received, and the JSON by itself.

    Raises:
        TransportError: It has no number.
    """
    match body:
        case {"number": int(number), "received": int(received), "body": dict(inner)}:
            return number, received, inner
    raise TransportError("a message without a number, in a job with replicas")
