"""`plesio watch`: a run as it goes on, in the terminal or on a page."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.terminal import console

if TYPE_CHECKING:
    from plesio.watch.source import Watched
    from plesio.watch.view import RunView

EXAMPLES = """\b
Examples:
  plesio watch
  plesio watch runs/mine
  plesio watch 127.0.0.1:41234
  plesio watch --page
  PLESIO_WATCH_TOKEN=... plesio watch runs/mine --port 9400
\b
The page's address ends in a token; with "metrics" behind it, it is what
Prometheus reads. Ctrl-C ends the watching, never the run."""

LOOK_S = 1.0
"""How often the run is looked at: its workers report at least as often."""
PATIENCE_S = 60.0
"""How long a run is waited for that has not come up; --once does not wait."""
PLAIN_EVERY_S = 10.0
"""Seconds between two lines where there is no terminal."""


def watch(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR|HOST:PORT]", help="Its folder, or its job's address; else the only run under way here."
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Serve a page for the browser, and metrics.")] = False,
    port: Annotated[
        int | None, typer.Option("--port", help="Port of the page, which it asks for; else any free one.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show the present state and end.")] = False,
) -> int:
    """Watch a run as it goes on, in the terminal or on a page.

    Shows each worker's time, loss, metric, staleness, and who is slow and why; decisions of the policy with their
    reasons, workers lost and joined, checkpoints, and the time that is left where the session knows total_samples. A
    run that is over is shown in its last state. It is for runs of several workers on sessions; a grid, and a process on
    its own, are not watched.
    """
    from plesio.core.errors import ConfigError
    from plesio.watch.source import await_run

    if once and (page or port is not None):
        raise ConfigError("--once shows the state here and ends; leave it out, or the page")
    watched = await_run(where, patience_s=0.0 if once else PATIENCE_S, tell=_tell)
    with ExitStack() as undo:
        undo.callback(watched.close)
        if once:
            return _once(watched)
        if page or port is not None:
            return _serve(watched, port=port or 0)
        show = undo.enter_context(_screen())
        for view in _views(watched):
            show(view)
    return 0


def _tell(line: str) -> None:
    print(f"plesio: {line}", file=sys.stderr, flush=True)


def _views(watched: "Watched") -> Iterator["RunView"]:
    """Yield what there is to see, every second, until nothing will change any more."""
    from plesio.core.errors import TransportError

    told = False
    while True:
        began_s = time.monotonic()
        view = watched.look()
        if view is not None:
            yield view
        elif watched.over:
            raise TransportError("the run has ended before there was anything to see")
        elif not told:
            _tell("the run has no figures yet: waiting until all its workers have joined; Ctrl-C ends the wait")
        told = True
        if watched.over:
            return
        time.sleep(max(0.0, LOOK_S - (time.monotonic() - began_s)))


def _once(watched: "Watched") -> int:
    from plesio.watch.terminal import render

    view = next(_views(watched), None)
    if view is not None:
        console(plain=True).print(render(view))
    return 0


@contextmanager
def _screen() -> Iterator[Callable[["RunView"], None]]:
    from rich.live import Live

    from plesio.watch.terminal import headline, render

    terminal = console(plain=True)
    if terminal.is_terminal:
        with Live(console=terminal, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda view: live.update(render(view), refresh=True)
        return
    last: list[RunView] = []
    next_s = time.monotonic()

    def line(view: "RunView") -> None:
        nonlocal next_s
        last[:] = [view]
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + PLAIN_EVERY_S
            print(headline(view), flush=True)

    yield line
    if last:
        terminal.print(render(last[0]))


def _serve(watched: "Watched", *, port: int) -> int:
    from plesio.watch.page import Latest, serve

    latest = Latest()
    with serve(latest, port=port) as address:
        print(address, flush=True)
        _tell("the page is served until Ctrl-C, which does not end the run")
        for view in _views(watched):
            latest.set(view)
        while True:  # the last state stays
            time.sleep(LOOK_S)
