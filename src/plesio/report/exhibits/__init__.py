"""Exhibits (`plesio.core.exhibits`) drawn: tables in a terminal, charts on a page and as picture files."""

from plesio.report.exhibits.pages import page_figure
from plesio.report.exhibits.pictures import draw_picture
from plesio.report.exhibits.terminal import terminal_table

__all__ = ["draw_picture", "page_figure", "terminal_table"]
