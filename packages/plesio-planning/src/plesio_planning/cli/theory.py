"""`plesio list bounds`, `statements` and `chapter`: what there is of theory, and where the text's claims stand."""

from typing import Annotated

import typer

from plesio.cli.listing import add_kind, tell
from plesio.cli.options import Json, Overwrite

BOUNDS = """\b
Examples:
  plesio list bounds
  plesio bound local-sgd --workers 8"""
STATEMENTS = """\b
Examples:
  plesio list statements
  plesio list statements A.7 A.15"""
CHAPTER = """\b
Examples:
  plesio list chapter
  plesio list chapter proofs"""


def add_kinds() -> None:
    add_kind("bounds", list_bounds, count=_num_bounds, examples=BOUNDS)
    add_kind("statements", list_statements, count=_num_statements, examples=STATEMENTS)
    add_kind("chapter", list_chapter, count=_num_entries, examples=CHAPTER)


def list_bounds(json_file: Json = None, overwrite: Overwrite = False) -> None:
    """List the bounds that `plesio bound` evaluates."""
    from plesio_planning.theory import THEOREMS

    lines = {theorem.name: theorem.summary for theorem in THEOREMS}
    tell({"bounds": lines}, json_file=json_file, overwrite=overwrite)


def _num_bounds() -> int:
    from plesio_planning.theory import THEOREMS

    return len(THEOREMS)


def list_statements(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PLACE]...", help='Only those made there, such as "A.7" or "theorem 9".'),
    ] = None,
    json_file: Json = None,
    overwrite: Overwrite = False,
) -> None:
    """List common statements: whether each holds, and why."""
    from plesio_planning.theory.statements import statements_of

    lines, values = {}, []
    for number, statement in statements_of(*(places or ())):
        witness = statement.check()
        numbers = "; ".join(f"{name}: {value:.4g}" for name, value in witness.numbers.items())
        answer = "" if statement.answer is None else f"; the text: {statement.answer}"
        told = [
            f"{witness.verdict}: {statement.claim} ({statement.place}{answer})",
            statement.reason,
            numbers,
            statement.command,
        ]
        lines[f"{number:>2}"] = "\n".join(filter(None, told))
        values.append(
            {
                "number": number,
                "place": statement.place,
                "claim": statement.claim,
                "verdict": witness.verdict,
                "reason": statement.reason,
                "numbers": dict(witness.numbers),
                "command": statement.command,
            }
        )
    tell({"statements": lines}, values=values, json_file=json_file, overwrite=overwrite)


def _num_statements() -> int:
    from plesio_planning.theory.statements import STATEMENTS

    return len(STATEMENTS)


def list_chapter(
    part: Annotated[
        str | None, typer.Argument(metavar="[PART]", help="Only this one: proofs, theorems or rules.")
    ] = None,
    json_file: Json = None,
    overwrite: Overwrite = False,
) -> None:
    """List the text's proofs, theorems and rules: what shows each."""
    from plesio_planning.theory.chapter import parts_of_chapter

    parts = parts_of_chapter(part)
    lines = {
        title: {
            one.place: "\n".join(filter(None, (f"{one.stand}: {one.claim}", one.reason, one.command)))
            for one in entries
        }
        for title, entries in parts
    }
    tell(lines, values=dict(parts), json_file=json_file, overwrite=overwrite)


def _num_entries() -> int:
    from plesio_planning.theory.chapter import CHAPTER

    return sum(len(entries) for _, entries in CHAPTER.values())
