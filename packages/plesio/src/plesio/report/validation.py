"""Predicted, measured and error, row by row: as a table in a terminal, and as a page with a picture."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.core.charts import Table
from plesio.core.predictions import Prediction, Scale, summarise_predictions
from plesio.report.charts import plain_table
from plesio.report.document import Document, pictures, section
from plesio.report.page_frame import render_document
from plesio.report.validation_charts import predictions_chart

__all__ = ["predictions_table", "render_validation", "render_validation_page", "summary_table"]

_NOTHING = 1e-12
"""A difference of equal shares that rounding leaves is smaller."""


def render_validation(predictions: Sequence[Prediction]) -> RenderableType:
    """Every row, then the summary.

    Args:
        predictions: Whose settings have the same names.
    """
    rows = predictions_table(predictions)
    num_texts = rows.headers.index("predicted")
    return Group(plain_table(rows, num_texts=num_texts), Text(), plain_table(summary_table(predictions)))


def render_validation_page(predictions: Sequence[Prediction]) -> str:
    """Render the page as one HTML document."""
    summary, rows = summary_table(predictions), predictions_table(predictions)
    document = Document(
        title="Plesio: predicted and measured",
        heading="Predicted and measured",
        facts=[
            "The virtual world's prediction of runs of real workers, which it knows by a calibration of the machine "
            "only. The baseline is a trivial model: steps take their time, exchanging takes none, and every policy "
            "ends where bsp was measured to end."
        ],
        sections=[
            section(summary.title, summary, slug="summary"),
            pictures([predictions_chart(predictions)], title="Every run"),
            section(rows.title, rows, slug="rows"),
        ],
    )
    return render_document(document)


def predictions_table(predictions: Sequence[Prediction]) -> Table:
    """Make a row for each prediction: its setting, then the numbers."""
    settings = (name.replace("_", " ") for name in predictions[0].setting)
    rows = [
        [
            *one.setting.values(),
            one.quantity,
            _number(one.predicted),
            _number(one.measured),
            _error(one.error, one.scale, signed=True),
            _number(one.baseline),
            _error(one.baseline_error, one.scale, signed=True),
        ]
        for one in predictions
    ]
    headers = (*settings, "quantity", "predicted", "measured", "error", "baseline", "its error")
    return Table(title="Row by row", headers=headers, rows=rows)


def summary_table(predictions: Sequence[Prediction]) -> Table:
    """Make a row for each quantity, with its errors and the baseline's."""
    rows = []
    for one in summarise_predictions(predictions):
        ours = (one.median_error, one.mean_error, one.worst_error)
        theirs = (one.baseline_median_error, one.baseline_mean_error, one.baseline_worst_error)
        errors = (_error(error, one.scale) for error in (*ours, *theirs))
        rows.append([one.quantity, str(one.num_predictions), *errors])
    headers = ("quantity", "predictions", "median error", "mean", "worst", "baseline: median", "mean", "worst")
    return Table(title="Errors by quantity", headers=headers, rows=rows)


def _number(value: float) -> str:
    """A number as text, without powers of ten.

    >>> _number(59_612_345.0), _number(0.47634), _number(2.8e-17)
    ('59,612,345', '0.4763', '0')
    """
    if abs(value) < _NOTHING:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _error(error: float, scale: Scale, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{error:{sign}.1f} points" if scale == "points" else f"{100 * error:{sign}.1f} %"
