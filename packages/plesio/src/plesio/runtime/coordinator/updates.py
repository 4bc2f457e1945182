"""Updates on their way into the shared parameters: which are whole, how many samples they stand for, what is applied.

An update has arrived when every server holds its part of it. Invariants:

- a key (worker, clock) with parts is of a live worker, and some server's part is still missing;
- samples are noted of updates that are whole and not decided on yet;
- a snapshot is taken when the samples that were applied pass a multiple of ``snapshot_every``.
"""

from plesio.core.trace import TraceWriter
from plesio.policies import Apply, Refuse, RefuseReason
from plesio.protocol.effects import ApplyOrder, DropOrder, Effect, Order, SnapshotOrder, Tell
from plesio.protocol.figures import Snapshot
from plesio.protocol.to_worker import UpdateRefused
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Members

__all__ = ["Updates"]


class Updates:
    """The updates of one run.

    Args:
        members: Whose work they are.
        num_servers: Servers that hold a part of the parameters.
        snapshot_every: Samples between two snapshots; None for none.
        ledger: Told what is applied.
    """

    def __init__(self, members: Members, *, num_servers: int, snapshot_every: int | None, ledger: Ledger) -> None:
        self._members = members
        self.snapshots: list[Snapshot] = []
        self._num_servers = num_servers
        self._snapshot_every = snapshot_every
        self._ledger = ledger
        self._parts: dict[tuple[int, int], set[int]] = {}
        """Of each update of which some servers lack their part, those that have it."""
        self._samples: dict[tuple[int, int], int] = {}
        self._positions: dict[tuple[int, int], int] = {}
        """Positions of the dealt orders in each update: samples, or batches of a batch sampler."""

    def is_whole(self, worker: int, clock: int, *, server: int) -> bool:
        """Whether every server has its part, now that this one has."""
        parts = self._parts.setdefault((worker, clock), set())
        parts.add(server)
        if len(parts) < self._num_servers:
            return False
        del self._parts[worker, clock]
        return True

    def drop_parts(self, worker: int) -> list[DropOrder]:
        """Drop what is not whole of a worker that is gone; it may come back, and be at the same clock again."""
        keys = [key for key in self._parts if key[0] == worker]
        for key in keys:
            del self._parts[key]
        return [DropOrder(worker=worker, clock=clock) for _, clock in keys]

    def note(self, worker: int, clock: int, *, num_samples: int, num_positions: int) -> None:
        """A whole update stands for so many samples, and positions of the orders that are dealt out."""
        self._samples[worker, clock] = num_samples
        self._positions[worker, clock] = num_positions

    def refuse(self, action: Refuse, *, trace: TraceWriter, now_s: float) -> list[Effect]:
        """An update does not reach the parameters, and its worker is told why."""
        worker, clock, reason = action.worker, action.clock, action.reason
        num_samples = self._samples.pop((worker, clock), 0)
        self._positions.pop((worker, clock), None)
        trace.event("refuse", at_s=now_s, clock=clock, worker=worker, reason=reason.value)
        drop = DropOrder(worker=worker, clock=clock)
        if reason is RefuseReason.NOT_FINITE:  # that the worker found itself, and counted
            return [drop]
        num_returned = num_samples if reason is RefuseReason.LATE else 0
        return [drop, Tell(worker=worker, message=UpdateRefused(clock=clock, reason=reason, num_returned=num_returned))]

    def apply(self, action: Apply, *, trace: TraceWriter, now_s: float, began_s: float) -> list[Order]:
        """The orders that make the next version, and a snapshot of it if one is due.

        Args:
            action: What the policy has decided.
            trace: Told of it.
            now_s: The time.
            began_s: When the run did.
        """
        trace.event("apply", at_s=now_s, clock=action.version, updates=action.updates, weight=action.weight)
        members, ledger = self._members, self._ledger
        ledger.applied(action)
        before = ledger.applied_samples
        ledger.applied_samples += sum(self._samples.pop(update, 0) for update in action.updates)
        ledger.applied_positions += sum(self._positions.pop(update, 0) for update in action.updates)
        num_workers = tuple(members[worker].num_workers for worker, _ in action.updates)
        order = ApplyOrder(
            updates=action.updates,
            weight=action.weight,
            version=action.version,
            num_live=max(1, sum(members.known().values())),  # as in the policy's weights, who rests counts
            num_workers=num_workers if members.by_racks else None,
            share=action.share,
            age=action.age,
            samples=ledger.applied_positions,
        )
        every = self._snapshot_every
        if not every or before // every == ledger.applied_samples // every:
            return [order]
        snapshot = Snapshot(len(self.snapshots), ledger.applied_samples, now_s - began_s)
        self.snapshots.append(snapshot)
        return [order, SnapshotOrder(number=snapshot.number)]

    def validate(self) -> None:
        """Raise AssertionError when an invariant of the module's head does not hold."""
        for (worker, clock), parts in self._parts.items():
            assert self._members.is_live(worker), f"parts of worker {worker}, which is gone, at clock {clock}"
            assert 0 < len(parts) < self._num_servers, f"parts {parts} of {self._num_servers} of {worker} at {clock}"
