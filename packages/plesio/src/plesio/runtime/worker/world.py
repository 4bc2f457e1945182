"""The surroundings of a session."""

from typing import Literal, Protocol

from plesio.core.errors import PlesioError
from plesio.core.results import Evaluation, RunResult
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.rounds import RoundRecords

__all__ = ["World"]


class World(Protocol):
    """The surroundings of a session: the other workers, and the keeper of the run's records."""

    @property
    def rank(self) -> int:
        """This worker's number."""
        ...

    @property
    def num_workers(self) -> int:
        """Workers at the start of the run."""
        ...

    @property
    def elapsed_s(self) -> float:
        """How long the run had been going on when this worker was admitted."""
        ...

    @property
    def rounds(self) -> RoundRecords:
        """This rank's rounds, where samples are dealt in rounds."""
        ...

    @property
    def samples(self) -> int:
        """Samples of all workers that have been trained on, by the latest news."""
        ...

    def assure(self) -> None:
        """Return when it is certain that this worker takes part still; raise if it was counted lost."""
        ...

    def explain(self, error: BaseException) -> PlesioError | None:
        """Explain ``error``, if it means that the run cannot go on (a worker is lost, the server is gone)."""
        ...

    @property
    def info(self) -> RunInfo:
        """Names for the results."""
        ...

    def evaluated(
        self, evaluations: list[Evaluation], *, parameters_sha256: str | None, number: int | None = None
    ) -> None:
        """Enter evaluations in the records; the last one is of this ``number``, if all workers may ask for it."""
        ...

    def save_soon(self) -> None:
        """Ask for a checkpoint."""
        ...

    def leave(self) -> None:
        """End this worker's part; where it evaluates, wait until all have."""
        ...

    def result(self, *, reports: bool = True) -> RunResult:
        """Return the run's figures as far as this process has them, after reporting its own if it ``reports`` them."""
        ...

    def close(
        self, *, status: Literal["finished", "interrupted", "failed"], error: str | None, in_rack: bool = False
    ) -> None:
        """End the run here and let go of what was opened for it.

        Args:
            status: How it ended for this worker.
            error: Why it failed, if it did.
            in_rack: Whether this worker is one of a rack that shares the store: other racks go on without it.
        """
        ...
