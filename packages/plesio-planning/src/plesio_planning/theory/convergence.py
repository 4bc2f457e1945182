"""How far from the optimum an optimizer still is after T steps: bounds on error or on gradient norm.

Signs: L smoothness, μ strong convexity, D the distance ``‖x₀ - x*‖``, Δ the gap ``f(x₀) - f*``, α the learning rate, σ²
the variance of one sample's gradient, B samples a step, τ staleness in steps. Each bound is a sum: what is left of the
start shrinks with T, what noise (or error) holds up does not at a constant learning rate.

They are worst cases over all functions of a class, so a run may do much better, and none says anything of a function
outside the class. If an order is all that is known (`Bound.order`), the constants are left out.
"""

import math

from plesio.core.checks import check_count, check_not_negative, check_positive
from plesio_planning.theory.bound import Bound, Condition
from plesio_planning.theory.premises import largest_late_step, late_premise, rate_premise


def synchronous_sgd(
    *,
    smoothness: float = 1.0,
    distance: float = 10.0,
    gradient_variance: float = 1.0,
    learning_rate: float = 0.1,
    batch_size: int = 32,
    num_steps: int = 1000,
) -> Bound:
    """Synchronous SGD on a convex function: error of the mean iterate.

    ``E f(x̄) - f* ≤ D²/(2α(1-αL)T) + ασ²/(2(1-αL)B)`` for ``αL < 1`` (after Bubeck 2015).

    Why: a step moves the squared distance to x* by at most ``-2α(1-αL)(f-f*) + α²σ²/B``, since f is convex and
    ``‖∇f‖² ≤ 2L(f-f*)``; the sum over T steps telescopes.

    >>> bound = synchronous_sgd(smoothness=1, distance=10, gradient_variance=64, learning_rate=0.5, batch_size=32)
    >>> round(bound.value, 2), bound.parts
    (1.2, {'start': 0.2, 'noise': 1.0})

    Args:
        smoothness: L, of the gradient.
        distance: D, from the start to the optimum.
        gradient_variance: σ², of one sample's gradient.
        learning_rate: α, constant.
        batch_size: B, samples of all workers in a step.
        num_steps: T.

    Raises:
        ConfigError: ``αL < 1`` does not hold, or an argument is out of range.
    """
    check_positive(smoothness=smoothness, distance=distance, learning_rate=learning_rate)
    check_not_negative(gradient_variance=gradient_variance)
    check_count(batch_size=batch_size, num_steps=num_steps)
    left = 1 - learning_rate * smoothness or math.inf  # at 1 the premise fails, which `Bound` says
    return Bound(
        quantity="E f(x̄) - f*",
        parts={
            "start": distance**2 / (2 * learning_rate * left * num_steps),
            "noise": learning_rate * gradient_variance / (2 * left * batch_size),
        },
        conditions=(rate_premise("αL < 1", learning_rate, smoothness=smoothness, limit=1.0, strict=True),),
    )


def delayed_strongly_convex(
    *,
    smoothness: float = 1.0,
    strong_convexity: float = 0.01,
    distance: float = 10.0,
    gradient_variance: float = 1.0,
    max_staleness: int = 4,
    num_steps: int = 10_000,
) -> Bound:
    """SGD with late gradients on a strongly convex function: order of the error, at the best learning rate for T.

    ``Õ(L(1+τ)D² e^(-μT/(2L(1+τ))) + σ²/(μT))``: staleness slows what is left of the start, and costs nothing in the
    noise (Arjevani, Shamir & Srebro 2020, for quadratics; Stich & Karimireddy 2020). A learning rate of at most
    ``1/(2L(1+τ))`` suffices, from which the exponent's constant is taken; for constant staleness on a quadratic
    `plesio_planning.theory.stability` has the exact limit, which is three to four times that.

    >>> bound = delayed_strongly_convex(max_staleness=9, num_steps=20_000)
    >>> bound.order, round(bound.also["largest sufficient learning rate"], 3)
    (True, 0.05)

    Args:
        smoothness: L, of the gradient.
        strong_convexity: μ.
        distance: D, from the start to the optimum.
        gradient_variance: σ², of a step's gradient.
        max_staleness: τ, no gradient is later; in steps.
        num_steps: T.

    Raises:
        ConfigError: ``μ ≤ L`` does not hold, or an argument is out of range.
    """
    check_positive(smoothness=smoothness, strong_convexity=strong_convexity, distance=distance)
    check_not_negative(gradient_variance=gradient_variance, max_staleness=max_staleness)
    check_count(num_steps=num_steps)
    slowed = smoothness * (1 + max_staleness)
    return Bound(
        quantity="E f(x̄) - f*",
        order=True,
        parts={
            "start": slowed * distance**2 * math.exp(-strong_convexity * num_steps / (2 * slowed)),
            "noise": gradient_variance / (strong_convexity * num_steps),
        },
        conditions=(
            Condition(
                premise="μ ≤ L",
                value=strong_convexity,
                limit=smoothness,
                remedy=f"write a `strong_convexity` of at most {smoothness:g}",
            ),
        ),
        also={"largest sufficient learning rate": 1 / (2 * slowed)},
    )


def asynchronous_average_staleness(
    *,
    smoothness: float = 1.0,
    gap: float = 10.0,
    gradient_variance: float = 1.0,
    mean_staleness: float = 4.0,
    num_steps: int = 10_000,
) -> Bound:
    """Asynchronous SGD: order of the squared gradient norm by *mean* staleness, however long the longest is.

    ``O(√(LΔσ²/T) + LΔ(1+τ̄)/T)`` for learning rates that shrink with an update's own staleness (Koloskova, Stich & Jaggi
    2022; Mishchenko, Bach, Even & Woodworth 2022). With n workers that always compute, τ̄ is at most n-1. The staleness
    is in the part that falls faster: from ``T = LΔ(1+τ̄)²/σ²`` steps on it is the smaller one.

    >>> bound = asynchronous_average_staleness(mean_staleness=3, num_steps=1000)
    >>> round(bound.parts["noise"], 3), bound.parts["start and staleness"]
    (0.1, 0.04)

    Args:
        smoothness: L, of the gradient.
        gap: Δ, from the start's value to the lowest.
        gradient_variance: σ², of an update's gradient.
        mean_staleness: τ̄, over all updates.
        num_steps: T, updates.
    """
    check_positive(smoothness=smoothness, gap=gap)
    check_not_negative(gradient_variance=gradient_variance, mean_staleness=mean_staleness)
    check_count(num_steps=num_steps)
    scale = smoothness * gap
    also = {}
    if gradient_variance > 0:
        also["steps until the noise decides"] = scale * (1 + mean_staleness) ** 2 / gradient_variance
    return Bound(
        quantity="mean E‖∇f‖²",
        order=True,
        parts={
            "start and staleness": scale * (1 + mean_staleness) / num_steps,
            "noise": math.sqrt(scale * gradient_variance / num_steps),
        },
        also=also,
    )


def asynchronous_nonconvex(
    *,
    smoothness: float = 1.0,
    gap: float = 10.0,
    gradient_variance: float = 1.0,
    learning_rate: float = 0.01,
    max_staleness: int = 4,
    num_steps: int = 10_000,
) -> Bound:
    """Asynchronous SGD with bounded staleness on any smooth function: mean squared gradient norm.

    ``2Δ/(αT) + αLσ² + 2α²L²τσ²`` for ``αL + 2α²L²τ² ≤ 1`` (Lian, Huang, Li & Liu 2015).

    >>> bound = asynchronous_nonconvex(max_staleness=10)
    >>> {name: round(part, 4) for name, part in bound.parts.items()}
    {'start': 0.2, 'noise': 0.01, 'staleness': 0.002}

    Args:
        smoothness: L, of the gradient.
        gap: Δ, from the start's value to the lowest.
        gradient_variance: σ², of an update's gradient.
        learning_rate: α, constant.
        max_staleness: τ, no gradient is later; in updates.
        num_steps: T, updates.

    Raises:
        ConfigError: ``αL + 2α²L²τ² ≤ 1`` does not hold, or an argument is out of range.
    """
    check_positive(smoothness=smoothness, gap=gap, learning_rate=learning_rate)
    check_not_negative(gradient_variance=gradient_variance, max_staleness=max_staleness)
    check_count(num_steps=num_steps)
    step = learning_rate * smoothness
    return Bound(
        quantity="mean E‖∇f‖²",
        parts={
            "start": 2 * gap / (learning_rate * num_steps),
            "noise": step * gradient_variance,
            "staleness": 2 * step**2 * max_staleness * gradient_variance,
        },
        conditions=(late_premise("αL + 2α²L²τ² ≤ 1", learning_rate, smoothness=smoothness, staleness=max_staleness),),
        also={"largest learning rate": largest_late_step(max_staleness) / smoothness},
    )


def local_sgd(
    *,
    smoothness: float = 1.0,
    distance: float = 10.0,
    gradient_variance: float = 1.0,
    learning_rate: float = 0.01,
    num_workers: int = 8,
    period: int = 8,
    num_steps: int = 1_000_000,
) -> Bound:
    """Local SGD on a convex function, all workers drawing from the same data: error of the mean iterate.

    ``E f(x̄) - f* ≤ D²/(αT) + ασ²/n + 3/2 α²L(H-1)σ²`` for ``αL ≤ 1/4`` (after Khaled, Mishchenko & Richtárik 2020,
    identical data). The last part is the drift of the workers from their mean, whose mean square is
    at most ``α²(H-1)σ²``; it is 0 where they average after every step, and where there is no noise. Workers with unlike
    data drift even without noise, which this leaves out.

    >>> bound = local_sgd(period=5)
    >>> {name: round(part, 5) for name, part in bound.parts.items()}
    {'start': 0.01, 'noise': 0.00125, 'drift': 0.0006}

    Args:
        smoothness: L, of the gradient.
        distance: D, from the start to the optimum.
        gradient_variance: σ², of one worker's gradient.
        learning_rate: α, constant.
        num_workers: n.
        period: H, steps between two averagings.
        num_steps: T, of each worker.
    """
    check_positive(smoothness=smoothness, distance=distance, learning_rate=learning_rate)
    check_not_negative(gradient_variance=gradient_variance)
    check_count(num_workers=num_workers, period=period, num_steps=num_steps)
    return Bound(
        quantity="E f(x̄) - f*",
        parts={
            "start": distance**2 / (learning_rate * num_steps),
            "noise": learning_rate * gradient_variance / num_workers,
            "drift": 1.5 * learning_rate**2 * smoothness * (period - 1) * gradient_variance,
        },
        conditions=(rate_premise("αL ≤ 1/4", learning_rate, smoothness=smoothness, limit=0.25),),
        also={"period at which drift is as large as noise": 1 + 1 / (1.5 * learning_rate * smoothness * num_workers)},
    )


def compressed_gradients(
    *, smoothness: float = 1.0, gap: float = 10.0, learning_rate: float = 0.1, error: float = 0.1, num_steps: int = 1000
) -> Bound:
    """Gradient descent whose gradients are off by at most ε: mean squared gradient norm.

    ``2Δ/(αT) + ε²`` for ``αL ≤ 1`` (by the descent lemma; Bertsekas & Tsitsiklis 2000 on gradients with errors). What
    is lost is not made good later: it leaves a floor of ε² however many steps there are.

    >>> compressed_gradients(num_steps=2000).parts
    {'start': 0.1, 'compression': 0.010000000000000002}

    Args:
        smoothness: L, of the gradient.
        gap: Δ, from the start's value to the lowest.
        learning_rate: α, constant.
        error: ε, norm by which the gradient that is used may differ from the right one.
        num_steps: T.

    Raises:
        ConfigError: ``αL ≤ 1`` does not hold, or an argument is out of range.
    """
    check_positive(smoothness=smoothness, gap=gap, learning_rate=learning_rate)
    check_not_negative(error=error)
    check_count(num_steps=num_steps)
    return Bound(
        quantity="mean ‖∇f‖²",
        parts={"start": 2 * gap / (learning_rate * num_steps), "compression": error**2},
        conditions=(rate_premise("αL ≤ 1", learning_rate, smoothness=smoothness, limit=1.0),),
    )


def error_feedback(
    *,
    smoothness: float = 1.0,
    gap: float = 10.0,
    gradient_second_moment: float = 1.0,
    kept_share: float = 0.05,
    learning_rate: float = 0.001,
    num_steps: int = 100_000,
) -> Bound:
    """SGD with compressed gradients and error feedback: mean squared gradient norm.

    ``2Δ/(αT) + αLG² + 4α²L²(1-δ)G²/δ²`` (Karimireddy, Rebjock, Stich & Jaggi 2019), with
    ``E‖g‖² ≤ G²`` and a compressor that loses at most ``1-δ`` of a vector's squared norm: for the k largest of d
    coordinates δ is at least k/d. The compressor is in the part with α² only, so that it costs nothing as α falls.

    >>> bound = error_feedback(kept_share=0.5, learning_rate=0.01)
    >>> {name: round(part, 6) for name, part in bound.parts.items()}
    {'start': 0.02, 'noise': 0.01, 'compression': 0.0008}

    Args:
        smoothness: L, of the gradient.
        gap: Δ, from the start's value to the lowest.
        gradient_second_moment: G², largest mean of a gradient's squared norm.
        kept_share: δ, share of the squared norm that the compressor keeps at least.
        learning_rate: α, constant.
        num_steps: T.

    Raises:
        ConfigError: ``δ ≤ 1`` does not hold, or an argument is out of range.
    """
    check_positive(smoothness=smoothness, gap=gap, learning_rate=learning_rate, kept_share=kept_share)
    check_not_negative(gradient_second_moment=gradient_second_moment)
    check_count(num_steps=num_steps)
    step = learning_rate * smoothness
    return Bound(
        quantity="mean E‖∇f‖²",
        parts={
            "start": 2 * gap / (learning_rate * num_steps),
            "noise": step * gradient_second_moment,
            "compression": 4 * step**2 * (1 - kept_share) * gradient_second_moment / kept_share**2,
        },
        conditions=(
            Condition(premise="δ ≤ 1", value=kept_share, limit=1.0, remedy="write a `kept_share` of at most 1"),
        ),
    )
