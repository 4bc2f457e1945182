"""Local SGD where the loss is not convex: sigmoid neurons that are fitted to data which every worker has of its own.

Worker w has m samples and the loss ``mean_i (σ(a_i·x) - y_i)²``, which is not convex in x: far out the sigmoid is
flat. Its inputs are shifted by an amount of its own, and its labels come from a teacher of its own, so that workers'
optima differ. Gradients are exact but for added noise. There is no closed form, so runs are done, for several steps at
once on several draws of the data, and the one that arrives first counts, as for the quadratics of
`studies.heterogeneous_quadratic`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Table

Array = NDArray[np.float64]

_SHARE = 0.05
"""The target, as a share of the first loss."""
_NOISE = 0.2
"""Noise where the loss is not convex, over that of the quadratics: its gradients are smaller."""
_TRIALS, _STEPS = 3, 512
_WORKERS, _DIMENSIONS = 8, 10
"""Runs are really done here, so they are no larger whatever is asked for."""
_RATES = np.geomspace(0.25, 32.0, 10)
"""α that are tried; the curvature of the loss is about an eighth."""
_LONG = 4000
"""Steps of the descent without noise that finds the least loss."""
_NUM_SAMPLES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class NonConvex:
    """Local steps where the loss is not convex, on several draws of the data.

    Attributes:
        iterations: Steps of each worker until the target, with the best step, by period, for each draw.
        penalty: c, if iterations grow as 1 + cK, of the mean over the draws.
        best_period: The period that is first in the mean, with the study's times.
    """

    iterations: tuple[Mapping[int, float], ...]
    penalty: float
    best_period: int

    @property
    def over_first(self) -> tuple[Mapping[int, float], ...]:
        """Iterations over those of the fewest local steps, of the draws for which these arrive."""
        arriving = [of for of in self.iterations if math.isfinite(of[min(of)])]
        return tuple({period: number / of[min(of)] for period, number in of.items()} for of in arriving)

    def table(self) -> Table:
        """Make a row for each number of local steps."""
        means = {period: [each[period] for each in self.over_first] for period in self.iterations[0]}
        rows = [
            (
                str(period),
                *(iterations_text(of[period]) for of in self.iterations),
                f"{np.mean(over):.2f}" if over else "–",
            )
            for period, over in means.items()
        ]
        headers = ("local steps", *(f"data {number}" for number in range(len(self.iterations))), "over the first, mean")
        title = f"Not convex: iterations to {100 * _SHARE:g} % of the first loss, with the best step for each:"
        return Table(title=title, headers=headers, rows=rows)


def iterations_text(number: float) -> str:
    """Write a number of iterations; infinitely many are never done."""
    return f"{number:.0f}" if math.isfinite(number) else "never"


def nonconvex_local_steps(
    periods: Sequence[int], *, heterogeneity: float, noise: float, ratio: float, num_draws: int, seed: int
) -> NonConvex:
    """Find iterations to a share of the first loss by number of local steps, and the number that is first.

    The noise is that of the quadratics beside it, and ``ratio`` is communicating over computing.
    """
    draws, tried = [], [period for period in periods if period <= _STEPS] or [1]
    for draw in range(num_draws):
        problem = make_sigmoid_regression(
            num_workers=_WORKERS,
            num_dimensions=_DIMENSIONS,
            heterogeneity=heterogeneity,
            noise=_NOISE * noise,
            random=np.random.default_rng((seed, draw)),
        )
        draws.append({period: problem.iterations(period=period, seed=seed) for period in tried})
    arriving = [of for of in draws if math.isfinite(of[tried[0]])]
    mean = {
        period: float(np.mean([of[period] / of[tried[0]] for of in arriving])) if arriving else math.inf
        for period in tried
    }
    return NonConvex(
        iterations=tuple(draws),
        penalty=penalty_of(mean),
        best_period=first_to_end({period: number * (1 + ratio / period) for period, number in mean.items()}),
    )


def penalty_of(iterations: Mapping[int, float]) -> float:
    """Return the c of ``n (1 + cK)``, by least squares over all K that arrive; not below 0.

    >>> round(penalty_of({1: 110, 2: 120, 4: 140}), 6)
    0.1
    """
    arriving = {period: number for period, number in iterations.items() if math.isfinite(number)}
    if len(arriving) < 2:
        return 0.0
    slope, intercept = np.polyfit(list(arriving), list(arriving.values()), 1)
    return max(float(slope / intercept), 0.0)


def first_to_end(times: Mapping[int, float]) -> int:
    """Return the number of local steps with the least time."""
    return min(times, key=times.__getitem__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SigmoidRegression:
    """The objective of the workers.

    Attributes:
        inputs: a, (workers, samples, dimensions).
        labels: y, between 0 and 1, (workers, samples).
        noise: Standard deviation of a gradient's noise in each coordinate.
        start: The first parameters, (dimensions,).
        least: Mean loss of all workers where a descent without noise ends.
    """

    inputs: Array
    labels: Array
    noise: float
    start: Array
    least: float

    def iterations(self, *, period: int, seed: int) -> float:
        """Return each worker's steps until the trials' mean loss is low for good, with the best step; or infinity.

        ``period`` is K, the local steps between two averagings of the parameters.
        """
        losses = self._losses(period=period, num_rounds=_STEPS // period, seed=seed)
        first = float(_loss(self.inputs, self.labels, self.start)) - self.least
        late = [np.flatnonzero(of_rate > self.least + _SHARE * first)[-1] for of_rate in losses]
        return min((float(last + 1) * period for last in late if last < _STEPS // period), default=math.inf)

    def _losses(self, *, period: int, num_rounds: int, seed: int) -> Array:
        """Return the mean loss of the trials after each round, the start's first, (steps, rounds + 1)."""
        random, num_workers = np.random.default_rng(seed), len(self.inputs)
        steps = np.repeat(_RATES, _TRIALS)[:, None, None]
        shared = np.tile(self.start, (len(steps), 1))
        losses = np.empty((num_rounds + 1, len(steps)))
        losses[0] = _loss(self.inputs, self.labels, self.start)
        for number in range(1, num_rounds + 1):
            local = np.repeat(shared[:, None], num_workers, axis=1)
            for _ in range(period):
                noise = self.noise * random.standard_normal(local.shape)
                local -= steps * (_gradients(self.inputs, self.labels, local) + noise)
            shared = local.mean(axis=1)
            losses[number] = _loss(self.inputs, self.labels, shared)
        found: Array = losses.reshape(num_rounds + 1, len(_RATES), _TRIALS).mean(axis=2).T
        return found


def make_sigmoid_regression(
    *, num_workers: int, num_dimensions: int, heterogeneity: float, noise: float, random: np.random.Generator
) -> SigmoidRegression:
    """Draw data, and find the least loss.

    The standard deviation of a worker's teacher, and of its inputs' shift, in each coordinate is ``heterogeneity``.
    """
    shape = (num_workers, _NUM_SAMPLES, num_dimensions)
    inputs = random.standard_normal(shape)
    inputs += heterogeneity * random.standard_normal((num_workers, 1, num_dimensions))
    teachers = random.standard_normal(num_dimensions) + heterogeneity * random.standard_normal(
        (num_workers, num_dimensions)
    )
    labels = _sigmoid(np.einsum("wmd,wd->wm", inputs, teachers))
    start = 2 * random.standard_normal(num_dimensions)
    x = start.copy()
    for _ in range(_LONG):
        x -= _gradients(inputs, labels, np.tile(x, (1, num_workers, 1)))[0].mean(axis=0)
    return SigmoidRegression(
        inputs=inputs, labels=labels, noise=noise, start=start, least=float(_loss(inputs, labels, x))
    )


def _sigmoid(values: Array) -> Array:
    found: Array = 0.5 * (1 + np.tanh(values / 2))  # which does not overflow
    return found


def _gradients(inputs: Array, labels: Array, x: Array) -> Array:
    """Return each worker's own gradient, at its own parameters, (runs, workers, dimensions)."""
    output = _sigmoid(np.matmul(inputs, x[..., None])[..., 0])
    slope = 2 * (output - labels) * output * (1 - output) / labels.shape[1]
    found: Array = np.matmul(slope[..., None, :], inputs)[..., 0, :]
    return found


def _loss(inputs: Array, labels: Array, x: Array) -> Array:
    """Return the mean loss of all workers, at common parameters (..., dimensions)."""
    output = _sigmoid(np.einsum("wmd,...d->...wm", inputs, x))
    found: Array = ((output - labels) ** 2).mean(axis=(-2, -1))
    return found
