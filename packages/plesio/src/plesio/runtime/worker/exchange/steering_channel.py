"""The channel of an exchange that changes to the server that decides it."""

from typing import Protocol

from plesio.policies import Reviewed
from plesio.protocol.to_server import Standing
from plesio.protocol.to_worker import Books, Steering, Turn
from plesio.runtime.worker.rack_batches import Rack

__all__ = ["SteeringChannel"]


class SteeringChannel(Protocol):
    """A worker's channel to server 0, which steers it, by way of the worker's world."""

    def review(self, review: Reviewed) -> None:
        """Report what this worker saw."""
        ...

    def steer(self) -> Steering:
        """Wait for the answer to the last review."""
        ...

    def news(self, rack: Rack | None) -> Steering | None:
        """Return the answer to the last review, if it has come; all of a rack that shares the store call it at once."""
        ...

    def enter_store(self, standing: Standing) -> None:
        """Return when all workers are where this one is."""
        ...

    def books(self) -> Books:
        """Return the run's books, as they are while all wait for a checkpoint."""
        ...

    def leave_store(self, standing: Standing, rack: Rack | None) -> Turn:
        """Return when it is known how this worker, or its rack, which stands still, goes on."""
        ...
