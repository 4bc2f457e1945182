"""C.19: what makes runs differ."""

import numpy as np

from plesio.planning.studies.models.determinism import Determinism
from plesio.planning.studies.textbook.printed import Asking, Printed, Row

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """The gap of its sum, and which source dominates."""
    answer = asking.defaults(Determinism)
    apart = {each.name: each.relative[-1] for each in answer.comparisons if each.relative}
    with np.errstate(over="ignore"):
        large, one = np.float32(1e30), np.float32(1)
        gap = float(abs(((large + one) - large) - (large + (one - large))))
    worst = max(apart, key=apart.__getitem__)
    order = max((name for name in apart if "seed" not in name), key=apart.__getitem__)
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
                    here=f"{worst}, {apart[worst]:.2g} ({order}: {apart[order]:.2g})",
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
