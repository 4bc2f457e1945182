"""`plesio estimate`: what a training run takes on hardware that you need not have.

Its options are read off the function that it calls (`plesio.core.inputs`).
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from plesio.cli.function_options import DerivedCommand, command_of
from plesio.cli.options import Json, Out, Overwrite
from plesio.cli.output_files import prepare_pages, write_json
from plesio.cli.terminal import show

if TYPE_CHECKING:
    from plesio_planning.estimate.estimate import Estimate

EXAMPLES = """\b
Examples:
  plesio estimate --model llama-70b --cluster 2048xh100 --tp 8 --pp 4 --tokens 2T
  plesio estimate --model llama-70b --cluster 2048xh100 --tokens 2T --search --out runs/llama
  plesio estimate --model llama-3-8b --cluster 64xh100 --tokens 300B --search --devices 32,64,128
  plesio estimate --model llama-3-8b --cluster 64xh100 --tokens 300B --search --accelerators a100,h100
  plesio estimate --model ./config.json --cluster 16x4a100 --tp 4 --tokens 20B --network-bandwidth "400 Gbit/s"
  plesio estimate --layers 48 --hidden 6144 --heads 48 --vocabulary 64000 --sequence-length 4096 --gated \\
    --cluster 256xh100 --tp 4 --tokens 1T
  plesio estimate --model llama-3-405b --cluster 16384xh100 --tp 8 --pp 16 --zero 2 --tokens 15T --failures
  plesio estimate --model llama-70b --tokens 2T --by 2027-03-01 --budget 3M
  plesio estimate --model llama-70b --cluster 1024xh100 --tokens 2T --by 2027-03-01
  plesio estimate --model llama-70b --cluster 256xh100 --tokens 300B --tp 8 --pp 4 --export megatron
  plesio estimate --model llama-3-8b --cluster 64xh100 --tp 2 --tokens 1T --calibrate steps.csv
  plesio estimate --import train.sh --cluster 256xh100 --tokens 300B
  plesio estimate --model llama-70b --cluster 2048xh100 --tp 8 --tokens 2T --sites 4 --site-bandwidth "10 Gbit/s"
  plesio estimate --model resnet50 --cluster 64xv100 --precision fp16 --tokens 115M
\b
A model is a name or a Hugging Face config.json, a cluster a number of devices and an accelerator.
docs/planning/index.md explains what comes out, what it assumes, and where it stops being true."""


def add_to(app: typer.Typer) -> None:
    """Add ``plesio estimate`` to Plesio's commands."""
    app.command("estimate", cls=DerivedCommand)(estimate)


def estimate() -> Any:
    """Estimate time, memory, cost and energy of a training run."""
    from plesio.core.inputs import inputs_of
    from plesio_planning.estimate.estimate import estimate as answer

    def evaluate(given: dict[str, Any], out: Path | None, json_file: Path | None, overwrite: bool) -> None:
        prepare_pages(out, "estimate.html", json_file=json_file, overwrite=overwrite)
        with _progress() as on_progress:
            found = answer(on_progress, **given)
        _show(found, out=out, json_file=json_file)

    summary = inspect.cleandoc(answer.__doc__ or "").partition("\n\n>>>")[0]
    inputs = inputs_of(answer)
    more = {"out": (Out, None), "json_file": (Json, None), "overwrite": (Overwrite, False)}
    return command_of("plesio estimate", inputs, evaluate, summary=summary, more=more, examples=EXAMPLES)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar in a terminal, for as long as a search goes on; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("searching")
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


def _show(estimate: "Estimate", *, out: Path | None, json_file: Path | None) -> None:
    from plesio_planning.report.estimate import estimate_values, render_estimate, write_estimate

    if estimate.unread:
        typer.echo(f"Nothing is read from these of the imported file: {', '.join(estimate.unread)}", err=True)
    if estimate.exported:
        # standard output is the file
        typer.echo(estimate.findings[0], err=True)
        typer.echo(estimate.exported, nl=False)
    else:
        show(render_estimate(estimate))
    if out is not None:
        typer.echo(f"\n{write_estimate(estimate, out)}", err=bool(estimate.exported))
    write_json(json_file, estimate_values(estimate))
