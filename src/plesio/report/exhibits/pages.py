"""Charts on a page, by plotly."""

import html
import math
import textwrap
from collections.abc import Sequence
from functools import singledispatch

import plotly.graph_objects as go

from plesio.core.exhibits import Axis, BarChart, Chart, HeatMap, LineChart, RangeChart, Timeline
from plesio.report.colours import AMOUNTS, COLOURS, MARK_INK, QUIET, ink_on, series_looks
from plesio.report.exhibits.rules import (
    BAR_ROOM,
    MOST_MARKERS,
    bar_texts,
    cell_inks,
    column_labels,
    extent,
    goes_right,
    has_markers,
    log_ticks,
    mark_rows,
    tick_text,
    values_along,
)
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import lay_out, with_alpha

__all__ = ["page_figure"]

_ROW_PX = 30
_LINES_PX = 380
_LEGEND_GAP_PX = 10
_MARK_PX, _MARK_GAP_PX = 16, 22
_NAME_PX, _NAMES_WITHOUT = 14, 4
"""For each name after so many: they may be below one another."""
_CELL_PX, _SMALLEST_PX, _CELL_LETTERS = 11, 7, 33
"""Of words in cells: in a row there is room for so many letters of the first size."""
_SCALE_PX = 70
"""For colours above a heat map, with their values and a title."""
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x")
_TITLE_LETTERS = 40
"""Of an axis title in a line, on a narrow screen."""
_MARK_LETTERS, _ROW_LETTERS = 38, 46
"""Above lines, and below a heat map with the longest name of a row, on the same."""


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
    lines = "lines+markers" if has_markers(chart.series) else "lines"
    for series, (colour, shape) in zip(chart.series, series_looks(chart.series), strict=True):
        if series.low:
            figure.add_scatter(
                x=[*series.x, *reversed(series.x)],
                y=[*series.high, *reversed(series.low)],
                mode="lines",
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
            mode=("markers+text" if series.labels else "markers") if is_points else lines,
            text=[html.escape(label) for label in series.labels] or None,
            textposition=["top right" if goes_right(chart, x) else "bottom left" for x in series.x],
            cliponaxis=not series.labels,
            line={"color": colour, "dash": "dash" if series.style == "dashed" else "solid"},
            marker={
                "color": colour,
                "size": 8,
                "symbol": _SHAPES[shape] if is_points else f"{_SHAPES[shape]}-open",
                "maxdisplayed": 0 if is_points else MOST_MARKERS,
            },
            hovertemplate=f"%{{x:.4g}}, %{{y:.4g}}<extra>{html.escape(series.name)}</extra>",
        )
    rows = mark_rows(chart, letters=_MARK_LETTERS)
    for text, value in chart.marks.items():
        figure.add_vline(x=value, line={"color": QUIET, "dash": "dot", "width": 1})
        figure.add_annotation(
            x=_on(chart.x, value),
            y=1,
            yref="paper",
            yanchor="bottom",
            yshift=_MARK_PX * rows[text],
            text=html.escape(text),
            showarrow=False,
            xanchor="left" if goes_right(chart, value) else "right",
            font={"size": 12, "color": MARK_INK},
        )
    marks_px = _MARK_GAP_PX * (1 + max(rows.values(), default=-1))
    lay_out(
        figure,
        height_px=_LINES_PX + marks_px + _NAME_PX * max(0, len(chart.series) - _NAMES_WITHOUT),
        legend_gap_px=_LEGEND_GAP_PX + marks_px if len(chart.series) > 1 else None,
    )
    figure.update_layout(margin_t=figure.layout.margin.t + marks_px)
    figure.update_xaxes(**_axis(chart.x, values_along(chart, "x")))
    figure.update_yaxes(**_axis(chart.y, values_along(chart, "y")))
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
    ends = bar_texts(chart)
    figure.add_scatter(
        x=[end for end, _ in ends],
        y=[html.escape(row) for row in chart.rows],
        mode="text",
        text=[f"\N{NO-BREAK SPACE}{text}" for _, text in ends],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    gap_px = _LEGEND_GAP_PX if len(chart.parts) > 1 else None
    lay_out(figure, height_px=110 + _ROW_PX * len(chart.rows), legend_gap_px=gap_px, barmode="stack", bargap=0.3)
    figure.update_xaxes(**_axis(chart.axis), range=[0, BAR_ROOM * max(end for end, _ in ends) or 1])
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
    number, cells_px = len(chart.categories), max(22, 260 // len(chart.rows)) * len(chart.rows)
    scale_px = 0 if number else _SCALE_PX
    top = cells_px / (cells_px + scale_px)
    if number:
        steps = [
            (edge / number, COLOURS[place % len(COLOURS)]) for place in range(number) for edge in (place, place + 1)
        ]
        colours = {
            "colorscale": steps,
            "zmin": -0.5,
            "zmax": number - 0.5,
            "showscale": False,
        }
    else:
        steps = [(place / (len(AMOUNTS) - 1), colour) for place, colour in enumerate(AMOUNTS)]
        colours = {
            "colorscale": steps,
            "colorbar": {
                "orientation": "h",
                "y": top,
                "yanchor": "bottom",
                "ypad": 4,
                "thickness": 12,
            },
        }
    figure = go.Figure(
        go.Heatmap(
            x=[html.escape(column) for column in chart.columns],
            y=[html.escape(row) for row in chart.rows],
            z=[list(row) for row in chart.values],
            text=[
                [f'<span style="color:{ink}">{html.escape(text)}</span>' for text, ink in zip(texts, inks, strict=True)]
                for texts, inks in zip(chart.texts, cell_inks(chart), strict=False)
            ]
            or None,
            texttemplate="%{text}" if chart.texts else None,
            textfont={"size": _cell_px(chart)},  # plotly's own counts the letters of the tags too
            hovertemplate="%{x}, %{y}: %{z:.4g}<extra></extra>",
            xgap=1,
            ygap=1,
            **colours,
        )
    )
    for place, category in enumerate(chart.categories):
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=html.escape(category),
            marker={"color": COLOURS[place % len(COLOURS)], "symbol": "square", "size": 12},
        )
    lay_out(
        figure,
        height_px=130 + cells_px + scale_px,
        legend_gap_px=_LEGEND_GAP_PX if number else None,
    )
    if not number:  # all of it inside: what is outside moves the axis below into the cells
        figure.add_annotation(
            x=1,
            y=1,
            xref="paper",
            yref="paper",
            xanchor="right",
            yanchor="top",
            align="right",
            text=_title(chart.scale),
            showarrow=False,
        )
    columns, tilted = column_labels(chart.columns, letters=_ROW_LETTERS - max(map(len, chart.rows)))
    texts = [html.escape(column) for column in columns.values()]
    figure.update_xaxes(title_text=_title(chart.x), type="category", showgrid=False, tickangle=-90 if tilted else 0)
    figure.update_xaxes(tickvals=texts, ticktext=texts)
    figure.update_yaxes(title_text=_title(chart.y), type="category", showgrid=False, autorange="reversed")
    figure.update_yaxes(domain=[0, top])
    return figure


@_draw.register
def _(chart: Timeline) -> go.Figure:
    figure = go.Figure()
    for place, kind in enumerate(dict.fromkeys(span.kind for span in chart.spans)):
        of_kind = [span for span in chart.spans if span.kind == kind]
        colour = COLOURS[place % len(COLOURS)]
        figure.add_bar(
            x=[span.end - span.start for span in of_kind],
            base=[span.start for span in of_kind],
            y=[span.row for span in of_kind],
            orientation="h",
            name=html.escape(kind),
            text=[html.escape(span.label) for span in of_kind],
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": ink_on(colour)},
            marker={"color": colour},
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


def _cell_px(chart: HeatMap) -> int:
    needed = len(chart.columns) * max((len(text) for texts in chart.texts for text in texts), default=1)
    return max(_SMALLEST_PX, min(_CELL_PX, _CELL_PX * _CELL_LETTERS // needed))


def _title(axis: Axis) -> str:
    return "<br>".join(map(html.escape, textwrap.wrap(axis.title, _TITLE_LETTERS)))


def _axis(axis: Axis, values: Sequence[float] = ()) -> dict[str, object]:
    """Of lines the ``values`` along it, which a logarithmic axis needs."""
    if not axis.log:
        return {"title_text": _title(axis), "exponentformat": "power", "minexponent": 5, "separatethousands": True}
    low, high = extent(values)
    ticks = log_ticks(low, high)
    return {
        "title_text": _title(axis),
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [tick_text(tick) for tick in ticks],
    }


def _on(axis: Axis, value: float) -> float:
    """Where annotations of plotly have ``value``: logarithmic axes are in powers of ten."""
    return math.log10(value) if axis.log else value
