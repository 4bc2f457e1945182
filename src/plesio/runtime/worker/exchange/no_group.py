"""What stands in for a collective's exchange while the workers have yet to form a group."""

from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

from plesio.runtime.worker.exchange.exchange import Progress, SharedState
from plesio.runtime.worker.exchange.group import CutOffError

__all__ = ["NoGroup"]


class NoGroup:
    """Cuts off whatever needs the others, so that it is done again in the group that is formed then."""

    ready_s: float | None = None

    def step(self, progress: Progress) -> NoReturn:
        """There is nobody to exchange with yet."""
        raise CutOffError("the workers have yet to form a group")

    def shared(self) -> NoReturn:
        """As `step`."""
        raise CutOffError("the workers have yet to form a group")

    def finish(self) -> NoReturn:
        """As `step`."""
        raise CutOffError("the workers have yet to form a group")

    def accumulating(self) -> AbstractContextManager[None]:
        """Gradients stay on the worker."""
        return nullcontext()

    def admitted_at(self, clock: int) -> None:
        """Never rests."""

    def snapshots(self) -> list[SharedState]:
        """None were taken."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""
