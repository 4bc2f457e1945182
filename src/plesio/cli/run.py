"""`plesio run`: a training script in several local processes."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """\b
Examples:
  plesio run --workers 4 train.py --lr 0.1
  plesio run --join 127.0.0.1:41234 train.py --lr 0.1
\b
Options of plesio come before the script; what follows it is the script's own.
Every line the workers print has its worker's rank in front."""


def run(
    script: Annotated[Path, typer.Argument(help="The Python file to run.", show_default=False)],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    workers: Annotated[int, typer.Option("--workers", "-n", metavar="N", help="Processes to start.")] = 1,
    join: Annotated[
        str | None,
        typer.Option("--join", metavar="HOST:PORT", help="Add workers to a running job; it printed this address."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Port of the job's store; 0 is any free one.")] = 0,
) -> int:
    """Run a training script in N local processes.

    They get torchrun's variables, so plesio.join() and torch.distributed find each other. When a worker fails the
    others go on. Ctrl-C stops them all.
    """
    from plesio.runtime.launcher import launch

    return launch(script, args or [], num_workers=workers, join=join, port=port)
