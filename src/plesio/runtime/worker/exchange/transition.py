"""A change of policy in a running job: what users hear of it, and by whom a worker is told."""

from dataclasses import dataclass
from typing import Protocol

from plesio.policies import Policy, Reviewed
from plesio.protocol.to_server import Standing
from plesio.protocol.to_worker import Steering, Turn
from plesio.runtime.worker.rack_batches import Rack

__all__ = ["SteeringChannel", "Transition", "own_states_meet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of policy in a running job.

    Attributes:
        clock: The last step under ``before``.
        before: The policy up to there.
        after: The policy from there on.
        restored: Whether the worker has gone back to an earlier state.
    """

    clock: int
    before: Policy
    after: Policy
    restored: bool


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

    def leave_store(self, standing: Standing, rack: Rack | None) -> Turn:
        """Return when it is known how this worker, or its rack, which stands still, goes on."""
        ...


def own_states_meet(before: Policy, after: Policy) -> bool:
    """Whether workers that had an optimizer's state of their own step alike from now on, and so need the same one."""
    if before.update != "delta" or before.exchange == after.exchange == "store":
        return False
    return after.update == "gradient" or (after.inner is not None and before.inner is None)
