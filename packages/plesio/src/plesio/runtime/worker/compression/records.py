"""Records of compression that the user must see: exchanges sent in full, means refused, bytes saved."""

import math
from collections.abc import Sequence

from plesio.runtime.worker.compression.pushes import CompressedPushes
from plesio.runtime.worker.compression.reducer import CompressedReducer
from plesio.runtime.worker.exchange.rack_reducer import RackReducer
from plesio.runtime.worker.meter import WorkerTimeline

_WHOLE_BITS = 6
"""Bits of the number of exchanges up to which each is recorded; from there on half as many with each bit."""


class CompressionRecords:
    """The trace's events ``flush``, ``residual`` and ``compression``, and a fallback's line where a guard had to act.

    ``residual``: this rank's largest residual as a ``ratio`` to its updates' average norm, after each of the first 64
    exchanges, each second one up to 128, each fourth up to 256 and so on. ``flush``: an exchange was sent in full, for
    the ``reason`` ``guard`` (with this rank's residual as a ``ratio`` to its updates, and the ``limit``) or ``settle``
    (another policy or the end follows). ``compression``: the figures of one reducer when its exchange ends.

    Args:
        reducers: One exchange's; all do the same, at the same clocks. None where it sends nothing that is dense.
    """

    def __init__(
        self, reducers: Sequence[CompressedReducer | RackReducer | CompressedPushes], *, timeline: WorkerTimeline
    ) -> None:
        self._reducers, self._timeline = reducers, timeline
        self._num_told = [0] * len(reducers)
        self._keeps_residual = any(reducer.compression.keeps_residual for reducer in reducers)
        self._num_exchanges = 0

    def exchanged(self, clock: int) -> None:
        """Record how much is kept back after the exchange of ``clock``, and the flushes that a guard had asked for."""
        self._num_exchanges += 1
        every = 1 << max(0, self._num_exchanges.bit_length() - _WHOLE_BITS)
        if self._keeps_residual and self._num_exchanges % every == 0:
            ratio = max(reducer.figures().residual_ratio for reducer in self._reducers)
            self._event("residual", clock, ratio=ratio if math.isfinite(ratio) else None)  # JSON has no infinity
        self._look()

    def _look(self) -> None:
        for number, reducer in enumerate(self._reducers):
            flushes = reducer.flushes
            for flush in flushes[self._num_told[number] :]:
                ratio = flush.ratio if math.isfinite(flush.ratio) else None  # JSON has no infinity
                self._event("flush", flush.clock, reason="guard", ratio=ratio, limit=flush.limit)
            self._num_told[number] = len(flushes)

    def settled(self, clock: int) -> None:
        """Tell that what was kept back up to ``clock`` has been sent in full, because the policy or the run ends."""
        self._event("flush", clock, reason="settle")

    def close(self, clock: int) -> None:
        self._look()
        figures = [reducer.figures() for reducer in self._reducers]
        for reducer, each in zip(self._reducers, figures, strict=True):
            self._event(
                "compression",
                clock,
                spec=reducer.compression.spec,
                num_exchanges=each.num_exchanges,
                num_refused=each.num_refused,
                num_flushes=len(each.flushes),
                sent_bytes=each.sent_bytes,
                uncompressed_bytes=each.uncompressed_bytes,
            )
        if num_flushes := sum(len(each.flushes) for each in figures):
            # on a collective the ranks of a group have the same numbers, so one line; on the store each worker its own
            num_exchanges, first = sum(each.num_exchanges for each in figures), self._reducers[0]
            self._timeline.meter.totals.fallbacks.append(
                f"{first.compression.spec}: {num_flushes} of {num_exchanges} {first.exchanges} were sent "
                "in full, because what had been kept back outgrew its limit"
            )

    def _event(self, kind: str, clock: int, **fields: object) -> None:
        self._timeline.event(kind, at_s=self._timeline.now_s(), clock=clock, **fields)
