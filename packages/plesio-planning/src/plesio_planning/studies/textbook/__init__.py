"""What the text prints for each study, beside what its inputs give, with the cause of the difference.

A module for each study, with a function ``printed`` that asks it at the text's inputs. The text is chapter 23 of a
textbook, "Large-Scale Systems, Parallelism & Communication Models": the solutions of its exercises C.1 to C.20, and the
pages "in depth" behind them. The numbers are its own; the words are not.
"""

from importlib import import_module

from plesio_planning.studies.catalogue import Study
from plesio_planning.studies.study import Asked
from plesio_planning.studies.textbook.printed import Asking, Printed, Row, value_text

__all__ = ["Printed", "Row", "printed_results", "value_text"]

_MADE: dict[str, tuple[Printed, ...]] = {}
"""By study; they are the same whatever was asked, and some take seconds."""


def printed_results(study: Study, *, asked: Asked | None = None) -> tuple[Printed, ...]:
    """The text's printed results beside ours, which do not depend on what was asked.

    >>> from plesio_planning.studies import find_study
    >>> row = printed_results(find_study("data-parallel"))[0].rows[0]
    >>> row.what, row.text, round(row.here, 1)
    ('iteration', 153.42, 185.9)

    Args:
        study: Which; there are none for a study that answers no exercise.
        asked: An answer of it; where it is to the study's defaults, they are not asked for again.
    """
    if study.exercise is None:
        return ()
    if study.name not in _MADE:
        known = None
        if asked is not None and asked.inputs == {each.name: each.default for each in study.inputs()}:
            known = asked.answer
        module = import_module(f"plesio_planning.studies.textbook.{study.name.replace('-', '_')}")
        _MADE[study.name] = module.printed(Asking(study.function, known))
    return _MADE[study.name]
