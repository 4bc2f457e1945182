"""A server that refuses gradients older than a bound: who sends what when, and what of it counts.

N workers pull the parameters, compute a gradient for a random time, and push it. Its age is the number of updates that
the server has applied since that pull. Up to the bound τ it is applied; an older one is discarded, and its worker pulls
anew (the server of Ho et al. 2013 makes fast workers wait instead, so that nothing is thrown away). Messages take no
time. The ages do not depend on the gradients, so they are simulated first, and `studies.delayed_descent` goes
down with them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plesio.sim.compiled import compiled
from plesio_planning.studies.order_statistics import LogNormalTimes

_KEPT_STEPS = 1000
"""Step times of a worker, which are then used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpeeds:
    """How long workers compute.

    Attributes:
        num_workers: N.
        cv: Coefficient of variation of a step.
        slowdown: How many times as long one of them takes, on average.
    """

    num_workers: int
    cv: float
    slowdown: float

    def draw_steps(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Draw lognormal times of a mean of 1, or of ``slowdown`` for the last worker, (workers, steps)."""
        steps = LogNormalTimes(mean_s=1.0, cv=self.cv).draw_s(random, (self.num_workers, _KEPT_STEPS))
        steps[-1] *= self.slowdown
        return steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """The updates that a server applied.

    Attributes:
        ages: Age of each update, (updates,).
        at: When it was applied, in mean steps of a worker, (updates,).
        pushed: Gradients that had been pushed by then, (updates,).
    """

    ages: NDArray[np.int64]
    at: NDArray[np.float64]
    pushed: NDArray[np.int64]


def serve(steps: NDArray[np.float64], *, bound: int, num_updates: int) -> Served:
    """Apply ``num_updates`` gradients none of which is older than ``bound``, τ.

    ``steps`` are how long each worker computes for each gradient, used from the start again at their end.

    >>> served = serve(np.array([[1.0], [1.5]]), bound=0, num_updates=4)
    >>> served.ages.tolist(), served.at.tolist(), served.pushed.tolist()
    ([0, 0, 0, 0], [1.0, 2.0, 3.0, 4.0], [1, 3, 4, 6])
    """
    ages, at, pushed = _serve(steps, bound, num_updates)
    return Served(ages=ages, at=at, pushed=pushed)


@compiled
def _serve(
    steps: NDArray[np.float64], bound: int, num_updates: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    num_workers, num_kept = steps.shape
    ready, pulled = steps[:, 0].copy(), np.zeros(num_workers, np.int64)
    done = np.zeros(num_workers, np.int64)
    ages, pushed = np.empty(num_updates, np.int64), np.empty(num_updates, np.int64)
    at = np.empty(num_updates)
    version, num_pushed = 0, 0
    while version < num_updates:
        w = np.argmin(ready)
        num_pushed += 1
        if version - pulled[w] <= bound:
            ages[version], at[version], pushed[version] = version - pulled[w], ready[w], num_pushed
            version += 1
        pulled[w] = version
        done[w] += 1
        ready[w] += steps[w, done[w] % num_kept]
    return ages, at, pushed
