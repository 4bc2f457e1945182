"""Predicted over measured: a panel a quantity, a point a run, and a band in which a prediction is good."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plesio.core.predictions import Prediction
from plesio.report.figures.theme import lay_out, policy_styles, with_alpha

__all__ = ["BAND", "scatter_figure"]

BAND = 0.10
"""Half width of the band, as a share of what was measured."""
_BAND_POINTS = 3.0
"""The same where errors are counted in percentage points."""
_COLUMNS = 2
_PANEL_PX = 340
_GREY = "#7d8590"
_MARKERS = ("circle", "diamond", "square", "triangle-up", "cross", "x")


def scatter_figure(predictions: Sequence[Prediction]) -> go.Figure:
    """All predictions; colours are policies, marks are tasks and step times, hollow ones the baseline's."""
    quantities = list(dict.fromkeys(prediction.quantity for prediction in predictions))
    rows = -(-len(quantities) // _COLUMNS)
    figure = make_subplots(
        rows=rows, cols=_COLUMNS, subplot_titles=quantities, horizontal_spacing=0.12, vertical_spacing=0.12
    )
    policies = list(dict.fromkeys(prediction.setting["policy"] for prediction in predictions))
    styles = policy_styles(policies, baseline=policies[0])
    workloads = list(dict.fromkeys(_workload(prediction) for prediction in predictions))
    for number, quantity in enumerate(quantities):
        place = {"row": number // _COLUMNS + 1, "col": number % _COLUMNS + 1}
        of_it = [prediction for prediction in predictions if prediction.quantity == quantity]
        _add_band(figure, of_it, place=place)
        for prediction in of_it:
            colour = styles[prediction.setting["policy"]].colour
            symbol = _MARKERS[workloads.index(_workload(prediction)) % len(_MARKERS)]
            label = f"{prediction.setting['policy']}, {_workload(prediction)}"
            for value, hollow in ((prediction.baseline, True), (prediction.predicted, False)):
                figure.add_scatter(
                    x=[prediction.measured],
                    y=[value],
                    mode="markers",
                    marker={
                        "symbol": f"{symbol}-open" if hollow else symbol,
                        "size": 7 if hollow else 10,
                        "color": with_alpha(colour, 0.5 if hollow else 0.9),
                    },
                    hovertemplate=f"{label}{' (baseline)' if hollow else ''}<br>measured %{{x:.4g}}, "
                    "said %{y:.4g}<extra></extra>",
                    showlegend=False,
                    **place,
                )
        axis = {"type": "log", "dtick": "D2"} if _over_decades(of_it) else {"type": "linear"}
        figure.update_xaxes(**axis, title_text="measured", **place)
        figure.update_yaxes(**axis, title_text="predicted", **place)
    for policy in policies:
        _add_legend(figure, policy, symbol="circle", colour=styles[policy].colour)
    for number, workload in enumerate(workloads):
        _add_legend(figure, workload, symbol=_MARKERS[number % len(_MARKERS)], colour=_GREY)
    _add_legend(figure, "baseline (hollow)", symbol="circle-open", colour=_GREY)
    lay_out(figure, height_px=_PANEL_PX * rows, legend_gap_px=36)
    return figure


def _over_decades(predictions: Sequence[Prediction]) -> bool:
    measured = [prediction.measured for prediction in predictions]
    return predictions[0].scale == "relative" and min(measured) > 0 and max(measured) > 3 * min(measured)


def _workload(prediction: Prediction) -> str:
    return f"{prediction.setting['task']} {prediction.setting['step_time']}"


def _add_band(figure: go.Figure, predictions: Sequence[Prediction], *, place: dict[str, int]) -> None:
    values = [value for one in predictions for value in (one.measured, one.predicted)]
    if predictions[0].scale == "points":
        low, high = min(values) - 0.03, max(values) + 0.03
        edges = [(x, x - _BAND_POINTS / 100, x + _BAND_POINTS / 100) for x in (low, high)]
    else:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = min(positive) / 1.2, max(positive) * 1.2
        edges = [(x, x * (1 - BAND), x * (1 + BAND)) for x in (low, high)]
    figure.add_scatter(
        x=[edges[0][0], edges[1][0], edges[1][0], edges[0][0]],
        y=[edges[0][1], edges[1][1], edges[1][2], edges[0][2]],
        fill="toself",
        mode="none",
        fillcolor=with_alpha(_GREY, 0.18),
        hoverinfo="skip",
        showlegend=False,
        **place,
    )
    figure.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"width": 1, "color": _GREY},
        hoverinfo="skip",
        showlegend=False,
        **place,
    )


def _add_legend(figure: go.Figure, name: str, *, symbol: str, colour: str) -> None:
    figure.add_scatter(
        x=[None], y=[None], mode="markers", name=name, marker={"symbol": symbol, "size": 10, "color": colour}
    )
