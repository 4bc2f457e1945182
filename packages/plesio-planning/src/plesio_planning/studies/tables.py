"""Tables whose columns are declared: a heading, and how a cell is written of an item."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from plesio.core.charts import Table

__all__ = ["table_of"]

T = TypeVar("T")


def table_of(title: str, items: Iterable[T], columns: Mapping[str, Callable[[T], str]]) -> Table:
    """Make a table with a row for each item.

    >>> table_of("Rings", [2, 4], {"ranks": str, "time": lambda ranks: f"{ranks / 2} ms"}).rows
    [('2', '1.0 ms'), ('4', '2.0 ms')]

    Args:
        title: Its title.
        items: What it is about, from top to bottom.
        columns: How a cell is written, by the column's heading.
    """
    rows = [tuple(cell(item) for cell in columns.values()) for item in items]
    return Table(title=title, headers=tuple(columns), rows=rows)
