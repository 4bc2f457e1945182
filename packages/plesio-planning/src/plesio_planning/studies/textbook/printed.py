"""A result that the text prints, beside what its inputs give."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from plesio_planning.studies.study import Answer

__all__ = ["Asking", "Printed", "Row", "rows_of", "value_text"]

Source = Literal["study", "its own formula"]
A = TypeVar("A", bound=Answer)
_LONG = 1e9
"""Numbers from here on are written with an exponent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number.

    Attributes:
        what: Which quantity, and where.
        unit: Its unit; empty for none.
        text: What the text prints; infinite where it says that something diverges.
        here: What its inputs give, in the same unit.
    """

    what: str
    unit: str = ""
    text: float | str
    here: float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Numbers of one place of the text that are off for one reason, or right.

    Attributes:
        place: Where: the exercise's solution, or the pages in depth behind them.
        rows: The numbers.
        cause: Why the two differ, or that they do not, in a sentence.
        by: What gives ours: the study at the text's inputs, or the text's own formula, where it prints something else.
    """

    place: Literal["solution", "in depth"]
    rows: tuple[Row, ...]
    cause: str
    by: Source = "study"


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks a study at the text's inputs.

    Attributes:
        function: The study's.
        known: The answer with its defaults, where it is there already.
    """

    function: Callable[..., Answer]
    known: Answer | None = None

    def defaults(self, kind: type[A], **cheaper: Any) -> A:
        """The answer with the study's defaults; if not known, with ``cheaper`` inputs that give the same numbers."""
        return self._of(kind, self.function(**cheaper) if self.known is None else self.known)

    def at(self, kind: type[A], **inputs: Any) -> A:
        """The answer with these inputs."""
        return self._of(kind, self.function(**inputs))

    @staticmethod
    def _of(kind: type[A], answer: Answer) -> A:
        assert isinstance(answer, kind), "a study has one kind of answer"
        return answer


def value_text(value: float | str, unit: str = "") -> str:
    """A number for people.

    >>> value_text(153.42, "ms"), value_text(12925.1, "iterations"), value_text(float("inf"))
    ('153.4 ms', '12,925 iterations', 'diverges')
    """
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "diverges"
    number = f"{value:,.0f}" if 1000 <= abs(value) < _LONG else f"{value:.4g}"
    return f"{number} {unit}".rstrip()


def rows_of(texts: Mapping[str, float | str], here: Sequence[float | str], *, unit: str = "") -> tuple[Row, ...]:
    """A row for each of ``texts``, with ours in the same order.

    Args:
        texts: What the text prints, by what it is.
        here: Ours.
        unit: Of all of them.
    """
    return tuple(
        Row(what=what, unit=unit, text=text, here=ours) for (what, text), ours in zip(texts.items(), here, strict=True)
    )
