"""Numbers in 16 bits."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from plesio.policies.compression.stage import Collective, Lossy, Shapes, num_elements

_ROUNDOFF = {"fp16": 2.0**-11, "bf16": 2.0**-8}


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfPrecision(Lossy):
    """Every number rounded to 16 bits, and added up in 16 bits.

    Args:
        form: ``fp16``, in which numbers above 65504 overflow and those below 3e-8 vanish, or ``bf16``.
        feedback: True if the part that was not sent is added to the next update; not by default.
    """

    form: Literal["fp16", "bf16"] = "bf16"
    feedback: bool = False
    feedback_by_default: ClassVar[bool] = False

    @property
    def head(self) -> str:
        return self.form

    def payload_bits(self, shapes: Shapes) -> int:
        return 16 * num_elements(shapes)

    def contraction(self, shapes: Shapes) -> float:
        """Return ``1 - u²`` with the unit roundoff u, of numbers in the form's range."""
        return float(1 - _ROUNDOFF[self.form] ** 2)

    def collectives(self, shapes: Shapes, *, num_ranks: int) -> tuple[Collective, ...]:
        return (Collective("all_reduce", 2 * (num_elements(shapes) + self.feedback)),)
