"""Premises on the learning rate that several theorems rest on."""

import math

from plesio_planning.theory.bound import Condition


def rate_premise(
    premise: str, learning_rate: float, *, smoothness: float, limit: float, strict: bool = False
) -> Condition:
    """Return the premise that ``αL`` is at most ``limit``, or below it."""
    how = "below" if strict else "of at most"
    remedy = f"write a `learning_rate` {how} {limit / smoothness:.4g}"
    return Condition(premise=premise, value=learning_rate * smoothness, limit=limit, strict=strict, remedy=remedy)


def late_premise(premise: str, learning_rate: float, *, smoothness: float, staleness: int) -> Condition:
    """Return the premise ``αL + 2α²L²τ² ≤ 1`` for gradients that are τ updates late at most (Lian et al. 2015)."""
    step = learning_rate * smoothness
    remedy = f"write a `learning_rate` of at most {largest_late_step(staleness) / smoothness:.4g}"
    return Condition(premise=premise, value=step + 2 * (step * staleness) ** 2, limit=1.0, remedy=remedy)


def largest_late_step(staleness: int) -> float:
    """Return the largest αL of `late_premise`: the positive root of ``s + 2τ²s² = 1``, without a division by τ."""
    return 2 / (1 + math.sqrt(1 + 8 * staleness**2))
