"""`plesio validate estimator`: estimates beside what others published."""

from pathlib import Path

import typer

from plesio.cli.output_files import check_output_file
from plesio.cli.terminal import show
from plesio.cli.validate import PAGE, write_json
from plesio.core.files import make_writable, write_whole

__all__ = ["validate_estimator"]


def validate_estimator(json_file: Path | None, *, out: Path | None) -> int:
    """Print how far estimates are off; write them as JSON and as a page if asked.

    Returns:
        The exit status.
    """
    from plesio_planning.estimate import validate_estimator as validation_of
    from plesio_planning.report.estimator_validation import render_estimator, render_estimator_page

    check_output_file("--json", json_file)
    if out is not None:
        make_writable(out, "results")
    validation = validation_of()
    show(render_estimator(validation))
    write_json(validation.predictions, json_file)
    if out is not None:
        write_whole(out / PAGE, render_estimator_page(validation))
        typer.echo(f"\n{out / PAGE}")
    return 0
