"""Statements that textbooks on distributed training make, each with a check that computes whether it holds.

They are from the definitions, theorems and exercises of the text that the studies are after ("Large-Scale Systems,
Parallelism & Communication Models", chapter 23 of a textbook), in our words, and each names its place there. A check
returns the numbers that decide: a counterexample, or the claim at many places. None of them knows the verdict; the
tests hold what they compute to `Statement.verdict`.

Where a statement is about all functions or all settings, a check can only refute it: a "true" here is a claim that was
also proved (`Statement.reason`), and whose numbers agree.
"""

from plesio.planning.theory.statements.changes import CHANGE_STATEMENTS
from plesio.planning.theory.statements.definitions import DEFINITION_STATEMENTS
from plesio.planning.theory.statements.statement import Statement, Witness
from plesio.planning.theory.statements.theorems import THEOREM_STATEMENTS

__all__ = ["STATEMENTS", "Statement", "Witness"]

STATEMENTS: tuple[Statement, ...] = (*THEOREM_STATEMENTS, *DEFINITION_STATEMENTS, *CHANGE_STATEMENTS)
"""Statements in the order of the text, then those on a bound that changes."""
