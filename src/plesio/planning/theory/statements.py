"""Statements that textbooks on distributed training make, each with a check that computes whether it holds.

They are from the definitions, theorems and exercises of the text that the studies are after ("Large-Scale Systems,
Parallelism & Communication Models", chapter 23 of a textbook), in our words, and each names its place there. A check
returns the numbers that decide: a counterexample, or the claim at many places. None of them knows the verdict; the
tests hold what they compute to `Statement.verdict`.

Where a statement is about all functions or all settings, a check can only refute it: a "true" here is a claim that was
also proved (`Statement.reason`), and whose numbers agree.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from plesio.planning.theory.changing_bound import changing_bound, chosen_bound
from plesio.planning.theory.chosen_staleness import in_flight_sgd, scheduled_sgd, worst_descent
from plesio.planning.theory.communication import all_reduce_bytes, asynchronous_rate, speedup
from plesio.planning.theory.convergence import critical_batch, synchronous_sgd
from plesio.planning.theory.dynamics import delayed_descent, iterations_to, noise_floor
from plesio.planning.theory.parallelism import pipeline_bubble
from plesio.planning.theory.reliability import best_interval_s, young_interval_s
from plesio.planning.theory.stability import first_unstable_staleness, spectral_radius, stability_limit

__all__ = ["STATEMENTS", "Statement", "Witness"]


@dataclass(frozen=True, slots=True)
class Witness:
    """What a check found.

    Attributes:
        holds: Whether the statement does.
        numbers: What shows it, by name.
    """

    holds: bool
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A claim.

    Attributes:
        place: Where the text makes it.
        claim: In our words.
        verdict: Whether it is true.
        reason: Why, in one line.
        check: Computes a witness.
    """

    place: str
    claim: str
    verdict: Literal["true", "false"]
    reason: str
    check: Callable[[], Witness]


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
        said = speedup(compute_s=1.0, communicate_s=ratio, num_workers=workers).value
        errors.append(abs(said - (1 + ratio) / (1 / workers + ratio)) / said)
    return Witness(max(errors) < 1e-12, {"largest relative difference, n to 1024": max(errors)})


def _speedup_is_below_the_simple_bound() -> Witness:
    workers, ratio = 64, 0.5
    exact = speedup(compute_s=1.0, communicate_s=ratio, num_workers=workers).value
    simple = workers / (1 + (workers - 1) * ratio)
    return Witness(exact <= simple, {"speed-up, n = 64, ρ = 0.5": exact, "n/(1+(n-1)ρ)": simple})


def _speedup_saturates_at_inverse_ratio() -> Witness:
    ratio = 1.0
    reached = speedup(compute_s=1.0, communicate_s=ratio, num_workers=10**9).value
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


def _half_full_pipeline() -> Witness:
    bubble = pipeline_bubble(num_stages=8, num_micro_batches=16).value
    return Witness(bubble < 0.05, {"bubble, p = 8, m = 16 (%)": 100 * bubble})


def _ten_micro_batches() -> Witness:
    bound = pipeline_bubble(num_stages=8, num_micro_batches=10)
    utilisation = 1 - bound.value
    needed = bound.also["micro-batches for 90 % utilisation"]
    return Witness(utilisation >= 0.9, {"utilisation, m = 10 (%)": 100 * utilisation, "m that is needed": needed})


def _ring_is_below_twice_the_message() -> Witness:
    sent = [all_reduce_bytes(message_bytes=1.0, num_ranks=ranks).value for ranks in (2, 16, 1024, 10**6)]
    return Witness(max(sent) < 2, {"bytes sent over message, largest, n to 10⁶": max(sent)})


def _compression_speeds_up_all_reduces() -> Witness:
    """By 4, for a megabyte over 255 hops of a ring with 10 µs and 50 GB/s."""
    latency_s = 2 * 255 * 10e-6
    plain_s, packed_s = (latency_s + all_reduce_bytes(message_bytes=size).value / 50e9 for size in (1e6, 0.25e6))
    return Witness(plain_s / packed_s > 3.9, {"speed-up of a 1 MB all-reduce, 256 ranks": plain_s / packed_s})


def _gradient_of_gpt3() -> Witness:
    seconds = all_reduce_bytes(message_bytes=700e9, num_ranks=1024).value / 100e9
    return Witness(0.1 <= seconds < 0.2, {"seconds for 700 GB at 100 GB/s": seconds})


def _parameter_server_hub() -> Witness:
    workers, num_bytes = 1000, 4e9
    seconds = 2 * workers * num_bytes / 100e9
    return Witness(abs(seconds - 80) < 1, {"seconds, each way 4 TB at 100 GB/s": seconds})


def _local_sgd_is_asynchrony() -> Witness:
    step, period = 0.1, 50
    local = (1 - step) ** period  # all workers alike: as one
    stale = spectral_radius(step=step, staleness=period) ** period
    return Witness((local < 1) == (stale < 1), {"error after 50 local steps": local, "with a staleness of 50": stale})


def _asynchronous_speed_is_the_mean() -> Witness:
    times_s = (1.0, 1.0, 1.0, 5.0)
    rate = asynchronous_rate(step_times_s=times_s).value
    mean = len(times_s) / (sum(times_s) / len(times_s))
    return Witness(abs(rate / mean - 1) < 0.01, {"updates a second": rate, "n over the mean step time": mean})


def _young_for_three_days() -> Witness:
    times = {"checkpoint_s": 600.0, "mtbf_s": 259_200.0}
    young_h, best_h = young_interval_s(**times) / 3600, best_interval_s(**times) / 3600
    return Witness(abs(young_h - 5) < 0.25, {"Young's interval (h)": young_h, "exact (h)": best_h})


def _noise_vanishes_with_steps() -> Witness:
    values = {n: synchronous_sgd(num_steps=n).value for n in (10**4, 10**8)}
    return Witness(values[10**8] < 1e-3 * values[10**4], {f"bound after {n:.0e} steps": v for n, v in values.items()})


def _schedule_pays_for_the_mean() -> Witness:
    """A staleness of 40 for a tenth of the steps."""
    bounds, each = (0,) * 9 + (40,), 500
    error = scheduled_sgd(learning_rates=(0.01,), bounds=bounds, num_steps_each=each)
    bound = changing_bound(gap=math.log(2) / 2, bounds=bounds, learning_rates=(0.01,), num_steps_each=each)
    numbers = {
        "mean squared gradient, f = log(1+x²)/2": error,
        "bound": bound.value,
        "its part for staleness": bound.parts["staleness"],
    }
    return Witness(error <= bound.value, numbers)


def _varying_is_as_stable_as_constant() -> Witness:
    staleness, num_steps = 8, 1000
    step = 0.98 * stability_limit(staleness=staleness)
    varying = worst_descent(step=step, max_staleness=staleness, num_steps=num_steps)
    constant = delayed_descent(step=step, staleness=staleness, num_steps=num_steps)
    last = {"constant": float(np.abs(constant[-50:]).max()), "varying": max(map(abs, varying[-50:]))}
    numbers = {f"error after 1000 steps, 0.98 of the limit for τ = 8, {name}": error for name, error in last.items()}
    return Witness(last["varying"] <= max(last["constant"], 1.0), numbers)


def _in_flight_may_be_looked_at() -> Witness:
    bound, num_steps = 256, 5000
    step = chosen_bound(max_bound=bound, learning_rate=1e-6).also["largest learning rate"]
    allowed = chosen_bound(max_bound=bound, learning_rate=step * (1 - 1e-9), gap=1e-9, num_steps=num_steps)
    blind, peeking = (
        in_flight_sgd(
            step=step, num_workers=bound // 2, max_staleness=bound, num_steps=num_steps, peeks=peeks, num_runs=10
        )
        for peeks in (False, True)
    )
    numbers = {"mean squared gradient, chosen blindly": blind, "chosen by the noise in flight": peeking}
    return Witness(peeking <= allowed.value, {**numbers, "bound": allowed.value})


def _premise_suffices_with_momentum() -> Witness:
    step = chosen_bound(max_bound=10).also["largest learning rate"]
    limit = stability_limit(staleness=10, momentum=0.9)
    return Witness(step < limit, {"largest αL by the premise, S = 10": step, "limit with τ = 10, β = 0.9": limit})


STATEMENTS: tuple[Statement, ...] = (
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
    Statement(
        place="definition: all-reduce",
        claim="Gradients that are compressed four times are all-reduced four times as fast.",
        verdict="false",
        reason="Only where bytes decide; latency stays.",
        check=_compression_speeds_up_all_reduces,
    ),
    Statement(
        place="definition: all-reduce",
        claim="An all-reduce of 700 GB takes 100 to 200 ms at 100 GB/s.",
        verdict="false",
        reason="14 s: the number is that of 7 GB.",
        check=_gradient_of_gpt3,
    ),
    Statement(
        place="definition: parameter server",
        claim="One server at 100 GB/s needs 80 s an iteration for 1000 workers with 4 GB each.",
        verdict="true",
        reason="4 TB each way.",
        check=_parameter_server_hub,
    ),
    Statement(
        place="definition: delayed gradient",
        claim="K local steps are stable just where a staleness of K is.",
        verdict="false",
        reason="A local step has a fresh gradient of its own replica.",
        check=_local_sgd_is_asynchrony,
    ),
    Statement(
        place="definition: fault tolerance",
        claim="States that take 10 min to write, and failures every 3 days, ask for one about every 5 hours.",
        verdict="true",
        reason="Young's formula; the exact interval is 4 % shorter.",
        check=_young_for_three_days,
    ),
    Statement(
        place="exercise C.4",
        claim="In a ring no rank sends more than twice the message, however many there are.",
        verdict="true",
        reason="2(N-1)/N is below 2.",
        check=_ring_is_below_twice_the_message,
    ),
    Statement(
        place="exercise C.5",
        claim="From m = 2p on the bubble is below 5 %.",
        verdict="false",
        reason="It is about a third; 5 % needs m = 19(p-1).",
        check=_half_full_pipeline,
    ),
    Statement(
        place="exercise C.5",
        claim="Ten micro-batches give eight stages a utilisation of 90 %.",
        verdict="false",
        reason="m/(m+p-1) is 0.9 at m = 9(p-1).",
        check=_ten_micro_batches,
    ),
    Statement(
        place="elsewhere",
        claim="Asynchronous workers together are as fast as n with the mean step time.",
        verdict="false",
        reason="Rates add up: n over the harmonic mean, which is never slower.",
        check=_asynchronous_speed_is_the_mean,
    ),
    Statement(
        place="changing bound",
        claim="A staleness bound that changes by a schedule costs by its mean, at a rate that its largest value bears.",
        verdict="true",
        reason="The noise of different updates is uncorrelated; proved in `plesio.planning.theory.changing_bound`.",
        check=_schedule_pays_for_the_mean,
    ),
    Statement(
        place="changing bound",
        claim="What converges with every gradient s steps late converges with every staleness up to s.",
        verdict="false",
        reason="Constant staleness bears a rate of about π/(2s), and staleness that changes 3/(2s).",
        check=_varying_is_as_stable_as_constant,
    ),
    Statement(
        place="changing bound",
        claim="A rule that chooses the bound may look at gradients in flight.",
        verdict="false",
        reason="Given what it chose, their noise has no mean of 0 any more; what has been applied it may look at.",
        check=_in_flight_may_be_looked_at,
    ),
    Statement(
        place="changing bound",
        claim="The learning rates that suffice for it suffice with momentum too.",
        verdict="false",
        reason="The premise is about the rate of a single update, and momentum uses every gradient again.",
        check=_premise_suffices_with_momentum,
    ),
)
"""In the order of the text, then those on a bound that changes."""
