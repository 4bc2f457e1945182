"""Tables and charts as data: what a study, an estimate or a report of runs shows, before anybody draws it.

A chart's title is its finding, and its caption says what is drawn. `plesio.report.charts` draws each kind on a page and
as a picture file; nothing here knows how.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of finished texts; numbers carry their unit, in the cell or in the header.

    >>> Table(title="Rings", headers=("ranks", "time"), rows=[("2", "1 ms"), ("4", "1.5 ms")]).rows[1]
    ('4', '1.5 ms')
    """

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headers) for row in self.rows), f"{self.title}: a cell for each header"


class Look(NamedTuple):
    """The colour of a series, as ``#rrggbb``, and the number of its shape, which tells it from others of its colour."""

    colour: str
    shape: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of a chart.

    Attributes:
        title: Quantity that is measured, with its unit in brackets: ``time (s)``.
        ticks: Texts beside the axis by their places, in place of round values.
        view: The range that is seen at first; None shows everything.
        down: Whether the ticks are names of rows, from the top down.
    """

    title: str
    log: bool = False
    ticks: Mapping[float, str] = field(default_factory=dict)
    view: tuple[float, float] | None = None
    from_zero: bool = False
    down: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The fields that all charts have.

    Attributes:
        slug: Name in a page's address and in a file's name; no two charts of one page share it. Panels need none.
        title: The finding.
    """

    slug: str = ""
    title: str
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, or one set of points or bars.

    Attributes:
        name: Its name in the legend. Series of one name are one entry, whose sign is the last one's; an empty name has
            no entry.
        x: Values, as many as ``y``.
        y: A NaN is a gap.
        style: Models are lines, what they are held against is dashed, and what was measured is points. Steps are a line
            that is told from others by its dashes, strokes are short upright marks, bars stand upright, and a band is
            the area from ``low`` to ``high`` alone.
        low: Lower end of a band around ``y``, as many values; none without.
        labels: A name for each point; none without.
        hints: Text of a point when a reader points at it; its place without.
        group: Series of a group have one look: what was modelled and what was measured of one thing.
        look: Its look where that means something on the whole page; None takes the next one that is free.
        weight: Thin is for single runs behind their mean, thick for what matters most.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["line", "dashed", "steps", "points", "strokes", "bars", "band"] = "line"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    labels: Sequence[str] = ()
    hints: Sequence[str] = ()
    group: str = ""
    look: Look | None = None
    weight: Literal["thin", "normal", "thick"] = "normal"
    hollow: bool = False

    def __post_init__(self) -> None:
        assert len(self.x) == len(self.y), f"{self.name}: {len(self.x)} x and {len(self.y)} y"
        assert len(self.low) == len(self.high), f"{self.name}: the band's ends"
        assert len(self.low) in (0, len(self.x)), f"{self.name}: the band"
        assert len(self.labels) in (0, len(self.x)), f"{self.name}: the labels"
        assert len(self.hints) in (0, len(self.x)), f"{self.name}: the hints"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart(Chart):
    """Series over one axis.

    Attributes:
        marks: Vertical lines, by what they are: an optimum, a crossover.
        moments: Vertical lines without words: the caption says what happened there.
        levels: Horizontal lines without words.
    """

    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Mapping[str, float] = field(default_factory=dict)
    moments: Sequence[float] = ()
    levels: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart(Chart):
    """A horizontal bar for each row, made of parts that add up.

    Attributes:
        rows: Names, from top to bottom.
        parts: A value a row for each part.
        colours: Colours of parts, where they mean something on the whole page.
        ends: Text at the end of each bar; without, its length.
    """

    axis: Axis
    rows: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    colours: Mapping[str, str] = field(default_factory=dict)
    ends: Sequence[str] = ()

    def __post_init__(self) -> None:
        assert all(len(values) == len(self.rows) for values in self.parts.values()), f"{self.slug}: a value a row"
        assert len(self.ends) in (0, len(self.rows)), f"{self.slug}: an end a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeChart(Chart):
    """A tornado: for each row how far the answer goes down and up from ``base``.

    Attributes:
        rows: Names; the widest range is best on top.
        low: The answer where the row's input is at its low end, which need not be the smaller answer.
        high: The same at its high end.
    """

    axis: Axis
    base: float
    rows: Sequence[str]
    low: Sequence[float]
    high: Sequence[float]

    def __post_init__(self) -> None:
        assert len(self.low) == len(self.high) == len(self.rows), f"{self.slug}: a range a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap(Chart):
    """A value, or one of some categories, for each pair of a column and a row.

    Attributes:
        columns: Labels from left to right.
        rows: Labels from top to bottom.
        values: A sequence of columns for each row; NaN is an empty cell. With ``categories``, places among them.
        scale: Meaning of the colours, with its unit; not used with ``categories``. With ``log`` they tell factors
            apart.
        categories: Names, if cells are one of a few things: a winner.
        texts: Texts in the cells, for the few that people read; none without.
    """

    x: Axis
    y: Axis
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float]]
    scale: Axis = Axis(title="")
    categories: Sequence[str] = ()
    texts: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        assert len(self.values) == len(self.rows), f"{self.slug}: values for each row"
        assert all(len(row) == len(self.columns) for row in self.values), f"{self.slug}: a value a column"


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """Something that goes on for a while.

    Attributes:
        row: Row of the drawing, a place in `Timeline.rows`.
        start: Its start on the timeline's axis.
        kind: Activity; spans of a kind have a colour.
        label: Text in it; may be empty.
        hint: Text for a reader who points at it, besides its time; may be empty.
    """

    row: int
    start: float
    end: float
    kind: str
    label: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(Chart):
    """A timeline of spans, one row for each name.

    Attributes:
        rows: Names, from top to bottom.
        spans: Bars in any order. Kinds come in the legend in the order of ``spans``.
        colours: Colours of kinds, where they mean something on the whole page.
    """

    axis: Axis
    rows: Sequence[str]
    spans: Sequence[TimelineBar]
    colours: Mapping[str, str] = field(default_factory=dict)
    wide: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels(Chart):
    """Charts of one kind beside each other, each below its own title.

    Attributes:
        charts: Charts from left to right and from top to bottom; in one column they share the horizontal axis.
        columns: Charts in a row.
    """

    charts: Sequence[Chart]
    columns: int = 1
    wide: bool = True
