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
from dataclasses import dataclass, replace
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
    Mean,
    PendingMean,
    ScatteredMean,
    WholeMean,
)
from plesio.runtime.worker.compression.power_sgd import Factoring
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.replica import all_finite

__all__ = ["CompressedReducer", "CompressionFigures", "Flush", "PendingMean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """An exchange that was sent in full because the guard of a rank had asked for it.

    Attributes:
        ratio: This rank's residual before it, as a multiple of its updates' average norm.
        limit: The multiple that is allowed.
    """

    clock: int
    ratio: float
    limit: float

    @property
    def asked(self) -> bool:
        return self.ratio > self.limit


@dataclass(slots=True, kw_only=True)
class CompressionFigures:
    """Counts of one rank's reducer so far.

    Attributes:
        num_exchanges: Exchanges that are finished, the refused ones included.
        sent_bytes: Bytes sent by this rank, every collective being a ring.
        uncompressed_bytes: Bytes that it would have sent without compression.
        residual_ratio: Norm of the residual over the updates' average norm, after the last exchange.
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
        shapes: Shapes of the tensors that lie one after the other in the flat one.
        spread: Makes the whole mean of this group's, which is a slice of it; called once for each exchange. None: it is
            all of it. The whole is refused or taken, so groups that share one do the same.
        together: Waits for an exchange, or its first half, with others that share one (`Island.together`).
    """

    exchanges = "exchanges"

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
        self.compression, self._group = compression, group
        self._spread, self._together = spread, together
        self._num_elements = num_elements(shapes)
        self._wire = CountedGroup(group)
        self._full = FullMean(self._wire)
        self._mean = _mean_of(compression, shapes=shapes, seed=seed, wire=self._wire)
        limit = compression.residual_limit(shapes if self._num_elements else [(1,)])
        self._feedback = ErrorFeedback(limit=limit) if compression.keeps_residual else None
        self._pending: PendingMean | None = None
        self._flush_next = False
        self._figures = CompressionFigures()

    @property
    def residual(self) -> Tensor | None:
        """The part of its shares (updates times weights) that this rank has kept back; None is zero."""
        return None if self._feedback is None else self._feedback.residual

    @property
    def flushes(self) -> Sequence[Flush]:
        return self._figures.flushes

    @torch.no_grad()
    def begin(self, flat: Tensor, clock: int, *, weight: float | None = None, in_full: bool = False) -> PendingMean:
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
        self._figures.uncompressed_bytes += NO_COMPRESSION.sent_bytes(self._num_elements, num_ranks=self._group.size)
        transfer = way.begin(share, clock=clock, asks=asks)
        dtype = flat.dtype  # and not flat, which nobody needs meanwhile
        self._pending = PendingMean(
            lambda: self._take(self._together(transfer.wait), clock=clock, dtype=dtype),
            took_s=transfer.took_s,
            go_on=lambda: self._together(transfer.go_on),
        )
        return self._pending

    def _take(self, outcome: ExchangeOutcome, *, clock: int, dtype: torch.dtype) -> Tensor:
        self._pending = None
        figures = self._figures
        figures.num_exchanges += 1
        mean = outcome.mean.to(dtype)
        if self._spread is not None:
            mean = self._spread(mean)
        if not all_finite([mean]):  # the same on all ranks, so all decide alike
            figures.num_refused += 1
            self._flush_next = self._flush_next or outcome.asked
            return mean
        if self._feedback is not None:
            if self._flush_next:
                figures.flushes += (Flush(clock=clock, ratio=self._feedback.ratio, limit=self._feedback.limit),)
            self._feedback.keep(outcome.residual)
            figures.worst_residual_ratio = max(figures.worst_residual_ratio, self._feedback.ratio)
        self._flush_next = outcome.asked
        return mean

    def figures(self) -> CompressionFigures:
        ratio = 0.0 if self._feedback is None else self._feedback.ratio
        return replace(self._figures, sent_bytes=self._wire.sent_bytes, residual_ratio=ratio)


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
    return WholeMean(wire, whole, compression.keeps_residual)
