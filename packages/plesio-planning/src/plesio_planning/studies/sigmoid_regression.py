"""Local SGD where the loss is not convex: sigmoid neurons that are fitted to data which every worker has of its own.

Worker w has m samples and the loss ``mean_i (σ(a_i·x) - y_i)²``, which is not convex in x: far out the sigmoid is
flat. Its inputs are shifted by an amount of its own, and its labels come from a teacher of its own, so that workers'
optima differ. Gradients are exact but for added noise. There is no closed form, so runs are done, for several steps at
once, and the one that arrives first counts, as for the quadratics of `studies.heterogeneous_quadratic`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SigmoidRegression", "make_sigmoid_regression"]

Array = NDArray[np.float64]

_STEPS = np.geomspace(0.25, 32.0, 10)
"""α that are tried; the curvature of the loss is about an eighth."""
_LONG = 4000
"""Steps of the descent without noise that finds the least loss."""
_NUM_SAMPLES = 24


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

    @property
    def first(self) -> float:
        """Loss of the start above the least."""
        return float(_loss(self.inputs, self.labels, self.start)) - self.least

    def iterations_to(self, share: float, *, period: int, most: int, num_trials: int, seed: int) -> tuple[float, float]:
        """Return the best step, and each worker's steps until the trials' mean loss stays low; infinite if it does not.

        Args:
            share: Loss above the least that is wanted, as a share of the start's.
            period: K, local steps between two averagings of the parameters.
            most: Steps of each worker.
            num_trials: Trials of each step, with noise of their own.
            seed: Seed of the noise.
        """
        num_rounds = most // period
        losses = self._losses(period=period, num_rounds=num_rounds, num_trials=num_trials, seed=seed)
        wanted = self.least + share * self.first
        best = (0.0, math.inf)
        for step, of_step in zip(_STEPS.tolist(), losses, strict=True):
            late = np.flatnonzero(of_step > wanted)
            rounds = math.inf if late[-1] == num_rounds else float(late[-1]) + 1
            if rounds * period < best[1]:
                best = (step, rounds * period)
        return best

    def _losses(self, *, period: int, num_rounds: int, num_trials: int, seed: int) -> Array:
        """Return the mean loss of the trials after each round, the start's first, (steps, rounds + 1)."""
        random, num_workers = np.random.default_rng(seed), len(self.inputs)
        steps = np.repeat(_STEPS, num_trials)[:, None, None]
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
        found: Array = losses.reshape(num_rounds + 1, len(_STEPS), num_trials).mean(axis=2).T
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
