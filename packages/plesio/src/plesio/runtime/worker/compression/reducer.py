"""The mean of the ranks' updates, each of which sends only a part or a rounding of its own.

    reducer = CompressedReducer(group, parse_compression("topk:0.01"), shapes=[...], seed=0)
    pending = reducer.begin(flat, clock)        # the same compression, shapes, seed and clock on all ranks
    ...                                         # steps, while it is under way
    mean = pending.wait()                       # the same on all ranks, to the bit

Everything that a rank does follows from what all ranks know: when to send in full (an earlier exchange told all of them
that one asked), and what random numbers to draw (seed, clock).

**What is not finite.** A rank whose update has a NaN or an infinity sends NaN, whatever its codec would have picked, so
the mean is not finite on any rank and the caller can refuse it on all. The exchange then counts as not made: residuals
and starting points stay as they were, so what the others had kept back is not lost with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plesio.policies.compression import (
    NO_COMPRESSION,
    Compression,
    NoCompression,
    PowerSgd,
    SummedByParts,
    num_elements,
)
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.worker.compression.feedback import ErrorFeedback
from plesio.runtime.worker.compression.means import (
    CountedGroup,
    ExchangeOutcome,
    FactoredMean,
    FullMean,
    GatheredMean,
    Mean,
    ScatteredMean,
    SummedMean,
)
from plesio.runtime.worker.compression.power_sgd import Factoring
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.replica import all_finite

__all__ = ["CompressedReducer", "CompressionFigures", "Flush", "PendingMean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """An exchange that was sent in full because the guard of a rank had asked for it.

    Attributes:
        clock: The exchange's.
        ratio: This rank's residual before it, as a multiple of its updates' average norm.
        limit: The multiple that is allowed.
    """

    clock: int
    ratio: float
    limit: float

    @property
    def asked(self) -> bool:
        return self.ratio > self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionFigures:
    """Counts of one rank's reducer so far.

    Attributes:
        num_exchanges: Exchanges that are finished, the refused ones included.
        sent_bytes: Bytes sent by this rank, every collective being a ring.
        uncompressed_bytes: Bytes that it would have sent without compression.
        residual_ratio: Norm of the residual over the updates' average norm, after the last exchange.
        worst_residual_ratio: The largest of all exchanges.
    """

    num_exchanges: int = 0
    num_refused: int = 0
    sent_bytes: int = 0
    uncompressed_bytes: int = 0
    residual_ratio: float = 0.0
    worst_residual_ratio: float = 0.0
    flushes: tuple[Flush, ...] = ()

    @property
    def ratio(self) -> float:
        """How many times fewer bytes were sent; 1 if none had to be."""
        return self.uncompressed_bytes / self.sent_bytes if self.sent_bytes else 1.0


class CompressedReducer:
    """Makes means over the ranks of flat tensors of one length; one exchange at a time.

    Args:
        compression: Equal on all ranks.
        shapes: Shapes of the tensors that lie one after the other in the flat one.
        seed: The run's; equal on all ranks.
        spread: Makes the whole mean of this group's, which is a slice of it; called once for each exchange. None: it is
            all of it. The whole is refused or taken, so groups that share one do the same.
        together: Waits for an exchange, or its first half, with others that share one (`Island.together`).
    """

    exchanges = "exchanges"
    """The name under which they are counted."""

    def __init__(
        self,
        group: Group,
        compression: Compression,
        *,
        shapes: Sequence[Sequence[int]],
        seed: int,
        spread: Callable[[Tensor], Tensor] | None = None,
        together: Callable[[Callable[[], Any]], Any] = lambda wait: wait(),
    ) -> None:
        self.compression = compression
        self._group = group
        self._spread, self._together = spread, together
        self._num_elements = num_elements(shapes)
        self._wire = CountedGroup(group)
        self._full = FullMean(self._wire)
        self._mean = _mean_of(compression, shapes=shapes, seed=seed, wire=self._wire)
        limit = compression.residual_limit(shapes if self._num_elements else [(1,)])
        self._feedback = ErrorFeedback(limit=limit) if compression.keeps_residual else None
        self._pending: PendingMean | None = None
        self._flush_next = False
        self._num_exchanges = 0
        self._num_refused = 0
        self._uncompressed_bytes = 0
        self._worst_ratio = 0.0
        self._flushes: list[Flush] = []

    @property
    def residual(self) -> Tensor | None:
        """The part of its shares (updates times weights) that this rank has kept back; None is zero."""
        return None if self._feedback is None else self._feedback.residual

    @property
    def flushes(self) -> Sequence[Flush]:
        return self._flushes

    @torch.no_grad()
    def begin(self, flat: Tensor, clock: int, *, weight: float | None = None, in_full: bool = False) -> "PendingMean":
        """Begin the mean of all ranks' ``flat`` tensors, which stay as they are.

        Args:
            flat: This rank's, floating-point.
            clock: The exchange's: the same on all ranks, and another for every exchange.
            weight: This rank's; together 1. None: every rank counts as much.
            in_full: Send everything, and what was kept back of earlier updates; all ranks do or none.
        """
        assert flat.shape == (self._num_elements,), "flat, and of the shapes that the reducer was made for"
        assert self._pending is None, "one exchange at a time"
        share = flat.to(torch.promote_types(flat.dtype, torch.float32)) * (
            1 / self._group.size if weight is None else weight
        )
        if not all_finite([share]):
            share.fill_(float("nan"))
        elif self._feedback is not None:
            self._feedback.compensate(share)
        asks = self._feedback is not None and self._feedback.exceeded
        way = self._full if in_full or self._flush_next else self._mean
        self._uncompressed_bytes += NO_COMPRESSION.sent_bytes(self._num_elements, num_ranks=self._group.size)
        transfer = way.begin(share, clock=clock, asks=asks)
        dtype = flat.dtype  # and not flat, which nobody needs meanwhile
        self._pending = PendingMean(
            lambda: self._take(self._together(transfer.finish), clock=clock, dtype=dtype),
            took_s=transfer.took_s,
            go_on=lambda: self._together(transfer.go_on),
        )
        return self._pending

    def _take(self, outcome: ExchangeOutcome, *, clock: int, dtype: torch.dtype) -> Tensor:
        self._pending = None
        self._num_exchanges += 1
        mean = outcome.mean.to(dtype)
        if self._spread is not None:
            mean = self._spread(mean)
        if not all_finite([mean]):  # the same on all ranks, so all decide alike
            self._num_refused += 1
            self._flush_next = self._flush_next or outcome.asked
            return mean
        if self._feedback is not None:
            if self._flush_next:
                self._flushes.append(Flush(clock=clock, ratio=self._feedback.ratio, limit=self._feedback.limit))
            self._feedback.keep(outcome.residual)
            self._worst_ratio = max(self._worst_ratio, self._feedback.ratio)
        self._flush_next = outcome.asked
        return mean

    def figures(self) -> CompressionFigures:
        return CompressionFigures(
            num_exchanges=self._num_exchanges,
            num_refused=self._num_refused,
            sent_bytes=self._wire.sent_bytes,
            uncompressed_bytes=self._uncompressed_bytes,
            residual_ratio=0.0 if self._feedback is None else self._feedback.ratio,
            worst_residual_ratio=self._worst_ratio,
            flushes=tuple(self._flushes),
        )


class PendingMean:
    """A mean that is being made.

    Args:
        take: Waits for it.
        took_s: Tells the seconds that it took, if that is known.
        go_on: Begins the second of two collectives when the first is over; all ranks do at the same time, or none.
    """

    def __init__(
        self,
        take: Callable[[], Tensor],
        *,
        took_s: Callable[[], float | None] = lambda: None,
        go_on: Callable[[], object] = lambda: None,
    ) -> None:
        self._take = take
        self.took_s = took_s
        self.go_on = go_on
        self._mean: Tensor | None = None

    @torch.no_grad()
    def wait(self) -> Tensor:
        """Wait for the mean: flat, of the updates' dtype, and equal on all ranks."""
        if self._mean is None:
            self._mean = self._take()
        return self._mean


def _mean_of(compression: Compression, *, shapes: Sequence[Sequence[int]], seed: int, wire: CountedGroup) -> Mean:
    if not num_elements(shapes):
        return FullMean(wire)  # an island's rank may hold nothing
    match compression:
        case NoCompression():
            return FullMean(wire)
        case PowerSgd():
            return FactoredMean(wire, Factoring(compression, shapes=shapes, seed=seed), compression.feedback)
        case SummedByParts():
            number = num_elements(shapes)
            part = -(-number // wire.group.size)
            codec = make_codec(compression, num_elements=part, seed=seed, rank=wire.group.rank)
            return ScatteredMean(wire, codec, number, compression.keeps_residual)
    whole = make_codec(compression, num_elements=num_elements(shapes), seed=seed, rank=wire.group.rank)
    make = SummedMean if whole.summable else GatheredMean
    return make(wire, whole, compression.keeps_residual)
