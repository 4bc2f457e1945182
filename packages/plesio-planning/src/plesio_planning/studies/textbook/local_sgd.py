"""C.7: eight workers, 50 ms a step and 100 ms an averaging."""

import math

from plesio_planning.studies.models.local_sgd import LocalSgd
from plesio_planning.studies.textbook.printed import Asking, Printed, Row, rows_of

__all__ = ["printed"]

_RUNS = {1: (1000, 50.10), 2: (1080, 50.25), 4: (1200, 50.50), 8: (1500, 51.00), 16: (2000, 52.00), 32: (3500, 54.00)}


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Iterations, the time that they take, and the best number of local steps."""
    answer = asking.defaults(LocalSgd, num_trials=1)
    first = answer.points[0]
    growth = {point.period: point.iterations / first.iterations for point in answer.points}
    return (
        Printed(
            place="solution",
            rows=rows_of(
                {
                    f"time of its {count:,} iterations, K = {period}": time_s
                    for period, (count, time_s) in _RUNS.items()
                },
                [count * 0.05 + math.ceil(count / period) * 0.1 for period, (count, _) in _RUNS.items()],
                unit="s",
            ),
            cause="It counts 50 ms an iteration once, for 1000 of them, and an averaging hardly at all.",
            by="its own formula",
        ),
        Printed(
            place="solution",
            rows=rows_of(
                {f"iterations over those of K = 1, K = {period}": _RUNS[period][0] / 1000 for period in (2, 8, 32)},
                [growth[period] for period in (2, 8, 32)],
            ),
            cause=(
                "Both grow as 1 + cK; c is of the problem, 0.08 in the text's and 0.2 in ours, and no result of theory."
            ),
        ),
        Printed(
            place="solution",
            rows=(Row(what="best K", text=math.sqrt(2.0), here=answer.best_period),),
            cause="√(Tm/Tc) is the best with c = 1; with a penalty of c it is √(Tm/(cTc)).",
        ),
    )
