"""Options that are the command line's own and that several commands have, each written once."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for the page, pictures and JSON.", show_default=False),
]
RunFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for the runs and report.html.", show_default=False)
]
NamedFolder = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for the runs and report.html; else runs/ and the file's name."),
]
RecipeOrScript = Annotated[
    Path, typer.Argument(metavar="RECIPE|SCRIPT", help="The TOML file, or a .py file.", show_default=False)
]
RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The TOML file.", show_default=False)]
Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="What plesio lab calibrate measured, for the virtual world."),
]
Arguments = Annotated[list[str] | None, typer.Argument(help="A script's arguments.")]
JoinPolicy = Annotated[
    str | None, typer.Option("--policy", metavar="POLICY", help="Where plesio.join() names none. [default: adaptive]")
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="TIME|STEPS", help="Between two checkpoints. [default: 10 min]")
]
Slow = Annotated[
    list[str] | None, typer.Option("--slow", metavar="RANK:SPEED", help="A worker of another speed; may be repeated.")
]
TaskOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An argument of a task; may be repeated.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Keep the finished runs in DIR, do the others.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier command wrote there.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Where all numbers go.", show_default=False)]
