"""Updates on their way into the shared parameters: which are whole, what is decided on them, what is applied.

An update has arrived when every server holds its part of it; then the policy decides, if its worker still counts.
Invariants:

- a key (worker, clock) with parts is of a live worker, and some server's part is still missing;
- samples are noted of updates that are whole and not decided on yet;
- a snapshot is taken when the samples that were applied pass a multiple of ``snapshot_every``.
"""

from collections.abc import Sequence

from plesio.core.trace import TraceWriter
from plesio.policies import Apply, Arrived, Refuse, RefuseReason
from plesio.protocol.effects import ApplyOrder, DropOrder, Effect, Order, SnapshotOrder, Tell
from plesio.protocol.figures import Snapshot
from plesio.protocol.to_server import Finished, NotFinite, PartArrived
from plesio.protocol.to_worker import UpdateRefused
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Answers, Members
from plesio.runtime.coordinator.rates import StepRates
from plesio.runtime.coordinator.sampling import Sampling
from plesio.runtime.coordinator.saving import Checkpoints


class Updates:
    """The updates of one run.

    Args:
        num_servers: Servers that hold a part of the parameters.
        snapshot_every: Samples between two snapshots; None for none.
    """

    def __init__(
        self,
        members: Members,
        *,
        sampling: Sampling,
        checkpoints: Checkpoints,
        ledger: Ledger,
        trace: TraceWriter,
        num_servers: int,
        snapshot_every: int | None,
    ) -> None:
        self._members = members
        self._sampling = sampling
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._trace = trace
        self._num_servers = num_servers
        self._snapshot_every = snapshot_every
        self.snapshots: list[Snapshot] = []
        self._parts: dict[tuple[int, int], set[int]] = {}
        """Servers that have their part of an update, where some still lack theirs."""
        self._whole: dict[tuple[int, int], tuple[int, int]] = {}
        """Samples in an update, and positions of the dealt orders: samples, or batches of a batch sampler."""
        self._rates = StepRates(
            effect=", and the server uses that which came last", is_live=members.is_live, warn=ledger.fallbacks.warn
        )
        self._late: tuple[int, int] | None = None
        """The last update that was refused because its step was over."""

    def part(self, part: PartArrived, *, now_s: float) -> Answers:
        """Take in that one server holds its part of an update; when all do, the policy decides."""
        event = part.event
        key = event.worker, event.clock
        if not self._counts(event):
            yield DropOrder(worker=event.worker, clock=event.clock)
            return
        synchronous = self._sampling.synchronous
        if synchronous or part.rates is not None:
            self._rates.take(event.worker, clock=event.clock, rates=part.rates, synchronous=synchronous)
        parts = self._parts.setdefault(key, set())
        parts.add(part.server)
        if len(parts) == self._num_servers:
            del self._parts[key]
            yield from self._decide(event, num_samples=part.num_samples, finished=part.finished, now_s=now_s)

    def not_finite(self, message: NotFinite, *, now_s: float) -> Answers:
        """Take in that an update was not finite: it has no parts, and its samples count as done."""
        event = message.arrived
        if self._counts(event):
            samples = sum(number for *_, number in message.finished)
            yield from self._decide(event, num_samples=samples, finished=message.finished, now_s=now_s)
        else:
            yield DropOrder(worker=event.worker, clock=event.clock)

    def _counts(self, event: Arrived) -> bool:
        members, worker = self._members, event.worker
        return members.state == "running" and members.is_live(worker) and not members[worker].resting

    def _decide(self, event: Arrived, *, num_samples: int, finished: Sequence[Finished], now_s: float) -> Answers:
        """Have the policy decide on an update, and settle the leases of its samples.

        ``num_samples`` are the worker's own; of the ``finished`` leased ones, what never arrives or comes too late for
        its step is leased again.
        """
        worker, key = event.worker, (event.worker, event.clock)
        self._members[worker].seen(now_s, clock=event.clock)
        self._checkpoints.passed(event.clock)
        # the lead is taken when a step begins: one step before the clock that it ends with
        self._ledger.led(event.clock - 1 - self._members.slowest_clock())
        # of a rack's samples its speaker reports its own share, and the leases of all
        leased = sum(number for *_, number in finished)
        self._whole[key] = leased if self._members.by_racks else num_samples, leased
        yield event  # from here on the policy has decided: the update is applied, refused, or waits for others
        late, self._late = self._late == key, None
        counted = 0 if late else num_samples
        self._ledger.workers.arrived(worker, num_steps=event.num_steps, num_samples=counted)
        settle = self._sampling.give_back if late else self._sampling.finish
        for plan, block, number in finished:
            yield from settle(worker, plan=plan, block=block, num_samples=number)

    def drop_parts(self, worker: int) -> list[DropOrder]:
        """Drop what is not whole of a worker that is gone; it may come back, and be at the same clock again."""
        keys = [key for key in self._parts if key[0] == worker]
        for key in keys:
            del self._parts[key]
        return [DropOrder(worker=worker, clock=clock) for _, clock in keys]

    def refuse(self, action: Refuse, *, now_s: float) -> list[Effect]:
        worker, clock, reason = action.worker, action.clock, action.reason
        num_samples, _ = self._whole.pop((worker, clock), (0, 0))
        self._trace.event("refuse", at_s=now_s, clock=clock, worker=worker, reason=reason.value)
        drop = DropOrder(worker=worker, clock=clock)
        if reason is RefuseReason.NOT_FINITE:  # that the worker found itself, and counted
            return [drop]
        num_returned = 0
        if reason is RefuseReason.LATE:
            self._late, num_returned = (worker, clock), num_samples
        return [drop, Tell(worker=worker, message=UpdateRefused(clock=clock, reason=reason, num_returned=num_returned))]

    def apply(self, action: Apply, *, now_s: float) -> list[Order]:
        """Return the orders that make the next version, and a snapshot of it if one is due."""
        self._trace.event("apply", at_s=now_s, clock=action.version, updates=action.updates, weight=action.weight)
        members, ledger = self._members, self._ledger
        before = ledger.samples.applied
        whole = [self._whole.pop(update, (0, 0)) for update in action.updates]
        num_samples, num_positions = (sum(numbers) for numbers in zip((0, 0), *whole, strict=True))
        ledger.applied(action, num_samples=num_samples, num_positions=num_positions)
        counts = tuple(members[worker].num_workers for worker, _ in action.updates)
        if action.by_samples:
            counts = tuple(max(1, number) for number, _ in whole)
        order = ApplyOrder(
            updates=action.updates,
            weight=action.weight,
            version=action.version,
            num_live=max(1, sum(members.known().values())),  # workers that rest count, too, as in the policy's weights
            counts=counts if members.by_racks or action.by_samples else None,
            share=action.share,
            age=action.age,
            fragment=action.fragment,
            by_directions=action.by_directions,
            late=tuple(tau > 0 for tau in action.staleness) if action.corrected else None,
            samples=ledger.samples.applied_positions,
        )
        every = self._snapshot_every
        if not every or before // every == ledger.samples.applied // every:
            return [order]
        snapshot = Snapshot(len(self.snapshots), ledger.samples.applied, ledger.elapsed_s(now_s))
        self.snapshots.append(snapshot)
        return [order, SnapshotOrder(number=snapshot.number)]

    def validate(self) -> None:
        for (worker, clock), parts in self._parts.items():
            assert self._members.is_live(worker), f"parts of worker {worker}, which is gone, at clock {clock}"
            assert 0 < len(parts) < self._num_servers, f"parts {parts} of {self._num_servers} of {worker} at {clock}"
