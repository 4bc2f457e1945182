"""Late gradients under a bound on staleness that changes while training runs: three statements, proved here.

A step is ``x[t+1] = x[t] - α_t (∇f(x[t-τ_t]) + ξ_t)``; f has an L-Lipschitz gradient and need not be convex; ``τ_t``
is at most t and at most ``s_t``, the bound of this update. ``W_t`` are the updates ``t-τ_t .. t-1``, which the
gradient has not seen. The noise ``ξ_t`` has mean 0 and at most the variance σ², *given all updates so far and the
staleness τ_t*.

1. The descent lemma, with ``2⟨a, b⟩ = ‖a‖² + ‖b‖² - ‖a-b‖²`` and ``b_t = ∇f(x[t-τ_t])``, gives (Lian et al. 2015)

       E f(x[t+1]) ≤ E f(x[t]) - α_t/2 E‖∇f(x[t])‖² - α_t/2 (1-α_t L) E‖b_t‖² + α_t²Lσ²/2
                     + α_t L²/2 E‖x[t] - x[t-τ_t]‖²,

   because ``ξ_t`` has mean 0 whatever ``x[t]`` and ``τ_t`` are. The last norm is at most
   ``2 τ_t Σ_{j∈W_t} α_j² ‖b_j‖²  +  2 ‖Σ_{j∈W_t} α_j ξ_j‖²``.
2. Summed over t, ``‖b_j‖²`` comes with ``α_j² L² Σ_{t: j∈W_t} α_t τ_t`` from the last line. The premise says that
   this is at most ``α_j/2 (1-α_j L)``, so all ``‖b_j‖²`` can be left out. With one rate the sum is at most ``αs²``
   for the largest s.
3. The noise is where it matters who chose the staleness. If it was fixed beforehand, different ``ξ_j`` are
   uncorrelated, and the sum's mean square is ``σ² Σ_{W_t} α_j²``: the bounds count by their *mean*
   (`changing_bound`). If it was chosen by somebody who has seen the ``ξ_j`` of the updates so far, the window may be
   the one with the largest sum. Doob's inequality (1953) and Minkowski's say that this is at most ``(1+2)² α²Sσ²``,
   and Cauchy-Schwarz ``α²S²σ²``: the *largest* bound counts, up to nine times (`chosen_bound`).

Limits:

- A rule that sees gradients *in flight* gives ``ξ_t`` another mean, and so does a worker whose step takes longer for
  some samples than for others, or a guard that drops or scales down gradients by their size.
  `plesio_planning.theory.chosen_staleness` has a rule of the first kind that breaks both bounds.
- Momentum and Adam: ``x[t] - x[t-τ]`` is no longer a sum of the window's gradients. The premises do not suffice there.
- Compression, local steps and worker averages; workers with unlike data, whose gradients are no unbiased ones of f.

Without noise a quadratic shows what change alone does (`varying_staleness`).
"""

import itertools
import math

from plesio.core.checks import check_count, check_not_negative, check_positive
from plesio.core.errors import ArgumentError
from plesio_planning.theory.bound import Bound, Condition
from plesio_planning.theory.premises import largest_late_step, late_premise
from plesio_planning.theory.stability import stability_limit

_DOOB = 9
"""(1+2)²: of the window that ends now and has the largest sum, over the mean square of the whole sum."""


def staleness_of_lead(lead: int, *, num_workers: int) -> int:
    """Return the staleness that no update exceeds if no worker starts a step over ``lead`` steps ahead of the slowest.

    ``(2s+1)(n-1)``, for workers that pull before and push after every step: at the pull another worker's clock is at
    most s below this one's, at the push at most s+1 above it (after Ho et al. 2013).

    >>> staleness_of_lead(0, num_workers=8), staleness_of_lead(4, num_workers=8)
    (7, 63)

    Args:
        lead: s, of an SSP policy; of an update the largest in force between its pull and its push.
        num_workers: n.
    """
    check_not_negative(lead=lead)
    check_count(num_workers=num_workers)
    return (2 * lead + 1) * (num_workers - 1)


def changing_bound(
    *,
    smoothness: float = 1.0,
    gap: float = 10.0,
    gradient_variance: float = 1.0,
    bounds: tuple[int, ...] = (2, 16, 4, 0),
    learning_rates: tuple[float, ...] = (0.01,),
    num_steps_each: int = 2500,
) -> Bound:
    """Late gradients under bounds that change by a schedule: mean squared gradient norm, for any smooth function.

    ``(2Δ + Lσ²Σα_t² + 2L²σ²Σ α_t Σ_{j∈W_t} α_j²) / Σα_t``, each update's norm weighted with its rate; with one rate
    ``2Δ/(αT) + αLσ² + 2α²L²σ²s̄``, s̄ the mean of the bounds. So a large bound is paid for while it lasts. The
    premise is on the largest: ``αL + 2α²L²s² ≤ 1``; with a rate for each bound, what α_i must satisfy is about the
    bounds i and i+1, and ``α_i ≤ 1/(√2 L(1+max(s_i, s_{i+1})))`` suffices. At these rates the start's part is ``2√2
    LΔ/T`` times the *harmonic* mean of ``1+max(s_i, s_{i+1})``. The schedule is fixed beforehand; or whoever made it
    saw no gradient. One bound is Lian, Huang, Li & Liu 2015; the proof is at the head of
    `plesio_planning.theory.changing_bound`.

    >>> bound = changing_bound()
    >>> {name: round(part, 5) for name, part in bound.parts.items()}, bound.also["mean bound (updates)"]
    ({'start': 0.2, 'noise': 0.01, 'staleness': 0.0011}, 5.5)

    Args:
        smoothness: L, of the gradient.
        gap: Δ, from the start's value to the lowest.
        gradient_variance: σ², of an update's gradient.
        bounds: s_i, no gradient is later while this one holds; in updates, one after the other.
        learning_rates: α, one for all bounds or one for each.
        num_steps_each: Updates under each bound.

    Raises:
        ConfigError: The premise does not hold, a bound holds for fewer updates than it has, or an argument is
            out of range.
    """
    _check_schedule(bounds, learning_rates)
    check_positive(smoothness=smoothness, gap=gap)
    check_not_negative(gradient_variance=gradient_variance)
    check_count(num_steps_each=num_steps_each)
    rates = learning_rates * len(bounds) if len(learning_rates) == 1 else learning_rates
    total = math.fsum(rates) * num_steps_each
    squares = math.fsum(rate**2 for rate in rates) * num_steps_each
    windows = _sum_over_windows(rates, bounds, num_steps_each=num_steps_each)
    return Bound(
        quantity="mean E‖∇f‖²",
        parts={
            "start": 2 * gap / total,
            "noise": smoothness * gradient_variance * squares / total,
            "staleness": 2 * smoothness**2 * gradient_variance * windows / total,
        },
        conditions=(
            Condition(
                premise="s_i ≤ updates under s_i",
                value=max(bounds),
                limit=num_steps_each,
                remedy=f"write a `num_steps_each` of at least {max(bounds)}",
            ),
            _schedule_premise(rates, bounds, smoothness=smoothness),
        ),
        also={
            "mean bound (updates)": sum(bounds) / len(bounds),
            "largest bound (updates)": max(bounds),
            "largest learning rate for all": largest_late_step(max(bounds)) / smoothness,
        },
    )


def chosen_bound(
    *,
    smoothness: float = 1.0,
    gap: float = 10.0,
    gradient_variance: float = 1.0,
    learning_rate: float = 0.01,
    max_bound: int = 16,
    num_steps: int = 10_000,
) -> Bound:
    """Late gradients under a bound that a rule chooses as it goes: mean squared gradient norm, for any smooth function.

    ``2Δ/(αT) + αLσ² + 2α²L²σ² S min(9, S)`` for ``αL + 2α²L²S² ≤ 1``, where S is the largest bound that the rule may
    choose. It may look at everything that has been applied, the gradients among it, and at no gradient in flight. It
    pays for the largest bound, and up to nine times as much for the staleness as a schedule that is fixed beforehand,
    because it may choose the moments at which staleness does most harm. After Lian, Huang, Li & Liu 2015 and Doob
    1953; the proof, and what it does not cover, are at the head of `plesio_planning.theory.changing_bound`.

    >>> bound = chosen_bound(max_bound=10)
    >>> {name: round(part, 4) for name, part in bound.parts.items()}
    {'start': 0.2, 'noise': 0.01, 'staleness': 0.018}

    Args:
        smoothness: L, of the gradient.
        gap: Δ, from the start's value to the lowest.
        gradient_variance: σ², of an update's gradient, given the updates so far.
        learning_rate: α, constant.
        max_bound: S, the largest bound that may be chosen; in updates.
        num_steps: T, updates.

    Raises:
        ConfigError: ``αL + 2α²L²S² ≤ 1`` does not hold, or an argument is out of range.
    """
    check_positive(smoothness=smoothness, gap=gap, learning_rate=learning_rate)
    check_not_negative(gradient_variance=gradient_variance, max_bound=max_bound)
    check_count(num_steps=num_steps)
    step, largest = learning_rate * smoothness, largest_late_step(max_bound) / smoothness
    return Bound(
        quantity="mean E‖∇f‖²",
        parts={
            "start": 2 * gap / (learning_rate * num_steps),
            "noise": step * gradient_variance,
            "staleness": 2 * step**2 * max_bound * min(_DOOB, max_bound) * gradient_variance,
        },
        conditions=(late_premise("αL + 2α²L²S² ≤ 1", learning_rate, smoothness=smoothness, staleness=max_bound),),
        also={"largest learning rate": largest},
    )


def varying_staleness(*, curvature: float = 1.0, max_staleness: int = 8) -> Bound:
    """Gradient descent whose staleness changes from step to step: the αλ that converges under any changes.

    ``αλ < 3/(2(S+1))`` suffices on a quadratic: drawn as a curve, the iterates solve ``x'(t) = -αλ x(t - r(t))`` with
    a delay r of at most S+1, and such converge below 3/2 (Yorke 1970). Constant staleness bears about π/2 instead
    (`theory.stability`); from S = 2 on at 0.97 of what it bears changes exist under which the error grows
    (`plesio_planning.theory.chosen_staleness.worst_descent`).

    >>> bound = varying_staleness(max_staleness=15)
    >>> bound.value, round(bound.also["the same with a constant staleness of S"], 4)
    (0.09375, 0.1013)

    Args:
        curvature: λ, the largest eigenvalue of the Hessian.
        max_staleness: S, no gradient is later; in steps.
    """
    check_positive(curvature=curvature)
    check_not_negative(max_staleness=max_staleness)
    limit = 1.5 / (max_staleness + 1)
    return Bound(
        quantity="αλ that converges under any changes",
        parts={"limit": limit},
        also={
            "largest sufficient learning rate": limit / curvature,
            "the same with a constant staleness of S": stability_limit(staleness=max_staleness),
        },
    )


def _check_schedule(bounds: tuple[int, ...], learning_rates: tuple[float, ...]) -> None:
    check_count(bounds=len(bounds))
    for bound in bounds:
        check_not_negative(bounds=bound)
    for rate in learning_rates:
        check_positive(learning_rates=rate)
    if len(learning_rates) not in (1, len(bounds)):
        raise ArgumentError(
            f"`learning_rates` has {len(learning_rates)} values for {len(bounds)} bounds; write 1, or {len(bounds)}"
        )


def _sum_over_windows(rates: tuple[float, ...], bounds: tuple[int, ...], *, num_steps_each: int) -> float:
    """``Σ_t α_t Σ_{j∈W_t} α_j²`` with windows as long as they may be; before the first bound counts as under it."""
    total = 0.0
    for before, (rate, bound) in zip((rates[0], *rates), zip(rates, bounds, strict=True), strict=False):
        reach = bound * (bound + 1) / 2  # places of this bound's windows that are before its first update
        total += rate * (before**2 * reach + rate**2 * (num_steps_each * bound - reach))
    return total


def _schedule_premise(rates: tuple[float, ...], bounds: tuple[int, ...], *, smoothness: float) -> Condition:
    """Return the premise where it is nearest to its limit: ``α_j L + 2L²α_j Σ_{t: j∈W_t} α_t τ_t ≤ 1``."""
    values = []
    phases = [*zip(rates, bounds, strict=True)]
    for (rate, bound), (next_rate, next_bound) in itertools.pairwise([*phases, phases[-1]]):
        last = next_rate * next_bound**2  # of the windows that hold the last update under this bound
        earlier = rate * bound**2 + next_rate * next_bound * max(0, next_bound - bound)
        values.append(rate * smoothness * (1 + 2 * smoothness * max(last, earlier)))
    if len(set(rates)) == 1:
        remedy = f"{largest_late_step(max(bounds)) / smoothness:.4g}"
    else:
        larger = [max(pair) for pair in itertools.pairwise([*bounds, bounds[-1]])]
        remedy = ", ".join(f"{1 / (math.sqrt(2) * smoothness * (1 + bound)):.4g}" for bound in larger)
    return Condition(
        premise="α_j L + 2L²α_j Σ_{t: j∈W_t} α_t s_t ≤ 1",
        value=max(values),
        limit=1.0,
        remedy=f"write `learning_rates` of at most {remedy}",
    )
