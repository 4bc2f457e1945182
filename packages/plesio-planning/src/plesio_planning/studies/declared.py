"""Tables and lines of charts that are declared: names, and what belongs to each."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from plesio.core.charts import Series, Table

__all__ = ["lines_of", "table_of"]

T = TypeVar("T")


def table_of(title: str, items: Iterable[T], columns: Mapping[str, Callable[[T], str]]) -> Table:
    """Make a table with a row for each item.

    >>> table_of("Rings", [2, 4], {"ranks": str, "time": lambda ranks: f"{ranks / 2} ms"}).rows
    [('2', '1.0 ms'), ('4', '2.0 ms')]

    Args:
        title: Its title.
        items: Subjects, from top to bottom.
        columns: How a cell is written, by the column's heading.
    """
    rows = [tuple(cell(item) for cell in columns.values()) for item in items]
    return Table(title=title, headers=tuple(columns), rows=rows)


def lines_of(x: Iterable[float], lines: Mapping[str, Sequence[float]], **look: Any) -> list[Series]:
    """Make series over one ``x``; what is not finite is a gap.

    >>> [one.y for one in lines_of((1, 2), {"time": (3.0, math.inf)}, style="points")]
    [[3.0, nan]]

    Args:
        x: Places of all of them.
        lines: The values of each, by its name in the legend.
        look: Further attributes of `Series`, the same for all.
    """
    xs = list(x)
    return [
        Series(name=name, x=xs, y=[value if math.isfinite(value) else math.nan for value in y], **look)
        for name, y in lines.items()
    ]
