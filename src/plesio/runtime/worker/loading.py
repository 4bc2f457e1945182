"""A user's DataLoader, dealt out to the workers: the same data set and settings, other indices.

A `BatchSource` says which samples come next; `shard` turns its batches into the user's loader. It may run dry while
others still hold samples that could come back (a worker may be lost); the loop then waits, and goes on if some do.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from plesio.core.errors import DataError
from plesio.protocol.plans import Block, PlanFigures, Remainder, Span, cut
from plesio.runtime.coordinator.leases import epoch_order, round_sizes
from plesio.runtime.worker.rounds import RoundRecords

__all__ = ["BatchSource", "BlockSource", "LeasedBatches", "SynchronousBatches", "plan_figures", "rounds_ahead", "shard"]


class BatchSource(Protocol):
    """Where a worker's next samples come from."""

    @property
    def turned(self) -> bool:
        """Whether what comes next is dealt otherwise: what a loader has drawn ahead is not to be trained on."""
        ...

    def batches(self) -> Iterator[list[int]]:
        """Indices of each batch, until there is none for now."""
        ...

    def wait(self) -> bool:
        """Wait until there are more batches (True) or there never will be (False). Nothing may be outstanding."""
        ...

    def taken(self, num_samples: int) -> None:
        """The training loop has been given a batch of ``num_samples``."""
        ...

    def trained(self, num_samples: int) -> int | None:
        """A step on the next ``num_samples`` samples is done.

        Returns:
            Samples of all workers up to this step, where the source knows them; else None.
        """
        ...

    def close(self) -> None:
        """The worker leaves its loop: what it holds and has not trained on goes back."""
        ...


class SynchronousBatches:
    """Batches in a fixed order that every rank computes by itself; all ranks have equally many.

    Args:
        remainder: What is dealt out: a plan, or what is left of it.
        batch_size: Samples in a worker's batch.
        plan: Which loop of the session, and the epoch that it begins with.
        seed: Seed of the order.
        rounds: The rank's; outlives the plan.
    """

    def __init__(self, remainder: Remainder, *, batch_size: int, plan: int, seed: int, rounds: RoundRecords) -> None:
        self._whole = remainder
        self._batch_size = batch_size
        self._plan = plan
        self._seed = seed
        self._rounds = rounds
        self._begin()

    def _begin(self) -> None:
        self._remainder = self._rounds.begin(self._plan, self._whole)
        self._generation = self._rounds.generation
        self._trained_before = self._rounds.global_samples
        self._num_short = 0
        """Samples that are too few for a round."""

    @property
    def turned(self) -> bool:
        """Whether what is left has been divided anew, in another group."""
        return self._rounds.generation != self._generation

    def batches(self) -> Iterator[list[int]]:
        """Every batch of the plan. Fewer samples of an epoch than there are ranks are dealt with the next epoch's."""
        rounds, rest = self._rounds, np.empty(0, np.int64)
        waiting: list[Span] = []
        ended = 0
        for spans in self._remainder.by_epoch():
            rest = np.concatenate([rest, *self._indices(spans)])
            waiting += spans
            self._num_short = len(rest) if len(rest) < rounds.num_workers else 0
            if self._num_short:
                continue
            start = 0
            for equal in round_sizes(len(rest), num_workers=rounds.num_workers, batch_size=self._batch_size):
                sizes = rounds.draw(equal)
                begin = start + sum(sizes[: rounds.rank])
                own = rest[begin : begin + sizes[rounds.rank]].tolist()
                start += sum(sizes)
                dealt, waiting = cut(waiting, [sum(sizes)])
                ended += sum(sizes)
                rounds.dealt(self._plan, dealt, ended=ended)
                yield own
            rest = rest[:0]

    def _indices(self, spans: Sequence[Span]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        epoch = self._plan + spans[0].epoch
        order = epoch_order(self._remainder.num_samples, seed=self._seed, epoch=epoch)
        return [order[span.start : span.stop] for span in spans]

    def remainder(self) -> Remainder:
        """What nobody has trained on."""
        if self.turned:
            self._begin()
        return self._remainder.after(self._rounds.global_samples - self._trained_before)

    def wait(self) -> bool:
        """There is more only where what is left has been divided anew."""
        if self.turned:
            self._begin()
            return True
        if self._num_short:
            self._rounds.left_out(self._plan, self._num_short)
        return False

    def taken(self, num_samples: int) -> None:
        """The training loop has been given a batch."""
        self._rounds.taken(num_samples)

    def trained(self, num_samples: int) -> int | None:
        """Samples of all workers up to this step."""
        self._rounds.trained(num_samples)
        return self._rounds.global_samples

    def close(self) -> None:
        """All ranks leave their loops together; nothing is held elsewhere."""
        self._rounds.abandon()


class BlockSource(Protocol):
    """Leases blocks: the coordinator, seen from a worker."""

    def request(self, *, idle: bool) -> None:
        """Ask for the next block; one request at a time."""
        ...

    def receive(self) -> Block | None:
        """The answer to the request (waits for it)."""
        ...

    def finish(self, block: int, *, num_samples: int) -> None:
        """Report progress on a block."""
        ...

    def release(self) -> None:
        """Give back all that is leased and not finished, an answer under way included."""
        ...


class LeasedBatches:
    """Batches of leased blocks; the next block is asked for while the present one is trained on.

    Args:
        source: Who leases.
        num_samples: Size of the data set.
        first_epoch: Epoch that the plan begins with.
        seed: Seed of the order.
    """

    turned = False

    def __init__(self, source: BlockSource, *, num_samples: int, first_epoch: int, seed: int) -> None:
        self._source = source
        self._num_samples = num_samples
        self._first_epoch = first_epoch
        self._seed = seed
        self._held: deque[tuple[int, int]] = deque()
        self._next: Block | None = None
        self._asked = False
        self._orders: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}

    def batches(self) -> Iterator[list[int]]:
        """The batches of every block that can be had without waiting."""
        block, self._next = self._next, None
        while block is not None or (block := self._ask(idle=False)) is not None:
            self._held.append((block.id, block.num_samples))
            self._request(idle=False)
            order = self._order(self._first_epoch + block.epoch)
            for part in block.batches():
                yield order[part].tolist()
            block = self._receive()
            if block is None:
                return

    def wait(self) -> bool:
        """Rest until a block comes, or the plan is done."""
        # What the loop has taken and not stepped on yet (accumulated gradients) is its own: nobody need wait for it.
        self.trained(sum(left for _, left in self._held))
        self._next = self._ask(idle=True)
        return self._next is not None

    def taken(self, num_samples: int) -> None:
        """It is finished when it has been trained on."""

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
        """Give back what is held, and what is on its way."""
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

    def _order(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if epoch not in self._orders:
            self._orders = {epoch: epoch_order(self._num_samples, seed=self._seed, epoch=epoch)}
        return self._orders[epoch]


def plan_figures(loader: DataLoader[Any], *, samples: int | None) -> PlanFigures:
    """What ``loader`` asks to be dealt out: one epoch, or ``samples`` samples of as many epochs as that takes.

    Raises:
        DataError: It is no DataLoader, or has no batch size, or its data set no length.
    """
    if not isinstance(loader, DataLoader):
        raise DataError(f"session.shard takes a torch.utils.data.DataLoader, and this is a {type(loader).__name__}")
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise DataError(
            "session.shard needs a map-style data set (with __len__ and __getitem__) so that samples can be leased; "
            "split an iterable data set yourself and iterate over it directly"
        )
    if loader.batch_size is None:
        raise DataError("session.shard needs a DataLoader with a batch_size (it replaces the batch sampler)")
    num_samples = len(loader.dataset)
    budget = num_samples if samples is None else samples
    if loader.drop_last:
        budget -= budget % loader.batch_size
    if budget < 1:
        raise DataError(f"nothing to train on: {num_samples} samples, batches of {loader.batch_size}")
    return PlanFigures(num_samples=num_samples, batch_size=loader.batch_size, budget_samples=budget)


def rounds_ahead(loader: DataLoader[Any]) -> int:
    """Batches that a loader like this one may draw before the training loop asks for them."""
    return loader.num_workers * ((loader.prefetch_factor or 2) + 1)


class _Batches:
    """A batch sampler over a source that notes the size of every batch it hands out."""

    def __init__(self, source: BatchSource) -> None:
        self._batches = source
        self.sizes: deque[int] = deque()

    def __iter__(self) -> Iterator[Sequence[int]]:
        for batch in self._batches.batches():
            self.sizes.append(len(batch))
            yield batch


def shard(
    loader: DataLoader[Any],
    *,
    source: BatchSource,
    now_s: Callable[[], float],
    on_waited: Callable[[float, float], None],
    on_begun: Callable[[], None] = lambda: None,
) -> Generator[tuple[Any, int]]:
    """This worker's batches, each with its number of samples, in the loader's own form.

    Args:
        loader: The user's.
        source: Says which samples.
        now_s: The time.
        on_waited: Called with the beginning and the end of a wait for samples.
        on_begun: Called when a loader has begun, which draws a random number, and has given nothing yet.
    """
    more = True
    try:
        while more:
            batches = _Batches(source)
            iterator = iter(_like(loader, batches))
            on_begun()
            for batch in iterator:
                size = batches.sizes.popleft()
                source.taken(size)
                yield batch, size
                if source.turned:
                    break
            begun_s = now_s()
            more = source.wait()
            on_waited(begun_s, now_s())
    finally:
        source.close()


def _like(loader: DataLoader[Any], batches: Iterable[Sequence[int]]) -> DataLoader[Any]:
    parallel: dict[str, Any] = {}
    if loader.num_workers > 0:
        parallel = {
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
            "worker_init_fn": loader.worker_init_fn,
        }
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,  # type: ignore[arg-type]
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        generator=loader.generator,
        **parallel,
    )
