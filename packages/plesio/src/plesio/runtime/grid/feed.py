"""A group's micro-batches, one ahead of the training, and where in them a run goes on that is resumed or regroups."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from torch.utils.data import DataLoader

from plesio.core.errors import DataError
from plesio.core.records import from_values, to_values
from plesio.protocol.plans import PlanFigures, Remainder
from plesio.runtime.grid.deal import Deal, Round
from plesio.runtime.grid.formation import Formation
from plesio.runtime.worker.loading import Fed, Given, SynchronousBatches, shard
from plesio.runtime.worker.loops import LoaderShard
from plesio.runtime.worker.order import Order
from plesio.runtime.worker.rounds import Unfinished


@dataclass(frozen=True, slots=True)
class FeedState:
    """A group's place in its data.

    Attributes:
        plan: Which loop over the data, from 0.
        taken: Micro-batches of it that have been trained on, since groups were last lost or joined in it.
        upcoming: The next one, which has been drawn already; None at the loop's end.
        left: What there was of the loop when groups were last lost or joined in it; None is all of it.
    """

    plan: int = -1
    taken: int = 0
    upcoming: Any = None
    left: Remainder | None = None

    @property
    def rounds(self) -> int:
        """How many have been drawn."""
        return self.taken + (self.upcoming is not None)

    def to_values(self) -> list[Any]:
        return [self.plan, self.taken, self.upcoming, None if self.left is None else to_values(self.left)]

    @classmethod
    def from_values(cls, values: list[Any]) -> "FeedState":
        plan, taken, upcoming, left = values
        return cls(plan, taken, upcoming, None if left is None else from_values(left, Remainder))


class Feed:
    """Deals a group's samples.

    Args:
        say: Takes a line on samples that are left out.
        past: Where an earlier run was, or the groups that this one joins.
        go_on: Has random numbers go on from there; called when the loop that it was in has begun.
    """

    def __init__(
        self,
        group: int,
        formation: Formation,
        *,
        seed: int,
        now_s: Callable[[], float],
        say: Callable[[str], None],
        past: FeedState | None = None,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._group = group
        self._deal = Deal(group, formation.groups, horizon=formation.horizon, say=say)
        if past is not None and past.left is not None:
            left = Unfinished(remainder=past.left, samples=0, dropped=0)
            self._deal.go_on(group, formation.groups, plan=past.plan, left=left)
        self._seed = seed
        self._now_s = now_s
        self._past = past
        self._go_on = go_on
        self._loaders = Fed()
        self._num_plans = 0
        self._given: Round | None = None
        self._taken: Round | None = None
        """The latest that was trained on."""
        self.state = FeedState()
        """The place of this group in its data."""

    @property
    def more(self) -> bool:
        """True if another micro-batch is known to follow the present one."""
        return self.state.upcoming is not None

    def take_samples(self, tick: int) -> int | None:
        """Return the samples of all groups in the ``tick``-th micro-batch, just given; None if it is not from here."""
        given, self._given = self._given, None
        if given is None:
            return None
        given.tick, self._taken = tick, given
        return given.of_all

    def missing(self, lost: Mapping[int, int]) -> dict[int, int]:
        """Return the samples, by micro-batch, that lost groups were given and had not trained on."""
        return self._deal.missing(lost)

    def regroup(self, formation: Formation, *, lost: Mapping[int, int]) -> int:
        """Deal anew samples that were not given, or not trained on by lost groups; nothing may be under way.

        Args:
            formation: The groups that are there from now on.
            lost: Those that are not any more, each with the first micro-batch that it had not trained on.

        Returns:
            Samples that are left out, as the loop over them has ended, and the present one is over another data set.
        """
        unfinished = self._deal.deal_again(self._group, formation.groups, lost=lost, present=self._taken)
        self.state = FeedState(self.state.plan, 0, None, unfinished.remainder)
        return unfinished.dropped

    def shard(self, loader: DataLoader[Any], *, samples: int | None) -> LoaderShard:
        def order() -> Order:
            return Order(loader, seed=self._seed)

        if order().in_units:
            raise DataError("grid.shard needs a DataLoader with a batch_size: all micro-batches have room for so many")
        figures = order().figures(samples=samples, epoch=None, num_workers=self._deal.num_workers)
        return LoaderShard(lambda: self._batches(order(), samples), lambda: self._num_rounds(figures))

    def _num_rounds(self, figures: PlanFigures) -> int:
        epochs = (sum(map(len, spans)) for spans in figures.whole().by_epoch())
        return sum(1 for size in epochs for _ in self._deal.equal_sizes(size, batch_size=figures.batch_size))

    def _batches(self, order: Order, samples: int | None) -> Iterator[Any]:
        plan, self._num_plans = self._num_plans, self._num_plans + 1
        figures = order.figures(samples=samples, epoch=plan, num_workers=self._deal.num_workers)
        past = self._past
        if past is not None and plan < past.plan:
            return
        begin = past if past is not None and plan == past.plan else FeedState(plan)
        on_begun = self._go_on if begin is past else lambda: None
        if begin.taken and begin.upcoming is None:
            self.state = begin
            on_begun()
            return
        while True:
            generation = self._deal.generation
            yield from self._as_dealt(order, figures, begin, on_begun=on_begun)
            if self._deal.generation == generation:
                return
            begin, on_begun = self.state, lambda: None

    def _as_dealt(
        self, order: Order, figures: PlanFigures, begin: FeedState, *, on_begun: Callable[[], None]
    ) -> Iterator[Any]:
        """Yield the micro-batches of one loop until its end, or until the rest is dealt otherwise."""
        deal, whole = self._deal, figures.whole()
        last = deal.skip(whole, plan=begin.plan, batch_size=figures.batch_size, rounds=begin.rounds)
        source = SynchronousBatches(whole, batch_size=figures.batch_size, plan=begin.plan, rounds=deal)
        rest = shard(
            order,
            plan=begin.plan,
            source=source,
            loaders=self._loaders,
            now_s=self._now_s,
            on_waited=lambda begun_s, ended_s: None,  # groups never wait for samples
            on_begun=on_begun,
        )
        try:
            upcoming = self._drawn(rest) if begin.upcoming is None else (begin.upcoming, last)
            for taken in count(begin.taken + 1):
                if upcoming is None:
                    return
                (batch, self._given), upcoming = upcoming, self._drawn(rest)
                self.state = replace(begin, taken=taken, upcoming=None if upcoming is None else upcoming[0])
                assert self._given is not None, "what was upcoming has been skipped"
                deal.give(self._given, data=order.loader.dataset)
                yield batch
                if source.redealt:
                    return
        finally:
            rest.close()

    def _drawn(self, batches: Iterator[Given]) -> tuple[Any, Round | None] | None:
        item = next(batches, None)
        return None if item is None else (item.batch, self._deal.drawn())
