"""Options that are the command line's own and that several commands have, each written once."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Calibration", "Out", "Overwrite", "RecipeFile", "Resume", "RunFolder"]

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for the page, pictures and JSON.", show_default=False),
]
RunFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for the runs and report.html.", show_default=False)
]
RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The TOML file.", show_default=False)]
Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="What plesio calibrate measured, for the virtual world."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Keep the finished runs in DIR, do the others.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Remove what an earlier command left in --out DIR.")]
