"""Notes that all workers of a job can read, those that join it late among them, in whichever world they are."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Board"]


class Board(Protocol):
    """Texts by key. A note stays as it was posted."""

    def post(self, key: str, text: str) -> None:
        """Put up a note."""
        ...

    def read(self, key: str) -> str | None:
        """Return the note of this key, or None if it is not there."""
        ...

    def await_any(self, keys: Sequence[str], *, timeout_s: float | None = None) -> str | None:
        """Wait for a note of one of these keys and return the first such key; None if there is none in time.

        Raises:
            TransportError: The job has ended.
        """
        ...
