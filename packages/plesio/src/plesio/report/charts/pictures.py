"""Charts as picture files (PNG), by matplotlib: plotly's own would need a browser."""

import io
import math
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from PIL import Image

from plesio.core.charts import Axis, BarChart, Chart, HeatMap, LineChart, Look, Panels, RangeChart, Series, Timeline
from plesio.report.charts.colours import AMOUNTS, COLOURS, MARK_INK, QUIET, ink_on, series_looks
from plesio.report.charts.rules import (
    BAR_ROOM,
    MOST_MARKERS,
    bar_texts,
    cell_inks,
    column_labels,
    extent,
    fewest_names,
    goes_right,
    log_ticks,
    mark_rows,
    marked_lines,
    rows_of,
    thinned,
    tick_text,
    values_along,
)

_WIDTH_IN = 8.0
_DPI = 130
_COLOURS = 128
_LEGEND_LETTERS = 118
"""Letters of names, and of the signs before them, side by side."""
_SIGN_LETTERS = 7
_LINE_PT = 11
_ROW_LETTERS, _MOST_ROWS = 95, 24
"""Letters below a heat map with the longest name of a row, and rows beside it."""
_MARK_LETTERS = 100
_SHAPES = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 2, 1, 2)), (0, (1, 4)))
_WIDTHS = {"thin": 0.8, "normal": 1.5, "thick": 3.0}
_SIZES = {"thin": 3, "normal": 6, "thick": 8}
_TICK_TEXT = FuncFormatter(lambda value, _: tick_text(value))


def draw_picture(chart: Chart) -> bytes:
    charts, columns = (chart.charts, chart.columns) if isinstance(chart, Panels) else ([chart], 1)
    num_rows = math.ceil(len(charts) / columns)
    height_in = num_rows * max(_height_in(one, in_panels=isinstance(chart, Panels)) for one in charts)
    figure = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    cells = list(figure.subplots(num_rows, columns, squeeze=False, sharex="col" if columns == 1 else False).flat)
    rows = mark_rows(chart, letters=_MARK_LETTERS).values() if isinstance(chart, LineChart) else ()
    title: dict[str, Any] = {"loc": "left", "wrap": True, "parse_math": False}  # "$" are dollars
    for place, (axes, one) in enumerate(zip(cells, charts, strict=False)):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color=QUIET, alpha=0.25)
        axes.set_axisbelow(True)
        _draw(one, axes)
        axes.set_title(one.title, fontsize=9, **title)
        if columns == 1 and place < num_rows - 1:
            axes.set_xlabel("")
    for axes in cells[len(charts) :]:
        axes.set_visible(False)
    if isinstance(chart, Panels):
        figure.suptitle(chart.title, x=0.01, ha="left", fontsize=11, wrap=True, parse_math=False)
    else:
        cells[0].set_title(chart.title, fontsize=11, pad=6 + _LINE_PT * (1 + max(rows, default=-1)), **title)
    _name_below(figure, fewest=fewest_names(chart))
    drawn, image = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="rgba")
    width, height = (int(size) for size in figure.canvas.get_width_height())
    # a few colours and their blends with white: a palette shows them all, in a third of the bytes
    pixels = Image.frombytes("RGBA", (width, height), drawn.getvalue()).convert("RGB")
    pixels.quantize(_COLOURS, method=Image.Quantize.FASTOCTREE).save(image, "png")
    return image.getvalue()


def _height_in(chart: Chart, *, in_panels: bool) -> float:
    num_rows = len(rows_of(chart))
    if num_rows:
        return (0.6 if in_panels else 1.6) + min(0.32, 12 / num_rows) * num_rows
    return 2.4 if in_panels else 4.8


@singledispatch
def _draw(chart: Chart, axes: Axes) -> None:
    raise AssertionError(f"nobody draws a {type(chart).__name__}")


@_draw.register
def _(chart: LineChart, axes: Axes) -> None:
    marked = marked_lines(chart.series)
    last = {series.name: place for place, series in enumerate(chart.series)}
    for place, (series, look) in enumerate(zip(chart.series, series_looks(chart.series), strict=True)):
        label = series.name if series.name and last[series.name] == place else "_"
        # a name stands once in the legend, at the last series that has it
        if series.low:
            of_band = label if series.style == "band" else "_"
            axes.fill_between(
                series.x, series.low, series.high, color=look.colour, alpha=0.18, linewidth=0, label=of_band
            )
        if series.style == "bars":
            axes.bar(series.x, series.y, width=0.85, color=look.colour, label=label)
        elif series.style != "band":
            number = marked.index(series) if series in marked else None
            axes.plot(series.x, series.y, color=look.colour, label=label, **_style(series, look, number))
        for x, y, text in zip(series.x, series.y, series.labels, strict=False):
            right = goes_right(chart, x)
            axes.annotate(
                text,
                (x, y),
                xytext=(4, 4) if right else (-4, -4),
                textcoords="offset points",
                ha="left" if right else "right",
                va="bottom" if right else "top",
                fontsize=8,
            )
    for value in chart.levels:
        axes.axhline(value, color=QUIET, linestyle=":", linewidth=1.5)
    for value in (*chart.moments, *chart.marks.values()):
        axes.axvline(value, color=QUIET, linestyle=":", linewidth=1.5)
    rows = mark_rows(chart, letters=_MARK_LETTERS)
    for text, value in chart.marks.items():
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
        _set_axis(axes, axis, along, values_along(chart, along))
    if chart.y.down:
        _rows_down(axes, rows_of(chart))


def _style(series: Series, look: Look, number: int | None) -> dict[str, Any]:
    """Choose how a line is drawn, or points; ``number`` is a line's among those that have markers."""
    is_thin = series.weight == "thin"
    if series.style in ("points", "strokes"):
        style: dict[str, Any] = {"linestyle": "", "marker": _SHAPES[look.shape], "markersize": _SIZES[series.weight]}
        if series.style == "strokes":
            style |= {"marker": "|", "markersize": 16, "markeredgewidth": 2.5}
        return style | ({"markerfacecolor": "none"} if series.hollow else {"alpha": 0.75})
    line = {"dashed": "--", "steps": _DASHES[look.shape]}.get(series.style, "-")
    style = {"linestyle": line, "linewidth": _WIDTHS[series.weight], "alpha": 0.3 if is_thin else 1.0}
    if number is not None:  # those of the next line are elsewhere, as plotly does it too
        every = math.ceil(len(series.x) / MOST_MARKERS) or 1
        style |= {
            "marker": _SHAPES[look.shape],
            "markerfacecolor": "none",
            "markevery": (number * every // 3 % every, every),
        }
    return style


@_draw.register
def _(chart: BarChart, axes: Axes) -> None:
    left = [0.0] * len(chart.rows)
    for place, (part, values) in enumerate(chart.parts.items()):
        axes.barh(
            range(len(chart.rows)),
            values,
            left=left,
            color=chart.colours.get(part, COLOURS[place % len(COLOURS)]),
            label=part,
        )
        left = [before + value for before, value in zip(left, values, strict=True)]
    ends = bar_texts(chart)
    for row, (end, text) in enumerate(ends):
        axes.annotate(text, (end, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(0, BAR_ROOM * max(end for end, _ in ends) or 1)
    _rows_down(axes, rows_of(chart))
    _set_axis(axes, chart.axis, "x")


@_draw.register
def _(chart: RangeChart, axes: Axes) -> None:
    for name, ends, colour in (("low", chart.low, COLOURS[5]), ("high", chart.high, COLOURS[4])):
        widths = [end - chart.base for end in ends]
        axes.barh(range(len(ends)), widths, left=chart.base, color=colour, label=f"input at its {name} end")
    axes.axvline(chart.base, color=QUIET, linewidth=1)
    _rows_down(axes, rows_of(chart))
    _set_axis(axes, chart.axis, "x")


@_draw.register
def _(chart: HeatMap, axes: Axes) -> None:
    number = len(chart.categories)
    if number:
        colours = ListedColormap([COLOURS[place % len(COLOURS)] for place in range(number)])
        image = axes.imshow(chart.values, aspect="auto", cmap=colours, vmin=-0.5, vmax=number - 0.5)
    else:
        amounts = LinearSegmentedColormap.from_list("amounts", AMOUNTS)
        norm = LogNorm() if chart.scale.log else None
        image = axes.imshow(chart.values, aspect="auto", cmap=amounts, norm=norm)
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
        colour = chart.colours.get(kind, COLOURS[place % len(COLOURS)])
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
    _rows_down(axes, rows_of(chart))
    _set_axis(axes, chart.axis, "x")


def _name_below(figure: Figure, *, fewest: int) -> None:
    """Write names below the chart, where they cover nothing; a taller picture for them."""
    signs = {
        name: handle for axes in figure.axes for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if len(signs) < fewest:
        return
    columns = max(1, min(len(signs), _LEGEND_LETTERS // (max(map(len, signs)) + _SIGN_LETTERS)))
    figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(signs) / columns))
    figure.legend(signs.values(), signs.keys(), loc="outside lower left", ncols=columns, fontsize=8, frameon=False)


def _rows_down(axes: Axes, rows: Sequence[str]) -> None:
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _set_axis(axes: Axes, axis: Axis, along: str, values: Sequence[float] = ()) -> None:
    """Set title, range and ticks; ``values`` are those along the axis, which a logarithmic one needs."""
    view = axis.view
    getattr(axes, f"{along}axis").set_major_formatter(_TICK_TEXT)
    if axis.log:
        view = view or extent(values)
        axes.set(**{f"{along}scale": "log", f"{along}ticks": log_ticks(*view)})
        getattr(axes, f"{along}axis").set_major_formatter(_TICK_TEXT)
        getattr(axes, f"{along}axis").set_minor_formatter(NullFormatter())
    elif axis.from_zero and view is None:
        view = (0, getattr(axes, f"get_{along}lim")()[1])
    if axis.ticks:
        axes.set(**{f"{along}ticks": list(axis.ticks), f"{along}ticklabels": list(axis.ticks.values())})
    axes.set(**{f"{along}label": axis.title} | ({f"{along}lim": view} if view else {}))
