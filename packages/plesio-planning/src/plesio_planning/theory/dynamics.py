"""Gradient descent with late gradients on a quadratic, step by step: what the formulas are held against."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plesio_planning.theory.stability import spectral_radius, stability_limit

_SETTLED = 1e-12
_WELL_BELOW = 0.5
"""Limit of learning rate times curvature and the longest delay below which any delays converge."""
_A_LITTLE = 1e-9


def delayed_descent(*, step: float, staleness: int, num_steps: int, momentum: float = 0.0) -> NDArray[np.float64]:
    """Return the error along one eigenvector, from 1 on: ``x[t+1] = x[t] + β(x[t] - x[t-1]) - s x[t-τ]``.

    >>> delayed_descent(step=0.5, staleness=1, num_steps=4).tolist()
    [1.0, 0.5, 0.0, -0.25, -0.25]

    Args:
        step: s, learning rate times curvature.
        staleness: τ, in steps; before the start there is the start.
        num_steps: Steps.
        momentum: β.
    """
    error = np.ones(staleness + 2 + num_steps)
    begin = staleness + 1
    for t in range(begin, begin + num_steps):
        error[t + 1] = error[t] + momentum * (error[t] - error[t - 1]) - step * error[t - staleness]
    return error[begin:]


def noise_floor(*, step: float, staleness: int) -> float:
    """Variance of the error in the long run, where every gradient has noise of variance 1 (and curvature is 1).

    The sum of the squares of what one noisy gradient leaves behind; ``s/(2-s)`` without staleness.

    >>> round(noise_floor(step=0.5, staleness=0), 6)  # 0.5 / 1.5
    0.333333

    Args:
        step: s, below the limit of stability.
        staleness: τ, in steps.
    """
    radius = spectral_radius(step=step, staleness=staleness)
    num_steps = math.ceil(math.log(_SETTLED) / math.log(radius)) if radius > 0 else 1
    error = np.zeros(staleness + 1 + num_steps)
    error[staleness] = step
    for t in range(staleness, staleness + num_steps):
        error[t + 1] = error[t] - step * error[t - staleness]
    return float(np.square(error).sum())


def iterations_to(target: float, *, condition: float, staleness: int) -> float:
    """Count iterations until the error has shrunk to ``target``, at the best constant learning rate, in the long run.

    On a quadratic with curvatures from 1/κ to 1. A larger rate makes the slow end faster and, near the limit of
    stability, the fast end slower; where they meet is the best.

    >>> round(iterations_to(1e-4, condition=100.0, staleness=0), 1)  # log(1e-4) / log(99/101)
    460.5

    Args:
        target: Target of the error, over the first.
        condition: κ.
        staleness: τ, in steps.
    """

    def fast_minus_slow(step: float) -> float:
        slow = spectral_radius(step=step / condition, staleness=staleness)
        return spectral_radius(step=step, staleness=staleness) - slow

    from scipy.optimize import brentq

    limit = stability_limit(staleness=staleness)
    best = brentq(fast_minus_slow, limit / 4, limit)
    return math.log(target) / math.log(spectral_radius(step=best / condition, staleness=staleness))


def stability_limit_of_delays(hessian: NDArray[np.float64], delays: Sequence[int]) -> float:
    """Return the learning rate up to which descent on a quadratic converges, each parameter's delay being its own.

    ``x[t+1] = x[t] - α H x̂[t]`` with ``x̂_i[t] = x_i[t-d_i]``, the rule of a grid's stages: by the largest eigenvalue of
    the recursion's matrix over the last states, and bisection. With one delay it is
    `plesio_planning.theory.stability.stability_limit`.

    >>> round(stability_limit_of_delays(np.eye(2), [0, 0]), 6), round(stability_limit_of_delays(np.eye(2), [0, 6]), 6)
    (2.0, 0.241073)

    Args:
        hessian: H, symmetric and positive.
        delays: d, of each parameter, in steps.
    """
    size, depth = len(hessian), max(delays) + 1
    past = np.zeros((size, size * depth))
    past[np.arange(size), [size * delay + place for place, delay in enumerate(delays)]] = 1  # x̂ of the last states
    shift = np.eye(size * depth, k=-size)
    shift[:size, :size] = np.eye(size)
    late = np.zeros_like(shift)
    late[:size] = hessian @ past

    def beyond(rate: float) -> float:
        return float(np.abs(np.linalg.eigvals(shift - rate * late)).max()) - 1

    from scipy.optimize import brentq

    largest = float(np.linalg.eigvalsh(hessian)[-1])
    most = 2 / largest * (1 + _A_LITTLE)  # without delays it is there that descent stops converging
    return float(brentq(beyond, _WELL_BELOW / largest / depth, most))
