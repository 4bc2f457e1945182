"""Messages from a worker to its supervisor alone: that it has joined, its choices, and the error that ends it.

Each worker of ``plesio run`` has a pipe to its supervisor, one JSON object a line. Its number is in an environment
variable, with the pipe's inode: a child of the worker inherits the variable and not the pipe, and may have another file
under that number.
"""

import gc
import json
import os
import stat
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from plesio.core.errors import PlesioError

SUPERVISOR_VARIABLE = "PLESIO_SUPERVISOR"


def name_of_pipe(fd: int) -> str:
    """Return the variable's value for this pipe: its number and its inode."""
    return f"{fd}:{os.fstat(fd).st_ino}"


def say_joined() -> None:
    """Record that this worker has met the others of its job."""
    _say(joined=True)


def say_chosen(chosen: Mapping[str, Any]) -> None:
    """Record what the script has chosen itself, once for each session."""
    _say(chosen=dict(chosen))


def brief_error(error: BaseException, *, script: str | None = None) -> str:
    """Write an error in one line: a mistake in its own words, another one with its kind and its place in the script.

    The script is this process's program, unless another one is given.

    >>> brief_error(ValueError("no"))
    'ValueError: no'
    """
    if isinstance(error, PlesioError):
        return str(error)
    first = next(iter(str(error).splitlines()), "")
    script = script or getattr(sys.modules.get("__main__"), "__file__", None)
    places = [place for place in traceback.extract_tb(error.__traceback__) if place.filename == script]
    where = f" (line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}{': ' if first else ''}{first}{where}"


def tell_errors() -> None:
    """Report an error that ends this process to the supervisor from now on, if there is one, which prints it once."""
    if _pipe() is None:
        return
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            gc.freeze()  # or Python looks through all of torch's objects once more before it ends, for a second or more
            return  # the supervisor says that it was asked to stop
        mistake = issubclass(kind, PlesioError)
        text = str(error) if mistake else "".join(traceback.format_exception(kind, error, trace))
        if not _say(error=text, brief=brief_error(error), mistake=mistake):
            before(kind, error, trace)

    sys.excepthook = told


def _pipe() -> int | None:
    fd, _, inode = os.environ.get(SUPERVISOR_VARIABLE, "").partition(":")
    if not (fd.isdecimal() and inode.isdecimal()):
        return None
    try:
        found = os.fstat(int(fd))
    except OSError:
        return None
    return int(fd) if stat.S_ISFIFO(found.st_mode) and found.st_ino == int(inode) else None


def _say(**words: Any) -> bool:
    pipe = _pipe()
    if pipe is None:
        return False
    line = json.dumps(words).encode() + b"\n"
    try:
        while line:
            line = line[os.write(pipe, line) :]
    except OSError:  # the supervisor is gone
        return False
    return True
