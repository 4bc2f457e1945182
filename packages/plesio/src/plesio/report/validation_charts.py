"""Predicted over measured: a panel a quantity, a point a run, and a band in which a prediction is good."""

from collections.abc import Iterator, Mapping, Sequence

from plesio.core.charts import Axis, LineChart, Look, Panels, Series
from plesio.core.predictions import Prediction
from plesio.report.charts.colours import NUM_SHAPES, QUIET, looks_of

__all__ = ["predictions_chart"]

_BAND = 0.10
"""Half width of the band, as a share of what was measured."""
_BAND_POINTS = 3.0
"""The same where errors are counted in percentage points."""
_COLUMNS = 2


def predictions_chart(predictions: Sequence[Prediction]) -> Panels:
    """All predictions; colours are policies, marks are tasks and step times, hollow ones the baseline's."""
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
