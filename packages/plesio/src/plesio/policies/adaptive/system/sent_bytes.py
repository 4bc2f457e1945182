"""Ratios of bytes between kinds of exchange: from the measured time of one follow the times of the others.

An exchange of gradients and one of parameters send as many bytes, unless gradients are sparse. Then the former sends
the rows that the batches have touched, and the latter, like a push to the store, the whole table. The size of gradients
in low rank depends on the shapes of the parameters, since vectors are sent in full; workers report it.

All sizes are the bytes of an all-reduce that takes as long on a ring. An all-reduce of B bytes sends ``2 (n - 1) / n ·
B`` over a link. Gathering S bytes of rows from everybody (`sparse_mean`) sends ``(n - 1) S``, as an all-reduce of ``n S
/ 2`` does. Rows are never compressed. Latency is not separated: if it is much of a short exchange, the prediction of a
long one is too long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from plesio.policies.adaptive.system.setting import COARSE_SHARE, ROUNDED_SHARE, Sent
from plesio.policies.events import Reviewed

Kind = Literal["gradients", "parameters", "store"]
"""Kind of exchange: of gradients (every step), of parameters (now and then), or with the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBytes:
    """Bytes of a step's exchange, in any unit.

    Attributes:
        dense: Bytes of parameters whose gradients are dense.
        tables: Bytes of parameters whose gradients are sparse.
        rows: Bytes of an all-reduce that takes as long as the exchange of the sparse gradients.
        low_rank_share: Share of the dense bytes that is sent in low rank.

    >>> sent = SentBytes(dense=1e6, tables=9e6, rows=1e6)
    >>> sent.ratio("parameters", Sent.FULL, to="gradients", to_sent=Sent.FULL)
    5.0
    """

    dense: float = 1.0
    tables: float = 0.0
    rows: float = 0.0
    low_rank_share: float = 1.0

    def seen(self, reviews: Mapping[int, Reviewed]) -> "SentBytes":
        """Return the bytes that these reviews report; without a report they stay."""
        share = max(review.low_rank_share for review in reviews.values())
        told = [review.sparse_bytes for review in reviews.values() if review.sparse_bytes]
        if not told:
            return replace(self, low_rank_share=share)
        dense, tables, rows = (max(each) for each in zip(*told, strict=True))
        rows = max(1.0, rows * len(reviews) / 2)
        return SentBytes(dense=dense, tables=tables, rows=rows, low_rank_share=share)

    @property
    def saves_in_low_rank(self) -> bool:
        return self.dense * self.low_rank_share < self.dense * ROUNDED_SHARE

    def ratio(self, kind: Kind, sent: Sent, *, to: Kind, to_sent: Sent) -> float:
        return self._bytes(kind, sent) / self._bytes(to, to_sent)

    def _bytes(self, kind: Kind, sent: Sent) -> float:
        share = {
            Sent.FULL: 1.0,
            Sent.ROUNDED: ROUNDED_SHARE,
            Sent.COARSE: COARSE_SHARE,
            Sent.LOW_RANK: self.low_rank_share,
        }[sent]
        return self.dense * share + self.rows if kind == "gradients" else (self.dense + self.tables) * share
