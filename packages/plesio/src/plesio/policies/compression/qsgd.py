"""Numbers on a few levels, rounded up or down at random so that each is itself in the mean.

A bucket of d numbers shares a scale. It is their largest magnitude M, as Alistarh et al. 2017 use in practice, and not
their norm: a number v between two of s levels has the variance ``M²/s² f(1-f)`` with ``f(1-f) <= min(1/4, |v|s/M)``,
and as ``M <= ‖x‖`` and ``‖x‖₁ <= √d‖x‖`` the whole bucket has at most ``min(d/4s², √d/s)‖x‖²``. Numbers spread
like a gradient's have far less. Buckets are small enough that this is below 1 even at worst, so QSGD is a contraction
as it is and may be used with feedback. With two bits there would be one level, and none would be small enough:
``qsgd:2`` is another codec (`plesio.policies.compression.two_bits`).
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from plesio.policies.compression.stage import FLOAT_BITS, Shapes, SummedByParts, num_elements

_BUCKETS = {4: 128, 8: 512}


@dataclass(frozen=True, slots=True, kw_only=True)
class Qsgd(SummedByParts):
    """Every number on one of ``2^(bits-1) - 1`` levels of its sign; without feedback by default.

    Args:
        bits: Bits of a number, its sign included.

    >>> [Qsgd(bits=bits).payload_bits(512_000) / 512_000 for bits in (4, 8)]
    [4.25, 8.0625]
    """

    bits: Annotated[Literal[4, 8], "2, 4 or 8"]
    feedback: bool = False
    feedback_by_default: ClassVar[bool] = False

    @property
    def head(self) -> str:
        return f"qsgd:{self.bits}"

    @property
    def num_levels(self) -> int:
        """Levels s above zero: 7 or 127."""
        return (1 << self.bits - 1) - 1

    @property
    def bucket(self) -> int:
        """Numbers d that share a scale: 128 with 4 bits, 512 with 8."""
        return _BUCKETS[self.bits]

    def payload_bits(self, shapes: Shapes) -> int:
        """Return ``bits n``, and 32 for each bucket's scale."""
        number = num_elements(shapes)
        return self.bits * number + FLOAT_BITS * -(-number // self.bucket)

    def contraction(self, shapes: Shapes) -> float:
        """Return ``1 - min(d/4s², √d/s)``: 0.35 with 4 bits, 0.99 with 8."""
        size = min(self.bucket, num_elements(shapes))
        return 1 - min(size / (4 * self.num_levels**2), math.sqrt(size) / self.num_levels)
