"""A run as it goes on, for people and monitors: found, asked, and shown in a terminal, on a page and as metrics.

source      where the run is: server 0 of a job under way, or the files of one that is over
view        what there is to see of it, as finished numbers and sentences
terminal | page | prometheus     show a view
"""

from plesio.watch.page import TOKEN_VARIABLE, Latest, serve
from plesio.watch.prometheus import metrics_text
from plesio.watch.source import LiveRun, NoRunYetError, Watched, await_run, find_run
from plesio.watch.terminal import headline, render
from plesio.watch.view import Glimpse, RunView, view_of

__all__ = [
    "TOKEN_VARIABLE",
    "Glimpse",
    "Latest",
    "LiveRun",
    "NoRunYetError",
    "RunView",
    "Watched",
    "await_run",
    "find_run",
    "headline",
    "metrics_text",
    "render",
    "serve",
    "view_of",
]
