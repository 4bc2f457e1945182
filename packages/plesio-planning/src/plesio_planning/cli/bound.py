"""`plesio bound`: what theory says of given numbers, and which common statements hold.

A bound's options are read off its function (`plesio.core.inputs`), so a command is made for it when it is asked for.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.cli.function_options import command_of
from plesio.cli.options import Out
from plesio.cli.terminal import show
from plesio.core.files import make_writable

if TYPE_CHECKING:
    from plesio_planning.theory import Theorem

__all__ = ["add_to"]

EXAMPLES = """\b
Examples:
  plesio bound list
  plesio bound constant-staleness --staleness 8 --momentum 0.9 --out runs/stability
  plesio bound checkpoint-interval --checkpoint "5 min" --hosts 1000 --host-mtbf "1825 d"
  plesio bound statements A.7
  plesio bound chapter proofs"""


class _Bounds(typer.core.TyperGroup):
    """The commands of this file, and one for each theorem."""

    def list_commands(self, ctx: Any) -> list[str]:
        from plesio_planning.theory import THEOREMS

        return [*super().list_commands(ctx), *(theorem.name for theorem in THEOREMS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from plesio_planning.theory import find_theorem

        return super().get_command(ctx, cmd_name) or _command(find_theorem(cmd_name))


bounds = typer.Typer(
    name="bound",
    help="Evaluate a theorem: what bounds error, time or memory.",
    epilog=EXAMPLES,
    cls=_Bounds,
    rich_markup_mode=None,
)


def add_to(app: typer.Typer) -> None:
    """Add ``plesio bound`` to Plesio's commands."""
    app.add_typer(bounds)


@bounds.command("list")
def list_bounds() -> None:
    """List the bounds, a line each."""
    from plesio_planning.theory import THEOREMS

    for theorem in THEOREMS:
        typer.echo(f"{theorem.name:<31} {theorem.summary}")


@bounds.command("statements", epilog="\b\nExamples:\n  plesio bound statements\n  plesio bound statements A.7 A.15")
def list_statements(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PLACE]...", help='Only those made there, such as "A.7" or "theorem 9".'),
    ] = None,
) -> None:
    """List common statements: whether each holds, and the numbers that show it."""
    from plesio_planning.theory.statements import statements_of

    for number, statement in statements_of(*(places or ())):
        witness = statement.check()
        numbers = "; ".join(f"{name}: {value:.4g}" for name, value in witness.numbers.items())
        answer = "" if statement.answer is None else f"; the text: {statement.answer}"
        typer.echo(f"{number:>2}  {witness.verdict:<5}  {statement.claim} ({statement.place}{answer})")
        typer.echo(f"           {statement.reason}\n           {numbers}")
        if statement.command:
            typer.echo(f"           {statement.command}")


@bounds.command("chapter", epilog="\b\nExamples:\n  plesio bound chapter\n  plesio bound chapter proofs")
def list_chapter(
    part: Annotated[
        str | None, typer.Argument(metavar="[PART]", help="Only this one: proofs, theorems or rules.")
    ] = None,
) -> None:
    """List the text's proofs, theorems and operational rules: where each stands here, and what shows it."""
    from plesio_planning.theory.chapter import parts_of_chapter

    for place, (title, entries) in enumerate(parts_of_chapter(part)):
        typer.echo(f"{chr(10) if place else ''}{title}")
        for entry in entries:
            typer.echo(f"{entry.place:>12}  {entry.stand}: {entry.claim}")
            typer.echo(f"{'':>12}  {entry.reason}")
            if entry.command:
                typer.echo(f"{'':>12}  {entry.command}")


def _command(theorem: "Theorem") -> Any:
    inputs = theorem.inputs()

    def evaluate(given: dict[str, Any], out: Path | None) -> None:
        from plesio_planning.report.bound import render_bound, write_bound

        bound = theorem.evaluate(**given)
        if out is not None:
            make_writable(out, "results")
        show(render_bound(theorem, bound))
        if out is not None:
            known = {one.name: one.default for one in inputs}
            typer.echo(f"\n{write_bound(theorem, {**known, **given}, bound, out)}")

    return command_of(
        f"plesio bound {theorem.name}", inputs, evaluate, summary=theorem.summary, more={"out": (Out, None)}
    )
