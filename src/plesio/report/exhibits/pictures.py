"""Charts as picture files (PNG), by matplotlib: plotly's own would need a browser."""

import io
import math
from functools import singledispatch
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

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
    thinned,
    tick_text,
    values_along,
)

__all__ = ["draw_picture"]

_WIDTH_IN = 8.0
_DPI = 130
_LEGEND_LETTERS = 118
"""Of names, and of the signs before them, side by side."""
_SIGN_LETTERS = 7
_LINE_PT = 11
_ROW_LETTERS, _MOST_ROWS = 95, 24
"""Below a heat map with the longest name of a row, and beside it."""
_MARK_LETTERS = 100
_SHAPES = ("o", "s", "^", "D", "v", "P", "X")
_TICK_TEXT = FuncFormatter(lambda value, _: tick_text(value))


def draw_picture(chart: Chart) -> bytes:
    """The chart as a PNG file."""
    figure = Figure(figsize=(_WIDTH_IN, _height_in(chart)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color=QUIET, alpha=0.25)
    axes.set_axisbelow(True)
    _draw(chart, axes)
    rows = mark_rows(chart, letters=_MARK_LETTERS).values() if isinstance(chart, LineChart) else ()
    above_pt = 6 + _LINE_PT * (1 + max(rows, default=-1))
    axes.set_title(chart.title, loc="left", fontsize=11, wrap=True, parse_math=False, pad=above_pt)  # "$" are dollars
    _name_below(figure, axes, fewest=1 if isinstance(chart, HeatMap) else 2)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _height_in(chart: Chart) -> float:
    if isinstance(chart, (BarChart, RangeChart, Timeline)):
        return 1.6 + min(0.32, 12 / len(chart.rows)) * len(chart.rows)
    return 4.8


@singledispatch
def _draw(chart: Chart, axes: Axes) -> None:
    raise AssertionError(f"nobody draws a {type(chart).__name__}")


@_draw.register
def _(chart: LineChart, axes: Axes) -> None:
    are_marked, num_lines = has_markers(chart.series), 0
    for series, (colour, shape) in zip(chart.series, series_looks(chart.series), strict=True):
        style: dict[str, Any] = {"linestyle": {"points": "", "dashed": "--", "line": "-"}[series.style]}
        if series.style == "points":
            style |= {"marker": _SHAPES[shape]}
        elif are_marked:  # those of the next line are elsewhere, as plotly does it too
            every = math.ceil(len(series.x) / MOST_MARKERS) or 1
            style |= {
                "marker": _SHAPES[shape],
                "markerfacecolor": "none",
                "markevery": (num_lines * every // 3 % every, every),
            }
            num_lines += 1
        axes.plot(series.x, series.y, color=colour, label=series.name, **style)
        if series.low:
            axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, linewidth=0)
        for x, y, label in zip(series.x, series.y, series.labels, strict=False):
            right = goes_right(chart, x)
            axes.annotate(
                label,
                (x, y),
                xytext=(4, 4) if right else (-4, -4),
                textcoords="offset points",
                ha="left" if right else "right",
                va="bottom" if right else "top",
                fontsize=8,
            )
    rows = mark_rows(chart, letters=_MARK_LETTERS)
    for text, value in chart.marks.items():
        axes.axvline(value, color=QUIET, linestyle=":", linewidth=1.5)
        axes.annotate(
            text,
            (value, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3 + _LINE_PT * rows[text]),
            textcoords="offset points",
            ha="left" if goes_right(chart, value) else "right",
            fontsize=9,
            color=MARK_INK,
        )
    for axis, along in ((chart.x, "x"), (chart.y, "y")):
        if axis.log:
            low, high = extent(values_along(chart, along))
            axes.set(**{f"{along}scale": "log", f"{along}lim": (low, high), f"{along}ticks": log_ticks(low, high)})
            getattr(axes, f"{along}axis").set_minor_formatter(NullFormatter())
        _set_axis(axes, axis, along)


@_draw.register
def _(chart: BarChart, axes: Axes) -> None:
    left = [0.0] * len(chart.rows)
    for place, (part, values) in enumerate(chart.parts.items()):
        axes.barh(range(len(chart.rows)), values, left=left, color=COLOURS[place % len(COLOURS)], label=part)
        left = [before + value for before, value in zip(left, values, strict=True)]
    ends = bar_texts(chart)
    for row, (end, text) in enumerate(ends):
        axes.annotate(text, (end, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(0, BAR_ROOM * max(end for end, _ in ends) or 1)
    _rows_down(axes, chart.rows)
    _set_axis(axes, chart.axis, "x")


@_draw.register
def _(chart: RangeChart, axes: Axes) -> None:
    for name, ends, colour in (("low", chart.low, COLOURS[5]), ("high", chart.high, COLOURS[4])):
        widths = [end - chart.base for end in ends]
        axes.barh(range(len(ends)), widths, left=chart.base, color=colour, label=f"input at its {name} end")
    axes.axvline(chart.base, color=QUIET, linewidth=1)
    _rows_down(axes, chart.rows)
    _set_axis(axes, chart.axis, "x")


@_draw.register
def _(chart: HeatMap, axes: Axes) -> None:
    number = len(chart.categories)
    if number:
        colours = ListedColormap([COLOURS[place % len(COLOURS)] for place in range(number)])
        image = axes.imshow(chart.values, aspect="auto", cmap=colours, vmin=-0.5, vmax=number - 0.5)
    else:
        image = axes.imshow(chart.values, aspect="auto", cmap=LinearSegmentedColormap.from_list("amounts", AMOUNTS))
        axes.figure.colorbar(image, ax=axes, label=chart.scale.title)
    for place, category in enumerate(chart.categories):
        axes.scatter([], [], marker="s", s=60, color=COLOURS[place % len(COLOURS)], label=category)
    for row, (texts, inks) in enumerate(zip(chart.texts, cell_inks(chart), strict=False)):
        for column, (text, ink) in enumerate(zip(texts, inks, strict=True)):
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=ink)
    (columns, tilted), rows = (
        column_labels(chart.columns, letters=_ROW_LETTERS - max(map(len, chart.rows))),
        thinned(chart.rows, most=_MOST_ROWS),
    )
    tilt: dict[str, Any] = {"rotation": 30, "ha": "right"} if tilted else {}
    axes.set_xticks(list(columns), list(columns.values()), fontsize=8, **tilt)
    axes.set_yticks(list(rows), list(rows.values()), fontsize=8)
    axes.set_xlabel(chart.x.title)
    axes.set_ylabel(chart.y.title)
    axes.grid(visible=False)


@_draw.register
def _(chart: Timeline, axes: Axes) -> None:
    for place, kind in enumerate(dict.fromkeys(span.kind for span in chart.spans)):
        of_kind = [span for span in chart.spans if span.kind == kind]
        colour = COLOURS[place % len(COLOURS)]
        bars = axes.barh(
            [span.row for span in of_kind],
            [span.end - span.start for span in of_kind],
            left=[span.start for span in of_kind],
            color=colour,
            label=kind,
        )
        axes.bar_label(
            bars, labels=[span.label for span in of_kind], label_type="center", fontsize=7, color=ink_on(colour)
        )
    _rows_down(axes, chart.rows)
    _set_axis(axes, chart.axis, "x")


def _name_below(figure: Figure, axes: Axes, *, fewest: int) -> None:
    """Names of what has one, below the chart, where they cover nothing; a taller picture for them."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) < fewest:
        return
    columns = max(1, min(len(names), _LEGEND_LETTERS // (max(map(len, names)) + _SIGN_LETTERS)))
    figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(names) / columns))
    figure.legend(handles, names, loc="outside lower left", ncols=columns, fontsize=8, frameon=False)


def _rows_down(axes: Axes, rows: Any) -> None:
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _set_axis(axes: Axes, axis: Axis, along: str) -> None:
    axes.set(**{f"{along}label": axis.title})
    getattr(axes, f"{along}axis").set_major_formatter(_TICK_TEXT)
