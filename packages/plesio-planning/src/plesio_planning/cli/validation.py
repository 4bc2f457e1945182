"""`plesio lab validate estimator` and `plesio lab validate published`: predictions beside what others published."""

from pathlib import Path

import typer

from plesio.cli.output_files import prepare_pages, write_json
from plesio.cli.terminal import show
from plesio.cli.validate import PAGE
from plesio.core.files import write_whole
from plesio.core.predictions import predictions_to_json

LINKS_FACT = (
    "Steps of DDP, local SGD and DiLoCo on four L40S over links of 50 Mbit/s to 5 Gbit/s, measured by others, beside "
    "the prices of the virtual world's collectives. Three numbers are fitted to the rows of diloco; the others are "
    "held out, the worst first. The baseline is a ring of one message at the links' bandwidth."
)


def validate_estimator(json_file: Path | None, *, out: Path | None, overwrite: bool) -> int:
    """Print how far estimates are off; write them as JSON and as a page if asked.

    Returns:
        The exit status.
    """
    from plesio_planning.estimate import validate_estimator as validation_of
    from plesio_planning.report.estimator_validation import render_estimator, render_estimator_page

    prepare_pages(out, PAGE, json_file=json_file, overwrite=overwrite)
    validation = validation_of()
    show(render_estimator(validation))
    if out is not None:
        write_whole(out / PAGE, render_estimator_page(validation))
        typer.echo(f"\n{out / PAGE}")
    write_json(json_file, predictions_to_json(validation.predictions))
    return 0


def validate_published(json_file: Path | None, *, out: Path | None, overwrite: bool) -> int:
    """Print how far the prices of collectives are from steps that others measured; write JSON and a page if asked.

    Returns:
        The exit status.
    """
    from plesio.report.validation import render_validation, render_validation_page
    from plesio_planning.measured.published_links import fit_constants, link_predictions

    prepare_pages(out, PAGE, json_file=json_file, overwrite=overwrite)
    predictions = link_predictions(constants := fit_constants())
    show(render_validation(predictions))
    typer.echo(
        f"\nFitted to the rows of diloco: {constants.tcp_flows} flows, {1e3 * constants.exchange_s:.0f} ms for an "
        f"exchange besides its links, {1e3 * constants.connect_s:.0f} ms more for the first."
    )
    if out is not None:
        write_whole(out / PAGE, render_validation_page(predictions, fact=LINKS_FACT))
        typer.echo(f"\n{out / PAGE}")
    write_json(json_file, predictions_to_json(predictions))
    return 0
