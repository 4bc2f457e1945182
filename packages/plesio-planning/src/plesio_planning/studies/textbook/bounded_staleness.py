"""C.3: iterations of a quadratic with a condition number of 100, by staleness."""

import math

from plesio_planning.studies.models.bounded_staleness import BoundedStaleness
from plesio_planning.studies.textbook.printed import Asking, Printed, rows_of

__all__ = ["printed"]

_ITERATIONS = {0: 100.0, 1: 110.0, 5: 145.0, 10: 200.0, 20: 350.0, 50: math.inf}


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Iterations to 1e-4 of the start, at the best step for each staleness."""
    answer = asking.defaults(BoundedStaleness, num_trials=1, num_dimensions=2)
    return (
        Printed(
            place="solution",
            rows=rows_of(
                {f"iterations, τ = {delay}": text for delay, text in _ITERATIONS.items()},
                [point.best_iterations for point in answer.points if point.delay in _ITERATIONS],
            ),
            cause=(
                "With κ = 100 not even fresh gradients get there in 100 steps; at the best step for each staleness "
                "none diverges, and its own step 0.01/√t would take 2·10⁹."
            ),
        ),
    )
