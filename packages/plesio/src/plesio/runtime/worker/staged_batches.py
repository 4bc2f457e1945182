"""The samples of a plan whose exchange changes: in rounds on a collective, in leases on the store, each of them once.

On the way to the store all ranks have trained on the same rounds, so each can compute what is left; the coordinator
leases that out. On the way from it every worker gives back what it holds, and the coordinator computes what is left;
that is dealt in rounds. Batches that a loader has drawn ahead are dropped with it, since no step has used them.

A worker that is stopped stands still here, between two batches. Others may have been quicker and be in the next plan:
a plan that is done is left, and the worker stands still at the beginning of the next one. Fewer samples than there are
workers make no round; a plan of which only they are left is finished on the store.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from plesio.core.errors import ConfigError
from plesio.core.results import Found
from plesio.protocol.plans import PlanFigures, Remainder, Span
from plesio.protocol.to_server import StageStop
from plesio.protocol.to_worker import StageEnd
from plesio.runtime.worker.exchange.group import LiveGroup, broadcast_metric
from plesio.runtime.worker.loading import BatchSource, LeasedBatches, SynchronousBatches
from plesio.runtime.worker.quiescent_point import QuiescentPoint
from plesio.runtime.worker.rack_batches import Rack, RackBatches
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worker.sharing import Leaser, Leasing


class Stages(Leaser, Protocol):
    """The exchanges of a worker, one after another."""

    @property
    def meets(self) -> bool: ...

    @property
    def rack(self) -> Rack | None: ...

    @property
    def halted(self) -> bool: ...

    def depart(self, plan: int, *, release: Callable[[], None]) -> StageEnd:
        """Stand still until it is known how to go on, and begin that; see `StagedExchange.depart`."""
        ...


class StagedBatches:
    """Deals in rounds or in leases, as the exchange in force asks."""

    def __init__(
        self,
        figures: PlanFigures,
        *,
        plan: int,
        rounds: RoundRecords,
        lease: Callable[[], LeasedBatches | RackBatches],
        stages: Stages,
    ) -> None:
        self.figures, self.plan, self._rounds = figures, plan, rounds
        self._lease, self._stages = lease, stages
        self._to_the_end = False
        self._moved = False
        self._current = self._begin(figures.whole())

    def _begin(self, remainder: Remainder) -> SynchronousBatches | LeasedBatches | RackBatches:
        return self._in_rounds(remainder) if self._stages.meets else self._lease()

    def _in_rounds(self, remainder: Remainder) -> SynchronousBatches:
        return SynchronousBatches(remainder, batch_size=self.figures.batch_size, plan=self.plan, rounds=self._rounds)

    @property
    def redealt(self) -> bool:
        """True if the next samples are dealt otherwise, or not at all for now."""
        return self._moved or self._stopped or self._current.redealt

    @property
    def _stopped(self) -> bool:
        return self._stages.halted and not self._to_the_end

    def batches(self) -> Iterator[Sequence[Span]]:
        if not self._stopped:
            yield from self._current.batches()

    def wait(self) -> bool:
        """Wait until there are more batches, stand still where the stage ends, and go on as all do."""
        if self._moved:
            self._moved = False
            return True
        if not self._stopped:
            if self._current.wait():
                return True
            if not self._stopped:  # it may have been stopped while it waited
                return False
        return self._depart()

    def _depart(self) -> bool:
        end = self._stages.depart(self.plan, release=self._current.close)
        self._to_the_end = end.to_the_end
        if end.steer is not None:
            self._current = self._begin(self.figures.whole() if end.remainder is None else end.remainder)
        return True

    def regrouped(self) -> None:
        """Deal the remaining samples in rounds again: the workers were cut off, perhaps on their way to the store."""
        if not isinstance(self._current, SynchronousBatches):
            self._current.close()
            self._current = self._in_rounds(self.figures.whole())
            self._moved = True

    def to_leases(self) -> Remainder:
        """Lease samples from now on, and return what is left for that."""
        assert isinstance(self._current, SynchronousBatches)
        remainder = self._current.remainder()
        self._current.close()
        self._current = self._lease()
        self._moved = True
        return remainder

    def position(self, end: StageEnd | None) -> dict[str, Any]:
        """Describe the position of all in the data; ``end`` is how they left a stage on the store."""
        if end is not None:
            left = self.figures.whole() if end.remainder is None else end.remainder
        else:
            assert isinstance(self._current, SynchronousBatches)
            left = self._current.remainder()
        return {"plan": self.plan, "figures": self.figures, "remainder": left}

    def taken(self, num_samples: int) -> None:
        self._current.taken(num_samples)

    def trained(self, num_samples: int) -> int | None:
        return self._current.trained(num_samples)

    def close(self) -> None:
        self._current.close()


class StagedSharing:
    """Deals samples and shares metrics as the exchange in force asks."""

    def __init__(self, stages: Stages, *, leasing: Leasing, rounds: RoundRecords, group: LiveGroup) -> None:
        self._stages, self._leasing, self._rounds, self._group = stages, leasing, rounds, group
        self.batches: StagedBatches | None = None

    @property
    def in_rack(self) -> bool:
        return self._stages.rack is not None

    def batch_source(self, figures: PlanFigures, *, plan: int) -> BatchSource:
        stages = self._stages
        self.batches = StagedBatches(
            figures,
            plan=plan,
            rounds=self._rounds,
            lease=lambda: self._leasing.batches(figures, plan=plan, exchange=stages, rack=stages.rack),
            stages=stages,
        )
        return self.batches

    def share_metric(self, find: Callable[[], Found], *, number: int | None) -> Found:
        if self._stages.meets:
            return broadcast_metric(find(), self._group.current)
        return self._leasing.share_metric(find, number=number, rack=self._stages.rack)


def stage_stop(
    source: StagedBatches | None,
    *,
    clock: int,
    end: StageEnd | None,
    resumed: QuiescentPoint | None,
    rounds: RoundRecords,
) -> StageStop:
    """Report a worker's position on its way to the store, and the samples that are to be dealt out there.

    Raises:
        ConfigError: The samples are not dealt by `Session.shard`, so there is nothing to lease.
    """
    if source is None and resumed is not None and resumed.plan is not None:
        return StageStop(
            clock=clock,
            plan=resumed.plan,
            figures=resumed.figures,
            remainder=resumed.remainder,
            samples=resumed.samples,
        )
    if source is None and clock > 0:
        raise ConfigError(
            f"this run trains on the store from step {clock} on, where each worker has as many samples "
            "as it gets to; write session.shard(loader) around the loader, so that they can be dealt out"
        )
    if source is None:
        return StageStop(clock=clock)
    if end is None:
        remainder = source.to_leases()
    else:
        remainder = source.figures.whole() if end.remainder is None else end.remainder
    return StageStop(
        clock=clock, plan=source.plan, figures=source.figures, remainder=remainder, samples=rounds.global_samples
    )
