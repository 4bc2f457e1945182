"""Which worker's update comes when, and how stale it is: from a schedule to the order in which a store applies updates.

An update is of the parameters that its worker had when the step began, and counts when its exchange is over. Its
staleness is the number of updates that counted in between (`plesio_planning.sim.recurrences` says when each of these
is).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plesio_planning.sim.recurrences import Schedule

__all__ = ["UpdateOrder", "order_updates"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateOrder:
    """The updates of a run, in the order in which they were applied.

    Attributes:
        workers: Whose it is, (updates,).
        staleness: τ, updates applied since its worker pulled, (updates,).
        applied_s: When it counted, in virtual seconds, (updates,).
    """

    workers: NDArray[np.int64]
    staleness: NDArray[np.int64]
    applied_s: NDArray[np.float64]


def order_updates(schedule: Schedule, *, exchange_s: float) -> UpdateOrder:
    """Order the updates of an asynchronous schedule; those that count at the same time in the order of workers.

    An update counts ``exchange_s`` after its step's finish, as the schedule was simulated with.

    >>> from plesio_planning.sim.recurrences import simulate_bound
    >>> order = order_updates(simulate_bound([[1.0, 1.0, 1.0], [1.5, 1.5, 1.5]], bound=9), exchange_s=0.0)
    >>> order.workers.tolist(), order.staleness.tolist()
    ([0, 1, 0, 0, 1, 1], [0, 1, 1, 0, 2, 0])
    """
    workers = np.repeat(np.arange(len(schedule.step_s)), schedule.step_s.shape[1])
    applied_s = (schedule.finish_s + exchange_s).ravel()
    order = np.argsort(applied_s, kind="stable")
    applied_s = applied_s[order]
    num_seen = np.searchsorted(applied_s, schedule.begin_s.ravel()[order], side="right")
    staleness = np.arange(len(order)) - np.minimum(num_seen, np.arange(len(order)))
    return UpdateOrder(workers=workers[order], staleness=staleness, applied_s=applied_s)
