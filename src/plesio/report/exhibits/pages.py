"""Charts on a page, by plotly."""

import html
import math
from functools import singledispatch

import plotly.graph_objects as go

from plesio.core.exhibits import Axis, BarChart, Chart, HeatMap, LineChart, RangeChart, Timeline
from plesio.report.colours import AMOUNTS, COLOURS, MARK_INK, QUIET, series_colours
from plesio.report.exhibits.rules import goes_right
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import lay_out, with_alpha

__all__ = ["page_figure"]

_ROW_PX = 30
_LINES_PX = 380
_LEGEND_GAP_PX = 10


def page_figure(chart: Chart) -> PageFigure:
    """The chart as a figure of a page."""
    return PageFigure(
        slug=chart.slug, title=chart.title, caption=chart.caption, figure=_draw(chart), wide=isinstance(chart, Timeline)
    )


@singledispatch
def _draw(chart: Chart) -> go.Figure:
    raise AssertionError(f"nobody draws a {type(chart).__name__}")


@_draw.register
def _(chart: LineChart) -> go.Figure:
    figure = go.Figure()
    for series, colour in zip(chart.series, series_colours(chart.series), strict=True):
        if series.low:
            figure.add_scatter(
                x=[*series.x, *reversed(series.x)],
                y=[*series.high, *reversed(series.low)],
                fill="toself",
                fillcolor=with_alpha(colour, 0.18),
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
            )
        is_points = series.style == "points"
        figure.add_scatter(
            x=list(series.x),
            y=list(series.y),
            name=html.escape(series.name),
            mode=("markers+text" if series.labels else "markers") if is_points else "lines",
            text=[html.escape(label) for label in series.labels] or None,
            textposition=["middle right" if goes_right(chart, x) else "middle left" for x in series.x],
            line={"color": colour, "dash": "dash" if series.style == "dashed" else "solid"},
            marker={"color": colour, "size": 8},
            hovertemplate=f"%{{x:.4g}}, %{{y:.4g}}<extra>{html.escape(series.name)}</extra>",
        )
    for place, (text, value) in enumerate(chart.marks.items()):
        figure.add_vline(x=value, line={"color": QUIET, "dash": "dot", "width": 1})
        figure.add_annotation(
            x=_on(chart.x, value),
            y=1 - 0.07 * place,
            yref="paper",
            text=html.escape(text),
            showarrow=False,
            xanchor="left",
            font={"size": 12, "color": MARK_INK},
        )
    lay_out(figure, height_px=_LINES_PX, legend_gap_px=_LEGEND_GAP_PX if len(chart.series) > 1 else None)
    figure.update_xaxes(**_axis(chart.x))
    figure.update_yaxes(**_axis(chart.y))
    return figure


@_draw.register
def _(chart: BarChart) -> go.Figure:
    figure = go.Figure()
    for place, (part, values) in enumerate(chart.parts.items()):
        figure.add_bar(
            x=list(values),
            y=[html.escape(row) for row in chart.rows],
            orientation="h",
            name=html.escape(part),
            marker={"color": COLOURS[place % len(COLOURS)]},
            hovertemplate=f"%{{x:.4g}}<extra>{html.escape(part)}, %{{y}}</extra>",
        )
    gap_px = _LEGEND_GAP_PX if len(chart.parts) > 1 else None
    lay_out(figure, height_px=110 + _ROW_PX * len(chart.rows), legend_gap_px=gap_px, barmode="stack", bargap=0.3)
    figure.update_xaxes(**_axis(chart.axis))
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure


@_draw.register
def _(chart: RangeChart) -> go.Figure:
    figure = go.Figure()
    rows = [html.escape(row) for row in chart.rows]
    for name, ends, colour in (("low", chart.low, COLOURS[5]), ("high", chart.high, COLOURS[4])):
        figure.add_bar(
            x=[end - chart.base for end in ends],
            base=chart.base,
            y=rows,
            orientation="h",
            name=f"input at its {name} end",
            marker={"color": colour},
            customdata=list(ends),
            hovertemplate="%{customdata:.4g}<extra>%{y}</extra>",
        )
    lay_out(figure, height_px=110 + _ROW_PX * len(rows), legend_gap_px=_LEGEND_GAP_PX, barmode="overlay", bargap=0.3)
    figure.add_vline(x=chart.base, line={"color": QUIET, "width": 1})
    figure.update_xaxes(**_axis(chart.axis))
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure


@_draw.register
def _(chart: HeatMap) -> go.Figure:
    number = len(chart.categories)
    if number:
        steps = [
            (edge / number, COLOURS[place % len(COLOURS)]) for place in range(number) for edge in (place, place + 1)
        ]
        colours = {
            "colorscale": steps,
            "zmin": -0.5,
            "zmax": number - 0.5,
            "colorbar": {"tickvals": list(range(number)), "ticktext": [html.escape(each) for each in chart.categories]},
        }
    else:
        steps = [(place / (len(AMOUNTS) - 1), colour) for place, colour in enumerate(AMOUNTS)]
        colours = {
            "colorscale": steps,
            "colorbar": {"title": {"text": html.escape(chart.scale.title), "side": "right"}},
        }
    figure = go.Figure(
        go.Heatmap(
            x=[html.escape(column) for column in chart.columns],
            y=[html.escape(row) for row in chart.rows],
            z=[list(row) for row in chart.values],
            text=[list(row) for row in chart.texts] or None,
            texttemplate="%{text}" if chart.texts else None,
            hovertemplate="%{x}, %{y}: %{z:.4g}<extra></extra>",
            xgap=1,
            ygap=1,
            **colours,
        )
    )
    lay_out(figure, height_px=110 + max(22, 260 // len(chart.rows)) * len(chart.rows))
    figure.update_xaxes(title_text=html.escape(chart.x.title), type="category", showgrid=False)
    figure.update_yaxes(title_text=html.escape(chart.y.title), type="category", showgrid=False, autorange="reversed")
    return figure


@_draw.register
def _(chart: Timeline) -> go.Figure:
    figure = go.Figure()
    for place, kind in enumerate(dict.fromkeys(span.kind for span in chart.spans)):
        of_kind = [span for span in chart.spans if span.kind == kind]
        figure.add_bar(
            x=[span.end - span.start for span in of_kind],
            base=[span.start for span in of_kind],
            y=[span.row for span in of_kind],
            orientation="h",
            name=html.escape(kind),
            text=[html.escape(span.label) for span in of_kind],
            textposition="inside",
            insidetextanchor="middle",
            marker={"color": COLOURS[place % len(COLOURS)]},
            customdata=[(span.start, span.end) for span in of_kind],
            hovertemplate=f"%{{customdata[0]:.4g}} to %{{customdata[1]:.4g}}<extra>{html.escape(kind)}</extra>",
        )
    row_px = 26 if len(chart.rows) <= 24 else 12
    lay_out(
        figure, height_px=110 + row_px * len(chart.rows), legend_gap_px=_LEGEND_GAP_PX, barmode="overlay", bargap=0.15
    )
    figure.update_xaxes(**_axis(chart.axis))
    figure.update_yaxes(
        tickvals=list(range(len(chart.rows))),
        ticktext=[html.escape(row) for row in chart.rows],
        range=[len(chart.rows) - 0.5, -0.5],
        showgrid=False,
    )
    return figure


def _axis(axis: Axis) -> dict[str, object]:
    return {"title_text": html.escape(axis.title), "type": "log" if axis.log else "linear"}


def _on(axis: Axis, value: float) -> float:
    """Where annotations of plotly have ``value``: logarithmic axes are in powers of ten."""
    return math.log10(value) if axis.log else value
