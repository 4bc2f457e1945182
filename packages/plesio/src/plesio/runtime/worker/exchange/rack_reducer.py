"""Compressed means between racks: each rail compresses its own slice, and in the rack everything goes in full.

The ranks of a rack bring equal updates, so a mean over all ranks is one over racks (`racks`).
Each rail makes that of its slice by a `CompressedReducer` of its own: a residual is that of one rack's slice, and a
rail sends in full when one of *its* ranks asks for it. As all ranks of a rack take what its rails have decoded, they
stay equal to the bit.

A mean that is not finite is refused on all rails or on none: it is spread in the rack before it is judged. Otherwise a
rail with a finite slice would take it as sent, while the update as a whole is refused, and what its residual had added
to it would be lost.

An update that cannot be cut (`Compression.cuts`: the matrices of PowerSGD) goes by the leaders.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from plesio.policies.compression import Compression, num_elements
from plesio.runtime.worker.compression import CompressedReducer, CompressionFigures, Flush, PendingMean
from plesio.runtime.worker.exchange.racks import BetweenRacks


class RackReducer:
    """Makes means over all ranks of flat tensors that are equal on the ranks of a rack; one exchange at a time.

    Args:
        between: All ranks; with one rail where the compression cannot be cut.
    """

    def __init__(
        self, between: BetweenRacks, compression: Compression, *, shapes: Sequence[Sequence[int]], seed: int
    ) -> None:
        assert compression.cuts or between.num_rails == 1, "what cannot be cut goes by the leaders"
        self.compression, self._between = compression, between
        self._num_elements = num_elements(shapes)
        self._on_rail: CompressedReducer | None = None
        if between.rail is not None:
            slices = [(between.slice_elements(self._num_elements),)]
            self._on_rail = CompressedReducer(
                between.rail,
                compression,
                shapes=shapes if between.num_rails == 1 else slices,
                seed=seed,
                spread=self._spread,
            )

    @property
    def exchanges(self) -> str:
        """The name under which its exchanges are counted: rails flush by themselves."""
        rails = self._between.num_rails
        return "exchanges" if rails == 1 else f"exchanges on rail {self._between.inside.rank + 1} of {rails}"

    @property
    def residual(self) -> Tensor | None:
        return None if self._on_rail is None else self._on_rail.residual

    @property
    def flushes(self) -> Sequence[Flush]:
        return () if self._on_rail is None else self._on_rail.flushes

    @torch.no_grad()
    def begin(self, flat: Tensor, clock: int, *, weight: float, in_full: bool = False) -> PendingMean:
        """Begin the mean of all ranks' ``flat`` tensors; as `CompressedReducer.begin`, and equal in a rack."""
        if self._on_rail is None:
            received = torch.empty_like(flat)
            return PendingMean(lambda: self._spread(received))
        own = self._between.slice_of(flat)
        return self._on_rail.begin(own, clock, weight=weight * self._between.inside.size, in_full=in_full)

    def figures(self) -> CompressionFigures:
        """Return this rank's counts between racks so far: zeros, if it is on no rail."""
        return CompressionFigures() if self._on_rail is None else self._on_rail.figures()

    def _spread(self, own: Tensor) -> Tensor:
        return self._between.spread(own, num_elements=self._num_elements)
