"""Tables in a terminal: as wide as there is room for, and no number is ever broken over two lines."""

from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from plesio.core.charts import Table

_GAP = 2
"""Characters between two columns."""
_LONG = 24
"""A cell of more characters is a text, which may be wrapped at its words."""


def terminal_table(table: Table) -> "TerminalTable":
    """Draw the table below its title."""
    return TerminalTable(table, titled=True)


def plain_table(table: Table, *, num_texts: int = 1, bold_row: int | None = None) -> "TerminalTable":
    """Draw the table without its title: ``num_texts`` columns of texts, then numbers, to the right."""
    return TerminalTable(table, num_texts=num_texts, bold_row=bold_row)


class TerminalTable:
    """A table for rich to print.

    In a line that is too short, headers and texts are wrapped; if that is not enough, the columns come in blocks below
    each other, and each block begins with the columns of texts.
    """

    def __init__(self, table: Table, *, num_texts: int = 1, bold_row: int | None = None, titled: bool = False) -> None:
        self._table = table
        self._num_texts = num_texts
        self._bold_row = bold_row
        self._titled = titled

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._titled:
            yield Text(self._table.title)
        for place, widths in enumerate(self._blocks(options.max_width)):
            if place:
                yield Text()
            yield self._drawn(widths)

    def _drawn(self, widths: Mapping[int, int]) -> RichTable:
        drawn = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for place, width in widths.items():
            justify = "left" if place < self._num_texts else "right"
            drawn.add_column(self._table.headers[place], justify=justify, width=width, overflow="fold")  # type: ignore[arg-type]
        for number, row in enumerate(self._table.rows):
            style = "bold" if number == self._bold_row else ""
            drawn.add_row(*(Text(row[place]) for place in widths), style=style)
        return drawn

    def _blocks(self, room: int) -> Iterator[Mapping[int, int]]:
        """Yield the columns of each block with their widths."""
        wanted = [max(map(cell_len, column)) for column in self._columns()]
        least = [self._least(place, column, room) for place, column in enumerate(self._columns())]
        texts, block = [*range(self._num_texts)], [*range(self._num_texts)]
        for place in range(self._num_texts, len(wanted)):
            if len(block) > len(texts) and _total(least, [*block, place]) > room:
                yield _widths(block, wanted, least, room)
                block = [*texts]
            block.append(place)
        yield _widths(block, wanted, least, room)

    def _columns(self) -> list[Sequence[str]]:
        return [*zip(self._table.headers, *self._table.rows, strict=True)]

    def _least(self, place: int, column: Sequence[str], room: int) -> int:
        """Return the width that a column can do with: that of its longest word, or of its numbers."""
        header, *cells = column
        longest = max(map(cell_len, cells), default=0)
        words = [word for text in column for word in text.split()]
        if place < self._num_texts or longest > _LONG:
            return max([min(cell_len(word), room // 3) for word in words], default=1)
        return max([longest, *map(cell_len, header.split())])


def _total(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[place] for place in columns) + _GAP * (len(columns) - 1)


def _widths(columns: Sequence[int], wanted: Sequence[int], least: Sequence[int], room: int) -> Mapping[int, int]:
    """Give each column what it can do with, and what is left to those that want more, the least first."""
    left = room - _total(least, columns)
    widths = {place: least[place] for place in columns}
    needy = sorted(columns, key=lambda place: wanted[place] - least[place])
    for number, place in enumerate(needy):
        more = max(0, min(wanted[place] - least[place], left // (len(needy) - number)))
        widths[place] += more
        left -= more
    return widths
