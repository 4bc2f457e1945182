"""Predicted, measured and error, row by row: as a table in a terminal, and as a page with a picture."""

import html
from collections.abc import Sequence
from string import Template

import plotly.io
from plotly.offline import get_plotlyjs
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from plesio.core.predictions import Prediction, Scale, summarise_predictions
from plesio.report.figures.scatter import BAND, scatter_figure
from plesio.report.page_style import STYLE

__all__ = ["render_validation", "render_validation_page"]

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Plesio: predicted and measured</title>
<style>$style</style>
<script>$plotly</script>
</head>
<body>
<header><h1>Predicted and measured</h1>
<p>$introduction</p>
</header>
<main>
<section id="summary"><h2>Errors by quantity</h2>
<div class="scroll">$summary</div></section>
<section id="figures"><h2>Every run</h2>
<div class="figures">
<figure id="scatter" class="wide">$scatter<figcaption>$caption</figcaption></figure>
</div></section>
<section id="rows"><h2>Row by row</h2>
<div class="scroll">$rows</div></section>
</main>
</body>
</html>
""")
_SUMMARY_HEADERS = ("quantity", "predictions", "median error", "worst error", "baseline: median", "worst")
_ROW_HEADERS = ("task", "step", "policy", "quantity", "predicted", "measured", "error", "baseline", "its error")


def render_validation(predictions: Sequence[Prediction]) -> RenderableType:
    """Every row, then the summary."""
    return Group(
        _table(_ROW_HEADERS, _rows(predictions), num_texts=4),
        Padding(_table(_SUMMARY_HEADERS, _summary(predictions), num_texts=1), (1, 0, 0, 0)),
    )


def render_validation_page(predictions: Sequence[Prediction]) -> str:
    """The page as one HTML document."""
    scatter = plotly.io.to_html(
        scatter_figure(predictions),
        config={"displaylogo": False, "displayModeBar": False, "responsive": True},
        include_plotlyjs=False,
        full_html=False,
        div_id="plot-scatter",
    )
    return _PAGE.substitute(
        style=STYLE,
        plotly=get_plotlyjs(),
        introduction=html.escape(
            "The virtual world's prediction of runs in the process world, which it knows by a calibration of the "
            "machine only. The baseline knows step times alone."
        ),
        summary=_html_table(_SUMMARY_HEADERS, _summary(predictions)),
        scatter=scatter,
        caption=f"A point a run, a median over its seeds. The band is ±{BAND:.0%}, or ±3 percentage points.",
        rows=_html_table(_ROW_HEADERS, _rows(predictions)),
    )


def _rows(predictions: Sequence[Prediction]) -> list[list[str]]:
    return [
        [
            prediction.setting["task"],
            prediction.setting["step_time"],
            prediction.setting["policy"],
            prediction.quantity,
            f"{prediction.predicted:.4g}",
            f"{prediction.measured:.4g}",
            _error(prediction.error, prediction.scale, signed=True),
            f"{prediction.baseline:.4g}",
            _error(prediction.baseline_error, prediction.scale, signed=True),
        ]
        for prediction in predictions
    ]


def _summary(predictions: Sequence[Prediction]) -> list[list[str]]:
    return [
        [
            summary.quantity,
            str(summary.num_predictions),
            _error(summary.median_error, summary.scale),
            _error(summary.worst_error, summary.scale),
            _error(summary.baseline_median_error, summary.scale),
            _error(summary.baseline_worst_error, summary.scale),
        ]
        for summary in summarise_predictions(predictions)
    ]


def _error(error: float, scale: Scale, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{error:{sign}.1f} points" if scale == "points" else f"{100 * error:{sign}.1f} %"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, num_texts: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number < num_texts else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _html_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(header)}</th>" for header in headers)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
