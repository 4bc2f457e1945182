"""Takes down what compression does that a user must hear of: exchanges sent in full, means refused, bytes saved."""

import math
from collections.abc import Sequence
from typing import Protocol

from plesio.policies.compression import Compression
from plesio.runtime.worker.compression.reducer import CompressionFigures, Flush
from plesio.runtime.worker.timeline import Timeline

__all__ = ["CompressionRecords", "Recorded"]


class Recorded(Protocol):
    """A reducer whose doings are taken down."""

    compression: Compression

    @property
    def exchanges(self) -> str:
        """What its exchanges are called, so that ranks with the same numbers say the same."""
        ...

    @property
    def flushes(self) -> Sequence[Flush]:
        """Exchanges that were sent in full because a guard had asked for it."""
        ...

    def figures(self) -> CompressionFigures:
        """What has been done so far."""
        ...


class CompressionRecords:
    """The trace's events ``flush`` and ``compression``, and a line among the fallbacks where a guard had to act.

    ``flush``: an exchange was sent in full, for the ``reason`` ``guard`` (with this rank's residual as a ``ratio`` to
    its updates, and the ``limit``) or ``settle`` (another policy or the end follows). ``compression``: the figures of
    one reducer when its exchange ends.

    Args:
        reducers: Of one exchange; all do the same, at the same clocks. None where it sends nothing that is dense.
        timeline: Where it goes.
    """

    def __init__(self, reducers: Sequence[Recorded], *, timeline: Timeline) -> None:
        self._reducers = reducers
        self._timeline = timeline
        self._num_told = [0] * len(reducers)

    def look(self) -> None:
        """Tell of the flushes since the last call that a guard had asked for."""
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
        """Tell the figures of an exchange that ends at ``clock``."""
        self.look()
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
            # the same numbers on all ranks of a group, so one line for all
            num_exchanges, first = sum(each.num_exchanges for each in figures), self._reducers[0]
            self._timeline.meter.totals.fallbacks.append(
                f"{first.compression.spec}: {num_flushes} of {num_exchanges} {first.exchanges} were sent "
                "in full, because what had been kept back outgrew its limit"
            )

    def _event(self, kind: str, clock: int, **fields: object) -> None:
        self._timeline.event(kind, at_s=self._timeline.now_s(), clock=clock, **fields)
