"""`plesio list`: what there is to choose from, by kind. Other packages add kinds of theirs (`add_kind`)."""

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import typer

from plesio.cli.given_once import Commands
from plesio.cli.options import Json, Overwrite
from plesio.cli.output_files import check_output_files, write_json
from plesio.cli.terminal import columns

Lists = Mapping[str, Mapping[str, str]]
"""Explanations by name, in lists by their titles."""

EXAMPLES = """\b
Examples:
  plesio list
  plesio list policies
  plesio list clusters --json clusters.json"""

app = Commands(name="list", epilog=EXAMPLES)
_counts: dict[str, Callable[[], int]] = {}


def add_kind(name: str, command: Callable[..., None], *, count: Callable[[], int], examples: str) -> None:
    """Make a function the command ``plesio list NAME``; ``count`` tells how many there are."""
    _counts[name] = count
    app.command(name, epilog=examples)(command)


def tell(lists: Lists, *, values: object = None, json_file: Path | None, overwrite: bool) -> None:
    """Print lists, with their titles where there are several; ``--json`` gets ``values``, or else the lists."""
    check_output_files({"--json": json_file}, overwrite=overwrite)
    titled = len(lists) > 1
    for place, (title, lines) in enumerate(lists.items()):
        if titled:
            typer.echo(f"{chr(10) if place else ''}{title}:")
        _print(lines, indent="  " if titled else "")
    write_json(json_file, lists if values is None else values)


def _print(lines: Mapping[str, str], *, indent: str) -> None:
    width, most = max(map(len, lines)), columns()
    hanging = f"{indent}{'':<{width}}  "
    for name, text in lines.items():
        rows = [
            row
            for line in text.splitlines()
            for row in (textwrap.wrap(line, max(most - len(hanging), 20)) if most else [line])
        ]
        typer.echo(f"{indent}{name:<{width}}  " + f"\n{hanging}".join(rows))


@app.callback(invoke_without_command=True)
def list_kinds(context: typer.Context, json_file: Json = None, overwrite: Overwrite = False) -> None:
    """List policies, tasks, clusters and what else there is.

    Without a kind it lists the kinds, with the number of each.
    """
    if context.invoked_subcommand is not None:
        return
    summaries = {
        one.name: (one.callback.__doc__ or "").partition("\n")[0] for one in app.registered_commands if one.callback
    }
    counts = {name: count() for name, count in _counts.items()}
    lines = {f"{name} ({number})": summaries[name] for name, number in counts.items()}
    tell({"kinds": lines}, values=counts, json_file=json_file, overwrite=overwrite)
