"""Plans and what is dealt out of them: blocks, and what is left when a plan changes hands between rounds and leases.

A plan is a number of samples: a part of an epoch, or several epochs. Rounds take them in the order of the epochs.
Leases leave gaps, where a block was taken and not finished; these come first, then the samples that were not dealt.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import msgspec
from msgspec.structs import replace

from plesio.core.records import Record


class Span(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Positions ``start`` to ``stop`` (exclusive) of the order of one epoch, which counts from the plan's first."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def cut(spans: Sequence[Span], sizes: Sequence[int]) -> list[list[Span]]:
    """Cut parts of so many samples from the front of ``spans``; the rest is the last part.

    >>> parts = cut([Span(0, 2, 6), Span(1, 0, 9)], [3, 2])
    >>> [[(span.epoch, span.start, span.stop) for span in part] for part in parts]
    [[(0, 2, 5)], [(0, 5, 6), (1, 0, 1)], [(1, 1, 9)]]
    """
    parts: list[list[Span]] = []
    waiting = list(reversed(spans))
    for size in sizes:
        part: list[Span] = []
        while size > 0:
            span = waiting.pop()
            end = min(span.start + size, span.stop)
            part.append(Span(span.epoch, span.start, end))
            if end < span.stop:
                waiting.append(Span(span.epoch, end, span.stop))
            size -= end - span.start
        parts.append(part)
    return [*parts, waiting[::-1]]


class Remainder(Record, frozen=True, kw_only=True):
    """Some spans, in order, and then ``num_fresh`` samples from position ``start`` of ``epoch`` on.

    Args:
        num_samples: Size of the data set.

    >>> whole = Remainder(num_samples=10, num_fresh=25)
    >>> left = whole.after(8)
    >>> [[(span.start, span.stop) for span in spans] for spans in left.by_epoch()]
    [[(8, 10)], [(0, 10)], [(0, 5)]]
    """

    num_samples: int
    spans: tuple[Span, ...] = ()
    epoch: int = 0
    start: int = 0
    num_fresh: int

    def __len__(self) -> int:
        return self.num_fresh + sum(map(len, self.spans))

    def after(self, num: int) -> "Remainder":
        """Return the rest when the first ``num`` samples are done."""
        spans = []
        for span in self.spans:
            done = min(num, len(span))
            num -= done
            if done < len(span):
                spans.append(Span(span.epoch, span.start + done, span.stop))
        epochs, start = divmod(self.start + num, self.num_samples)
        return Remainder(
            num_samples=self.num_samples,
            spans=tuple(spans),
            epoch=self.epoch + epochs,
            start=start,
            num_fresh=self.num_fresh - num,
        )

    def in_pieces_of(self, least: int) -> "Remainder":
        """Return the rest without pieces of an epoch that have fewer than ``least`` samples.

        >>> pieces = Remainder(num_samples=10, spans=(Span(0, 2, 3), Span(0, 5, 9)), epoch=1, start=8, num_fresh=13)
        >>> left = pieces.in_pieces_of(3)
        >>> [[(span.start, span.stop) for span in spans] for spans in left.by_epoch()]
        [[(5, 9)], [(0, 10)]]
        """
        fresh = [span for span in self._fresh() if len(span) >= least]
        spans = tuple(span for span in self.spans if len(span) >= least)
        if not fresh:
            return replace(self, spans=spans, num_fresh=0)
        return replace(self, spans=spans, epoch=fresh[0].epoch, start=fresh[0].start, num_fresh=sum(map(len, fresh)))

    def by_epoch(self) -> Iterator[list[Span]]:
        """Yield the spans of each epoch, the fresh ones among them."""
        for _, spans in groupby((*self.spans, *self._fresh()), key=lambda span: span.epoch):
            yield list(spans)

    def _fresh(self) -> Iterator[Span]:
        epoch, start, left = self.epoch, self.start, self.num_fresh
        while left > 0:
            stop = min(self.num_samples, start + left)
            yield Span(epoch, start, stop)
            epoch, start, left = epoch + 1, 0, left - (stop - start)


class PlanFigures(Record, frozen=True, kw_only=True):
    """The figures of a plan: it deals out ``budget_samples`` of a data set of ``num_samples``, over all workers."""

    num_samples: int
    batch_size: int
    budget_samples: int

    def whole(self) -> Remainder:
        """Return all of it, when nothing has been dealt."""
        return Remainder(num_samples=self.num_samples, num_fresh=self.budget_samples)


class Block(Record, frozen=True, kw_only=True):
    """A lease: positions ``start`` to ``stop`` (exclusive) of an epoch's order.

    Attributes:
        id: Unique within the run.
        epoch: The epoch whose `epoch_order` the positions refer to.
        batch_size: Samples in each batch of the block; the last may have fewer.
        num_workers: Workers that share each batch. The last batch takes in a rest that is too small for them.
    """

    id: int
    epoch: int
    start: int
    stop: int
    batch_size: int
    num_workers: int = 1

    @property
    def num_samples(self) -> int:
        return self.stop - self.start

    def batches(self) -> Iterator[slice]:
        """Yield the block's batches as slices of the epoch's order, in the order in which they must be finished.

        >>> list(Block(id=0, epoch=0, start=4, stop=9, batch_size=3).batches())
        [slice(4, 7, None), slice(7, 9, None)]
        >>> list(Block(id=0, epoch=0, start=4, stop=11, batch_size=6, num_workers=2).batches())
        [slice(4, 11, None)]
        """
        starts = list(range(self.start, self.stop, self.batch_size))
        if len(starts) > 1 and self.stop - starts[-1] < self.num_workers:
            del starts[-1]
        for start, stop in pairwise([*starts, self.stop]):
            yield slice(start, stop)


def num_rounds(figures: PlanFigures, *, num_workers: int, samples: int | None = None) -> int:
    """Return the batches that each of so many equal workers gets of a plan, or of its first ``samples`` samples.

    >>> plan = PlanFigures(num_samples=100, batch_size=8, budget_samples=250)
    >>> num_rounds(plan, num_workers=3), [num_rounds(plan, num_workers=3, samples=n) for n in (23, 24, 99, 100, 249)]
    (12, [0, 1, 4, 5, 11])
    """
    size, done = (
        figures.num_samples,
        figures.budget_samples if samples is None else min(samples, figures.budget_samples),
    )
    epochs, part = divmod(done, size)
    whole = min(size, figures.budget_samples - epochs * size)
    of_part = _rounds_of(whole, figures.batch_size, num_workers)
    if part < whole:  # the last round ends with the epoch
        of_part = max(0, min(part // (figures.batch_size * num_workers), of_part - 1))
    before = epochs * _rounds_of(size, figures.batch_size, num_workers) if epochs else 0
    return before + of_part


def _rounds_of(num_samples: int, batch_size: int, num_workers: int) -> int:
    """Count the rounds; a rest of fewer samples than workers belongs to the last round."""
    full, rest = divmod(num_samples, batch_size * num_workers)
    return full + (rest >= num_workers or (rest > 0 and full == 0))
