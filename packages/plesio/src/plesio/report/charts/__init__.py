"""Charts (`plesio.core.charts`) drawn: on a page, as picture files, and tables in a terminal."""

from plesio.report.charts.figures import draw_figure
from plesio.report.charts.pictures import draw_picture
from plesio.report.charts.terminal import TerminalTable, plain_table, terminal_table

__all__ = ["TerminalTable", "draw_figure", "draw_picture", "plain_table", "terminal_table"]
