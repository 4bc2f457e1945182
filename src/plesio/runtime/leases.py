"""How an epoch's samples are dealt out to workers: each sample once, whoever is slow, lost or new.

An epoch is a permutation that every process can compute by itself (`epoch_order`), so only two positions in it have to
travel. Three ways to deal it out:

*Synchronous* (`synchronous_batches`): for a collective exchange. No messages: a rank's batches are a function of the
seed, the epoch and the rank, and all ranks have equally many.

*Guided* (`LeaseBook`): for relaxed policies. Whoever asks is leased the next block, so fast workers take more. Towards
the end blocks shrink, so that all finish at about the same time: each is half of what the worker's share of the rest
would be if every batch went to whoever finished it first (weighted factoring: Flynn Hummel et al. 1996; at most
`MAX_BLOCK_BATCHES` batches), and a worker whose share is nothing is refused. Paces are measured, in batches finished.

*Fixed* (`LeaseBook`): for synchronous policies on the store. Rounds of one batch per live worker, in the order of their
numbers, laid out as `synchronous_batches` does. Who asks first changes nothing; only a loss or a join changes the
rounds that nobody has begun.

A lease ends in one of two ways: the worker *finishes* its samples, in order, or it is *released* (closed, lost) and
what it had not finished is leased again before anything else. The invariant (`LeaseBook.validate`):

    budget = finished + outstanding + dealt, not yet leased + returned + never dealt
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from plesio.core.errors import ConfigError, DataError
from plesio.runtime.remainder import Remainder, Span

__all__ = ["MAX_BLOCK_BATCHES", "Block", "Dealing", "LeaseBook", "epoch_order", "round_sizes", "synchronous_batches"]

MAX_BLOCK_BATCHES = 8
REMEMBERED_STEPS = 32
"""Of each worker, on average, for its pace."""

Dealing = Literal["guided", "fixed"]


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which epoch ``epoch`` visits the samples: the same permutation in every process.

    >>> epoch_order(5, seed=0, epoch=0).tolist() == epoch_order(5, seed=0, epoch=0).tolist()
    True
    >>> sorted(epoch_order(5, seed=0, epoch=1).tolist())
    [0, 1, 2, 3, 4]
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch))))
    return generator.permutation(num_samples)


def synchronous_batches(
    num_samples: int,
    *,
    batch_size: int,
    rank: int,
    num_workers: int,
    seed: int,
    epoch: int,
    drop_last: bool = False,
    limit: int | None = None,
) -> list[NDArray[np.int64]]:
    """One rank's batches of an epoch: as many on every rank, and every sample on exactly one of them.

    Full rounds take ``num_workers * batch_size`` samples. Of the rest, at least one sample per worker makes a last,
    shorter round whose batches differ by at most one sample; fewer than that are added to the last full round.

    Args:
        num_samples: Size of the data set.
        batch_size: Samples in one worker's batch.
        rank: Whose batches, 0 to ``num_workers - 1``.
        num_workers: Workers that share the epoch.
        seed: Seed of the run.
        epoch: Number of the epoch; each has its own order.
        drop_last: Leave out what does not fill a whole round.
        limit: Visit only the first ``limit`` samples of the order (the last, partial epoch of a budget).

    Returns:
        Arrays of sample indices.

    Raises:
        DataError: The samples do not give every worker a batch.
    """
    num_visited = num_samples if limit is None else min(limit, num_samples)
    if drop_last:
        num_visited -= num_visited % (num_workers * batch_size)
    if num_visited < num_workers:
        kind = f"of {num_workers} x {batch_size} (full rounds only)" if drop_last else f"for {num_workers} workers"
        raise DataError(f"{num_samples} samples are too few {kind}: use fewer workers or smaller batches")
    order = epoch_order(num_samples, seed=seed, epoch=epoch)
    batches = []
    start = 0
    for sizes in round_sizes(num_visited, num_workers=num_workers, batch_size=batch_size):
        begin = start + sum(sizes[:rank])
        batches.append(order[begin : begin + sizes[rank]])
        start += sum(sizes)
    return batches


def round_sizes(num_samples: int, *, num_workers: int, batch_size: int) -> Iterator[list[int]]:
    """Sizes of the batches of each round, by rank, until ``num_samples`` are dealt.

    >>> list(round_sizes(10, num_workers=2, batch_size=3))
    [[3, 3], [2, 2]]
    """
    while num_samples > 0:
        sizes = _round_sizes(num_samples, num_slots=num_workers, batch_size=batch_size)
        yield sizes
        num_samples -= sum(sizes)


def _round_sizes(num_left: int, *, num_slots: int, batch_size: int) -> list[int]:
    """Sizes of the next round's batches; never leaves behind less than one sample per slot."""
    if num_left >= num_slots * (batch_size + 1):
        return [batch_size] * num_slots
    share, extra = divmod(num_left, num_slots)
    return [share + (slot < extra) for slot in range(num_slots)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A lease: positions ``start`` to ``stop`` (exclusive) of an epoch's order.

    Attributes:
        id: Unique within the run.
        epoch: The epoch whose `epoch_order` the positions refer to.
        start: First position.
        stop: One past the last position.
        batch_size: Samples in each batch of the block; the last may have fewer.
    """

    id: int
    epoch: int
    start: int
    stop: int
    batch_size: int

    @property
    def num_samples(self) -> int:
        """Samples in the block."""
        return self.stop - self.start

    def batches(self) -> Iterator[slice]:
        """The block's batches as slices of the epoch's order, in the order in which they must be finished.

        >>> list(Block(id=0, epoch=0, start=4, stop=9, batch_size=3).batches())
        [slice(4, 7, None), slice(7, 9, None)]
        """
        for start in range(self.start, self.stop, self.batch_size):
            yield slice(start, min(start + self.batch_size, self.stop))


class _Pool:
    """What nobody holds: spans that came back, then the samples that were never dealt."""

    def __init__(self, remainder: Remainder) -> None:
        self.returned = deque(remainder.spans)
        self.num_fresh = remainder.num_fresh
        self._num_samples = remainder.num_samples
        self._epoch = remainder.epoch
        self._start = remainder.start

    @property
    def num_left_of_epoch(self) -> int:
        """Samples of the current epoch that were never dealt and that the budget still pays for."""
        return min(self._num_samples - self._start, self.num_fresh)

    @property
    def num_samples(self) -> int:
        return self.num_fresh + sum(map(len, self.returned))

    def take_fresh(self, num: int) -> Span:
        span = Span(self._epoch, self._start, self._start + num)
        self.num_fresh -= num
        self._start += num
        if self._start == self._num_samples:
            self._epoch, self._start = self._epoch + 1, 0
        return span

    def remainder(self) -> Remainder:
        """All of it, in order, what belongs together in one span."""
        spans: list[Span] = []
        for span in sorted(self.returned):
            last = spans[-1] if spans else None
            if last is not None and (last.epoch, last.stop) == (span.epoch, span.start):
                spans[-1] = replace(last, stop=span.stop)
            else:
                spans.append(span)
        return Remainder(
            num_samples=self._num_samples,
            spans=tuple(spans),
            epoch=self._epoch,
            start=self._start,
            num_fresh=self.num_fresh,
        )


class _Dealer(Protocol):
    """Takes spans from the pool for workers that ask."""

    @property
    def num_dealt(self) -> int:
        """Samples set aside for workers that have not asked for them yet."""
        ...

    def next_for(self, worker: int, *, held: Mapping[int, int]) -> Span | None:
        """The worker's next span; ``held`` are the samples that each live worker has leased and not finished."""
        ...

    def finished(self, worker: int) -> None:
        """The worker has finished a step on its samples."""
        ...

    def leave(self, worker: int) -> list[Span]:
        """What was set aside for a worker that is gone."""
        ...


class _GuidedDealer:
    """The next block goes to whoever asks, unless others will have finished it first; nothing is set aside."""

    def __init__(self, pool: _Pool, *, batch_size: int) -> None:
        self._pool = pool
        self._batch_size = batch_size
        self._recent: deque[int] = deque()
        self._steps: Counter[int] = Counter()
        """Of the recent steps, each worker's."""
        self._refused: set[int] = set()

    @property
    def num_dealt(self) -> int:
        return 0

    def next_for(self, worker: int, *, held: Mapping[int, int]) -> Span | None:
        pool = self._pool
        if not pool.num_samples:
            return None
        num_due = self._num_due(worker, rivals=held.keys(), held=held)
        if num_due == 0:
            # A rival that holds nothing and has not asked may never ask: it is not left anything.
            engaged = {rival for rival in held if held[rival] > 0 or rival in self._refused}
            if self._num_due(worker, rivals=engaged, held=held) == 0:
                self._refused.add(worker)
                return None
        self._refused.discard(worker)
        most = min(MAX_BLOCK_BATCHES, 1 + self._steps[worker])  # little while its pace is a guess
        num = max(1, min(most, -(-num_due // 2))) * self._batch_size
        if pool.returned:
            span = pool.returned.popleft()
            if len(span) > num:
                pool.returned.appendleft(replace(span, start=span.start + num))
                span = replace(span, stop=span.start + num)
            return span
        return pool.take_fresh(min(num, pool.num_left_of_epoch))

    def _num_due(self, worker: int, *, rivals: Set[int], held: Mapping[int, int]) -> int:
        """How many batches ``worker`` gets if each one left goes to whoever would finish it first (list scheduling).

        Looks no further ahead than a full block each: beyond that the answer makes no difference.
        """
        batch_s = {rival: 1 / (1 + self._steps[rival]) for rival in {worker, *rivals}}  # in any unit of time
        finishes = [
            ((1 - -held[rival] // self._batch_size) * batch_s[rival], rival != worker, rival) for rival in batch_s
        ]
        heapq.heapify(finishes)
        num_left = -(-self._pool.num_samples // self._batch_size)
        num_due = 0
        for _ in range(min(num_left, 2 * MAX_BLOCK_BATCHES * len(finishes))):
            finish_s, is_rival, rival = finishes[0]
            num_due += not is_rival
            heapq.heapreplace(finishes, (finish_s + batch_s[rival], is_rival, rival))
        return num_due

    def finished(self, worker: int) -> None:
        self._recent.append(worker)
        self._steps[worker] += 1
        while len(self._recent) > REMEMBERED_STEPS * len(self._steps):
            self._steps[self._recent.popleft()] -= 1

    def leave(self, worker: int) -> list[Span]:
        self._refused.discard(worker)
        self._recent = deque(other for other in self._recent if other != worker)
        del self._steps[worker]
        return []


class _FixedDealer:
    """Rounds of one batch per live worker; a round is dealt when the first worker asks for its batch of it."""

    def __init__(self, pool: _Pool, *, batch_size: int) -> None:
        self._pool = pool
        self._batch_size = batch_size
        # a span that comes back is a batch; what a plan left over that was begun otherwise may be longer
        pool.returned = deque(
            replace(span, start=start, stop=min(span.stop, start + batch_size))
            for span in pool.returned
            for start in range(span.start, span.stop, batch_size)
        )
        self._dealt: dict[int, deque[Span]] = {}

    @property
    def num_dealt(self) -> int:
        return sum(len(span) for spans in self._dealt.values() for span in spans)

    def next_for(self, worker: int, *, held: Mapping[int, int]) -> Span | None:
        while not self._dealt.get(worker):
            if not self._pool.num_samples:
                return None
            self._deal_round(sorted(held))
        return self._dealt[worker].popleft()

    def finished(self, worker: int) -> None:
        pass

    def leave(self, worker: int) -> list[Span]:
        return list(self._dealt.pop(worker, ()))

    def _deal_round(self, live: list[int]) -> None:
        pool = self._pool
        spans = [pool.returned.popleft() for _ in range(min(len(live), len(pool.returned)))]
        if pool.num_fresh and len(spans) < len(live):
            num_slots = len(live) - len(spans)
            sizes = _round_sizes(pool.num_left_of_epoch, num_slots=num_slots, batch_size=self._batch_size)
            spans += [pool.take_fresh(size) for size in sizes if size]
        for worker, span in zip(live, spans, strict=False):  # a short round leaves the last workers out
            self._dealt.setdefault(worker, deque()).append(span)


@dataclass(slots=True)
class _Lease:
    worker: int
    block: Block
    num_finished: int = 0


class LeaseBook:
    """Deals a budget of samples out to the workers of a store; exactly the budget is finished, none twice in an epoch.

    Pure state: the coordinator calls it, one call at a time. A worker may hold several blocks (ask for the next before
    the last is finished).

    Args:
        num_samples: Size of the data set.
        batch_size: Samples in a worker's batch.
        budget_samples: Samples to train on in all, over all workers: part of an epoch, or several epochs.
        workers: Who is there at the start.
        dealing: ``guided``: whoever asks gets the next block; ``fixed``: one batch per worker and round.

    Raises:
        DataError: There are no samples.
        ConfigError: The batch size or the budget is below one.

    >>> book = LeaseBook(10, batch_size=4, budget_samples=10, workers=[0, 1], dealing="guided")
    >>> first, second, third = book.lease(0), book.lease(1), book.lease(0)
    >>> (third.start, third.stop), book.lease(1), book.done
    ((8, 10), None, False)
    >>> book.finish(0, first.id, 4), book.finish(1, second.id, 4)
    (True, True)
    >>> book.release(0)             # worker 0 is lost, and with it the two samples of its second block
    >>> again = book.lease(1)
    >>> (again.start, again.stop), book.finish(1, again.id, 2), book.done
    ((8, 10), True, True)
    """

    def __init__(
        self, num_samples: int, *, batch_size: int, budget_samples: int, workers: Iterable[int] = (), dealing: Dealing
    ) -> None:
        if num_samples < 1:
            raise DataError("the data set is empty: there is nothing to lease to the workers")
        for what, value in (("batch size", batch_size), ("budget in samples", budget_samples)):
            if value < 1:
                raise ConfigError(f"the {what} is {value}; write 1 or more")
        whole = Remainder(num_samples=num_samples, num_fresh=budget_samples)
        self._begin(whole, batch_size=batch_size, workers=workers, dealing=dealing)

    @classmethod
    def of(cls, remainder: Remainder, *, batch_size: int, workers: Iterable[int], dealing: Dealing) -> Self:
        """Deals out what is left of a plan that was begun otherwise."""
        book = cls.__new__(cls)
        book._begin(remainder, batch_size=batch_size, workers=workers, dealing=dealing)
        return book

    def _begin(self, remainder: Remainder, *, batch_size: int, workers: Iterable[int], dealing: Dealing) -> None:
        self._pool = _Pool(remainder)
        dealer = _GuidedDealer if dealing == "guided" else _FixedDealer
        self._dealer: _Dealer = dealer(self._pool, batch_size=batch_size)
        self._batch_size = batch_size
        self._dealing = dealing
        self._budget_samples = len(remainder)
        self._held: dict[int, int] = dict.fromkeys(workers, 0)
        """Samples that each live worker has leased and not finished."""
        self._leases: dict[int, _Lease] = {}
        self._next_id = 0
        self._finished_samples = 0

    @property
    def finished_samples(self) -> int:
        """Samples that workers have finished."""
        return self._finished_samples

    @property
    def outstanding_samples(self) -> int:
        """Samples that are leased and not finished."""
        return sum(self._held.values())

    @property
    def done(self) -> bool:
        """Whether the budget is met; then every `lease` is None for good."""
        return self._finished_samples == self._budget_samples

    def join(self, worker: int) -> None:
        """Count a worker in: it may lease, and in fixed mode it has a batch in every round dealt from now on."""
        self._held.setdefault(worker, 0)

    def lease(self, worker: int) -> Block | None:
        """The next block for a live worker, or None when there is none for it now.

        None while the book is not `done` means that others hold what is left or will sooner be done with it. If one of
        them is lost or slower than it was, there may be a block: ask again after every `finish` and `release`, until
        `done`. Meanwhile the policy must not wait for this worker.
        """
        assert worker in self._held, f"worker {worker} asks for samples but has not joined"
        span = self._dealer.next_for(worker, held=self._held)
        if span is None:
            return None
        batch_size = self._batch_size if self._dealing == "guided" else len(span)
        block = Block(id=self._next_id, epoch=span.epoch, start=span.start, stop=span.stop, batch_size=batch_size)
        self._next_id += 1
        self._leases[block.id] = _Lease(worker, block)
        self._held[worker] += block.num_samples
        return block

    def finish(self, worker: int, block_id: int, num_samples: int) -> bool:
        """Record that the worker has trained on the next ``num_samples`` samples of its block.

        Returns:
            Whether that counted: not if the block is no longer the worker's (a late message of a worker counted lost).
        """
        lease = self._leases.get(block_id)
        if lease is None or lease.worker != worker:
            return False
        assert 0 <= num_samples <= lease.block.num_samples - lease.num_finished, "more samples than the block has"
        lease.num_finished += num_samples
        self._held[worker] -= num_samples
        self._dealer.finished(worker)
        self._finished_samples += num_samples
        if lease.num_finished == lease.block.num_samples:
            del self._leases[block_id]
        return True

    def release(self, worker: int) -> None:
        """Count a worker out: what it had leased and not finished is leased again first. Harmless when repeated."""
        self._held.pop(worker, None)
        for block_id, lease in list(self._leases.items()):
            if lease.worker == worker:
                del self._leases[block_id]
                block = lease.block
                self._pool.returned.append(Span(block.epoch, block.start + lease.num_finished, block.stop))
        self._pool.returned.extend(self._dealer.leave(worker))

    def remainder(self) -> Remainder:
        """What is left when all have given back what they held."""
        assert not any(self._held.values()), f"samples are held: {self._held}"
        return self._pool.remainder()

    def validate(self) -> None:
        """Raise AssertionError when the samples do not add up (tests call this after every event)."""
        parts = (self._finished_samples, self.outstanding_samples, self._dealer.num_dealt, self._pool.num_samples)
        assert sum(parts) == self._budget_samples, f"finished, outstanding, dealt, in the pool: {parts}"
        held = dict.fromkeys(self._held, 0)
        for lease in self._leases.values():
            assert lease.worker in held, "a lost worker holds a lease"
            held[lease.worker] += lease.block.num_samples - lease.num_finished
        assert held == self._held, f"held: {self._held}, leased: {held}"
