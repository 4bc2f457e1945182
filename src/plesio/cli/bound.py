"""`plesio bound`: what theory says of given numbers, and which common statements hold.

A bound's options are read off its function (`plesio.core.inputs`), so a command is made for it when it is asked for.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from plesio.cli.function_options import command_of, make_folder
from plesio.cli.options import Out

if TYPE_CHECKING:
    from plesio.planning.theory import Theorem

__all__ = ["EXAMPLES", "app"]

EXAMPLES = """\b
Examples:
  plesio bound list
  plesio bound constant-staleness --staleness 8 --momentum 0.9 --out runs/stability
  plesio bound checkpoint-interval --checkpoint "5 min" --nodes 1000 --node-mtbf "1825 d"
  plesio bound statements"""


class _Bounds(typer.core.TyperGroup):
    """The commands of this file, and one for each theorem."""

    def list_commands(self, ctx: Any) -> list[str]:
        from plesio.planning.theory import THEOREMS

        return [*super().list_commands(ctx), *(theorem.name for theorem in THEOREMS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from plesio.planning.theory import find_theorem

        return super().get_command(ctx, cmd_name) or _command(find_theorem(cmd_name))


app = typer.Typer(
    name="bound",
    help="Evaluate a theorem: what bounds error, time or memory.",
    epilog=EXAMPLES,
    cls=_Bounds,
    rich_markup_mode=None,
)


@app.command("list")
def list_bounds() -> None:
    """List the bounds, a line each."""
    from plesio.planning.theory import THEOREMS

    for theorem in THEOREMS:
        typer.echo(f"{theorem.name:<31} {theorem.summary}")


@app.command("statements")
def list_statements() -> None:
    """List common statements: whether each holds, and the numbers that show it."""
    from plesio.planning.theory.statements import STATEMENTS

    for number, statement in enumerate(STATEMENTS, start=1):
        witness = statement.check()
        numbers = "; ".join(f"{name}: {value:.4g}" for name, value in witness.numbers.items())
        typer.echo(f"{number:>2}  {'true ' if witness.holds else 'false'}  {statement.claim} ({statement.place})")
        typer.echo(f"           {statement.reason}\n           {numbers}")


def _command(theorem: "Theorem") -> Any:
    """The command of a theorem: its inputs as options, and where the page goes."""
    inputs = theorem.inputs()

    def evaluate(given: dict[str, Any], out: Path | None) -> None:
        from rich.console import Console

        from plesio.cli.compare import PLAIN_WIDTH
        from plesio.report.bound import render_bound, write_bound

        bound = theorem.evaluate(**given)
        if out is not None:
            make_folder(out)
        Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(render_bound(theorem, bound))
        if out is not None:
            known = {one.name: one.default for one in inputs}
            typer.echo(f"\n{write_bound(theorem, {**known, **given}, bound, out)}")

    return command_of(
        f"plesio bound {theorem.name}", inputs, evaluate, summary=theorem.summary, more={"out": (Out, None)}
    )
