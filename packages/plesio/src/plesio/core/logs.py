"""Logging: loggers by module under ``plesio``, and in each line who speaks and at which clock.

Only warnings are logged by default. The environment variable ``PLESIO_LOG`` logs more (``debug``, ``info``) or less
(``error``), on standard error; a program that has set up logging itself keeps what it has set up.

    plesio 12.031 worker 3 clock 17 plesio.runtime.worker.exchange.staged: local_sgd:8,delay=4 in place of bsp

The time is in seconds since the process imported this module. The speaker is kept by thread, so workers of the virtual
world, which are threads, are told apart.
"""

import logging
import os
import sys
import time
from contextvars import ContextVar

from plesio.core.errors import ConfigError
from plesio.core.last_words import say_joined

LOG_VARIABLE = "PLESIO_LOG"
LEVELS = ("debug", "info", "warning", "error")

_BEGAN_S = time.monotonic()
_who: ContextVar[str] = ContextVar("who", default="")
_clock: ContextVar[int | None] = ContextVar("clock", default=None)

at_clock = _clock.set
"""Sets the clock of this thread's worker for its log lines."""


def speak_as(who: str) -> None:
    """Make this thread's lines those of ``who``, such as ``worker 3``, from now on."""
    _who.set(who)


def introduce(worker: int) -> None:
    """Log as this worker from now on, and tell its supervisor that it has joined."""
    set_up_logging()
    speak_as(f"worker {worker}")
    say_joined()


class _Lines(logging.Formatter):
    """A warning is for the user of the program; what was asked for by level says where it comes from, too."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self._whole = whole

    def format(self, record: logging.LogRecord) -> str:
        who, clock = _who.get(), _clock.get()
        if not self._whole:
            return f"plesio: {who + ': ' if who else ''}{record.getMessage()}"
        parts = ["plesio", f"{time.monotonic() - _BEGAN_S:.3f}", who, "" if clock is None else f"clock {clock}"]
        return f"{' '.join(part for part in parts if part)} {record.name}: {record.getMessage()}"


def set_up_logging() -> None:
    """Have lines on standard error as ``PLESIO_LOG`` says, once; programs with logging of their own keep that.

    Raises `ConfigError` if it names no level.
    """
    level = os.environ.get(LOG_VARIABLE, "")
    if level and level not in LEVELS:
        raise ConfigError(f'{LOG_VARIABLE} is "{level}"; write {", ".join(LEVELS[:-1])} or {LEVELS[-1]}')
    root = logging.getLogger("plesio")
    if level:
        root.setLevel(level.upper())
    if root.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(whole=bool(level)))
    root.addHandler(handler)
    root.propagate = False
