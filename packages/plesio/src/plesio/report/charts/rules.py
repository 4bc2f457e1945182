"""Rules that pages and picture files share, so that a chart says the same on a screen, on paper and without colours."""

import math
from collections.abc import Sequence
from itertools import chain

from plesio.core.charts import BarChart, Chart, HeatMap, LineChart, RangeChart, Series, Timeline
from plesio.report.charts.colours import COLOURS, amount_colour, ink_on

MOST_MARKERS = 8
"""Markers of a line: its shape tells it from the others where colours do not."""

BAR_ROOM = 1.18
"""An axis of bars over the longest of them, for what stands at its end."""

_DIGITS = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9))
_MOST_TICKS, _FEWEST_TICKS = 6, 3
_MARGIN = 0.03
_LONG_NAME = 18
_MOST_TILTED = 8
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def goes_right(chart: LineChart, x: float) -> bool:
    """Tell whether a label at ``x`` is on its right, where there is more room: it is in the left half.

    >>> from plesio.core.charts import Axis, Series
    >>> size, line = Axis(title="size (MB)", log=True), Series(name="a", x=[1, 100], y=[1, 2])
    >>> chart = LineChart(title="", x=size, y=size, series=[line])
    >>> goes_right(chart, 2), goes_right(chart, 50)
    (True, False)
    """
    place = math.log if chart.x.log else float
    places = [place(each) for series in chart.series for each in series.x]
    return place(x) <= (min(places) + max(places)) / 2


def mark_rows(chart: LineChart, *, letters: int) -> dict[str, int]:
    """Choose the row above the chart, from 0, for the words of each mark: the lowest in which they touch no others.

    A row has room for ``letters``.

    >>> from plesio.core.charts import Axis, Series
    >>> time, line = Axis(title="time (s)"), Series(name="a", x=[0, 10], y=[1, 2])
    >>> marks = {"ideal": 1.0, "expected": 2.0, "late": 9.0}
    >>> mark_rows(LineChart(title="", x=time, y=time, series=[line], marks=marks), letters=40)
    {'ideal': 0, 'expected': 1, 'late': 0}
    """
    if not chart.marks:
        return {}
    place = math.log if chart.x.log else float
    places = [place(value) for value in values_along(chart, "x")]
    letter = (max(places) - min(places)) / letters
    rows: dict[str, int] = {}
    taken: list[tuple[int, float, float]] = []
    for text, value in chart.marks.items():
        width = letter * (len(text) + 1)
        left = place(value) if goes_right(chart, value) else place(value) - width
        hit = {row for row, begin, end in taken if begin < left + width and left < end}
        rows[text] = next(row for row in range(len(taken) + 1) if row not in hit)
        taken.append((rows[text], left, left + width))
    return rows


def thinned(labels: Sequence[str], *, most: int) -> dict[int, str]:
    """Thin the labels to at most so many at equal distances, by their place; the last is kept where possible.

    >>> thinned(["1", "2", "5", "10", "20"], most=3)
    {0: '1', 2: '5', 4: '20'}
    >>> list(thinned("abcdefghi", most=4))
    [0, 4, 8]
    """
    step = math.ceil(len(labels) / most)
    ends = [wider for wider in range(step, 2 * step) if (len(labels) - 1) % wider == 0]
    return dict(list(enumerate(labels))[:: ends[0] if ends else step])


def column_labels(labels: Sequence[str], *, letters: int) -> tuple[dict[int, str], bool]:
    """Return the labels below columns by their place, and whether they are tilted.

    There is room for ``letters``. A few labels that need more are tilted, for they may be names; many are sizes, of
    which some do.

    >>> column_labels(["ring", "tree"], letters=20)
    ({0: 'ring', 1: 'tree'}, False)
    >>> column_labels(["ring", "tree"], letters=8)
    ({0: 'ring', 1: 'tree'}, True)
    >>> column_labels([str(place) for place in range(101)], letters=20)
    ({0: '0', 25: '25', 50: '50', 75: '75', 100: '100'}, False)
    """
    a_column = max(map(len, labels)) + 1
    if a_column * len(labels) <= letters:
        return dict(enumerate(labels)), False
    if len(labels) <= _MOST_TILTED:
        return dict(enumerate(labels)), True
    return thinned(labels, most=max(2, letters // a_column)), False


def extent(values: Sequence[float]) -> tuple[float, float]:
    """Choose the ends of a logarithmic axis for all positive ``values``, with some margin.

    >>> low, high = extent([1.0, 1000.0, math.nan])
    >>> f"{low:.2f} to {high:.0f}"
    '0.81 to 1230'
    """
    places = [math.log10(value) for value in values if value > 0 and math.isfinite(value)] or [0.0]
    margin = _MARGIN * (max(places) - min(places)) or _MARGIN
    return 10 ** (min(places) - margin), 10 ** (max(places) + margin)


def values_along(chart: LineChart, axis: str) -> list[float]:
    if axis == "x":
        return [*chain.from_iterable(series.x for series in chart.series), *chart.marks.values(), *chart.moments]
    return [*chain.from_iterable((*series.y, *series.low, *series.high) for series in chart.series), *chart.levels]


def log_ticks(low: float, high: float) -> list[float]:
    """Choose three to six round values from ``low`` to ``high``: powers of ten, or closer to each other where few are.

    >>> log_ticks(0.5, 2e4), log_ticks(4, 60), log_ticks(0.8, 12)
    ([1.0, 10.0, 100.0, 1000.0, 10000.0], [5.0, 10.0, 20.0, 50.0], [1.0, 3.0, 10.0])
    >>> log_ticks(1e-13, 1), log_ticks(1.02, 1.19)
    ([1e-12, 1e-09, 1e-06, 0.001, 1.0], [1.05, 1.1, 1.15])
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in _DIGITS:
        ticks = [float(f"{digit}e{exponent}") for exponent in exponents for digit in digits]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) > _MOST_TICKS:
            return inside[:: -math.ceil(len(inside) / _MOST_TICKS)][::-1]
        if len(inside) >= _FEWEST_TICKS:
            return inside
    size = 10.0 ** math.floor(math.log10((high - low) / _FEWEST_TICKS))
    step_size = max(size * digit for digit in (1, 2, 5) if size * digit * _FEWEST_TICKS <= high - low)
    first, last = math.ceil(low / step_size), math.floor(high / step_size)
    return [float(f"{place * step_size:.12g}") for place in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Write a value beside an axis.

    >>> tick_text(10_000), tick_text(0.0001), tick_text(1e-12), tick_text(3e6)
    ('10,000', '0.0001', '10⁻¹²', '3·10⁶')
    """
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:,.6g}"
    digits, exponent = f"{value:.5e}".split("e")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return power if float(digits) == 1 else f"{float(digits):g}·{power}"


def marked_lines(series: Sequence[Series]) -> list[Series]:
    """Return the lines with markers: those that could be taken for others, and have no points of their name."""
    of_points = {one.name for one in series if one.style == "points"}
    lines = [one for one in series if one.style in ("line", "dashed") and one.weight != "thin"]
    return [one for one in lines if one.name not in of_points] if len(lines) > 1 else []


def rows_of(chart: Chart) -> list[str]:
    """Name the chart's rows, from the top down; none where it has no rows."""
    if isinstance(chart, LineChart):
        return [on_two_lines(text) for text in chart.y.ticks.values()] if chart.y.down else []
    return [on_two_lines(row) for row in chart.rows] if isinstance(chart, BarChart | RangeChart | Timeline) else []


def on_two_lines(name: str) -> str:
    """Break a long name beside an axis after the comma nearest to its middle.

    >>> on_two_lines("ssp:4"), on_two_lines("local_sgd:8,delay=4,exchange=store").splitlines()
    ('ssp:4', ['local_sgd:8,delay=4,', 'exchange=store'])
    """
    commas = [place + 1 for place, letter in enumerate(name) if letter == ","]
    if len(name) <= _LONG_NAME or not commas:
        return name
    middle = min(commas, key=lambda place: abs(place - len(name) / 2))
    return f"{name[:middle]}\n{name[middle:].lstrip()}"


def fewest_names(chart: Chart) -> int:
    """Return the least number of names in a legend: one alone is told by the title, unless it is a colour's."""
    return 1 if isinstance(chart, HeatMap) else 2


def bar_texts(chart: BarChart) -> list[tuple[float, str]]:
    """Return where each bar ends, and what stands there: a bar may be too short to be seen.

    >>> from plesio.core.charts import Axis
    >>> time = Axis(title="time (s)")
    >>> bar_texts(BarChart(title="", axis=time, rows=["a"], parts={"b": [1], "c": [1.2346]}))
    [(2.2346, '2.23')]
    """
    ends = [sum(values) for values in zip(*chart.parts.values(), strict=True)]
    texts = chart.ends or [tick_text(float(f"{end:.3g}")) for end in ends]
    return list(zip(ends, texts, strict=True))


def cell_amounts(chart: HeatMap) -> list[list[float]]:
    """Return the amounts behind the colours of cells: the values, or their logarithms where factors count."""
    if not chart.scale.log:
        return [list(values) for values in chart.values]
    return [[math.log10(value) if value > 0 else math.nan for value in values] for values in chart.values]


def cell_inks(chart: HeatMap) -> list[list[str]]:
    """Choose the colour of the text in each cell, row by row.

    >>> from plesio.core.charts import Axis
    >>> none = Axis(title="")
    >>> cell_inks(HeatMap(title="", x=none, y=none, columns="ab", rows="c", values=[[1, 9]]))
    [['white', 'black']]
    """
    if chart.categories:
        colours: dict[float, str] = dict(
            enumerate(COLOURS[place % len(COLOURS)] for place in range(len(chart.categories)))
        )
        return [[ink_on(colours.get(value, "#ffffff")) for value in values] for values in chart.values]
    amounts = cell_amounts(chart)
    finite = [value for values in amounts for value in values if math.isfinite(value)]
    least, span = min(finite, default=0.0), (max(finite, default=0.0) - min(finite, default=0.0)) or 1.0
    return [[ink_on(amount_colour((value - least) / span)) for value in values] for values in amounts]
