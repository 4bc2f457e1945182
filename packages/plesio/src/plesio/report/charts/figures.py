"""Charts on a page, by plotly."""

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plesio.core.charts import Axis, BarChart, Chart, HeatMap, LineChart, Look, Panels, RangeChart, Series, Timeline
from plesio.report.charts.colours import AMOUNTS, COLOURS, MARK_INK, QUIET, ink_on, series_looks
from plesio.report.charts.rules import (
    BAR_ROOM,
    MOST_MARKERS,
    bar_texts,
    cell_amounts,
    cell_inks,
    column_labels,
    extent,
    fewest_names,
    goes_right,
    log_ticks,
    mark_rows,
    marked_lines,
    rows_of,
    tick_text,
    values_along,
)
from plesio.report.charts.theme import lay_out, with_alpha

_LINES_PX, _LOW_PANEL_PX, _PANEL_PX = 320, 90, 250
"""Heights of lines: alone, one below the other, and in a grid."""
_ROW_PX, _TALL_ROW_PX, _LOW_ROW_PX = 30, 34, 12
"""Heights of a row: of names on one line and on two, and where there are more than so many."""
_MANY_ROWS = 24
_PANEL_ROW_PX, _LOW_PANEL_ROW_PX, _MANY_PANEL_ROWS = 20, 9, 12
"""The same in panels."""
_AXIS_PX, _LEGEND_PX, _LEGEND_GAP_PX, _PANEL_TITLE_PX = 70, 30, 10, 30
_MARK_PX, _MARK_GAP_PX = 16, 22
_NAME_PX, _NAMES_WITHOUT = 14, 4
"""Room for each name after so many: they may be below one another."""
_CELL_PX, _SMALLEST_PX, _CELL_LETTERS = 11, 7, 33
"""Sizes of words in cells: a row has room for so many letters of the first size."""
_SCALE_PX = 70
"""Room for the colours above a heat map, with their values and a title."""
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "2px 6px")
_WIDTHS = {"thin": 1.0, "normal": 2.0, "thick": 3.5}
_SIZES = {"thin": 5, "normal": 9, "thick": 11}
_TITLE_LETTERS, _HINT_LETTERS = 40, 64
"""Letters in a line of an axis title on a narrow screen, and of what is told where a reader points."""
_MARK_LETTERS, _ROW_LETTERS = 38, 46
"""Letters above lines, and below a heat map with the longest name of a row, on a narrow screen."""


@dataclass(frozen=True, slots=True)
class _Sheet:
    """A place to draw a chart: a cell of a figure, and the names that the figure's legend has already."""

    figure: go.Figure
    cell: Mapping[str, int]
    in_panels: bool
    named: set[str]

    def add(self, kind: str, name: str, *, signs: bool = True, **trace: Any) -> None:
        """Add a trace, which stands for its name in the legend if it ``signs`` and none does yet."""
        in_legend = signs and bool(name) and name not in self.named
        if in_legend:
            self.named.add(name)
        trace |= {"name": html.escape(name), "legendgroup": html.escape(name), "showlegend": in_legend}
        getattr(self.figure, f"add_{kind}")(**trace, **self.cell)


def draw_figure(chart: Chart) -> go.Figure:
    """Draw the chart as a figure of a page; title and caption are the page's own text."""
    charts, columns = (chart.charts, chart.columns) if isinstance(chart, Panels) else ([chart], 1)
    in_panels, shared = isinstance(chart, Panels), columns == 1
    num_rows = math.ceil(len(charts) / columns)
    # plotly takes heights as shares of the whole, so the whole is added up first
    between_px = _PANEL_TITLE_PX + (0 if shared else _AXIS_PX)
    cell_px = max(_cell_height_px(one, in_panels=in_panels, alone=shared) for one in charts)
    height_px = num_rows * cell_px + (num_rows if in_panels else 0) * between_px
    figure = make_subplots(
        rows=num_rows,
        cols=columns,
        shared_xaxes=shared,
        vertical_spacing=between_px / height_px if num_rows > 1 else 0.0,
        horizontal_spacing=0.12 if columns > 1 else 0.0,
        subplot_titles=[f"<b>{html.escape(one.title)}</b>" for one in charts] if in_panels else None,
    )
    figure.update_annotations({"font_size": 13} | ({"x": 0, "xanchor": "left"} if shared else {}))
    marks_px = 0 if in_panels else _marks_px(chart)
    lay_out(
        figure,
        height_px=height_px + _AXIS_PX + marks_px + _legend_px(charts),
        legend_gap_px=(_PANEL_TITLE_PX if in_panels else _LEGEND_GAP_PX) + marks_px,
    )
    named: set[str] = set()
    for place, one in enumerate(charts):
        cell = {"row": place // columns + 1, "col": place % columns + 1}
        _draw(one, _Sheet(figure, cell, in_panels, named))
        if shared and cell["row"] < num_rows:
            figure.update_xaxes(title_text="", **cell)
    # only now is it known which names were drawn
    shows_names = len(named) >= fewest_names(chart)
    figure.update_layout(
        showlegend=shows_names,
        margin_t=figure.layout.margin.t + marks_px + (_PANEL_TITLE_PX if in_panels and not shows_names else 0),
    )
    return figure


def _cell_height_px(chart: Chart, *, in_panels: bool, alone: bool) -> int:
    rows = rows_of(chart)
    if rows and in_panels:
        return max(2, len(rows)) * (_PANEL_ROW_PX if len(rows) <= _MANY_PANEL_ROWS else _LOW_PANEL_ROW_PX)
    if rows:
        row_px = _TALL_ROW_PX if any("\n" in row for row in rows) else _ROW_PX
        return len(rows) * (row_px if len(rows) <= _MANY_ROWS else _LOW_ROW_PX)
    if isinstance(chart, HeatMap):
        return _cells_px(chart) + (0 if chart.categories else _SCALE_PX)
    return _LINES_PX if not in_panels else _LOW_PANEL_PX if alone else _PANEL_PX


def _legend_px(charts: Sequence[Chart]) -> int:
    """Return the height that names need above the plot: one line, and more where they may be below one another."""
    names = {series.name for one in charts if isinstance(one, LineChart) for series in one.series if series.name}
    names |= {part for one in charts if isinstance(one, BarChart) for part in one.parts}
    extra_px = _NAME_PX * max(0, len(names) - _NAMES_WITHOUT)
    are_named = len(names) > 1 or any(not isinstance(one, LineChart) for one in charts)
    return extra_px + (_LEGEND_PX if are_named else 0)


def _marks_px(chart: Chart) -> int:
    if not isinstance(chart, LineChart):
        return 0
    return _MARK_GAP_PX * (1 + max(mark_rows(chart, letters=_MARK_LETTERS).values(), default=-1))


@singledispatch
def _draw(chart: Chart, sheet: _Sheet) -> None:
    raise AssertionError(f"nobody draws a {type(chart).__name__}")


@_draw.register
def _(chart: LineChart, sheet: _Sheet) -> None:
    figure, cell, marked = sheet.figure, sheet.cell, marked_lines(chart.series)
    last = {series.name: place for place, series in enumerate(chart.series)}
    for place, (series, look) in enumerate(zip(chart.series, series_looks(chart.series), strict=True)):
        signs = last[series.name] == place
        if series.low:
            _add_band(sheet, series, look, signs=signs)
        if series.style == "bars":
            hover = _hover(chart, series.name)
            sheet.add(
                "bar", series.name, x=list(series.x), y=list(series.y), marker_color=look.colour, hovertemplate=hover
            )
        elif series.style != "band":
            sheet.add("scatter", series.name, signs=signs, **_scatter(chart, series, look, series in marked))
    for value in chart.levels:
        figure.add_hline(y=value, line={"color": QUIET, "dash": "dot", "width": 1}, **cell)
    for value in (*chart.moments, *chart.marks.values()):
        figure.add_vline(x=value, line={"color": QUIET, "dash": "dot", "width": 1}, layer="below", **cell)
    rows = mark_rows(chart, letters=_MARK_LETTERS)
    for text, value in chart.marks.items():
        figure.add_annotation(
            x=math.log10(value) if chart.x.log else value,  # annotations of plotly are in powers of ten
            y=1,
            yref="y domain",
            yanchor="bottom",
            yshift=_MARK_PX * rows[text],
            text=html.escape(text),
            showarrow=False,
            xanchor="left" if goes_right(chart, value) else "right",
            font={"size": 12, "color": MARK_INK},
            **cell,
        )
    figure.update_xaxes(_axis(chart.x, values_along(chart, "x")), **cell)
    figure.update_yaxes(_axis(chart.y, values_along(chart, "y")), **cell)
    if chart.y.down:
        names = [_text(row) for row in rows_of(chart)]
        figure.update_yaxes(ticktext=names, range=[len(names) - 0.5, -0.5], **cell)
    elif sheet.in_panels:
        figure.update_yaxes(nticks=4, **cell)
    figure.update_layout(bargap=0.15)


def _add_band(sheet: _Sheet, series: Series, look: Look, *, signs: bool) -> None:
    sheet.add(
        "scatter",
        series.name,
        signs=signs and series.style == "band",
        x=[*series.x, *reversed(series.x)],
        y=[*series.high, *reversed(series.low)],
        mode="lines",
        fill="toself",
        fillcolor=with_alpha(look.colour, 0.18),
        line={"width": 0},
        hoverinfo="skip",
    )


def _scatter(chart: LineChart, series: Series, look: Look, is_marked: bool) -> dict[str, Any]:
    is_points, is_thin = series.style in ("points", "strokes"), series.weight == "thin"
    shape = "line-ns" if series.style == "strokes" else _SHAPES[look.shape]
    lines = "lines+markers" if is_marked else "lines"
    dash = {"dashed": "dash", "steps": _DASHES[look.shape]}.get(series.style, "solid")
    is_open = series.hollow or not is_points
    trace: dict[str, Any] = {
        "x": list(series.x) or [None],  # an entry of the legend that is drawn nowhere has a point all the same
        "y": list(series.y) or [None],
        "mode": ("markers+text" if series.labels else "markers") if is_points else lines,
        "text": [html.escape(label) for label in series.labels] or None,
        "textposition": ["top right" if goes_right(chart, x) else "bottom left" for x in series.x]
        if series.labels
        else None,
        "cliponaxis": not series.labels and not (is_points and chart.x.view is chart.y.view is None),
        "line": {
            "color": with_alpha(look.colour, 0.3) if is_thin else look.colour,
            "width": _WIDTHS[series.weight],
            "dash": dash,
        },
        "marker": {
            "color": look.colour,
            "size": _SIZES[series.weight] * (2 if series.style == "strokes" else 1) if is_points else 8,
            "symbol": f"{shape}-open" if is_open else shape,
            "opacity": 0.75 if is_points and not series.hollow else 1,
            "line": {"width": 3 if series.style == "strokes" else 2 if series.hollow else 0, "color": look.colour}
            if is_points
            else None,
            "maxdisplayed": 0 if is_points else MOST_MARKERS,
        },
    }
    if is_thin and not is_points:
        return trace | {"hoverinfo": "skip"}
    if series.hints:
        return trace | {
            "customdata": ["<br>".join(map(html.escape, textwrap.wrap(hint, _HINT_LETTERS))) for hint in series.hints],
            "hovertemplate": f"%{{customdata}}<extra>{html.escape(series.name)}</extra>",
        }
    return trace | {"hovertemplate": _hover(chart, series.name)}


def _hover(chart: LineChart, name: str) -> str:
    """Write what is told of a point: its places, each with what is along the axis."""
    axes = (("y", chart.y), ("x", chart.x))
    values = [f"{html.escape(axis.title)}: %{{{along}:.4g}}" for along, axis in axes if not axis.ticks]
    return f"{'<br>'.join(values)}<extra>{html.escape(name)}</extra>"


@_draw.register
def _(chart: BarChart, sheet: _Sheet) -> None:
    rows = [_text(row) for row in rows_of(chart)]
    places = list(range(len(rows)))
    for place, (part, values) in enumerate(chart.parts.items()):
        sheet.add(
            "bar",
            part,
            x=list(values),
            y=places,
            orientation="h",
            marker={"color": chart.colours.get(part, COLOURS[place % len(COLOURS)])},
            customdata=rows,
            hovertemplate=f"%{{x:.4g}}<extra>{html.escape(part)}, %{{customdata}}</extra>",
        )
    sheet.figure.update_layout(barmode="stack", bargap=0.3)
    _finish_rows(sheet, rows, chart.axis)
    if sheet.in_panels:
        return
    ends = bar_texts(chart)
    sheet.add(
        "scatter",
        "",
        x=[end for end, _ in ends],
        y=places,
        mode="text",
        text=[f"\N{NO-BREAK SPACE}{html.escape(text)}" for _, text in ends],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
    )
    room = BAR_ROOM if not chart.ends else BAR_ROOM + 0.03 * max(map(len, chart.ends))
    sheet.figure.update_xaxes(range=[0, room * max(end for end, _ in ends) or 1], **sheet.cell)


@_draw.register
def _(chart: RangeChart, sheet: _Sheet) -> None:
    rows = [_text(row) for row in rows_of(chart)]
    for name, ends, colour in (("low", chart.low, COLOURS[5]), ("high", chart.high, COLOURS[4])):
        sheet.add(
            "bar",
            f"input at its {name} end",
            x=[end - chart.base for end in ends],
            base=chart.base,
            y=list(range(len(rows))),
            orientation="h",
            marker={"color": colour},
            customdata=list(zip(ends, rows, strict=True)),
            hovertemplate="%{customdata[0]:.4g}<extra>%{customdata[1]}</extra>",
        )
    sheet.figure.update_layout(barmode="overlay", bargap=0.3)
    sheet.figure.add_vline(x=chart.base, line={"color": QUIET, "width": 1}, **sheet.cell)
    _finish_rows(sheet, rows, chart.axis)


@_draw.register
def _(chart: Timeline, sheet: _Sheet) -> None:
    for place, kind in enumerate(dict.fromkeys(span.kind for span in chart.spans)):
        of_kind = [span for span in chart.spans if span.kind == kind]
        colour = chart.colours.get(kind, COLOURS[place % len(COLOURS)])
        sheet.add(
            "bar",
            kind,
            x=[span.end - span.start for span in of_kind],
            base=[span.start for span in of_kind],
            y=[span.row for span in of_kind],
            orientation="h",
            text=[html.escape(span.label) for span in of_kind],
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": ink_on(colour)},
            marker={"color": colour},
            customdata=[(span.start, span.end, f"{span.hint}: " if span.hint else "") for span in of_kind],
            hovertemplate="%{customdata[2]}%{customdata[0]:.4g} to %{customdata[1]:.4g}"
            f"<extra>{html.escape(kind)}</extra>",
        )
    sheet.figure.update_layout(barmode="overlay", bargap=0.15)
    _finish_rows(sheet, [_text(row) for row in rows_of(chart)], chart.axis)


def _finish_rows(sheet: _Sheet, rows: Sequence[str], axis: Axis) -> None:
    places = list(range(len(rows)))
    sheet.figure.update_xaxes(_axis(axis), **sheet.cell)
    sheet.figure.update_yaxes(
        tickvals=places, ticktext=rows, range=[len(rows) - 0.5, -0.5], showgrid=False, **sheet.cell
    )


@_draw.register
def _(chart: HeatMap, sheet: _Sheet) -> None:
    figure, cells_px = sheet.figure, _cells_px(chart)
    top = 1.0 if chart.categories else cells_px / (cells_px + _SCALE_PX)
    sheet.add(
        "heatmap",
        "",
        x=[html.escape(column) for column in chart.columns],
        y=[html.escape(row) for row in chart.rows],
        z=cell_amounts(chart),
        customdata=[list(values) for values in chart.values],
        text=[
            [f'<span style="color:{ink}">{html.escape(text)}</span>' for text, ink in zip(texts, inks, strict=True)]
            for texts, inks in zip(chart.texts, cell_inks(chart), strict=False)
        ]
        or None,
        texttemplate="%{text}" if chart.texts else None,
        textfont={"size": _letters_px(chart)},  # plotly's own counts the letters of the tags too
        hovertemplate="%{x}, %{y}: %{customdata:.4g}<extra></extra>",
        xgap=1,
        ygap=1,
        **(_category_colours(len(chart.categories)) if chart.categories else _amount_colours(chart, top)),
    )
    for place, category in enumerate(chart.categories):
        marker = {"color": COLOURS[place % len(COLOURS)], "symbol": "square", "size": 12}
        sheet.add("scatter", category, x=[None], y=[None], mode="markers", marker=marker)
    if not chart.categories:  # all of it inside: what is outside moves the axis below into the cells
        corner: dict[str, Any] = {
            "x": 1,
            "y": 1,
            "xref": "paper",
            "yref": "paper",
            "xanchor": "right",
            "yanchor": "top",
        }
        figure.add_annotation(text=_title(chart.scale), align="right", showarrow=False, **corner)
    columns, tilted = column_labels(chart.columns, letters=_ROW_LETTERS - max(map(len, chart.rows)))
    texts = [html.escape(column) for column in columns.values()]
    figure.update_xaxes(title_text=_title(chart.x), type="category", showgrid=False, tickangle=-90 if tilted else 0)
    figure.update_xaxes(tickvals=texts, ticktext=texts)
    figure.update_yaxes(title_text=_title(chart.y), type="category", showgrid=False, autorange="reversed")
    figure.update_yaxes(domain=[0, top])


def _category_colours(number: int) -> dict[str, Any]:
    steps = [(edge / number, COLOURS[place % len(COLOURS)]) for place in range(number) for edge in (place, place + 1)]
    return {"colorscale": steps, "zmin": -0.5, "zmax": number - 0.5, "showscale": False}


def _amount_colours(chart: HeatMap, top: float) -> dict[str, Any]:
    bar: dict[str, Any] = {"orientation": "h", "y": top, "yanchor": "bottom", "ypad": 4, "thickness": 12}
    if chart.scale.log:
        ticks = log_ticks(*extent([value for values in chart.values for value in values]))
        bar |= {"tickvals": [math.log10(tick) for tick in ticks], "ticktext": [tick_text(tick) for tick in ticks]}
    steps = [(place / (len(AMOUNTS) - 1), colour) for place, colour in enumerate(AMOUNTS)]
    return {"colorscale": steps, "colorbar": bar}


def _cells_px(chart: HeatMap) -> int:
    return max(22, 260 // len(chart.rows)) * len(chart.rows)


def _letters_px(chart: HeatMap) -> int:
    needed = len(chart.columns) * max((len(text) for texts in chart.texts for text in texts), default=1)
    return max(_SMALLEST_PX, min(_CELL_PX, _CELL_PX * _CELL_LETTERS // needed))


def _text(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")


def _title(axis: Axis) -> str:
    return "<br>".join(map(html.escape, textwrap.wrap(axis.title, _TITLE_LETTERS)))


def _axis(axis: Axis, values: Sequence[float] = ()) -> dict[str, Any]:
    """Describe an axis; ``values`` are those along it, which a logarithmic one needs."""
    found: dict[str, Any] = {"title_text": _title(axis)}
    if axis.log:
        low, high = axis.view or extent(values)
        ticks = {tick: tick_text(tick) for tick in log_ticks(low, high)} if not axis.ticks else axis.ticks
        found |= {"type": "log", "range": [math.log10(low), math.log10(high)]}
    else:
        ticks = axis.ticks
        found |= {"exponentformat": "power", "minexponent": 5, "separatethousands": True}
        found |= {"range": list(axis.view)} if axis.view else {"rangemode": "tozero" if axis.from_zero else "normal"}
    return found | ({"tickvals": list(ticks), "ticktext": [_text(text) for text in ticks.values()]} if ticks else {})
