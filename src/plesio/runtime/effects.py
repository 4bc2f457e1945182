"""What the coordinator answers: orders for every server's shard, and messages for workers."""

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Effect", "Order", "Snapshot", "Tell"]


@dataclass(frozen=True, slots=True)
class Order:
    """What every server must do to its shard, in this order everywhere.

    Attributes:
        kind: ``admit``, ``credit``, ``apply``, ``drop``, ``snapshot``, ``halt`` or ``stay``.
        body: JSON values.
    """

    kind: Literal["admit", "credit", "apply", "drop", "snapshot", "halt", "stay"]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tell:
    """A control message for one worker."""

    worker: int
    kind: str
    body: dict[str, Any]


Effect = Order | Tell


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The shared parameters at a fixed number of samples."""

    number: int
    samples: int
    at_s: float
