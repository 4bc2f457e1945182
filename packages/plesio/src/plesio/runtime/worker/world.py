"""The surroundings of a session, and the parts of a worker that depend on its policy and its world."""

from dataclasses import dataclass
from typing import Literal, Protocol

from plesio.core.errors import PlesioError
from plesio.core.results import Evaluation, RunResult
from plesio.policies import Policy
from plesio.protocol.figures import RunInfo, Status
from plesio.runtime.worker.exchange.equality import Equality
from plesio.runtime.worker.exchange.exchange import Exchange
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.recovery import Recovery
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worker.sharing import Sharing


class World(Protocol):
    """The surroundings of a session: the other workers, and the keeper of the run's records."""

    @property
    def rank(self) -> int: ...

    @property
    def num_workers(self) -> int: ...

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

    @property
    def samples_by_now(self) -> int:
        """Samples with those since the news, of which all workers are taken to have as many as this one."""
        ...

    def assure(self) -> None:
        """Return when it is certain that this worker takes part still; raise if it was counted lost."""
        ...

    def explain(self, error: BaseException) -> PlesioError | None:
        """Explain ``error``, if it means that the run cannot go on (a worker is lost, the server is gone)."""
        ...

    @property
    def info(self) -> RunInfo: ...

    def evaluated(
        self, evaluations: list[Evaluation], *, parameters_sha256: str | None, number: int | None = None
    ) -> None:
        """Enter evaluations in the records; the last one is of this ``number``, if all workers may ask for it."""
        ...

    def save_soon(self) -> None: ...

    def leave(self) -> None: ...

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """The parts of one worker that its session composes.

    Attributes:
        deals: False if the worker is alone and saves nothing: it iterates a loader as it is.
        recovery: None where the loss of a worker ends the run, or no worker waits for it.
        past: The past of a run that is resumed or joined; None for one that begins.
        equality: Compares replicas, where a collective makes them equal.
        bound: Steps that replicas may be apart, where that is not the policy's bound.
    """

    policy: Policy
    exchange: Exchange
    sharing: Sharing
    deals: bool = True
    recovery: Recovery | None = None
    past: WorkerPast | None = None
    equality: Equality | None = None
    bound: float | None = None


def ending_of(error: BaseException | None) -> tuple[Status, str | None]:
    """Return the status of a worker that ends so, and why it did not finish."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted"
    return ("finished", None) if error is None else ("failed", f"{type(error).__name__}: {error}")
