"""Statements that textbooks on distributed training make, each with a check that computes whether it holds.

They are from the definitions, theorems and exercises of the text that the studies are after ("Large-Scale Systems,
Parallelism & Communication Models", chapter 23 of a textbook), in our words, and each names its place there. A check
returns the numbers that decide: a counterexample, or the claim at many places. None of them knows the verdict; the
tests hold what they compute to `Statement.verdict`.

Where a statement is about all functions or all settings, a check can only refute it: a "true" here is a claim that was
also proved (`Statement.reason`), and whose numbers agree.
"""

from plesio.core.errors import ConfigError, nearest
from plesio_planning.theory.statements.asynchrony import ASYNCHRONY_STATEMENTS
from plesio_planning.theory.statements.batches import BATCH_STATEMENTS
from plesio_planning.theory.statements.changes import CHANGE_STATEMENTS
from plesio_planning.theory.statements.definitions import DEFINITION_STATEMENTS
from plesio_planning.theory.statements.statement import Statement, Verdict, Witness
from plesio_planning.theory.statements.systems import SYSTEM_STATEMENTS
from plesio_planning.theory.statements.theorems import THEOREM_STATEMENTS

__all__ = ["EXERCISES", "STATEMENTS", "Statement", "Verdict", "Witness", "statements_of"]

EXERCISES: tuple[Statement, ...] = tuple(
    sorted(
        (*ASYNCHRONY_STATEMENTS, *BATCH_STATEMENTS, *SYSTEM_STATEMENTS),
        key=lambda statement: int(statement.place.removeprefix("A.")),
    )
)
"""The text's own twenty, A.1 to A.20."""

STATEMENTS: tuple[Statement, ...] = (*EXERCISES, *THEOREM_STATEMENTS, *DEFINITION_STATEMENTS, *CHANGE_STATEMENTS)
"""The twenty, then others in the order of the text, then those on a bound that changes."""


def statements_of(*places: str) -> list[tuple[int, Statement]]:
    """The statements that are made at ``places``, all without; each with its number among all.

    >>> [(number, statement.verdict) for number, statement in statements_of("A.7")]
    [(7, 'false')]

    Raises:
        ConfigError: None is made there.
    """
    numbered = list(enumerate(STATEMENTS, start=1))
    known = {statement.place.casefold(): statement.place for statement in STATEMENTS}
    for place in places:
        if place.casefold() not in known:
            raise ConfigError(f'no statement is made at "{place}"; {nearest(place, known.values())}')
    wanted = {place.casefold() for place in places} or set(known)
    return [each for each in numbered if each[1].place.casefold() in wanted]
