"""C.2: efficiency of 256 workers with lognormal steps of 50 ms."""

import math

from plesio_planning.studies.order_statistics import LogNormalTimes
from plesio_planning.studies.textbook.printed import Asking, Printed, Row, rows_of

__all__ = ["printed"]

_EFFICIENCY = {0.05: 99.2, 0.1: 95.5, 0.2: 90.1, 0.5: 50.3}


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Efficiency by variation, and how much longer the slowest takes."""
    from plesio_planning.studies.models.stragglers import Stragglers

    costs = {cv: LogNormalTimes(mean_s=0.05, cv=cv).expected_s(rank=256, of=256) / 0.05 for cv in _EFFICIENCY}
    at = asking.defaults(Stragglers, num_steps=2)
    return (
        Printed(
            place="solution",
            rows=rows_of(
                {f"efficiency, CV {cv:g}": text for cv, text in _EFFICIENCY.items()},
                [100 / cost for cost in costs.values()],
                unit="%",
            ),
            cause=(
                "What a barrier costs is the slowest step over the mean one. Its own measure, median over mean, is "
                f"{', '.join(f'{100 / math.sqrt(1 + cv * cv):.1f}' for cv in _EFFICIENCY)} % for lognormal steps: the "
                "printed numbers follow from neither."
            ),
        ),
        Printed(
            place="in depth",
            rows=(Row(what="slowest over mean, CV 0.3", unit="times", text="1.15 to 1.20", here=at.cost),),
            cause=(
                "Its 1 + 0.08 log N CV is fitted to nothing: for lognormal steps, E[max] of 256 follows from the tail."
            ),
        ),
    )
