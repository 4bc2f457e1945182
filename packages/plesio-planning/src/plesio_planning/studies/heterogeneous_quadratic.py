"""Workers with quadratics of their own: where local SGD ends, and how fast it gets there, in closed form.

Theory. Worker w has ``f_w(x) = ½ Σ_j λ_wj (x_j - o_wj)²`` and gradients with noise of variance σ²; all Hessians are
diagonal. The mean of the f_w has its optimum in 0. A round of local SGD is K steps of α by everyone and an averaging of
the parameters. With ``a_wj = 1 - α λ_wj`` a round maps mean m and variance v of a coordinate by

    m' = A m + c,    A = mean_w a^K,    c = mean_w (1 - a^K) o_w
    v' = A² v + q,   q = α²σ² mean_w (1 - a^(2K)) / (1 - a²) / N

so both go geometrically to ``c / (1 - A)`` and ``q / (1 - A²)``, and the floor of the expected loss above the optimum
is ``½ Σ_j λ̄_j (m² + v)`` of those. With K = 1, ``c = α mean_w λ_w o_w`` is 0: no drift. With equal Hessians, c is 0 for
every K, whatever the workers' optima are, and v does not depend on K either: there is no penalty at all. It takes
unequal Hessians *and* unequal optima for local steps to drift (as in Charles & Konecny 2021, who solve the general
quadratic).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.studies.delayed_descent import eigenvalues_of

Array = NDArray[np.float64]

_NUM_STEPS = 200
_LEAST_STEP = 1e-3
"""Steps that are tried for the best one, and the least of them."""
_ROUNDS = np.unique(np.concatenate([[0], np.geomspace(1, 1e6, 150).round()])).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounds:
    """Mean and variance of the averaged parameters, round by round, for one step and period.

    Attributes:
        keeps: A, what is left of a mean's distance from where it goes, (dimensions,).
        mean: Mean that it approaches, (dimensions,).
        variance: The same of the variance, (dimensions,).
        curvature: Mean eigenvalues, (dimensions,).
        start: The first mean, (dimensions,).
    """

    keeps: Array
    mean: Array
    variance: Array
    curvature: Array
    start: Array

    def loss(self, rounds: NDArray[np.int64]) -> Array:
        """Return the expected loss above the optimum after each number of ``rounds``."""
        kept = self.keeps ** np.asarray(rounds, float)[..., None]
        mean = self.mean + kept * (self.start - self.mean)
        losses: Array = 0.5 * (self.curvature * (mean**2 + self.variance * (1 - kept**2))).sum(axis=-1)
        return losses

    @property
    def floor(self) -> float:
        """Expected loss in the end."""
        return 0.5 * float((self.curvature * (self.mean**2 + self.variance)).sum())

    def rounds_to(self, target: float) -> float:
        """Return the rounds after which the loss stays at the target or below; infinite if the floor is above it.

        A mean can pass through the optimum on its way, so the last crossing is looked for, among points a tenth apart.
        """
        if self.floor >= target:
            return math.inf
        late = np.flatnonzero(self.loss(_ROUNDS) > target)
        if not len(late):
            return 0
        if late[-1] == len(_ROUNDS) - 1:
            return math.inf
        low, high = int(_ROUNDS[late[-1]]), int(_ROUNDS[late[-1] + 1])
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.loss(np.array(middle)) > target else (low, middle)
        return high


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeterogeneousQuadratic:
    """The objective of the workers.

    Attributes:
        eigenvalues: λ, (workers, dimensions).
        optima: o, (workers, dimensions).
        noise: σ, standard deviation of a gradient's noise in each coordinate.
    """

    eigenvalues: Array
    optima: Array
    noise: float

    def rounds(self, *, step: float, period: int, num_gradients: int = 1) -> Rounds:
        """Run local SGD with a start of 1 in each coordinate.

        Args:
            step: α, below 1 over the largest eigenvalue.
            period: K, local steps in a round.
            num_gradients: Gradients whose mean a local step takes.
        """
        shrinks = 1 - step * self.eigenvalues
        powers = shrinks**period
        keeps = powers.mean(axis=0)
        mean = ((1 - powers) * self.optima).mean(axis=0) / (1 - keeps)
        added = (step * self.noise) ** 2 / num_gradients * (1 - powers**2) / (1 - shrinks**2)
        variance = added.mean(axis=0) / len(shrinks) / (1 - keeps**2)
        return Rounds(
            keeps=keeps,
            mean=mean,
            variance=variance,
            curvature=self.eigenvalues.mean(axis=0),
            start=np.ones(self.eigenvalues.shape[1]),
        )

    def simulate(
        self, *, step: float, period: int, num_rounds: int, num_trials: int, random: np.random.Generator
    ) -> Array:
        """Simulate the same, step by step: loss above the optimum after each round, (trials, rounds)."""
        num_workers, num_dimensions = self.eigenvalues.shape
        curvature = self.eigenvalues.mean(axis=0)
        shared = np.ones((num_trials, num_dimensions))
        losses = np.empty((num_trials, num_rounds))
        for number in range(num_rounds):
            local = np.repeat(shared[:, None], num_workers, axis=1)
            for _ in range(period):
                noise = self.noise * random.standard_normal(local.shape)
                local -= step * (self.eigenvalues * (local - self.optima) + noise)
            shared = local.mean(axis=1)
            losses[:, number] = 0.5 * (curvature * shared**2).sum(axis=1)
        return losses


def make_heterogeneous(
    *,
    num_workers: int,
    num_dimensions: int,
    condition_number: float,
    hessian_spread: float,
    heterogeneity: float,
    noise: float,
    random: np.random.Generator,
) -> HeterogeneousQuadratic:
    """Draw a problem: mean eigenvalues from ``1 / condition_number`` to about 1, and each worker's around them.

    A worker's eigenvalues differ from the mean by up to the share ``hessian_spread``, to either side. The standard
    deviation of its optimum in each coordinate is ``heterogeneity``.

    Raises:
        ConfigError: A number that is out of range.
    """
    if num_workers < 1:
        raise ConfigError(f"{num_workers} workers; write 1 or more")
    if not 0 <= hessian_spread < 1:
        raise ConfigError(f"a spread of the Hessians of {hessian_spread:g}; write a share of 0 or more, below 1")
    if heterogeneity < 0 or noise < 0:
        raise ArgumentError(f"`heterogeneity` {heterogeneity:g}, `noise` {noise:g}; write 0 or more")
    mean = eigenvalues_of(condition_number, num_dimensions=num_dimensions)
    eigenvalues = mean * (1 + hessian_spread * random.uniform(-1, 1, (num_workers, num_dimensions)))
    optima = heterogeneity * random.standard_normal((num_workers, num_dimensions))
    optima -= (eigenvalues * optima).sum(axis=0) / eigenvalues.sum(axis=0)
    return HeterogeneousQuadratic(eigenvalues=eigenvalues, optima=optima, noise=noise)


def best_rounds(
    problem: HeterogeneousQuadratic, *, period: int, target: float, num_gradients: int = 1
) -> tuple[float, float]:
    """Return the step that gets to the target first, and each worker's iterations; 0 and infinity if none does.

    Raises:
        ConfigError: The loss begins below the target.
    """
    best = (0.0, math.inf)
    for step in np.geomspace(_LEAST_STEP, 0.99 / problem.eigenvalues.max(), _NUM_STEPS).tolist():
        rounds = problem.rounds(step=step, period=period, num_gradients=num_gradients).rounds_to(target)
        if rounds == 0:
            raise ArgumentError(f"`target` is {target:g}, and the loss begins below it; write a smaller `target`")
        if rounds * period < best[1]:
            best = (step, rounds * period)
    return best
