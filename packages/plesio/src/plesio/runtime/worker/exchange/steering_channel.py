"""What an exchange that changes needs of the place where that is decided."""

from typing import Protocol

from plesio.policies import Reviewed
from plesio.protocol.to_server import Standing
from plesio.protocol.to_worker import Books, Steering, Turn
from plesio.runtime.worker.rack_batches import Rack

__all__ = ["SteeringChannel"]


class SteeringChannel(Protocol):
    """Where a worker is steered from: server 0, by way of the worker's world."""

    def review(self, review: Reviewed) -> None:
        """Report what this worker saw."""
        ...

    def steer(self) -> Steering:
        """Wait for the answer to the last review."""
        ...

    def news(self, rack: Rack | None) -> Steering | None:
        """The answer to the last review, if it has come; all of a rack that shares the store call it together."""
        ...

    def enter_store(self, standing: Standing) -> None:
        """Return when all workers stand where this one does."""
        ...

    def books(self) -> Books:
        """The run's books, as they are where all stand for a checkpoint."""
        ...

    def leave_store(self, standing: Standing, rack: Rack | None) -> Turn:
        """Return when it is known how this worker, or its rack, which stands still, goes on."""
        ...
