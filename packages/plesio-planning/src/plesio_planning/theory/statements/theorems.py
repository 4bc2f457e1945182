"""Statements from the theorems of the text: on noise, staleness, speed-up, and stability."""

import numpy as np

from plesio_planning.theory.communication import speedup
from plesio_planning.theory.convergence import synchronous_sgd
from plesio_planning.theory.dynamics import delayed_descent, iterations_to, noise_floor
from plesio_planning.theory.gradient_noise import critical_batch
from plesio_planning.theory.stability import first_unstable_staleness, stability_limit
from plesio_planning.theory.statements.statement import Statement, Witness

__all__ = ["THEOREM_STATEMENTS"]


def _large_batch_is_average_of_workers() -> Witness:
    random = np.random.default_rng(0)
    data, target, weights = random.normal(size=(64, 5)), random.normal(size=64), random.normal(size=5)
    gradients = data * (data @ weights - target)[:, None]
    whole = gradients.mean(axis=0)
    equal = np.abs(np.mean([part.mean(axis=0) for part in np.split(gradients, 8)], axis=0) - whole).max()
    unequal = np.abs(np.mean([part.mean(axis=0) for part in np.split(gradients, [8, 16])], axis=0) - whole).max()
    return Witness(equal < 1e-12, {"difference, equal shares": equal, "difference, unequal shares": unequal})


def _noise_grows_with_batch() -> Witness:
    floors = {batch: noise_floor(step=0.1, staleness=0) / batch for batch in (1, 16)}
    return Witness(floors[16] > floors[1], {f"variance in the long run, batch {b}": v for b, v in floors.items()})


def _bound_up_to_two_over_smoothness() -> Witness:
    """The error is never negative, so neither may its bound be."""
    rate, smoothness, distance, num_steps = 1.5, 1.0, 1.0, 100
    bound = rate * smoothness / (2 * (1 - rate * smoothness)) + 4 * smoothness * distance**2 / (2 * num_steps)
    return Witness(bound >= 0, {"αL": rate * smoothness, "the text's bound": bound})


def _sufficient_learning_rate() -> Witness:
    ratios = [stability_limit(staleness=staleness) * 2 * (1 + staleness) for staleness in range(500)]
    return Witness(min(ratios) > 1, {"smallest limit over 1/(2(1+τ)), τ below 500": min(ratios)})


def _floor_grows_quadratically() -> Witness:
    floors = {tau: noise_floor(step=1 / (2 * (1 + tau)), staleness=tau) for tau in (0, 10, 40)}
    numbers = {f"variance in the long run, τ = {tau}": floor for tau, floor in floors.items()}
    return Witness(floors[40] > 4 * floors[10], numbers)


def _staleness_leaves_an_error() -> Witness:
    left = {tau: abs(delayed_descent(step=1 / (2 * (1 + tau)), staleness=tau, num_steps=20_000)[-1]) for tau in (5, 50)}
    return Witness(max(left.values()) > 1e-9, {f"error after 20,000 steps, τ = {tau}": e for tau, e in left.items()})


def _speedup_is_the_ratio_of_times() -> Witness:
    ratio, errors = 0.3, []
    for workers in (1, 2, 8, 64, 1024):
        said = speedup(compute_s=1.0, exchange_s=ratio, num_workers=workers).value
        errors.append(abs(said - (1 + ratio) / (1 / workers + ratio)) / said)
    return Witness(max(errors) < 1e-12, {"largest relative difference, n to 1024": max(errors)})


def _speedup_is_below_the_simple_bound() -> Witness:
    workers, ratio = 64, 0.5
    exact = speedup(compute_s=1.0, exchange_s=ratio, num_workers=workers).value
    simple = workers / (1 + (workers - 1) * ratio)
    return Witness(exact <= simple, {"speed-up, n = 64, ρ = 0.5": exact, "n/(1+(n-1)ρ)": simple})


def _speedup_saturates_at_inverse_ratio() -> Witness:
    ratio = 1.0
    reached = speedup(compute_s=1.0, exchange_s=ratio, num_workers=10**9).value
    return Witness(abs(reached - 1 / ratio) < 0.01, {"speed-up, n = 10⁹, ρ = 1": reached, "1/ρ": 1 / ratio})


def _critical_batch_saves_nothing_more() -> Witness:
    saved = critical_batch().also["share of steps that a batch twice as large saves"]
    return Witness(saved < 0.01, {"steps saved by doubling the batch at B = B_noise (%)": 100 * saved})


def _aggregation_error_adds_up() -> Witness:
    """Descent on x²/2 with the worst error of norm ε: always away from the optimum."""
    means = {}
    for num_steps in (1_000, 100_000):
        x, total = 1.0, 0.0
        for _ in range(num_steps):
            total += x * x
            x -= 0.1 * (x - 0.1)
        means[num_steps] = total / num_steps
    numbers = {f"mean ‖∇f‖² over {num_steps:,} steps, ε² = 0.01": mean for num_steps, mean in means.items()}
    return Witness(means[100_000] > means[1_000], numbers)


def _iterations_grow_with_staleness() -> Witness:
    counts = {tau: iterations_to(1e-4, condition=100.0, staleness=tau) for tau in (5, 10, 20)}
    slopes = (counts[10] - counts[5]) / 5, (counts[20] - counts[10]) / 10
    numbers = {f"iterations at the best rate, τ = {tau}": count for tau, count in counts.items()}
    return Witness(abs(slopes[1] / slopes[0] - 1) < 0.05, numbers)


def _threshold_is_inverse_step() -> Witness:
    first = first_unstable_staleness(step=0.01)
    return Witness(abs(first * 0.01 - 1) < 0.05, {"1/(αλ)": 100.0, "first staleness that diverges, αλ = 0.01": first})


def _inverse_step_suffices() -> Witness:
    margins = [stability_limit(staleness=tau) * tau for tau in range(1, 500)]
    return Witness(min(margins) >= 1 - 1e-12, {"smallest limit times τ, τ below 500": min(margins)})


def _inverse_step_suffices_with_momentum() -> Witness:
    first = first_unstable_staleness(step=0.01, momentum=0.9)
    return Witness(first >= 100, {"1/(αλ)": 100.0, "first staleness that diverges, αλ = 0.01, β = 0.9": first})


def _tradeoff_inequality() -> Witness:
    """√(2 C V) with C in seconds and V in bytes has no unit of time: it says something else in milliseconds."""
    iteration_s, latency_s, num_bytes = 0.1, 1e-5, 700e6
    claimed = (2 * latency_s * num_bytes) ** 0.5
    return Witness(iteration_s >= claimed, {"an iteration of 0.1 s is at least (seconds)": claimed})


def _time_falls_as_square_root() -> Witness:
    """T(n) for a second of computing, hops of a nanosecond, and 700 MB at 25 GB/s."""
    times_s = {n: 1.0 / n + 2e-9 * n + 700e6 / 25e9 for n in (256, 1024)}
    ratio = times_s[256] / times_s[1024]
    return Witness(ratio >= 1.9, {"time with 256 workers over time with 1024": ratio})


def _noise_vanishes_with_steps() -> Witness:
    values = {n: synchronous_sgd(num_steps=n).value for n in (10**4, 10**8)}
    return Witness(values[10**8] < 1e-3 * values[10**4], {f"bound after {n:.0e} steps": v for n, v in values.items()})


THEOREM_STATEMENTS: tuple[Statement, ...] = (
    Statement(
        place="definition: gradient aggregation",
        claim="The mean of the workers' mean gradients over equal shares is the gradient of the whole batch.",
        verdict="true",
        reason="A mean of means of equally many; with unequal shares they must be weighted by their samples.",
        check=_large_batch_is_average_of_workers,
    ),
    Statement(
        place="theorem 1",
        claim="The noise that synchronous SGD is left with grows with the batch.",
        verdict="false",
        reason="A mean over B samples has the variance σ²/B; the text's B is in the numerator.",
        check=_noise_grows_with_batch,
    ),
    Statement(
        place="theorem 1",
        claim="The bound holds for learning rates up to 2/L.",
        verdict="false",
        reason="It has 1-αL in a denominator and turns negative beyond 1/L; the proof needs αL < 1.",
        check=_bound_up_to_two_over_smoothness,
    ),
    Statement(
        place="theorem 1",
        claim="At a constant learning rate the bound goes to 0 with the number of steps.",
        verdict="false",
        reason="Only the start's part does; the noise stays until the learning rate falls.",
        check=_noise_vanishes_with_steps,
    ),
    Statement(
        place="theorem 2",
        claim="A learning rate of at most 1/(2L(1+τ)) keeps gradients that are τ steps late stable.",
        verdict="true",
        reason="The exact limit is three to four times as large.",
        check=_sufficient_learning_rate,
    ),
    Statement(
        place="theorem 2",
        claim="At that learning rate the remaining noise grows quadratically with the staleness.",
        verdict="false",
        reason="The learning rate falls with τ, and the noise with it.",
        check=_floor_grows_quadratically,
    ),
    Statement(
        place="theorem 3",
        claim="Staleness leaves an error that does not vanish with the number of steps.",
        verdict="false",
        reason="Without noise late gradients at a small enough rate reach the optimum; staleness only slows them.",
        check=_staleness_leaves_an_error,
    ),
    Statement(
        place="theorem 5",
        claim="With a communication time that does not depend on n the speed-up is n(1+ρ)/(1+nρ).",
        verdict="true",
        reason="It is the ratio of the two times.",
        check=_speedup_is_the_ratio_of_times,
    ),
    Statement(
        place="theorem 5",
        claim="n/(1+(n-1)ρ) is an upper bound of that speed-up.",
        verdict="false",
        reason="The exact one is larger: (1+ρ)(1+(n-1)ρ) is at least 1+nρ.",
        check=_speedup_is_below_the_simple_bound,
    ),
    Statement(
        place="theorem 5",
        claim="The speed-up saturates at 1/ρ.",
        verdict="false",
        reason="At (1+ρ)/ρ, which is one more.",
        check=_speedup_saturates_at_inverse_ratio,
    ),
    Statement(
        place="theorem 6",
        claim="From the critical batch on a larger batch saves no steps.",
        verdict="false",
        reason="At B_noise a batch twice as large still saves a quarter; the knee is soft.",
        check=_critical_batch_saves_nothing_more,
    ),
    Statement(
        place="theorem 7",
        claim="An aggregation error of ε adds up over the steps, to O(Tε²).",
        verdict="false",
        reason="It leaves a floor of ε² in the squared gradient norm, for any T.",
        check=_aggregation_error_adds_up,
    ),
    Statement(
        place="theorem 8",
        claim="At the best constant learning rate the iterations to a target grow linearly with the staleness.",
        verdict="true",
        reason="The largest stable rate falls as 1/τ.",
        check=_iterations_grow_with_staleness,
    ),
    Statement(
        place="theorem 9",
        claim="A staleness of 1/(αλ) is where late gradients begin to diverge.",
        verdict="false",
        reason="They do at about π/2 times that: a gradient may point uphill for a while and the error still shrink.",
        check=_threshold_is_inverse_step,
    ),
    Statement(
        place="theorem 9",
        claim="Below a staleness of 1/(αλ) gradient descent without momentum is stable.",
        verdict="true",
        reason="2 sin(π/(2(2τ+1))) is at least 1/τ for every τ from 1 on.",
        check=_inverse_step_suffices,
    ),
    Statement(
        place="theorem 9, with momentum",
        claim="The same holds with momentum.",
        verdict="false",
        reason="Momentum 0.9 multiplies a step by ten in the long run, and the limit falls with it.",
        check=_inverse_step_suffices_with_momentum,
    ),
    Statement(
        place="theorem 10",
        claim="An iteration takes at least √(2CV), with C a latency and V the bytes to be sent.",
        verdict="false",
        reason="The root of seconds times bytes is no time: in other units it says something else.",
        check=_tradeoff_inequality,
    ),
    Statement(
        place="theorem 10",
        claim="Four times the workers halve the shortest possible iteration.",
        verdict="false",
        reason="The bytes of an iteration stay, and once they decide nothing more is saved.",
        check=_time_falls_as_square_root,
    ),
)
