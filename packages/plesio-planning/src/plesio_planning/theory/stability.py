"""Convergence of gradient descent with late gradients: constant staleness, with and without momentum.

Along an eigenvector of a quadratic with curvature λ, a step with learning rate α, momentum β and a gradient that is τ
steps late is ``x[t+1] = (1+β) x[t] - β x[t-1] - s x[t-τ]`` with ``s = αλ``. So x is a sum of powers of the roots of

    z^(τ+1) - (1+β) z^τ + β z^(τ-1) + s = 0        (times z for τ = 0)

and converges just if all roots are inside the unit circle. Small s keep them there. With growing s, the first pair to
leave does so at ``z = e^(iθ)``, where ``s = -z^(τ-1) (z-1) (z-β)`` is real. The angle of the right side grows with θ
from π/2 and is π at that place, which is one equation in one unknown. Without momentum it is ``θ = π/(2τ+1)`` and ``s =
2 sin(π/(2(2τ+1)))`` (Levin & May 1976; about π/2 over τ, and 2 for τ = 0). Momentum as torch.optim.SGD has it.

Limits: staleness that varies, for which the same mean can be better or worse, and curvature that
changes along the way; a network's largest curvature is itself driven up to its limit (Cohen et al. 2021).
"""

import cmath
import math

import numpy as np

from plesio.core.checks import check_not_negative, check_positive
from plesio.core.errors import ArgumentError
from plesio_planning.theory.bound import Bound

_MOST_STALENESS = 500
_ROUNDING = 1e-12
"""Relative error of a limit: a step this near is at it."""


def stability_limit(*, staleness: int, momentum: float = 0.0) -> float:
    """Return the αλ from which on gradient descent with this staleness does not converge.

    >>> [round(stability_limit(staleness=staleness), 4) for staleness in (0, 1, 15, 16)]
    [2.0, 1.0, 0.1013, 0.0952]
    >>> round(stability_limit(staleness=0, momentum=0.9), 3), round(stability_limit(staleness=12, momentum=0.9), 5)
    (3.8, 0.00967)

    Args:
        staleness: τ, of every gradient, in steps.
        momentum: β, below 1.
    """
    _check(staleness, momentum)
    if staleness == 0:
        return 2 * (1 + momentum)
    from scipy.optimize import brentq  # a quarter of a second, which those who ask nothing need not wait

    def angle(theta: float) -> float:
        turned = (staleness - 1) * theta + (math.pi + theta) / 2 + cmath.phase(cmath.exp(1j * theta) - momentum)
        return turned - math.pi

    z = cmath.exp(1j * brentq(angle, 0.0, math.pi))
    return abs((z - 1) * (z - momentum))


def first_unstable_staleness(*, step: float, momentum: float = 0.0) -> int:
    """Return the smallest staleness with which gradient descent does not converge.

    A step at the limit counts as beyond it: there the error neither grows nor shrinks.

    >>> first_unstable_staleness(step=0.1), first_unstable_staleness(step=0.1, momentum=0.9)
    (16, 1)
    >>> first_unstable_staleness(step=0.01, momentum=0.9)
    12

    Args:
        step: αλ, learning rate times curvature.
        momentum: β, below 1.
    """
    check_positive(step=step)
    _check(0, momentum)
    stable, unstable = -1, 0
    while _converges(step, unstable, momentum):
        stable, unstable = unstable, 2 * unstable + 1
    while unstable - stable > 1:
        middle = (stable + unstable) // 2
        if _converges(step, middle, momentum):
            stable = middle
        else:
            unstable = middle
    return unstable


def _converges(step: float, staleness: int, momentum: float) -> bool:
    return step < stability_limit(staleness=staleness, momentum=momentum) * (1 - _ROUNDING)


def spectral_radius(*, step: float, staleness: int, momentum: float = 0.0) -> float:
    """Return the factor by which the error changes in a step, in the long run; stable below 1.

    >>> round(spectral_radius(step=0.1, staleness=15), 4), round(spectral_radius(step=0.1, staleness=16), 4)
    (0.9994, 1.0021)

    Args:
        step: αλ, learning rate times curvature.
        staleness: τ, of every gradient, in steps.
        momentum: β, below 1.
    """
    check_not_negative(step=step)
    _check(staleness, momentum)
    if staleness > _MOST_STALENESS:
        raise ArgumentError(
            f"`staleness` is {staleness:,}; write at most {_MOST_STALENESS}, the roots of more take too long"
        )
    polynomial = np.zeros(max(staleness + 1, 2) + 1)
    polynomial[:3] = 1, -(1 + momentum), momentum
    polynomial[staleness + 1] += step
    return float(np.abs(np.roots(polynomial)).max())


def constant_staleness(
    *, learning_rate: float = 0.1, curvature: float = 1.0, staleness: int = 8, momentum: float = 0.0
) -> Bound:
    """Gradient descent with late gradients: the αλ up to which it converges, and how fast it does at yours.

    ``αλ < 2 sin(π/(2(2τ+1)))`` without momentum (Levin & May 1976); with it, by the roots of the companion polynomial.

    >>> bound = constant_staleness(staleness=16)
    >>> round(bound.value, 4), round(bound.also["change of the error in a step, at your αλ"], 4)
    (0.0952, 1.0021)

    Args:
        learning_rate: α.
        curvature: λ, the largest eigenvalue of the Hessian.
        staleness: τ, of every gradient, in steps.
        momentum: β, below 1.
    """
    check_positive(learning_rate=learning_rate, curvature=curvature)
    step = learning_rate * curvature
    limit = stability_limit(staleness=staleness, momentum=momentum)
    return Bound(
        quantity="largest αλ that converges",
        parts={"limit": limit},
        also={
            "your αλ": step,
            "largest learning rate": limit / curvature,
            "first staleness that diverges, at your αλ": first_unstable_staleness(step=step, momentum=momentum),
            "change of the error in a step, at your αλ": spectral_radius(
                step=step, staleness=staleness, momentum=momentum
            ),
        },
    )


def _check(staleness: int, momentum: float) -> None:
    check_not_negative(staleness=staleness)
    if not 0 <= momentum < 1:
        raise ArgumentError(f"`momentum` is {momentum:g}; write 0 or more and less than 1")
