"""Several reducers as one: parts of a flat tensor that are compressed each by itself."""

from collections.abc import Sequence

import torch
from torch import Tensor

from plesio.runtime.worker.compression import CompressedReducer, PendingMean
from plesio.runtime.worker.exchange.rack_reducer import RackReducer
from plesio.runtime.worker.exchange.replica import all_finite

__all__ = ["JoinedReducers"]


class JoinedReducers:
    """Makes means as a `CompressedReducer` does, one exchange at a time; a mean is refused as a whole.

    Args:
        parts: At least one, all for one compression.
        sizes: The number of elements of each.
    """

    def __init__(self, parts: Sequence[CompressedReducer | RackReducer], sizes: Sequence[int]) -> None:
        self._reducers, self._sizes = parts, list(sizes)
        self.compression = parts[0].compression

    @torch.no_grad()
    def begin(self, flat: Tensor, clock: int, *, weight: float, in_full: bool = False) -> PendingMean:
        """Begin the mean of all ranks' ``flat`` tensors; as `CompressedReducer.begin`."""
        if len(self._reducers) == 1:  # it looks at them itself, and nothing is put together
            return self._reducers[0].begin(flat, clock, weight=weight, in_full=in_full)
        sent = flat if all_finite([flat]) else torch.full_like(flat, torch.nan)
        cut = zip(self._reducers, torch.split(sent, self._sizes), strict=True)
        pending = [reducer.begin(part, clock, weight=weight, in_full=in_full) for reducer, part in cut]

        def took_s() -> float | None:
            known_s = [each_s for one in pending if (each_s := one.took_s()) is not None]
            return max(known_s) if len(known_s) == len(pending) else None  # all were begun together

        def go_on() -> None:
            for one in pending:
                one.go_on()

        return PendingMean(lambda: torch.cat([one.wait() for one in pending]), took_s=took_s, go_on=go_on)
