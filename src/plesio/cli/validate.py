"""`plesio validate`: how far the virtual world's predictions are from this machine's runs."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from plesio.core.errors import ConfigError, DataError

__all__ = ["EXAMPLES", "validate"]

POLICIES = ("bsp", "ssp:4", "asp", "local_sgd:8")
OUTPUT_NAMES = ("calibration", "process", "virtual", "report.html")

EXAMPLES = """\b
Examples:
  plesio validate
  plesio validate --json errors.json --seeds 0 --policies bsp,asp
  plesio validate --resume
\b
Takes about ten minutes with three seeds; let nothing else run meanwhile."""


def validate(
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for the runs and report.html; else runs/validation, anew."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write rows and summary as JSON.", show_default=False)
    ] = None,
    policies: Annotated[
        str | None, typer.Option("--policies", metavar="LIST", help="Instead of bsp,ssp:4,asp,local_sgd:8")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="LIST", help="A row is a median over them.")] = "0,1,2",
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what the folder has of an earlier validation, do the rest.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove an earlier validation from --out DIR.")
    ] = False,
) -> int:
    """Predict runs of this machine, do them, and show the errors.

    Two workloads, two step times, four workers of which one is three times slower, under each policy: in the virtual
    world, calibrated to this machine, and with real workers. Prints predicted, measured and error of throughput, wait
    share, bytes, staleness and final metric, with those of a trivial model beside them.
    """
    from plesio.bench.validate import matrix, validate
    from plesio.cli.compare import PLAIN_WIDTH, prepare_folder, split_policies, split_seeds

    # whatever is wrong is said before anything is removed
    settings = matrix(policies=POLICIES if policies is None else split_policies(policies), seeds=split_seeds(seeds))
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigError(f"--json {json_file}: there is no folder {json_file.parent}")
    if json_file is not None and json_file.is_dir():
        raise ConfigError(f"--json {json_file} is a folder; write a file's name")
    overwrite = overwrite or (out is None and not resume)
    out = out or Path("runs/validation")
    prepare_folder(out, resume=resume, overwrite=overwrite, names=OUTPUT_NAMES)

    from rich.console import Console

    from plesio.cli.progress_display import progress_display
    from plesio.core.predictions import predictions_to_json
    from plesio.report.page_frame import write_page
    from plesio.report.validation import render_validation, render_validation_page

    with progress_display() as progress:
        predictions = validate(
            settings,
            out=out,
            progress=progress,
            on_measured=lambda what: print(f"measured: {what}", file=sys.stderr),
        )
    page = out / "report.html"
    write_page(page, render_validation_page(predictions))
    if json_file is not None:
        _write_json(json_file, predictions_to_json(predictions))
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(render_validation(predictions))
    typer.echo(f"\n{page}")
    return 0


def _write_json(path: Path, data: object) -> None:
    try:
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write --json {path}: {error.strerror}") from None
