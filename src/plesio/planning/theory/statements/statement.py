"""What a statement is: a claim with its place, a verdict, and a check that computes whether it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Statement", "Witness"]


@dataclass(frozen=True, slots=True)
class Witness:
    """What a check found.

    Attributes:
        holds: Whether the statement does.
        numbers: What shows it, by name.
    """

    holds: bool
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A claim.

    Attributes:
        place: Where the text makes it.
        claim: What it says, in our words.
        verdict: Whether it is true.
        reason: Why, in one line.
        check: Computes a witness.
    """

    place: str
    claim: str
    verdict: Literal["true", "false"]
    reason: str
    check: Callable[[], Witness]
