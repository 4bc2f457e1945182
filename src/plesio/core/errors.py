"""Errors a user can cause, or must act on.

Each message says what was wrong, where, and what to write instead, in one or two lines; the command line prints it
without a traceback and exits with status 2.
"""

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "ConfigError",
    "DataError",
    "ExchangeError",
    "PlesioError",
    "PolicySpecError",
    "TaskError",
    "TransportError",
    "WorkerLostError",
    "nearest",
]


class PlesioError(Exception):
    """Base of every error that Plesio raises for its users."""


class ConfigError(PlesioError):
    """A recipe, an argument or an environment variable that cannot be used as it stands."""


class PolicySpecError(ConfigError):
    """A policy text that names no policy, or gives one a value it cannot have."""


class TaskError(ConfigError):
    """A task that cannot be found or built, or whose model cannot be trained."""


class DataError(PlesioError):
    """Data files that are missing or not in the format they claim."""


class TransportError(PlesioError):
    """A server that cannot be reached, a port that is taken, or a peer that was refused."""


class ExchangeError(PlesioError):
    """An exchange that cannot serve this model, optimizer or policy."""


class WorkerLostError(PlesioError):
    """A worker vanished and the exchange cannot go on without it.

    Attributes:
        ranks: The ranks that were lost.
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...]) -> None:
        super().__init__(message)
        self.ranks = ranks

    @classmethod
    def of(cls, ranks: Sequence[int]) -> "WorkerLostError":
        """The error for a collective without these ranks."""
        names = ", ".join(map(str, ranks))
        text = f"worker {names} was lost (rank {names}), and a collective exchange cannot go on without it"
        return cls(text, ranks=tuple(ranks))


def nearest(word: str, known: Iterable[str]) -> str:
    """A half-sentence that suggests the nearest known word, or lists them all.

    >>> nearest("sps", ["bsp", "ssp", "asp"])
    'did you mean "ssp"?'
    >>> nearest("zebra", ["bsp", "ssp"])
    'known: bsp, ssp'
    """
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(words)}"
