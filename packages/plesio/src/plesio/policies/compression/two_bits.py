"""Two bits a number: its sign, and which of two magnitudes it is nearer to, as the statistics of its bucket say.

With d numbers in a bucket those above 1.23 times their mean magnitude are *large*. That is the bound of the best two
magnitudes for normal numbers (Max 1960, "Quantizing for minimum distortion"; Lloyd 1982), 0.98 standard deviations. A
large number is sent as the mean magnitude of the large ones, any other as that of the others, so this is what MuLoCo
(2505.23725) and SparseLoCo (2508.15706) call statistical quantisation, with thresholds that need no sorting.

What is lost is the scatter of the magnitudes within the two, 0.12 of normal numbers' squares. It is biased, so error
feedback is on by default.
"""

from dataclasses import dataclass
from typing import ClassVar

from plesio.policies.compression.stage import FLOAT_BITS, Shapes, SummedByParts, num_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoBits(SummedByParts):
    """Every number as one of two magnitudes of its bucket, with its sign.

    >>> TwoBits().spec, TwoBits().payload_bits(512_000) / 512_000
    ('qsgd:2', 2.125)
    """

    bucket: ClassVar[int] = 512
    """Numbers d that share two magnitudes."""
    threshold: ClassVar[float] = 1.23
    """Multiple of the mean magnitude from which on a number is large."""

    @property
    def head(self) -> str:
        return "qsgd:2"

    def payload_bits(self, shapes: Shapes) -> int:
        """Return ``2 n``, and 64 for each bucket's magnitudes."""
        number = num_elements(shapes)
        return 2 * number + 2 * FLOAT_BITS * -(-number // self.bucket)

    def contraction(self, shapes: Shapes) -> float:
        """Return ``1/d``: means of magnitudes keep ``‖x‖₁²/d`` at least, and ``‖x‖₁ >= ‖x‖``."""
        return 1 / max(1, min(self.bucket, num_elements(shapes)))
