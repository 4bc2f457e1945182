"""Output of commands: renderables, as wide as the terminal, and how their runs ended."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from plesio.core.results import RunResult

Done = TypeVar("Done")

PLAIN_WIDTH = 140
"""Characters of a line where no terminal tells its width."""


def columns() -> int | None:
    """Return the characters of a line, as the terminal or ``COLUMNS`` says; None where neither does."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isdecimal() and int(told) else None


def console(*, plain: bool = False) -> "Console":
    """Make a console for standard output; a ``plain`` one prints texts as they are."""
    from rich.console import Console

    return Console(width=columns() or PLAIN_WIDTH, highlight=not plain, markup=not plain)


def show(what: "RenderableType") -> None:
    console().print(what)


def do_runs(
    run: Callable[..., Done], command: Sequence[str], *, options: Mapping[str, object], arguments: Sequence[str] = ()
) -> Done:
    """Do runs, which are given ``progress`` to show; after Ctrl-C tell the command that goes on with them.

    ``options`` are values, or lists of them, of the options that were given; None and False were not, and True has no
    text. ``arguments`` are a script's, at the end of the command.

    Raises:
        KeyboardInterrupt: Ctrl-C came.

    Raises:
        KeyboardInterrupt: Ctrl-C came.
    """
    try:
        return with_progress(run)
    except KeyboardInterrupt:
        words = [
            word
            for option, given in options.items()
            for value in (given if isinstance(given, list) else [given])
            if value not in (None, False)
            for word in (option, *([] if value is True else [str(value)]))
        ]
        again = shlex.join([*command, *words, "--resume", *(["--", *arguments] if arguments else [])])
        print(f"plesio: interrupted; finished runs are kept, go on with: {again}", file=sys.stderr)
        raise


def with_progress(run: Callable[..., Done]) -> Done:
    """Do runs, which are given ``progress`` to show and ``on_remark``, whose lines come once and after the runs."""
    from plesio.cli.progress_display import progress_display

    remarks: dict[str, None] = {}
    with progress_display() as progress:
        done = run(progress=progress, on_remark=remarks.setdefault)
    for remark in remarks:
        print(f"plesio: {remark}", file=sys.stderr)
    return done


def exit_code_of(runs: "Iterable[RunResult]") -> int:
    """Tell how many runs did not finish; returns the exit code of a command that did them."""
    statuses = [run.status for run in runs]
    failed = sum(status != "finished" for status in statuses)
    if failed:
        print(f"plesio: {failed} of {len(statuses)} runs did not finish; the report says why", file=sys.stderr)
    return 1 if failed else 0
