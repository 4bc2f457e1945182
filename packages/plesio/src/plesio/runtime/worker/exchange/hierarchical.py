"""Hierarchical exchange: bulk synchronous within a rack, parameters averaged between racks.

    every step              gradients are averaged over the rack, whose replicas stay equal, optimizer state included
    every H steps           parameters are averaged over all workers, which is over racks, as those of a rack are equal
    d steps after that      what the averaging found, mean - own, is added (at once without a delay)

Both levels are the exchanges that there are: the inner one is that of BSP on the rack's group (DDP itself where DDP can
be), the outer one local SGD's on `BetweenRacks`, with a `RackReducer` where what goes between racks is compressed.
Optimizer state of different racks differs, as it does between the workers of local SGD. A gradient that is not finite
costs its rack the step, and no other.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from plesio.runtime.worker.exchange.averaging import AveragingExchange
from plesio.runtime.worker.exchange.exchange import CollectiveExchange, HeldSteps, SharedState, StepProgress
from plesio.runtime.worker.exchange.replica import State


class HierarchicalExchange(CollectiveExchange):
    """Steps as one exchange has it and then merges and starts averagings as another has.

    Args:
        inner: The rack's; takes no snapshots.
    """

    def __init__(self, inner: CollectiveExchange, outer: AveragingExchange, *, racks: Sequence[Sequence[int]]) -> None:
        self._inner, self._outer, self._racks = inner, outer, racks

    def held_steps(self) -> HeldSteps | None:
        """Return the replica's steps: the rack's, and those of all up to the last averaging."""
        inner, outer = self._inner.held_steps(), self._outer.held_steps()
        return (
            None if inner is None else HeldSteps(settled=0 if outer is None else outer.settled, counted=inner.counted)
        )

    def units(self) -> list[int]:
        rack_of = {rank: number for number, ranks in enumerate(self._racks) for rank in ranks}
        return [rack_of[rank] for rank in sorted(rack_of)]

    def count_as(self, share: float) -> None:
        self._outer.count_as(share)

    @property
    def ready_s(self) -> float | None:
        return self._inner.ready_s

    def step(self, progress: StepProgress) -> None:
        self._inner.step(progress)
        self._outer.stepped(progress)

    def accumulating(self) -> AbstractContextManager[None]:
        return self._inner.accumulating()

    def shared(self) -> State | None:
        return self._outer.shared()

    def finish(self) -> None:
        self._outer.finish()

    def snapshots(self) -> list[SharedState]:
        return self._outer.snapshots()

    def close(self) -> None:
        self._inner.close()
        self._outer.close()
