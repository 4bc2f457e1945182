"""C.19: what makes runs differ."""

import math

import numpy as np

from plesio_planning.studies.models.determinism import Determinism
from plesio_planning.studies.textbook.printed import Asking, Printed, Row

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """The gap of its sum, and which source dominates."""
    answer = asking.defaults(Determinism)
    apart = {each.name: each.relative[-1] for each in answer.comparisons if each.relative}
    with np.errstate(over="ignore"):
        large, one = np.float32(1e30), np.float32(1)
        gap = float(abs(((large + one) - large) - (large + (one - large))))
    worst = max(apart, key=apart.__getitem__)
    # Digits depend on the processor's matrix product (a seed 1.4 or 1.5, an order 0.03 to 0.05), these do not.
    order = math.ceil(math.log10(max(value for name, value in apart.items() if "seed" not in name)))
    return (
        Printed(
            place="solution",
            rows=(Row(what="gap of 10³⁰ + 1 - 10³⁰ by order", text=5e30, here=gap),),
            cause="Both of its orders lose the 1 and give 0; that of 10³⁰ - 10³⁰ + 1 gives 1, and no order 5·10³⁰.",
            by="its own formula",
        ),
        Printed(
            place="solution",
            rows=(
                Row(
                    what="dominant source",
                    text="order of additions",
                    here=f"{worst}, above {math.floor(apart[worst])} (any order: below {10.0**order:g})",
                ),
            ),
            cause=(
                "The distance of the parameters after training, relative: a seed that is not set moves them far more "
                "than any order, which dominates only once all seeds are set."
            ),
        ),
        Printed(
            place="solution",
            rows=(Row(what="cost of reproducibility", unit="%", text=13.0, here="measured by --measure"),),
            cause="It adds up 10 % and 3 % that it has set; what a fixed order costs depends on the machine.",
        ),
    )
