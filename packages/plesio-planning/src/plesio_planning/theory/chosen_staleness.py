"""Descents whose staleness is chosen: by a schedule, as badly as can be, or by somebody who sees gradients in flight.

Counterparts of `theory.changing_bound`. The first keeps its premises, the others show what happens without.
"""

import numpy as np


def scheduled_sgd(
    *, learning_rates: tuple[float, ...], bounds: tuple[int, ...], num_steps_each: int, num_runs: int = 200
) -> float:
    """Average the squared gradient of SGD on ``f(x) = log(1+x²)/2``, each step weighted with its rate, over many runs.

    f is not convex; L is 1 and Δ is ``f(1)``. Noise has the variance 1. Every gradient is as late as its bound allows.

    >>> value = scheduled_sgd(learning_rates=(0.01,), bounds=(0, 16), num_steps_each=500)
    >>> 0.01 < value < 0.1
    True

    Args:
        learning_rates: One for each bound, or one for all.
        bounds: Staleness, one after the other, in steps.
        num_steps_each: Steps under each.
        num_runs: Runs that the mean is over.
    """
    rates = learning_rates * len(bounds) if len(learning_rates) == 1 else learning_rates
    random = np.random.default_rng(0)
    num_steps = num_steps_each * len(bounds)
    x = np.ones((num_steps + 1, num_runs))
    weighted = np.zeros(num_runs)
    for t in range(num_steps):
        rate, bound = rates[t // num_steps_each], bounds[t // num_steps_each]
        late = x[max(t - bound, 0)]
        weighted += rate * (x[t] / (1 + x[t] ** 2)) ** 2
        x[t + 1] = x[t] - rate * (late / (1 + late**2) + random.normal(size=num_runs))
    return float(weighted.mean() / (sum(rates) * num_steps_each))


def worst_descent(*, step: float, max_staleness: int, num_steps: int) -> list[float]:
    """Return the error along one eigenvector, from 1 on, if the staleness drives it on at every step if it can.

    While the error grows the least of the last iterates is used, which lets it grow on if that is negative; while it
    falls the largest. From S = 2 on that diverges at 0.97 of the step that constant staleness bears.

    >>> from plesio_planning.theory.stability import stability_limit
    >>> limit = stability_limit(staleness=8)
    >>> [max(worst_descent(step=part * limit, max_staleness=8, num_steps=4000)[-40:]) > 1 for part in (0.9, 0.97)]
    [False, True]

    Args:
        step: αλ, learning rate times curvature.
        max_staleness: S, in steps.
        num_steps: Steps.
    """
    error = [1.0] * (max_staleness + 2)
    for _ in range(num_steps):
        window = error[-max_staleness - 1 :]
        rising = error[-1] > error[-2]
        least, largest = min(window), max(window)
        # where none of the last iterates drives it on, the one that turns it back hardest begins the next swing
        used = least if rising and least < 0 else largest if largest > 0 else least
        error.append(error[-1] - step * used)
    return error[max_staleness + 1 :]


def in_flight_sgd(
    *, step: float, num_workers: int, max_staleness: int, num_steps: int, peeks: bool, num_runs: int = 20, seed: int = 0
) -> float:
    """Average the squared gradient of SGD on ``x²/2`` from its optimum, where an adversary picks the next gradient.

    Every worker has one gradient in flight, with noise of +1 or -1. One that ``peeks`` applies next the gradient
    whose noise drives x farthest from the optimum, unless some other would then come later than the bound; else the
    oldest comes next.

    >>> setting = {"step": 0.01, "num_workers": 16, "max_staleness": 64, "num_steps": 1000}
    >>> in_flight_sgd(**setting, peeks=False) < in_flight_sgd(**setting, peeks=True)
    True

    Args:
        step: Learning rate; curvature is 1.
        num_workers: Gradients in flight.
        max_staleness: The bound, at least ``num_workers``; in updates.
        num_steps: Updates.
        peeks: Whether the noise of gradients in flight is looked at.
        num_runs: Runs that the mean is over.
        seed: Seed of the noise.
    """
    random = np.random.default_rng(seed)
    each, place = np.arange(num_runs), np.arange(num_workers)
    x, total = np.zeros(num_runs), np.zeros(num_runs)
    read = np.zeros((num_runs, num_workers))
    noise = random.choice((-1.0, 1.0), size=read.shape)
    pulled = np.tile(place - num_workers, (num_runs, 1))
    for t in range(num_steps):
        chosen = pulled.argmin(axis=1)
        if peeks:
            # the k-th oldest gradient can wait for k more updates at least
            pressing = (t - np.sort(pulled, axis=1) + place >= max_staleness).any(axis=1)
            harmful = np.where(x >= 0, noise.argmin(axis=1), noise.argmax(axis=1))
            chosen = np.where(pressing, chosen, harmful)
        total += x**2
        x = x - step * (read[each, chosen] + noise[each, chosen])
        read[each, chosen], pulled[each, chosen] = x, t + 1
        noise[each, chosen] = random.choice((-1.0, 1.0), size=num_runs)
    return float(total.mean() / num_steps)
