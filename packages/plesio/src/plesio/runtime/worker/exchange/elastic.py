"""A static policy's exchange on the collective, built anew when the workers go on in another group."""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from plesio.policies import Policy
from plesio.protocol.to_worker import Steering
from plesio.runtime.worker.exchange.collective import CollectiveExchanges
from plesio.runtime.worker.exchange.exchange import CollectiveExchange, HeldSteps, NoGroup, SharedState, StepProgress
from plesio.runtime.worker.exchange.replica import State
from plesio.runtime.worker.rounds import RoundRecords


class ElasticExchange(CollectiveExchange):
    """Does what the exchange of the present group does; ``late``: this worker has yet to join the others."""

    meets = True

    def __init__(
        self, policy: Policy, *, exchanges: CollectiveExchanges, rounds: RoundRecords, late: bool = False
    ) -> None:
        self._policy, self._exchanges, self._rounds = policy, exchanges, rounds
        self.cutter = partial(exchanges.cutter, policy)
        """Returns the cutter of the replica in a group; None where replicas are whole."""
        self._snapshots: list[SharedState] = []
        self._current: CollectiveExchange = NoGroup() if late else exchanges.build(policy)

    @property
    def ready_s(self) -> float | None:
        return self._current.ready_s

    def step(self, progress: StepProgress) -> None:
        self._current.step(progress)

    def average(self, clock: int) -> None:
        self._current.average(clock)

    def held_steps(self) -> HeldSteps | None:
        return self._current.held_steps()

    def units(self) -> list[int]:
        return self._current.units()

    def memory(self) -> dict[str, Any]:
        """Return, as plain values, what joining workers need beside the replica: the momentum of outer steps."""
        return {"own": self._exchanges.own()}

    def regrouped(self, steer: Steering | None, *, memory: dict[str, Any] | None) -> None:
        """Drop what was under way, and go on in the new group; replicas are equal.

        ``memory`` is the leader's, if a worker joins; its ``own`` is None if what was remembered is true no more.
        """
        self._snapshots += self._current.snapshots()
        self._current.close()
        self._current = NoGroup(self._rounds.num_workers)  # if they are cut off again before the next is built
        self._exchanges.regrouped(self._rounds.global_samples)
        if memory is not None and memory["own"] is not None:
            self._exchanges.take_own(memory["own"])
        self._exchanges.agree_on_scale()
        self._current = self._exchanges.build(self._policy)

    def accumulating(self) -> AbstractContextManager[None]:
        return self._current.accumulating()

    def shared(self) -> State | None:
        return self._current.shared()

    def settle(self) -> None:
        self._current.settle()

    def finish(self) -> None:
        self._current.finish()

    def snapshots(self) -> list[SharedState]:
        taken, self._snapshots = self._snapshots, []
        return taken + self._current.snapshots()

    def close(self) -> None:
        self._current.close()
