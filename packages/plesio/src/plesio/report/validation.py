"""Predicted, measured and error, row by row: as a table in a terminal, and as a page with a picture."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.core.charts import Axis, LineChart, Look, Panels, Series, Table
from plesio.core.predictions import Prediction, Scale, summarise_predictions
from plesio.report.charts import plain_table
from plesio.report.charts.colours import NUM_SHAPES, QUIET, looks_of
from plesio.report.document import Document, pictures, section
from plesio.report.page_frame import render_document

_BAND = 0.10
"""Half width of the band, as a share of what was measured."""
_BAND_POINTS = 3.0
"""The same where errors are counted in percentage points."""
_COLUMNS = 2
_OF_RUNS = (
    "The virtual world's prediction of runs of real workers, which it knows by a calibration of the machine only, or "
    "by a probe of the script. The baseline is a trivial model: steps take their time, exchanging takes none, and "
    "every policy ends where bsp was measured to end."
)
_NOTHING = 1e-12
"""A difference of equal shares that rounding leaves is smaller."""


def render_validation(predictions: Sequence[Prediction]) -> RenderableType:
    """Render every row, then the summary; the predictions' settings have the same names."""
    rows = predictions_table(predictions)
    num_texts = rows.headers.index("predicted")
    return Group(plain_table(rows, num_texts=num_texts), Text(), plain_table(summary_table(predictions)))


def render_validation_page(predictions: Sequence[Prediction], *, fact: str = _OF_RUNS) -> str:
    """Render every row, their summary and their picture as one HTML document, with ``fact`` at its top."""
    summary, rows = summary_table(predictions), predictions_table(predictions)
    document = Document(
        title="Plesio: predicted and measured",
        heading="Predicted and measured",
        facts=[fact],
        sections=[
            section(summary.title, summary, slug="summary"),
            pictures([predictions_chart(predictions)], title="Every run"),
            section(rows.title, rows, slug="rows"),
        ],
    )
    return render_document(document)


def predictions_table(predictions: Sequence[Prediction]) -> Table:
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
    rows = []
    for one in summarise_predictions(predictions):
        ours = (one.median_error, one.mean_error, one.worst_error)
        theirs = (one.baseline_median_error, one.baseline_mean_error, one.baseline_worst_error)
        errors = (_error(error, one.scale) for error in (*ours, *theirs))
        rows.append([one.quantity, str(one.num_predictions), *errors])
    headers = ("quantity", "predictions", "median error", "mean", "worst", "baseline: median", "mean", "worst")
    return Table(title="Errors by quantity", headers=headers, rows=rows)


def _number(value: float) -> str:
    """Write a number as text, without powers of ten.

    >>> _number(59_612_345.0), _number(0.47634), _number(2.8e-17)
    ('59,612,345', '0.4763', '0')
    """
    if abs(value) < _NOTHING:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _error(error: float, scale: Scale, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{error:{sign}.1f} points" if scale == "points" else f"{100 * error:{sign}.1f} %"


def predictions_chart(predictions: Sequence[Prediction]) -> Panels:
    """Draw all predictions; colours are policies, marks are tasks and step times, hollow ones the baseline's."""
    policies = list(dict.fromkeys(prediction.setting["policy"] for prediction in predictions))
    colours = {name: look.colour for name, look in looks_of(policies, quiet=policies[0]).items()}
    workloads = dict.fromkeys(_workload(prediction) for prediction in predictions)
    shapes = {workload: number % NUM_SHAPES for number, workload in enumerate(workloads)}
    panels = []
    for quantity in dict.fromkeys(prediction.quantity for prediction in predictions):
        of_it = [prediction for prediction in predictions if prediction.quantity == quantity]
        is_log = _over_decades(of_it)
        panels.append(
            LineChart(
                title=quantity,
                x=Axis(title="measured", log=is_log),
                y=Axis(title="predicted", log=is_log),
                series=[*_band(of_it), *(one for each in of_it for one in _points(each, colours, shapes))],
            )
        )
    looks = {policy: Look(colour) for policy, colour in colours.items()}
    looks |= {workload: Look(QUIET, shape) for workload, shape in shapes.items()}
    signs = [Series(name=name, x=(), y=(), style="points", look=look) for name, look in looks.items()]
    signs.append(Series(name="baseline (hollow)", x=(), y=(), style="points", look=Look(QUIET), hollow=True))
    first = panels[0]
    panels[0] = LineChart(title=first.title, x=first.x, y=first.y, series=[*first.series, *signs])
    return Panels(
        slug="scatter",
        title="",
        caption=f"A point a run, a median over its seeds. The band is ±{100 * _BAND:.0f} %, or ±3 percentage points.",
        charts=panels,
        columns=_COLUMNS,
    )


def _over_decades(predictions: Sequence[Prediction]) -> bool:
    measured = [prediction.measured for prediction in predictions]
    return predictions[0].scale == "relative" and min(measured) > 0 and max(measured) > 3 * min(measured)


def _workload(prediction: Prediction) -> str:
    return " ".join(value for name, value in prediction.setting.items() if name != "policy")


def _points(prediction: Prediction, colours: Mapping[str, str], shapes: Mapping[str, int]) -> Iterator[Series]:
    policy, workload = prediction.setting["policy"], _workload(prediction)
    for value, is_baseline in ((prediction.baseline, True), (prediction.predicted, False)):
        said = f"measured {prediction.measured:.4g}, {'the baseline' if is_baseline else 'predicted'} {value:.4g}"
        yield Series(
            name="",
            x=[prediction.measured],
            y=[value],
            style="points",
            hints=[f"{policy}, {workload}: {said}"],
            look=Look(colours[policy], shapes[workload]),
            hollow=is_baseline,
        )


def _band(predictions: Sequence[Prediction]) -> Iterator[Series]:
    """Draw the band of good predictions, and the line of those that are exact."""
    values = [value for one in predictions for value in (one.measured, one.predicted)]
    if predictions[0].scale == "points":
        ends = [min(values) - 0.03, max(values) + 0.03]
        low, high = ([end + sign * _BAND_POINTS / 100 for end in ends] for sign in (-1, 1))
    else:
        positive = [value for value in values if value > 0] or [1.0]
        ends = [min(positive) / 1.2, max(positive) * 1.2]
        low, high = ([end * (1 + sign * _BAND) for end in ends] for sign in (-1, 1))
    yield Series(name="", x=ends, y=ends, low=low, high=high, style="band", look=Look(QUIET))
    yield Series(name="", x=ends, y=ends, look=Look(QUIET))
