"""Gradient descent whose gradients are late, on quadratics: the mechanism of the studies of staleness.

Theory. Worker w has ``f_w(x) = ½ Σ_j λ_wj (x_j - o_wj)²``, in coordinates in which all Hessians are diagonal. Update t
is worker w's, of a gradient that was computed τ updates earlier:

    x(t+1) = x(t) - α(t) (λ_w (x(t-τ) - o_w) + noise(t)),      x(t) = x(0) for t < 0

One worker with its optimum in 0 is delayed gradient descent: each coordinate obeys ``z^(τ+1) - z^τ + αλ = 0`` (Levin &
May 1976), which is stable as long as ``αλ < 2 sin(π / (2(2τ+1)))``. There it oscillates with a period of 2(2τ+1)
updates, so its size is largest at least once in 2τ+1 of them. A target counts as reached when the distance stays below
it for so long: a coordinate on its way through 0 has not arrived.

All steps are in units of 1/L, for the largest eigenvalue is taken as 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plesio.core.errors import ConfigError
from plesio.sim.compiled import compiled

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

_DIVERGED = 1e6
"""A multiple of the first distance; what comes so far does not come back."""

_NUM_COARSE = 25
_NUM_FINE = 33
_FINE_WIDTHS = 2


class LateUpdates(NamedTuple):
    """The updates of a descent in turn; each array is (updates,).

    Attributes:
        delays: τ; the first are no older than the start.
        steps: α.
        workers: Number of the worker whose gradient it is.
    """

    delays: Whole
    steps: Array
    workers: Whole

    @classmethod
    def of(cls, delays: Whole, *, steps: ArrayLike, workers: Whole | None = None) -> "LateUpdates":
        """Make updates with one step for all or one for each, of the first worker if no others are given."""
        return cls(
            delays,
            np.ascontiguousarray(np.broadcast_to(np.asarray(steps, float), delays.shape)),
            np.zeros(len(delays), np.int64) if workers is None else workers,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DelayedDescent:
    """How it went.

    Attributes:
        distance: Distance from the optimum, before the first update and after each; ends where the target is reached.
        iterations: Updates until it was; infinite if it never was.
        diverged: Whether the distance grew without end.
    """

    distance: Array
    iterations: float
    diverged: bool

    @property
    def loss(self) -> Array:
        """Loss above the optimum, of `descend_in_loss`."""
        return 0.5 * self.distance**2


@dataclass(frozen=True, slots=True, kw_only=True)
class BestStep:
    """The constant step that arrives first.

    Attributes:
        step: α, in units of 1/L.
        tried: Updates by step, for all steps that were tried.
    """

    step: float
    iterations: float
    tried: dict[float, float]


def eigenvalues_of(condition_number: float, *, num_dimensions: int) -> Array:
    """Return the eigenvalues from ``1 / condition_number`` to 1, evenly spaced on a logarithmic axis.

    >>> eigenvalues_of(100.0, num_dimensions=3)
    array([0.01, 0.1 , 1.  ])

    Raises:
        ConfigError: A condition number or a dimension that cannot be.
    """
    if not 1 <= condition_number < math.inf:
        raise ConfigError(f"a condition number of {condition_number:g}; write 1 or more")
    if num_dimensions < 2:
        raise ConfigError(f"{num_dimensions} dimensions; write 2 or more, one for each end of the spectrum")
    values: Array = np.logspace(-math.log10(condition_number), 0.0, num_dimensions)
    return values


def descend(
    *,
    eigenvalues: Array,
    start: Array,
    updates: LateUpdates,
    target: float,
    noise: float = 0.0,
    random: np.random.Generator | None = None,
    optima: Array | None = None,
    settled: int | None = None,
) -> DelayedDescent:
    """Go down until the target is reached, the updates are used up, or it diverges.

    >>> one = np.array([1.0])
    >>> fresh = LateUpdates.of(np.zeros(99, np.int64), steps=0.5)
    >>> once = descend(eigenvalues=one, start=one, updates=fresh, target=1e-3)
    >>> once.iterations, once.distance[:3]
    (10, array([1.  , 0.5 , 0.25]))

    Args:
        eigenvalues: λ, (dimensions,) or (workers, dimensions).
        start: x(0), (dimensions,).
        updates: Delays, steps and workers.
        target: Distance from 0 that is wanted.
        noise: Standard deviation of a gradient's noise in each coordinate.
        random: Draws it.
        optima: o, (workers, dimensions); 0 without.
        settled: Updates for which the distance has to stay below the target; ``2 max τ + 1`` without.
    """
    assert random is not None or noise == 0, "noise is drawn by somebody"
    curvatures = np.atleast_2d(eigenvalues).astype(float)
    trajectory, reached, diverged = _descend(
        curvatures,
        np.zeros_like(curvatures) if optima is None else optima,
        start.astype(float),
        updates._replace(delays=np.minimum(updates.delays, np.arange(len(updates.delays)))),
        noise,
        np.random.default_rng(0) if random is None else random,
        target,
        2 * int(updates.delays.max()) + 1 if settled is None else settled,
    )
    return DelayedDescent(distance=trajectory, iterations=reached if reached >= 0 else math.inf, diverged=diverged)


def descend_in_loss(eigenvalues: Array, updates: LateUpdates, *, optima: Array | None = None) -> DelayedDescent:
    """Go down from 1 in each coordinate, by all updates; the distance is the root of twice the loss (`DelayedDescent`).

    The arguments are those of `descend`.
    """
    scale = np.sqrt(np.atleast_2d(eigenvalues).mean(axis=0))
    return descend(
        eigenvalues=eigenvalues,
        start=scale,
        updates=updates,
        optima=None if optima is None else optima * scale,
        target=0.0,
    )


def find_best_step(iterations: Callable[[float], float], *, largest: float) -> BestStep:
    """Find the step below ``largest`` for which ``iterations`` is smallest, to about ``largest / 4000``.

    The count jumps with the step, so it is searched on a grid, and on a finer one around the best.

    >>> round(find_best_step(lambda step: abs(step - 0.3), largest=1.0).step, 2)
    0.3
    """
    tried: dict[float, float] = {}
    low, high = 0.0, largest
    for number in (_NUM_COARSE, _NUM_FINE, _NUM_FINE):
        for step in np.linspace(low, high, number)[1:].tolist():
            tried[step] = iterations(step)
        best = min(tried, key=lambda step: (tried[step], step))
        width = _FINE_WIDTHS * (high - low) / (number - 1)
        low, high = max(best - width, 0.0), min(best + width, largest)
    return BestStep(step=best, iterations=tried[best], tried=dict(sorted(tried.items())))


@compiled
def _descend(
    eigenvalues: Array,
    optima: Array,
    start: Array,
    updates: LateUpdates,
    noise: float,
    random: np.random.Generator,
    target: float,
    settled: int,
) -> tuple[Array, int, bool]:
    delays, steps, workers = updates.delays, updates.steps, updates.workers
    num_updates, num_dimensions = len(delays), len(start)
    num_kept = delays.max() + 1
    kept = np.empty((num_kept, num_dimensions))
    now = start.copy()
    distance = np.empty(num_updates + 1)
    distance[0] = np.sqrt((now * now).sum())
    num_below = 0
    for t in range(num_updates):
        # a ring of the iterates that a late gradient can still refer to
        kept[t % num_kept] = now
        worker, pulled = workers[t], (t - delays[t]) % num_kept
        square = 0.0
        for j in range(num_dimensions):
            gradient = eigenvalues[worker, j] * (kept[pulled, j] - optima[worker, j])
            if noise > 0:
                gradient += noise * random.standard_normal()
            now[j] -= steps[t] * gradient
            square += now[j] * now[j]
        distance[t + 1] = np.sqrt(square)
        # noise and oscillation cross the target: it must hold for a while
        num_below = num_below + 1 if distance[t + 1] <= target else 0
        if num_below == settled:
            reached = t + 2 - settled
            return distance[: reached + 1].copy(), reached, False
        if not distance[t + 1] < _DIVERGED * distance[0]:
            return distance[: t + 2].copy(), -1, True
    return distance, -1, False
