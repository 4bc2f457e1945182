"""Options that several commands have, each written once."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["BatchSize", "Calibration", "Out", "Resume", "Seeds"]

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for the page, pictures and JSON.", show_default=False),
]
Calibration = Annotated[
    Path | None, typer.Option("--calibration", metavar="FILE", help="What plesio calibrate measured of a machine.")
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", metavar="N", help="Samples in a worker's step; else the task's.")
]
Seeds = Annotated[str | None, typer.Option("--seeds", metavar="LIST", help="Seeds instead of the recipe's: 0,1,2")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep the finished runs in DIR, do the others.")]
