"""`plesio bound`: what theory says of given numbers, and which common statements hold.

A bound's options are read off its function (`plesio.core.inputs`), so a command is made for it when it is asked for.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from plesio.cli.function_options import command_of
from plesio.cli.given_once import CommandGroup, Commands
from plesio.cli.options import Json, Out, Overwrite
from plesio.cli.output_files import prepare_pages, write_json
from plesio.cli.terminal import show
from plesio_planning.cli.theory import add_kinds

if TYPE_CHECKING:
    from plesio_planning.theory import Theorem

EXAMPLES = """\b
Examples:
  plesio list bounds
  plesio bound constant-staleness --staleness 8 --momentum 0.9 --out runs/stability
  plesio bound checkpoint-interval --checkpoint "5 min" --hosts 1000 --host-mtbf "1825 d"
  plesio list statements A.7"""


class _Bounds(CommandGroup):
    """A command for each theorem."""

    def list_commands(self, ctx: Any) -> list[str]:
        from plesio_planning.theory import THEOREMS

        return [theorem.name for theorem in THEOREMS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from plesio_planning.theory import find_theorem

        return _command(find_theorem(cmd_name))


bounds = Commands(
    name="bound", help="Evaluate a theorem: what bounds error, time or memory.", epilog=EXAMPLES, cls=_Bounds
)


def add_to(app: typer.Typer) -> None:
    """Add ``plesio bound`` to Plesio's commands, and what it knows to ``plesio list``."""
    app.add_typer(bounds)
    add_kinds()


def _command(theorem: "Theorem") -> Any:
    inputs = theorem.inputs()

    def evaluate(given: dict[str, Any], out: Path | None, json_file: Path | None, overwrite: bool) -> None:
        from plesio_planning.report.bound import bound_values, render_bound, write_bound

        bound = theorem.evaluate(**given)
        prepare_pages(out, f"{theorem.name}.html", json_file=json_file, overwrite=overwrite)
        show(render_bound(theorem, bound))
        asked = {**{one.name: one.default for one in inputs}, **given}
        if out is not None:
            typer.echo(f"\n{write_bound(theorem, asked, bound, out)}")
        write_json(json_file, bound_values(theorem, asked, bound))

    more = {"out": (Out, None), "json_file": (Json, None), "overwrite": (Overwrite, False)}
    return command_of(f"plesio bound {theorem.name}", inputs, evaluate, summary=theorem.summary, more=more)
