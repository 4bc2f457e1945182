"""The form of a statement: a claim with its place, a verdict, and a check that computes whether it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["true", "true under a condition", "false"]


@dataclass(frozen=True, slots=True)
class Witness:
    """The finding of a check.

    Attributes:
        holds: Whether the statement is true; under its condition, where it has one.
        numbers: Numbers that show it, by name.
        holds_otherwise: Whether it is true where the condition fails; None without a condition.
    """

    holds: bool
    numbers: Mapping[str, float]
    holds_otherwise: bool | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict by the numbers.

        >>> Witness(True, {"with": 1.0}, holds_otherwise=False).verdict
        'true under a condition'
        """
        if not self.holds:
            return "false"
        return "true under a condition" if self.holds_otherwise is False else "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A claim of a textbook, with a check that computes whether it is true.

    Attributes:
        place: Exercise or section of the text that makes the claim, such as ``A.1``.
        claim: One sentence, in our words.
        reason: Reason for the verdict, in one line; under a condition, the condition.
        answer: Answer of the text's solution, where it has one.
        command: Command that shows more of it; empty where there is none.
    """

    place: str
    claim: str
    verdict: Verdict
    reason: str
    check: Callable[[], Witness]
    answer: Literal["true", "false"] | None = None
    command: str = ""
