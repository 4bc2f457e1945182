"""`plesio lab validate estimator`: estimates beside what others published."""

from pathlib import Path

import typer

from plesio.cli.output_files import check_output_file, prepare_pages, write_json
from plesio.cli.terminal import show
from plesio.cli.validate import PAGE
from plesio.core.files import write_whole
from plesio.core.predictions import predictions_to_json

__all__ = ["validate_estimator"]


def validate_estimator(json_file: Path | None, *, out: Path | None, overwrite: bool) -> int:
    """Print how far estimates are off; write them as JSON and as a page if asked.

    Returns:
        The exit status.
    """
    from plesio_planning.estimate import validate_estimator as validation_of
    from plesio_planning.report.estimator_validation import render_estimator, render_estimator_page

    check_output_file("--json", json_file, overwrite=overwrite)
    prepare_pages(out, PAGE, overwrite=overwrite)
    validation = validation_of()
    show(render_estimator(validation))
    if out is not None:
        write_whole(out / PAGE, render_estimator_page(validation))
        typer.echo(f"\n{out / PAGE}")
    write_json(json_file, predictions_to_json(validation.predictions))
    return 0
