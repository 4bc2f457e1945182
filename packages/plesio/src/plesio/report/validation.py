"""Predicted, measured and error, row by row: as a table in a terminal, and as a page with a picture."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from plesio.core.predictions import Prediction, Scale, summarise_predictions
from plesio.report.markup import prose
from plesio.report.page_frame import page_of, section, section_of_charts, table
from plesio.report.validation_charts import predictions_chart

__all__ = [
    "SUMMARY_HEADERS",
    "plain_table",
    "prediction_rows",
    "render_validation",
    "render_validation_page",
    "row_headers",
    "summary_rows",
]

_NOTHING = 1e-12
"""What rounding leaves of a difference of shares that are equal."""
SUMMARY_HEADERS = (
    "quantity",
    "predictions",
    "median error",
    "mean",
    "worst",
    "baseline: median",
    "mean",
    "worst",
)
"""Of `summary_rows`."""
_ROW_HEADERS = ("quantity", "predicted", "measured", "error", "baseline", "its error")


def render_validation(predictions: Sequence[Prediction]) -> RenderableType:
    """Every row, then the summary.

    Args:
        predictions: Whose settings have the same names.
    """
    headers = row_headers(predictions)
    return Group(
        plain_table(headers, prediction_rows(predictions), num_texts=headers.index("predicted")),
        Padding(plain_table(SUMMARY_HEADERS, summary_rows(predictions), num_texts=1), (1, 0, 0, 0)),
    )


def render_validation_page(predictions: Sequence[Prediction]) -> str:
    """The page as one HTML document."""
    introduction = (
        "The virtual world's prediction of runs of real workers, which it knows by a calibration of the machine "
        "only. The baseline is a trivial model: steps take their time, exchanging takes none, and every policy ends "
        "where bsp was measured to end."
    )
    return page_of(
        [
            section(table(SUMMARY_HEADERS, summary_rows(predictions)), slug="summary", title="Errors by quantity"),
            section_of_charts([predictions_chart(predictions)], title="Every run"),
            section(table(row_headers(predictions), prediction_rows(predictions)), slug="rows", title="Row by row"),
        ],
        title="Plesio: predicted and measured",
        header=f"<h1>Predicted and measured</h1>\n<p>{prose(introduction)}</p>",
    )


def row_headers(predictions: Sequence[Prediction]) -> tuple[str, ...]:
    """Headers of `prediction_rows`: those of the settings, then of the numbers."""
    return (*(name.replace("_", " ") for name in predictions[0].setting), *_ROW_HEADERS)


def prediction_rows(predictions: Sequence[Prediction]) -> list[list[str]]:
    """A row of texts a prediction."""
    return [
        [
            *prediction.setting.values(),
            prediction.quantity,
            _number(prediction.predicted),
            _number(prediction.measured),
            _error(prediction.error, prediction.scale, signed=True),
            _number(prediction.baseline),
            _error(prediction.baseline_error, prediction.scale, signed=True),
        ]
        for prediction in predictions
    ]


def summary_rows(predictions: Sequence[Prediction]) -> list[list[str]]:
    """A row of texts a quantity."""
    return [
        [
            summary.quantity,
            str(summary.num_predictions),
            *(
                _error(error, summary.scale)
                for error in (
                    summary.median_error,
                    summary.mean_error,
                    summary.worst_error,
                    summary.baseline_median_error,
                    summary.baseline_mean_error,
                    summary.baseline_worst_error,
                )
            ),
        ]
        for summary in summarise_predictions(predictions)
    ]


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


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, num_texts: int) -> Table:
    """A table for a terminal, whose first columns are texts and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number < num_texts else "right")
    for row in rows:
        table.add_row(*row)
    return table
