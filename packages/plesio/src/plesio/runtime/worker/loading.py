"""A user's DataLoader, dealt out to the workers: the same data set and settings, other indices.

A `BatchSource` gives the next positions of the order; `shard` has the loader look them up. A source may run dry while
others still hold samples that could come back (a worker may be lost); the loop waits, and goes on if some do.
"""

import copy
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader

from plesio.protocol.plans import Block, Remainder, Span, cut
from plesio.runtime.worker.order import Order
from plesio.runtime.worker.rounds import RoundRecords


class BatchSource(Protocol):
    """The source of a worker's next samples."""

    @property
    def redealt(self) -> bool:
        """True if the next samples are dealt otherwise: batches that a loader has drawn ahead must not be used."""
        ...

    def batches(self) -> Iterator[Sequence[Span]]:
        """Yield the positions of each batch, until there is none for now."""
        ...

    def wait(self) -> bool:
        """Wait until there are more batches (True) or there never will be (False). Nothing may be outstanding."""
        ...

    def taken(self, num_samples: int) -> None:
        """Count a batch of ``num_samples`` that the training loop has been given."""
        ...

    def trained(self, num_samples: int) -> int | None:
        """Count a step on so many samples; returns the samples of all workers up to it, if the source has them."""
        ...

    def close(self) -> None: ...


class SynchronousBatches:
    """Batches in a fixed order that every rank computes by itself; all ranks have equally many.

    Args:
        remainder: The samples that are dealt out: a plan, or what is left of it.
        rounds: The rank's; outlives the plan.
    """

    def __init__(self, remainder: Remainder, *, batch_size: int, plan: int, rounds: RoundRecords) -> None:
        self._whole = remainder
        self._batch_size, self._plan, self._rounds = batch_size, plan, rounds
        self._begin()

    def _begin(self) -> None:
        self._remainder = self._rounds.begin(self._plan, self._whole)
        self._generation = self._rounds.generation
        self._trained_before = self._rounds.global_samples
        self._num_short = 0
        """Samples that are too few for a round."""

    @property
    def redealt(self) -> bool:
        return self._rounds.generation != self._generation

    def batches(self) -> Iterator[Sequence[Span]]:
        """Yield every batch of the plan. A rest of an epoch smaller than the ranks is dealt with the next epoch."""
        rounds = self._rounds
        waiting: list[Span] = []
        ended = 0
        for spans in self._remainder.by_epoch():
            waiting += spans
            self._num_short = sum(map(len, waiting))
            for equal in rounds.equal_sizes(self._num_short, batch_size=self._batch_size):
                sizes = rounds.draw(equal)
                num_before, num_dealt, own = sum(sizes[: rounds.rank]), sum(sizes), sizes[rounds.rank]
                before, batch, after, waiting = cut(waiting, [num_before, own, num_dealt - num_before - own])
                ended += num_dealt
                self._num_short -= num_dealt
                rounds.dealt(self._plan, (*before, *batch, *after), ended=ended)
                yield batch

    def remainder(self) -> Remainder:
        if self.redealt:
            self._begin()
        return self._remainder.after(self._rounds.global_samples - self._trained_before)

    def wait(self) -> bool:
        """Tell whether there is more: only where the rest has been divided anew."""
        if self.redealt:
            self._begin()
            return True
        if self._num_short:
            self._rounds.left_out(self._plan, self._num_short)
        return False

    def taken(self, num_samples: int) -> None:
        self._rounds.taken(num_samples)

    def trained(self, num_samples: int) -> int | None:
        self._rounds.trained(num_samples)
        return self._rounds.global_samples

    def close(self) -> None:
        """Abandon the loop: all ranks leave theirs together, and nothing is held elsewhere."""
        self._rounds.abandon()


class BlockSource(Protocol):
    """Leases blocks: the coordinator, seen from a worker."""

    def request(self, *, idle: bool) -> None:
        """Ask for the next block; one request at a time."""
        ...

    def receive(self) -> Block | None: ...

    def finish(self, block: int, *, num_samples: int) -> None: ...

    def release(self) -> None:
        """Give back all that is leased and not finished, an answer under way included."""
        ...


class LeasedBatches:
    """Batches of leased blocks; the next block is asked for while the present one is trained on."""

    redealt = False

    def __init__(self, source: BlockSource) -> None:
        self._source = source
        self._held: deque[tuple[int, int]] = deque()
        self._next: Block | None = None
        self._asked = False

    def batches(self) -> Iterator[Sequence[Span]]:
        block, self._next = self._next, None
        while block is not None or (block := self._ask(idle=False)) is not None:
            self._held.append((block.id, block.num_samples))
            self._request(idle=False)
            for part in block.batches():
                yield [Span(block.epoch, part.start, part.stop)]
            block = self._receive()
            if block is None:
                return

    def wait(self) -> bool:
        # What the loop has taken and not stepped on yet (accumulated gradients) is its own: nobody need wait for it.
        self.trained(sum(left for _, left in self._held))
        self._next = self._ask(idle=True)
        return self._next is not None

    def taken(self, num_samples: int) -> None: ...

    def trained(self, num_samples: int) -> int | None:
        """Report progress, block by block in the order in which they were leased."""
        while num_samples and self._held:
            block, left = self._held.popleft()
            done = min(left, num_samples)
            self._source.finish(block, num_samples=done)
            if left > done:
                self._held.appendleft((block, left - done))
            num_samples -= done
        return None

    def close(self) -> None:
        if self._held or self._next is not None or self._asked:
            self._held.clear()
            self._next = None
            self._asked = False
            self._source.release()

    def _ask(self, *, idle: bool) -> Block | None:
        self._request(idle=idle)
        return self._receive()

    def _request(self, *, idle: bool) -> None:
        self._source.request(idle=idle)
        self._asked = True

    def _receive(self) -> Block | None:
        block = self._source.receive()
        self._asked = False
        return block


class Given(NamedTuple):
    """A batch for the training loop, with its number of positions in the order and of samples."""

    batch: Any
    size: int
    samples: int


class _Feed:
    """A sampler over a source, of batches or of what the loader hands out in one go, that notes their sizes."""

    def __init__(self) -> None:
        self._asks: Callable[[], Iterator[tuple[Any, int]]] = lambda: iter(())
        self.sizes: deque[tuple[int, int]] = deque()

    def begin(self, source: BatchSource, order: Order, *, first_epoch: int) -> None:
        def asks() -> Iterator[tuple[Any, int]]:
            for spans in source.batches():
                found = order.indices(spans, first_epoch=first_epoch)
                yield from ((one, 1) for one in found) if order.in_units else ((found, len(found)),)

        self._asks = asks

    def __iter__(self) -> Iterator[Any]:
        self.sizes.clear()
        for one, size in self._asks():
            self.sizes.append((size, len(one) if isinstance(one, list) else 1))
            yield one


class Fed:
    """Loaders with all that users' loaders are, but for the sampler; those whose processes persist are kept."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[DataLoader[Any], tuple[DataLoader[Any], _Feed]] = WeakKeyDictionary()

    def like(self, loader: DataLoader[Any]) -> tuple[DataLoader[Any], _Feed]:
        """Return a loader like ``loader``, made once, and the feed of its indices."""
        if loader in self._kept:
            return self._kept[loader]
        fed, feed = copy.copy(loader), _Feed()
        # a DataLoader refuses to have these set once it is made
        vars(fed).update({"sampler" if loader.batch_sampler is None else "batch_sampler": feed, "_iterator": None})
        if loader.persistent_workers:
            self._kept[loader] = fed, feed
        return fed, feed


def shard(
    order: Order,
    *,
    plan: int,
    source: BatchSource,
    loaders: Fed,
    now_s: Callable[[], float],
    on_waited: Callable[[float, float], None],
    on_begun: Callable[[], None] = lambda: None,
) -> Generator[Given]:
    """Yield this worker's batches, in the loader's own form, of the ``plan``-th loop, which begins with that epoch.

    ``on_waited`` gets the beginning and the end of a wait for samples. ``on_begun`` is called when a loader has begun,
    which draws a random number, and has given nothing yet.
    """
    more = True
    try:
        while more:
            fed, feed = loaders.like(order.loader)
            feed.begin(source, order, first_epoch=plan)
            iterator = iter(fed)
            on_begun()
            for batch in iterator:
                size, samples = feed.sizes.popleft()
                source.taken(size)
                yield Given(batch, size, samples)
                if source.redealt:
                    break
            begun_s = now_s()
            more = source.wait()
            on_waited(begun_s, now_s())
    finally:
        source.close()
