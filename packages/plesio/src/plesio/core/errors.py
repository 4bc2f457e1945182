"""Errors a user can cause, or must act on.

Each message says what was wrong, where, and what to write instead, in one or two lines; the command line prints it
without a traceback and exits with status 2.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Self


class PlesioError(Exception):
    """Base of every error that Plesio raises for its users."""


class ConfigError(PlesioError):
    """A recipe, an argument or an environment variable that cannot be used as it stands."""


class ArgumentError(ConfigError):
    """An argument that a function has no answer for; it marks which of its words are parameters.

    Parameters are written in backquotes, alone or with the value to write for them. The text of the error is in the
    words of Python; `worded` says the same to somebody who wrote options.

    >>> error = ArgumentError("`dp` is 3; write `dp = 2`, or `num_workers` for 4 dp")
    >>> str(error), error.parameters
    ('dp is 3; write dp = 2, or num_workers for 4 dp', ('dp', 'num_workers'))
    >>> error.worded({"dp": "--dp", "num_workers": "--workers"})
    '--dp is 3; write --dp 2, or --workers for 4 dp'
    >>> ArgumentError("write `search = True`, `gated = False`").worded({"search": "--search", "gated": "--gated"})
    'write --search, --no-gated'
    """

    _PARAMETER = re.compile(r"`([a-z]\w*)(?: = ([^`]*))?`")

    def __str__(self) -> str:
        return self._PARAMETER.sub(lambda found: found[0].strip("`"), self.args[0])

    @classmethod
    def about(cls, parameter: str, error: ConfigError) -> Self:
        """Make the error that the value of this parameter causes."""
        return cls(f"`{parameter}`: {error.args[0]}")

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters that the message names, each once; the first is its subject."""
        return tuple(dict.fromkeys(found[1] for found in self._PARAMETER.finditer(self.args[0])))

    def worded(self, options: Mapping[str, str]) -> str:
        """Return the message with the option of each parameter that has one."""

        def option(found: re.Match[str]) -> str:
            if found[1] not in options:
                return found[0].strip("`")
            name = options[found[1]]
            if found[2] in ("True", "False"):
                return name if found[2] == "True" else f"--no-{name.removeprefix('--')}"
            return name if found[2] is None else f"{name} {found[2]}"

        return self._PARAMETER.sub(option, self.args[0])


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
    """A worker vanished and the exchange cannot go on without it; or this worker was counted lost itself."""

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:  # unpickled by its message alone
        super().__init__(message)
        self.ranks = ranks

    @classmethod
    def of(cls, ranks: Sequence[int], *, error: str | None = None, islands: str = "") -> "WorkerLostError":
        """Make the error for a collective without these ranks.

        Args:
            ranks: The workers.
            error: How they ended, where that is known.
            islands: The workers in words, where they are islands.
        """
        names = ", ".join(map(str, ranks))
        who, end = islands or f"worker {names}", "and a collective exchange cannot go on without it"
        text = f"{who} was lost{'' if islands else f' (rank {names})'}, {end}"
        if error is not None:
            text = f"{who} ended with an error ({error}), {end}" if ranks else error
        return cls(text, ranks=tuple(ranks))

    @classmethod
    def of_island(cls, worker: int, *, averages: bool) -> "WorkerLostError":
        """Make the error on the ranks of this worker's island that are left when one of them is gone.

        Where the island ``averages`` its parts with those of others, a rank cannot tell whose was lost.
        """
        if averages:
            return cls(
                "a rank of this island or of another was lost, and islands cannot average their parts without it"
            )
        return cls(f"a rank of island {worker} was lost, and the others hold no whole replica without it")

    @classmethod
    def expelled(cls, rank: int, *, over: bool = False) -> "WorkerLostError":
        """Make the error on the lost worker itself, when it wakes up and is told; ``over``: the run has ended since."""
        silent = "was silent for longer than its lease and was counted lost"
        text = (
            f"this worker (rank {rank}) {silent}; it comes back as a new process, by the command that the first line "
            "of plesio run gives (--join)"
        )
        if over:
            text = f"the run ended without this worker (rank {rank}), which {silent}"
        return cls(text, ranks=(rank,))

    @classmethod
    def unanswered(cls, rank: int) -> "WorkerLostError":
        """Make the error on a worker that wakes up after its lease and that the job's server no longer answers."""
        text = (
            f"this worker (rank {rank}) was silent for longer than its lease, and the job's server does not answer it: "
            "the run has ended without this worker, or goes on without it"
        )
        return cls(text, ranks=(rank,))


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the nearest known word in a half-sentence, or list them all.

    >>> nearest("sps", ["bsp", "ssp", "asp"])
    'did you mean "ssp"?'
    >>> nearest("zebra", ["bsp", "ssp"])
    'known: bsp, ssp'
    """
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(words)}"
