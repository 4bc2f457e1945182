"""A static policy's exchange on the collective, built anew when the workers go on in another group."""

from contextlib import AbstractContextManager
from typing import Any

from plesio.policies import Policy
from plesio.protocol.to_worker import Steering
from plesio.runtime.worker.exchange.collective import CollectiveExchanges
from plesio.runtime.worker.exchange.exchange import CollectiveExchange, HeldSteps, SharedState, StepProgress
from plesio.runtime.worker.exchange.no_group import NoGroup
from plesio.runtime.worker.exchange.replica import State
from plesio.runtime.worker.rounds import RoundRecords

__all__ = ["ElasticExchange"]


class ElasticExchange:
    """Does what the exchange of the present group does.

    Args:
        policy: The run's.
        exchanges: Builds its exchange.
        rounds: Counts the samples that have been trained on.
        late: Whether this worker has yet to join the others.
    """

    meets = True

    def __init__(
        self, policy: Policy, *, exchanges: CollectiveExchanges, rounds: RoundRecords, late: bool = False
    ) -> None:
        self._policy = policy
        self._exchanges = exchanges
        self._rounds = rounds
        self._snapshots: list[SharedState] = []
        """Snapshots of earlier groups."""
        self._current: CollectiveExchange = NoGroup() if late else exchanges.build(policy)

    @property
    def ready_s(self) -> float | None:
        """When this step's own gradient was complete, if it is being exchanged since then; else None."""
        return self._current.ready_s

    def step(self, progress: StepProgress) -> None:
        """Exchange this step's gradient and bring the replica up to date."""
        self._current.step(progress)

    def held_steps(self) -> HeldSteps | None:
        """Return the steps that the replica holds."""
        return self._current.held_steps()

    def units(self) -> list[int]:
        """Return the units of ranks whose replicas are equal after every step."""
        return self._current.units()

    def settle(self) -> None:
        """Bring what is under way or held back to its end, so that all replicas are equal."""
        self._current.settle()

    def memory(self) -> dict[str, Any]:
        """Return the momentum of outer steps, which outlives a group."""
        return {"own": self._exchanges.own()}

    def regrouped(self, steer: Steering | None, *, memory: dict[str, Any] | None) -> None:
        """Drop what was under way, and go on in the new group; replicas are equal."""
        self._snapshots += self._current.snapshots()
        self._current.close()
        self._current = NoGroup(self._rounds.num_workers)  # if they are cut off again before the next is built
        self._exchanges.regrouped(self._rounds.global_samples)
        if memory is not None and memory["own"] is not None:
            self._exchanges.take_own(memory["own"])
        self._exchanges.agree_on_scale()
        self._current = self._exchanges.build(self._policy)

    def accumulating(self) -> AbstractContextManager[None]:
        """Let backward passes in this context only add to the gradient."""
        return self._current.accumulating()

    def admitted_at(self, clock: int) -> None:
        """Do nothing: no worker rests."""

    def shared(self) -> State | None:
        """Return the shared parameters now, on the first worker that is there."""
        return self._current.shared()

    def finish(self) -> None:
        """Contribute what is still held back."""
        self._current.finish()

    def snapshots(self) -> list[SharedState]:
        """Return the snapshots taken since the last call, on the first worker that is there."""
        taken, self._snapshots = self._snapshots, []
        return taken + self._current.snapshots()

    def close(self) -> None:
        """Let go of the model."""
        self._current.close()
