"""Local steps where the loss is not convex: neurons on data of their own, on several draws of the data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plesio.core.charts import Table
from plesio_planning.studies.sigmoid_regression import make_sigmoid_regression

__all__ = ["NonConvex", "first_to_end", "iterations_text", "nonconvex_local_steps", "penalty_of"]

_SHARE = 0.05
"""The target, as a share of the first loss."""
_NOISE = 0.2
"""Noise where the loss is not convex, over that of the quadratics: its gradients are smaller."""
_TRIALS, _STEPS = 3, 512
_WORKERS, _DIMENSIONS = 8, 10
"""Runs are really done here, so they are no larger whatever is asked for."""


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
        headers = (
            "local steps",
            *(f"data {number}" for number in range(len(self.iterations))),
            "over the first, mean",
        )
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
        draws.append(
            {
                period: problem.iterations_to(
                    _SHARE,
                    period=period,
                    most=_STEPS,
                    num_trials=_TRIALS,
                    seed=seed,
                )[1]
                for period in tried
            }
        )
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
