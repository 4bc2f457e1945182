"""Check statements from the theorems of the text: on noise, staleness, speed-up, and stability."""

import numpy as np

from plesio_planning.theory.communication import speedup
from plesio_planning.theory.convergence import synchronous_sgd
from plesio_planning.theory.dynamics import delayed_descent, iterations_to, noise_floor
from plesio_planning.theory.gradient_noise import critical_batch
from plesio_planning.theory.stability import first_unstable_staleness, stability_limit
from plesio_planning.theory.statements.statement import Witness


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
    """Compare the bound with 0: an error is never negative, and neither may its bound be."""
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
