"""Racks that share a parameter store: bulk synchronous within a rack, which to the store is one worker.

    every step              gradients are averaged over the rack, whose replicas stay equal
    when an exchange is due the rack's first rank, its *leader*, pushes the rack's update and pulls; what it has then,
                            parameters and credit, it broadcasts in the rack
    in between              all of the rack step their own optimizers with the same gradient

So between racks goes one push and one pull for each rack and exchange, and all of a rack know the credit and decide
alike when the next one is due. While the leader exchanges, the others wait for its broadcast, which also says how long
the leader itself was held back for other racks: that much of it is waiting, the rest communicating.

A gradient that is not finite costs the rack the step, and no other rack.
"""

from contextlib import AbstractContextManager

import torch

from plesio.runtime.worker.exchange.exchange import Exchange, SharedState, StepProgress
from plesio.runtime.worker.exchange.flat import by_dtype, flat_of, write_parts
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.exchange.store import StoreAnswer, StoreExchange
from plesio.runtime.worker.exchange.synchronous import SynchronousExchange
from plesio.runtime.worker.meter import WorkerTimeline


class RackStoreExchange(Exchange):
    """Averages gradients in the rack, and exchanges with the store by way of the rack's leader.

    Args:
        inner: The rack's; takes no snapshots.
        store: This worker's way to the store; pushes and pulls on the leader only.
        rack: The workers of the rack; rank 0 leads.
    """

    def __init__(
        self,
        inner: SynchronousExchange,
        store: StoreExchange,
        *,
        rack: Group,
        replica: Replica,
        timeline: WorkerTimeline,
    ) -> None:
        self._inner, self._store, self._rack = inner, store, rack
        self._leads = rack.rank == 0
        self._replica, self._timeline = replica, timeline
        self._clock = 0

    @property
    def ready_s(self) -> float | None:
        return self._inner.ready_s

    @property
    def halted(self) -> bool:
        return self._store.halted

    def halt(self) -> None:
        self._store.halt()

    def resume(self) -> None:
        self._store.resume()

    def offer(self) -> None:
        self._store.offer()

    def begin(self, clock: int) -> None:
        """Take the shared state over and begin at ``clock``. All of a rack call it, as all that follows."""
        self._clock = clock
        if self._leads:
            self._store.begin(clock)
        self._copy_leader()
        for tensor in self._replica.tensors.not_trained():
            self._rack.broadcast(tensor)

    def admitted_at(self, clock: int) -> None:
        self._clock = clock
        if self._leads:
            self._store.admitted_at(clock)
        self._copy_leader()

    def step(self, progress: StepProgress) -> None:
        self._clock = progress.clock
        finite = self._inner.reduce(progress)
        due = self._store.due(progress.clock)
        if self._leads:
            self._store.add(progress, finite=finite, due=due)
            if due:
                self._store.exchange()
        elif finite:
            self._store.step_alone(due=due)
        if due:
            self._follow()
            self._store.stepped(finite=finite)
        self._replica.optimizer.zero_grad(set_to_none=True)

    def _follow(self) -> None:
        """Take over the leader's position after an exchange, and enter the time in the records."""
        begun_s = self._timeline.now_s()
        waited_s = self._copy_leader()
        ended_s = self._timeline.now_s()
        # the leader's own waiting is in its records; it comes last to the broadcast
        resumed_s = begun_s if self._leads else min(begun_s + waited_s, ended_s)
        self._timeline.wait(begun_s, resumed_s, clock=self._clock)
        self._timeline.communicate(resumed_s, ended_s, clock=self._clock)

    @torch.no_grad()
    def _copy_leader(self) -> float:
        """Take the leader's parameters and credit over; returns how long the leader waited for other racks."""
        if self._rack.size == 1:
            return 0.0
        store = self._store
        sent = torch.tensor(store.answer, dtype=torch.float64)
        self._rack.broadcast(sent)
        for alike in by_dtype(self._replica.parameters.values()):
            self._rack.broadcast(flat := flat_of(alike))
            if not self._leads:
                write_parts(flat, alike)
        credit, waited_s, halted, samples = sent.tolist()
        store.take_answer(StoreAnswer(int(credit), waited_s, bool(halted), int(samples)))
        return float(waited_s)

    def flush(self) -> None:
        if self._leads:
            self._store.flush()
        self._follow()

    def take_back(self) -> None:
        self._store.take_back()

    def accumulating(self) -> AbstractContextManager[None]:
        return self._inner.accumulating()

    def shared(self) -> State | None:
        return self._store.shared()

    def finish(self) -> None:
        self.flush()

    def snapshots(self) -> list[SharedState]:
        return self._store.snapshots()

    def close(self) -> None:
        self._inner.close()
        self._store.close()
