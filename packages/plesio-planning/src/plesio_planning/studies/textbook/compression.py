"""C.6: top-k on a quadratic with 1000 dimensions and a condition number of 1000."""

import math

from plesio_planning.studies.models.compression import CompressedTraining
from plesio_planning.studies.textbook.printed import Asking, Printed, rows_of

__all__ = ["printed"]

_ITERATIONS = {1: 1000.0, 5: 450.0, 10: 250.0, 50: 120.0, 100: 100.0}
_SCHEMES = {1: "topk:0.01@0.1", 5: "topk:0.05@0.3", 10: "topk:0.1", 50: "topk:0.5", 100: "none"}


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Iterations by how much is kept, with error feedback, at steps that converge."""
    answer = asking.defaults(CompressedTraining, schemes=tuple(_SCHEMES.values()))
    counts = [answer.run(scheme).iterations for scheme in _SCHEMES.values()]
    return (
        Printed(
            place="solution",
            rows=rows_of(
                {f"iterations, top {kept} %": text for kept, text in _ITERATIONS.items()},
                [math.inf if count is None else float(count) for count in counts],
            ),
            cause=(
                "Plain descent with κ = 1000 takes 870 steps at 1/L, so 100 cannot be; what is kept matters little "
                "until the step has to be smaller, as with 5 % (0.3/L) and 1 % (0.1/L)."
            ),
        ),
    )
