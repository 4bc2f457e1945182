"""Tables and lines of charts that are declared: names, and what belongs to each."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from plesio.core.charts import Series, Table

T = TypeVar("T")


def table_of(title: str, items: Iterable[T], columns: Mapping[str, Callable[[T], str]]) -> Table:
    """Make a table with a row for each item; ``columns`` are how a cell is written, by the column's heading.

    >>> table_of("Rings", [2, 4], {"ranks": str, "time": lambda ranks: f"{ranks / 2} ms"}).rows
    [('2', '1.0 ms'), ('4', '2.0 ms')]
    """
    rows = [tuple(cell(item) for cell in columns.values()) for item in items]
    return Table(title=title, headers=tuple(columns), rows=rows)


def lines_of(
    x: Iterable[float],
    lines: Mapping[str, Iterable[float]] = {},
    *,
    dashed: Mapping[str, Iterable[float]] = {},
    points: Mapping[str, Iterable[float]] = {},
    **look: Any,
) -> list[Series]:
    """Make series over one ``x``: lines, then dashed ones, then points; what is not finite is a gap.

    Values are by the name in the legend; ``look`` are further attributes of `Series`, the same for all.

    >>> [(one.style, one.y) for one in lines_of((1, 2), {"time": (3.0, math.inf)}, points={"measured": (3.0, 4.0)})]
    [('line', [3.0, nan]), ('points', [3.0, 4.0])]
    """
    xs = list(x)
    styles: dict[Literal["line", "dashed", "points"], Mapping[str, Iterable[float]]]
    styles = {"line": lines, "dashed": dashed, "points": points}
    return [
        Series(name=name, x=xs, y=[value if math.isfinite(value) else math.nan for value in y], style=style, **look)
        for style, named in styles.items()
        for name, y in named.items()
    ]
