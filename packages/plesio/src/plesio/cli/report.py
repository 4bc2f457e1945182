"""`plesio report`: the page of a comparison, built again."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLES", "report"]

EXAMPLES = """\b
Examples:
  plesio report runs/demo"""


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a comparison.", show_default=False)],
) -> None:
    """Build a comparison's report page again.

    It is made from results.json and the traces in DIR; its path is printed.
    """
    from plesio.report.build import build_report

    typer.echo(build_report(directory))
