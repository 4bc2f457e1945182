"""The entry point of the ``plesio`` command: Ctrl-C ends it without a traceback also while it imports."""

import os
import signal
import sys
import threading
from types import FrameType

_AGAIN_S = 0.05


def main() -> None:
    signal.signal(signal.SIGINT, _interrupt)
    try:
        from plesio.cli.commands import invoke

        status = invoke(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, and Python's own end would show a traceback
    sys.exit(status)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but wait for an import to end: raised inside torch's C++ it would abort the process."""
    at = frame
    while at is not None:
        if at.f_code.co_filename == "<frozen importlib._bootstrap>":
            later = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
            later.daemon = True
            later.start()
            return
        at = at.f_back
    signal.default_int_handler(number, frame)
