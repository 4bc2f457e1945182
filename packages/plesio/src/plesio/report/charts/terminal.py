"""Tables in a terminal."""

from rich.table import Table as RichTable
from rich.text import Text

from plesio.core.charts import Table

__all__ = ["plain_table", "terminal_table"]


def terminal_table(table: Table) -> RichTable:
    drawn = plain_table(table)
    drawn.title, drawn.title_justify, drawn.title_style = table.title, "left", ""
    return drawn


def plain_table(table: Table, *, num_texts: int = 1, bold_row: int | None = None) -> RichTable:
    """Draw the table without its title.

    Args:
        table: Headers and cells.
        num_texts: Columns that are texts, to the left; the others are numbers, to the right.
        bold_row: Place of the row that stands out.
    """
    drawn = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, header in enumerate(table.headers):
        drawn.add_column(header, justify="left" if place < num_texts else "right", overflow="fold")
    for place, row in enumerate(table.rows):
        drawn.add_row(*map(Text, row), style="bold" if place == bold_row else "")
    return drawn
