"""Results that the text prints for each study, beside what its inputs give, with the cause of the difference.

The text is chapter 23 of a textbook, "Large-Scale Systems, Parallelism & Communication Models": the solutions of its
exercises C.1 to C.20, and the pages "in depth" behind them. The numbers are its own; the words are not. They are read
from ``textbook.toml``; `plesio_planning.studies.textbook_values` computes ours.
"""

import math
from dataclasses import dataclass
from typing import Literal

from plesio_planning.studies import textbook_values
from plesio_planning.studies.catalogue import Study
from plesio_planning.studies.study import Answer, Asked
from plesio_planning.texts import read_texts

_LONG = 1e9
"""Numbers from here on are written with an exponent."""

_MADE: dict[str, tuple["Printed", ...]] = {}
"""By study; they are the same whatever was asked, and some take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextbookRow:
    """One number.

    Attributes:
        what: Which quantity, and where.
        text: The number that the text prints; infinite where it says that something diverges.
        here: The number that its inputs give, in the same unit.
    """

    what: str
    unit: str = ""
    text: float | str
    here: float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Numbers of one place of the text that are off for one reason, or right.

    Attributes:
        place: Place: the exercise's solution, or the pages in depth behind them.
        cause: Why the two differ, or that they do not, in a sentence.
        by: Source of ours: the study at the text's inputs, or the text's own formula, where it prints something else.
    """

    place: Literal["solution", "in depth"]
    rows: tuple[TextbookRow, ...]
    cause: str
    by: Literal["study", "its own formula"] = "study"


def printed_results(study: Study, *, asked: Asked | None = None) -> tuple[Printed, ...]:
    """Return the text's printed results beside ours, which do not depend on what was asked.

    There are none for a study that answers no exercise. Where ``asked`` is to the study's defaults, they are not asked
    for again.

    >>> from plesio_planning.studies import find_study
    >>> row = printed_results(find_study("data-parallel"))[0].rows[0]
    >>> row.what, row.text, round(row.here, 1)
    ('iteration', 153.42, 185.9)
    """
    if study.exercise is None:
        return ()
    if study.name not in _MADE:
        known = None
        if asked is not None and asked.inputs == {each.name: each.default for each in study.inputs()}:
            known = asked.answer
        _MADE[study.name] = _printed(study, known=known)
    return _MADE[study.name]


def _printed(study: Study, *, known: Answer | None) -> tuple[Printed, ...]:
    values = getattr(textbook_values, study.name.replace("-", "_"))(textbook_values.Asking(study.function, known))
    places = read_texts("textbook")[study.name]
    assert len(values) == sum(len(each["rows"]) for each in places), "a value for each row"
    left = iter(values)
    rows = [
        tuple(TextbookRow(what=what, text=text, unit=unit, here=next(left)) for what, text, unit in each["rows"])
        for each in places
    ]
    return tuple(Printed(**{**each, "rows": own}) for each, own in zip(places, rows, strict=True))


def value_text(value: float | str, unit: str = "") -> str:
    """Write a number for people.

    >>> value_text(153.42, "ms"), value_text(12925.1, "iterations"), value_text(float("inf"))
    ('153.4 ms', '12,925 iterations', 'diverges')
    """
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "diverges"
    number = f"{value:,.0f}" if 1000 <= abs(value) < _LONG else f"{value:.4g}"
    return f"{number} {unit}".rstrip()
