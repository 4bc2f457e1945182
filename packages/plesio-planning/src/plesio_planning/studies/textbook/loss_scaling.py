"""C.9: gradients of 1e-4 under four loss scales."""

from plesio_planning.studies.models.loss_scaling import LossScaling
from plesio_planning.studies.textbook.printed import Asking, Printed, rows_of

__all__ = ["printed"]

_OVERFLOW = {15: 45.0, 18: 2.0, 20: 0.5, 24: 25.0}


def printed(asking: Asking) -> tuple[Printed, ...]:
    """How many overflow."""
    answer = asking.defaults(LossScaling, num_steps=1)
    normal = {each.power: 100 * each.overflow for each in answer.shares if each.distribution.startswith("N(")}
    return (
        Printed(
            place="solution",
            rows=rows_of(
                {f"overflow at 2^{power}": text for power, text in _OVERFLOW.items()},
                [normal[power] for power in _OVERFLOW],
                unit="%",
            ),
            cause=(
                "A larger scale can only make more overflow, and its column falls and rises again; 10⁻⁴ times 2²⁴ is "
                "1678, and FP16 goes up to 65,504."
            ),
        ),
    )
