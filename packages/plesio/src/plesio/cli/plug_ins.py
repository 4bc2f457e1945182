"""Commands that other packages add to ``plesio``, by the entry points of their distributions.

An entry point of the group ``plesio.commands`` names a function that takes the `typer.Typer` of ``plesio`` and adds a
command to it. One of the group ``plesio.validations`` names what ``plesio lab validate`` can do besides: a function of
the file for JSON and of the folder for the page, each None where not asked for, and of whether to overwrite them; it
returns the exit status.
"""

import sys
from importlib.metadata import EntryPoint, entry_points

import typer

from plesio.core.errors import PlesioError

_PLANNING = ("bound", "bounds", "chapter", "estimate", "estimator", "published", "statements", "studies", "study")


def plug_ins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, by name and in its order."""
    return {entry.name: entry for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)}


def add_commands(app: typer.Typer) -> None:
    """Add what other packages have; one that cannot be loaded is named, and the rest goes on without it."""
    for name, entry in plug_ins("plesio.commands").items():
        try:
            entry.load()(app)
        except (ImportError, PlesioError) as error:
            print(f"plesio: warning: the command `{name}` of {entry.value} cannot be loaded: {error}", file=sys.stderr)


def home_of(word: str) -> str:
    """Say how to get what plesio-planning has where that is not installed; empty for any other word."""
    if word in _PLANNING and "study" not in plug_ins("plesio.commands"):
        return f"plesio-planning has `{word}`: pip install plesio-planning"
    return ""
