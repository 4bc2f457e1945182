"""Check statements on a staleness bound that changes while a run goes on."""

import math

import numpy as np

from plesio_planning.theory.changing_bound import changing_bound, chosen_bound
from plesio_planning.theory.chosen_staleness import in_flight_sgd, scheduled_sgd, worst_descent
from plesio_planning.theory.dynamics import delayed_descent
from plesio_planning.theory.stability import stability_limit
from plesio_planning.theory.statements.statement import Witness


def _schedule_pays_for_the_mean() -> Witness:
    """Compute the error with a staleness of 40 for a tenth of the steps."""
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
