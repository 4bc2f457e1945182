"""Samples, and the metric of the worker that evaluates: all that workers share beside their updates.

In a collective, samples are dealt in rounds that every rank computes by itself, and all receive the metric. On the
store they are leased, by each worker or by a rack as one, and only the rack of the worker that evaluates waits for a
metric. `StagedSharing` (`plesio.runtime.worker.staged_batches`) is the third: it goes from one to the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from plesio.core.results import Found
from plesio.protocol.plans import PlanFigures
from plesio.runtime.worker.exchange.group import LiveGroup, broadcast_metric
from plesio.runtime.worker.exchange.store_client import Leases, StoreClient
from plesio.runtime.worker.island import Island
from plesio.runtime.worker.loading import BatchSource, LeasedBatches, SynchronousBatches
from plesio.runtime.worker.rack_batches import Rack, RackBatches, RackBlocks, figures_for_racks
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worker.step_times import StepClock


class Sharing(Protocol):
    """The source of a worker's samples, and the receivers of its metric."""

    @property
    def in_rack(self) -> bool:
        """True if this worker is one of a rack that shares the store now: without it the other racks go on."""
        ...

    def batch_source(self, figures: PlanFigures, *, plan: int) -> BatchSource: ...

    def share_metric(self, find: Callable[[], Found], *, number: int | None) -> Found:
        """Return the evaluating worker's metric on the workers that wait for it; elsewhere the result of ``find``.

        Args:
            find: Evaluates, on the worker whose turn it is; gives None on others.
            number: Number of this worker's evaluation, where all workers wait for it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InRounds:
    """Samples in fixed rounds of all ranks.

    Args:
        group: The workers that wait for the metric; None without others.
        island: This worker's, if it is one: its leader's metric counts.
        in_rack: Whether this is the only rack of a run whose racks share the store.
    """

    rounds: RoundRecords
    group: LiveGroup | None
    in_rack: bool = False
    island: Island | None = None

    def batch_source(self, figures: PlanFigures, *, plan: int) -> BatchSource:
        return SynchronousBatches(figures.whole(), batch_size=figures.batch_size, plan=plan, rounds=self.rounds)

    def share_metric(self, find: Callable[[], Found], *, number: int | None) -> Found:
        found = find()
        if self.group is None:
            return found
        current = self.group.current
        if self.island is None:
            return broadcast_metric(found, current)
        return self.island.metric(self.island.together(lambda: broadcast_metric(found, current)))


class Leaser(Protocol):
    """The exchange of a worker that leases samples: it rests when there are none, and is let in again."""

    def flush(self) -> None:
        """Hand in what is held back, and wait until it has been decided on."""
        ...

    def admitted_at(self, clock: int) -> None: ...

    def halt(self) -> None:
        """Take note that there are no samples because the stage on the store ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Leasing:
    """Leases samples from the coordinator."""

    client: StoreClient
    steps: StepClock

    def share_metric(self, find: Callable[[], Found], *, number: int | None, rack: Rack | None) -> Found:
        """Give the result of the first that came (a rack comes as one); without a number rank 0's, in its own rack."""
        if number is None or (rack is not None and not rack.leads):
            found = self.client.common(find())
        else:
            with self.client.evaluating(number) as known:
                found = self.client.common(find()) if known is None else known
        if rack is None or (number is None and not rack.evaluates):
            return found
        return broadcast_metric(found, rack.group)

    def batches(
        self, figures: PlanFigures, *, plan: int, exchange: Leaser, rack: Rack | None
    ) -> LeasedBatches | RackBatches:
        def admitted(clock: int) -> None:
            self.steps.go_on_from(clock)
            exchange.admitted_at(clock)

        if rack is None:
            leases = Leases(
                self.client,
                plan=plan,
                figures=figures,
                on_admitted=admitted,
                before_rest=exchange.flush,
                on_halt=exchange.halt,
            )
            return LeasedBatches(leases)
        figures = figures_for_racks(figures, sizes=rack.sizes, together=rack.together)
        blocks = RackBlocks(
            rack.group,
            lease=partial(Leases, self.client, plan=plan, figures=figures, before_rest=exchange.flush),
            before_rest=exchange.flush,
            on_admitted=admitted,
            on_halt=exchange.halt,
        )
        return RackBatches(LeasedBatches(blocks), rack=rack.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLeases:
    """Samples that each worker, or each rack, leases as it goes."""

    leasing: Leasing
    exchange: Leaser
    rack: Rack | None = None

    @property
    def in_rack(self) -> bool:
        return self.rack is not None

    def batch_source(self, figures: PlanFigures, *, plan: int) -> BatchSource:
        return self.leasing.batches(figures, plan=plan, exchange=self.exchange, rack=self.rack)

    def share_metric(self, find: Callable[[], Found], *, number: int | None) -> Found:
        return self.leasing.share_metric(find, number=number, rack=self.rack)
