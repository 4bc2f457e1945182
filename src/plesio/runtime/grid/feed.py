"""A group's micro-batches, one ahead of the training, and where in them a run that is resumed goes on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch.utils.data import DataLoader

from plesio.runtime.worker.loading import SynchronousBatches, plan_figures, shard
from plesio.runtime.worker.rounds import RoundRecords

__all__ = ["Feed", "FeedState"]


@dataclass(frozen=True, slots=True)
class FeedState:
    """Where a group is in its data.

    Attributes:
        plan: Which loop over the data, from 0.
        taken: Micro-batches of it that have been trained on.
        upcoming: The next one, which has been drawn already, and its samples of all groups; None at the loop's end.
    """

    plan: int = -1
    taken: int = 0
    upcoming: Any = None


class _Skipping:
    """Batches after the first ``number``, which were trained on before."""

    def __init__(self, source: SynchronousBatches, number: int) -> None:
        self._source = source
        self._number = number

    @property
    def turned(self) -> bool:
        return self._source.turned

    def batches(self) -> Iterator[list[int]]:
        for place, batch in enumerate(self._source.batches()):
            if place >= self._number:
                yield batch
            else:
                self._source.taken(len(batch))
                self._source.trained(len(batch))

    def wait(self) -> bool:
        return self._source.wait()

    def taken(self, num_samples: int) -> None:
        self._source.taken(num_samples)

    def trained(self, num_samples: int) -> int | None:
        return self._source.trained(num_samples)

    def close(self) -> None:
        self._source.close()


class Feed:
    """Deals a group's samples.

    Args:
        group: Whose.
        num_groups: Groups in all.
        seed: Of the order of samples.
        now_s: The time.
        say: Told in a line of samples that are left out.
        past: Where an earlier run was.
        go_on: Has random numbers go on from there; called when the loop that it was in has begun.
    """

    def __init__(
        self,
        group: int,
        num_groups: int,
        *,
        seed: int,
        now_s: Callable[[], float],
        say: Callable[[str], None],
        past: FeedState | None = None,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._rounds = RoundRecords(group, num_groups, say=say)
        self._seed = seed
        self._now_s = now_s
        self._past = past
        self._go_on = go_on
        self._num_plans = self._num_drawn = 0
        self._given: int | None = None
        self._state = FeedState()

    @property
    def more(self) -> bool:
        """Whether another micro-batch is known to follow the present one."""
        return self._state.upcoming is not None

    def take_samples(self) -> int | None:
        """Samples of all groups in the micro-batch that was given, once; None where it is not from here."""
        given, self._given = self._given, None
        return given

    def state(self) -> FeedState:
        """Where this group is."""
        return self._state

    def batches(self, loader: DataLoader[Any], *, samples: int | None) -> Iterator[Any]:
        """The group's micro-batches of one loop over the data."""
        figures = plan_figures(loader, samples=samples)
        plan, self._num_plans = self._num_plans, self._num_plans + 1
        past = self._past
        if past is not None and plan < past.plan:
            return
        resumed = past if past is not None and plan == past.plan else FeedState(plan)
        source = SynchronousBatches(
            figures.whole(), batch_size=figures.batch_size, plan=plan, seed=self._seed, rounds=self._rounds
        )
        if resumed is past and past.upcoming is None:
            self._go_on()
            return
        skipping = _Skipping(source, resumed.taken + (resumed.upcoming is not None))
        on_begun = self._go_on if resumed is past else _nothing_begun
        batches = shard(loader, source=skipping, now_s=self._now_s, on_waited=_nothing, on_begun=on_begun)
        upcoming = self._drawn(batches, source) if resumed.upcoming is None else resumed.upcoming
        for taken in count(resumed.taken + 1):
            if upcoming is None:
                return
            (batch, self._given), upcoming = upcoming, self._drawn(batches, source)
            self._state = FeedState(plan, taken, upcoming)
            yield batch

    def _drawn(self, batches: Iterator[tuple[Any, int]], source: SynchronousBatches) -> tuple[Any, int] | None:
        """The next micro-batch and its samples of all groups, or None.

        What was drawn counts as done, for nobody takes it back.
        """
        item = next(batches, None)
        if item is None:
            return None
        before = self._rounds.global_samples
        source.trained(item[1])
        self._num_drawn += 1
        self._rounds.mark(self._num_drawn, settled=self._num_drawn)
        return item[0], self._rounds.global_samples - before


def _nothing_begun() -> None:
    """There is no past to go on from."""


def _nothing(begun_s: float, ended_s: float) -> None:
    """Groups never wait for samples."""
