"""The dealing of samples to workers: the two ways of `leases`, guided and fixed, over one pool.

A worker may ask for its whole rack; its batch is then one of each of the rack's workers together.
"""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Set
from itertools import islice, pairwise
from typing import Literal

from msgspec.structs import replace

from plesio.protocol.plans import Remainder, Span

MAX_BLOCK_BATCHES = 8
REMEMBERED_STEPS = 32
"""Average number of remembered steps per worker, for its pace."""

Dealing = Literal["guided", "fixed"]


def next_round_sizes(num_left: int, *, num_slots: int, batch_size: int) -> list[int]:
    """Return the sizes of the next round's batches; never leave behind less than one sample per slot."""
    if num_left >= num_slots * (batch_size + 1):
        return [batch_size] * num_slots
    share, extra = divmod(num_left, num_slots)
    return [share + (slot < extra) for slot in range(num_slots)]


class Pool:
    """The samples that no worker holds: spans that came back, then those that were never dealt."""

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
        """Samples that no worker holds."""
        return self.num_fresh + sum(map(len, self.returned))

    def take_returned(self, num: int, *, num_workers: int, rest: int) -> Span | None:
        """Take up to ``num`` samples of the first span large enough for ``num_workers``; leave none below ``rest``."""
        for index, span in enumerate(self.returned):
            if len(span) < num_workers:
                continue
            del self.returned[index]
            if len(span) - num >= rest:
                self.returned.insert(index, replace(span, start=span.start + num))
                span = replace(span, stop=span.start + num)
            return span
        return None

    def drop_returned(self, least: int) -> int:
        """Forget the spans of fewer than ``least`` samples that came back; how many samples these were."""
        before = self.num_samples
        self.returned = deque(span for span in self.returned if len(span) >= least)
        return before - self.num_samples

    def take_fresh(self, num: int) -> Span:
        """Take the next ``num`` samples, all of the current epoch."""
        span = Span(self._epoch, self._start, self._start + num)
        self.num_fresh -= num
        self._start += num
        if self._start == self._num_samples:
            self._epoch, self._start = self._epoch + 1, 0
        return span

    def remainder(self) -> Remainder:
        """Return all of it, in order, what belongs together in one span."""
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


class Dealer:
    """Takes spans from the pool for workers that ask.

    Args:
        num_workers: For how many workers each of those asks that ask for a rack; all others for themselves.
    """

    def __init__(self, pool: Pool, *, batch_size: int, num_workers: Mapping[int, int]) -> None:
        self._pool = pool
        self._batch_size = batch_size
        self._num_workers = num_workers

    @property
    def num_dealt(self) -> int:
        """Samples set aside for workers that have not asked for them yet."""
        return 0

    def next_for(self, worker: int, *, held: Mapping[int, int]) -> Span | None:
        """Return the worker's next span; ``held`` are the samples that each live worker has leased and not finished."""
        raise NotImplementedError

    def finished(self, worker: int) -> None:
        """Count a step that the worker has finished on its samples."""

    def leave(self, worker: int) -> list[Span]:
        """Return what was set aside for a worker that is gone."""
        return []

    def _size(self, worker: int) -> int:
        return self._num_workers.get(worker, 1)


class GuidedDealer(Dealer):
    """The next block goes to the worker that asks, unless others will have finished it first; nothing is set aside."""

    def __init__(self, pool: Pool, *, batch_size: int, num_workers: Mapping[int, int]) -> None:
        super().__init__(pool, batch_size=batch_size, num_workers=num_workers)
        self._recent: deque[int] = deque()
        self._steps: Counter[int] = Counter()
        """Recent steps of each worker."""
        self._refused: set[int] = set()

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
        size = self._size(worker)
        num = max(1, min(most, -(-num_due // 2))) * self._batch_size * size
        rest = max(map(self._size, held))
        span = pool.take_returned(num, num_workers=size, rest=rest)
        if span is not None or not pool.num_fresh:
            return span
        left = pool.num_left_of_epoch
        assert left >= size, f"{left} samples of the epoch are left for a rack of {size} workers"
        return pool.take_fresh(num if left - num >= rest else left)

    def _num_due(self, worker: int, *, rivals: Set[int], held: Mapping[int, int]) -> int:
        """Count the batches that ``worker`` gets if each goes to the worker that finishes it first (list scheduling).

        Looks no further ahead than a full block each: beyond that the answer makes no difference.
        """
        steps = {rival: self._steps[rival] for rival in {worker, *rivals}}
        # A worker that comes back for more before its first report may be as fast as any other.
        if held[worker] and not steps[worker]:
            steps[worker] = max(steps.values())
        batch_s = {rival: 1 / (1 + num) for rival, num in steps.items()}  # in any unit of time
        sizes = {rival: self._size(rival) for rival in batch_s}
        finishes = [
            ((1 - -held[rival] // (self._batch_size * sizes[rival])) * batch_s[rival], rival != worker, rival)
            for rival in batch_s
        ]
        heapq.heapify(finishes)
        num_left = -(-self._pool.num_samples // self._batch_size)
        num_due = 0
        for _ in range(2 * MAX_BLOCK_BATCHES * len(finishes)):
            if num_left <= 0:
                break
            finish_s, is_rival, rival = finishes[0]
            num_due += not is_rival
            num_left -= sizes[rival]
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
        return super().leave(worker)


class FixedDealer(Dealer):
    """Rounds of one batch per live worker; a round is dealt when the first worker asks for its batch of it."""

    def __init__(self, pool: Pool, *, batch_size: int, num_workers: Mapping[int, int]) -> None:
        super().__init__(pool, batch_size=batch_size, num_workers=num_workers)
        # a span that comes back is a batch; what a plan left over that was begun otherwise may be longer
        largest = max(num_workers.values(), default=1)
        pool.returned = deque(
            batch for span in pool.returned for batch in _batches(span, size=batch_size * largest, least=largest)
        )
        self._dealt: dict[int, deque[Span]] = {}

    @property
    def num_dealt(self) -> int:
        return sum(len(span) for spans in self._dealt.values() for span in spans)

    def next_for(self, worker: int, *, held: Mapping[int, int]) -> Span | None:
        while not self._dealt.get(worker):
            if not self._deal_round(sorted(held)):
                return None
        return self._dealt[worker].popleft()

    def leave(self, worker: int) -> list[Span]:
        return list(self._dealt.pop(worker, ()))

    def _deal_round(self, live: list[int]) -> bool:
        """Set a batch aside for each, as far as there are samples; whether there were any."""
        pool = self._pool
        spans: dict[int, Span] = {}
        for worker in live:
            span = pool.take_returned(pool.num_samples, num_workers=self._size(worker), rest=1)
            if span is not None:
                spans[worker] = span
        if pool.num_fresh and len(spans) < len(live):
            shares = self._shares([worker for worker in live if worker not in spans])
            spans.update({worker: pool.take_fresh(share) for worker, share in shares.items()})
        for worker, span in spans.items():
            self._dealt.setdefault(worker, deque()).append(span)
        return bool(spans)

    def _shares(self, workers: list[int]) -> dict[int, int]:
        """Return the sizes of the next round's batches by worker; a short round leaves the last workers out."""
        num_slots = sum(map(self._size, workers))
        sizes = iter(next_round_sizes(self._pool.num_left_of_epoch, num_slots=num_slots, batch_size=self._batch_size))
        shares: dict[int, int] = {}
        for worker in workers:
            share = sum(islice(sizes, self._size(worker)))
            if share >= self._size(worker):
                shares[worker] = share
            elif share and shares:  # too little for this rack: the one before takes it too
                shares[next(reversed(shares))] += share
            elif share:
                self._pool.returned.append(self._pool.take_fresh(share))
        return shares


def _batches(span: Span, *, size: int, least: int) -> list[Span]:
    """Cut the span into parts of ``size`` samples; a rest of fewer than ``least`` is in the last one."""
    starts = list(range(span.start, span.stop, size))
    if len(starts) > 1 and span.stop - starts[-1] < least:
        del starts[-1]
    return [replace(span, start=start, stop=stop) for start, stop in pairwise([*starts, span.stop])]
