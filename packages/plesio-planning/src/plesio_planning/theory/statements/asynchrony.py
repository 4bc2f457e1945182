"""Check statements A.2, A.6, A.9, A.12 and A.16 of the text: late gradients, local steps, and what they can bear."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plesio_planning.theory.local_steps import local_staleness
from plesio_planning.theory.stability import first_unstable_staleness, stability_limit
from plesio_planning.theory.statements.statement import Witness

_RATES = (0.1, 0.03, 0.01)
_HIDDEN = 16
_NUM_SAMPLES = 32
_NUDGE = 1e-4

Loss = Literal["squared", "logistic"]


def _late_descent(*, rate: float, staleness: int) -> float:
    """Mean squared gradient in the last tenth of a descent on log(1+x²)/2 with every gradient ``staleness`` late."""
    xs = [1.0] * (staleness + 1)
    for _ in range(20_000):
        late = xs[-1 - staleness]
        xs.append(xs[-1] - rate * late / (1 + late * late))
    tail = np.array(xs[-2000:])
    return float(np.mean(np.square(tail / (1 + tail * tail))))


def _staleness_outgrows_the_rate() -> Witness:
    faster = [_late_descent(rate=rate, staleness=math.ceil(rate**-1.5)) for rate in _RATES]
    as_fast = [_late_descent(rate=rate, staleness=round(0.5 / rate)) for rate in _RATES]
    numbers = {
        "mean squared gradient in the end, τ = α^-1.5, smallest of α = .1, .03, .01": min(faster),
        "τ = 1/(2α), largest": max(as_fast),
    }
    return Witness(min(faster) > 1e-3 and max(as_fast) < 1e-6, numbers)


def _updates(times_s: NDArray[np.float64], *, lead: int) -> list[tuple[int, int, float]]:
    """(worker, version that it read, time) of each update, where no worker is more than ``lead`` steps ahead.

    ``times_s`` has a row for each worker and a column for each step; a worker that may not start waits for the slowest.
    """
    num_workers, num_steps = times_s.shape
    finished = np.zeros((num_workers, num_steps + 1))
    started = np.zeros((num_workers, num_steps))
    for step in range(num_steps):
        gate = finished[:, step - lead + 1].max() if step >= lead else 0.0
        started[:, step] = np.maximum(finished[:, step], gate)
        finished[:, step + 1] = started[:, step] + times_s[:, step]
    ends = np.sort(finished[:, 1:].ravel())
    reads = np.searchsorted(ends, started, side="right")
    order = np.argsort(finished[:, 1:], axis=None, kind="stable")
    return [(int(at // num_steps), int(reads.ravel()[at]), float(finished[:, 1:].ravel()[at])) for at in order]


def _time_to_target(updates: Sequence[tuple[int, int, float]], *, num_workers: int) -> float:
    """Seconds until descent on a quadratic (κ = 20) is within 1e-3 of the optimum, at the best of many rates."""
    rates = np.geomspace(0.05, 1.9, 30)[:, None]
    curvatures = np.array([1 / 20, 1.0])
    points, best = [np.ones((rates.size, 2))], np.full(rates.size, math.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for _, read, at_s in updates:
            points.append(points[-1] - rates / num_workers * curvatures * points[read])
            near = np.abs(points[-1]).max(axis=1) <= 1e-3
            best[~near] = math.inf  # a rate that comes near and leaves again has not arrived
            best[near] = np.minimum(best[near], at_s)
    return float(best.min())


def _looser_bounds_cut_both_ways() -> Witness:
    """Compare steps and time to a target with leads of 1 (a barrier) and 4 steps, of 8 workers with lognormal times."""
    num_workers, num_steps = 8, 250
    numbers: dict[str, float] = {}
    totals: dict[tuple[float, int], float] = {}
    steps: dict[tuple[float, int], float] = {}
    for variation in (0.1, 1.0):
        log_deviation = math.sqrt(math.log(1 + variation**2))
        random = np.random.default_rng(0)
        times_s = random.lognormal(-(log_deviation**2) / 2, log_deviation, size=(num_workers, num_steps))
        for lead in (1, 4):
            updates = _updates(times_s, lead=lead)
            steps[variation, lead] = updates[-1][2] / num_steps
            totals[variation, lead] = _time_to_target(updates, num_workers=num_workers)
            of = f"CV {variation:g}, {'barrier' if lead == 1 else 'lead of 4'}"
            numbers |= {
                f"time of a step, {of}": steps[variation, lead],
                f"to the target, {of}": totals[variation, lead],
            }
    faster = all(steps[variation, 4] < steps[variation, 1] for variation in (0.1, 1.0))
    return Witness(faster and totals[0.1, 4] > totals[0.1, 1] and totals[1.0, 4] < totals[1.0, 1], numbers)


def _missed_updates(*, period: int, num_workers: int) -> int:
    """Most updates that were applied between what a local step's gradient was computed from and its own turn.

    All updates of a round stand in a row, step by step and worker by worker, as a server would apply them. A gradient
    knows the state at the round's beginning and its own worker's steps.
    """
    row = [(step, worker) for step in range(period) for worker in range(num_workers)]
    return max(sum(1 for _, other in row[:place] if other != worker) for place, (_, worker) in enumerate(row))


def _local_steps_are_staleness() -> Witness:
    counted = {at: _missed_updates(period=at[0], num_workers=at[1]) for at in ((1, 8), (8, 2), (8, 8), (16, 8))}
    bounds = {at: local_staleness(period=at[0], num_workers=at[1]).value for at in counted}
    late = 8 * stability_limit(staleness=counted[8, 8])
    numbers = {f"updates missed, K = {at[0]}, n = {at[1]}": float(missed) for at, missed in counted.items()}
    numbers |= {"largest stable αλ, so many late, K = n = 8": late, "of 8 local steps on equal Hessians": 2.0}
    return Witness(counted == bounds, numbers, holds_otherwise=late > 1.5)


def _momentum_bears_less() -> Witness:
    limits = {staleness: stability_limit(staleness=staleness, momentum=0.9) for staleness in (0, 1, 10)}
    numbers = {f"largest stable αλ, β = 0.9, τ = {staleness}": limit for staleness, limit in limits.items()}
    plain = stability_limit(staleness=10)
    return Witness(limits[10] < 1.0 < limits[0], {**numbers, "τ = 10 without momentum": plain})


def _late_training_bears_less() -> Witness:
    rate, numbers, bears = 0.1, {}, {}
    for loss in ("squared", "logistic"):
        for moment, sharpness in zip(("at first", "in the end"), sharpness_of_training(loss), strict=True):
            bears[loss, moment] = first_unstable_staleness(step=rate * sharpness)
            numbers[f"sharpness, {loss} loss, {moment}"] = sharpness
            numbers[f"first staleness that diverges at α = {rate}, {loss} loss, {moment}"] = float(bears[loss, moment])
    falls = {loss: bears[loss, "in the end"] < bears[loss, "at first"] for loss in ("squared", "logistic")}
    return Witness(falls["squared"], numbers, holds_otherwise=falls["logistic"])


def sharpness_of_training(loss: Loss) -> tuple[float, float]:
    """Return the largest eigenvalue of the Hessian before the first step and after the last: the sharpness.

    A network of 16 tanh units learns the sign of a product of two inputs from 32 samples. Its sharpness rises under the
    squared loss (progressive sharpening; Cohen et al. 2021) and falls under the logistic loss once the samples are
    fitted, for its second derivative fades with the margin.

    >>> [round(each, 1) for each in sharpness_of_training("squared")]
    [3.2, 5.7]
    """
    random = np.random.default_rng(0)
    data = random.normal(size=(_NUM_SAMPLES, 2))
    first = random.normal(size=(2, _HIDDEN)) / np.sqrt(2)
    last = random.normal(size=_HIDDEN) / (2 * np.sqrt(_HIDDEN))
    parameters = np.concatenate([first.ravel(), np.zeros(_HIDDEN), last])
    begin = _sharpness(parameters, data, loss)
    for _ in range(2000):
        parameters = parameters - 0.3 * _gradient(parameters, data, loss)
    return begin, _sharpness(parameters, data, loss)


def _gradient(parameters: NDArray[np.float64], data: NDArray[np.float64], loss: Loss) -> NDArray[np.float64]:
    labels = np.sign(data[:, 0] * data[:, 1])
    first, shift, last = np.split(parameters, [2 * _HIDDEN, 3 * _HIDDEN])
    hidden = np.tanh(data @ first.reshape(2, _HIDDEN) + shift)
    output = hidden @ last
    slope = output - labels if loss == "squared" else -labels / (1 + np.exp(labels * output))
    back = np.outer(slope / _NUM_SAMPLES, last) * (1 - hidden * hidden)
    return np.concatenate([(data.T @ back).ravel(), back.sum(axis=0), hidden.T @ slope / _NUM_SAMPLES])


def _sharpness(parameters: NDArray[np.float64], data: NDArray[np.float64], loss: Loss) -> float:
    """By central differences of the gradient."""
    hessian = np.array(
        [
            (_gradient(parameters + nudge, data, loss) - _gradient(parameters - nudge, data, loss)) / (2 * _NUDGE)
            for nudge in _NUDGE * np.eye(parameters.size)
        ]
    )
    return float(np.linalg.eigvalsh((hessian + hessian.T) / 2)[-1])
