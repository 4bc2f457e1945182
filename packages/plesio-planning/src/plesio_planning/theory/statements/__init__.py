"""Statements that textbooks on distributed training make, each with a check that computes whether it holds.

They are from the definitions, theorems and exercises of the text that the studies are after ("Large-Scale Systems,
Parallelism & Communication Models", chapter 23 of a textbook), in our words, and each names its place there. Their
words and verdicts are in ``statements.toml``; the modules beside this one compute. A check returns the numbers that
decide: a counterexample, or the claim at many places. None of them has the verdict; the tests hold what they compute
to it.

A claim about all functions or all settings can only be refuted by a check: such a claim is "true" here if it was also
proved (`Statement.reason`) and its numbers agree.
"""

from collections.abc import Callable
from importlib import import_module

from plesio.core.errors import ConfigError, nearest
from plesio_planning.texts import read_texts
from plesio_planning.theory.statements.statement import Statement, Verdict, Witness

__all__ = ["EXERCISES", "STATEMENTS", "Statement", "Verdict", "Witness", "statements_of"]


def _check(name: str) -> Callable[[], Witness]:
    module, _, function = name.partition(".")
    check: Callable[[], Witness] = getattr(import_module(f"{__name__}.{module}"), f"_{function}")
    return check


STATEMENTS: tuple[Statement, ...] = tuple(
    Statement(**{**told, "check": _check(told["check"])}) for told in read_texts("statements")["statements"]
)
"""The text's own twenty, then others in the order of the text, then statements on a bound that changes."""

EXERCISES: tuple[Statement, ...] = tuple(each for each in STATEMENTS if each.place.startswith("A."))
"""The text's own twenty, A.1 to A.20."""


def statements_of(*places: str) -> list[tuple[int, Statement]]:
    """Return the statements that are made at ``places``, all without; each with its number among all.

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
