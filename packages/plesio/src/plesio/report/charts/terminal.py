"""Tables in a terminal."""

from rich.table import Table as RichTable
from rich.text import Text

from plesio.core.charts import Table

__all__ = ["terminal_table"]


def terminal_table(table: Table) -> RichTable:
    """The table, its first column to the left and the others, which are numbers mostly, to the right."""
    drawn = RichTable(
        title=table.title, title_justify="left", title_style="", box=None, pad_edge=False, header_style="bold"
    )
    for place, header in enumerate(table.headers):
        drawn.add_column(header, justify="right" if place else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn
