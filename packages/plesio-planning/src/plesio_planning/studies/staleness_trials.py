"""Trials of delayed descent: staleness that is given, and staleness that a server bounds.

Curves and counts of the study of bounded staleness (`plesio_planning.studies.models.bounded_staleness`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plesio_planning.studies.delayed_descent import BestStep, DelayedDescent, LateUpdates, descend, find_best_step
from plesio_planning.studies.interval import Interval, interval_of
from plesio_planning.studies.refusing_server import WorkerSpeeds, serve
from plesio_planning.theory.stability import stability_limit

_NUM_CURVE_POINTS = 120
_PATIENCE = 2
"""How many times what undelayed descent needs, for each unit of delay, before a step counts as useless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceCurve:
    """Distance by iteration, over the trials.

    Attributes:
        iterations: Iterations at which it was looked at.
        distance: Geometric mean.
        low: Lower end of its 95 % confidence interval.
    """

    iterations: tuple[int, ...]
    distance: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPoint:
    """A server that refuses gradients older than a bound, over the trials.

    Attributes:
        refused: Share of the gradients that it refuses.
        mean_age: Mean age of those that it applies, in updates.
        max_age: The oldest of them.
        steps: Time until the target, in mean steps of a worker.
        curve_steps: Times at which the first trial was looked at, in the same unit.
        curve_distance: Its distance there.
    """

    refused: float
    mean_age: float
    max_age: int
    iterations: Interval
    steps: Interval
    curve_steps: tuple[float, ...]
    curve_distance: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayPoint:
    """One delay.

    Attributes:
        delay: τ, in updates.
        limit: αL at which a constant delay of τ becomes unstable.
        best_step: The αL that arrives first.
        best_iterations: Updates that it takes.
        by_step: Updates for all steps that were tried, by αL.
        tiny_iterations: Updates with the one tiny step; infinite where that is above the limit.
        best_trials: Updates in trials, with the best step.
        tiny_trials: Updates in trials, with the tiny step.
        curve: Curve of the trials with the best step.
        served: A server that refuses older updates, with the best step.
    """

    delay: int
    limit: float
    best_step: float
    best_iterations: float
    by_step: Mapping[float, float]
    tiny_iterations: float
    best_trials: Interval
    tiny_trials: Interval
    curve: DistanceCurve
    served: ServedPoint

    @property
    def computing_steps(self) -> float:
        """Steps of one worker until τ + 1 workers, who take turns, are there."""
        return self.best_iterations / (self.delay + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessProblem:
    """A quadratic, and the trials on it.

    Attributes:
        target: Distance from the optimum that is wanted.
        noise: Standard deviation of a gradient's noise in each coordinate, in trials.
    """

    spectrum: NDArray[np.float64]
    target: float
    noise: float
    num_trials: int
    workers: WorkerSpeeds
    seed: int

    def point(self, delay: int, *, tiny_step: float, random: np.random.Generator) -> DelayPoint:
        """Return the cost of a staleness, whichever way it comes about."""
        limit = stability_limit(staleness=delay)
        best = self._best_step(delay, limit=limit)
        tiny = self._constant(delay, step=tiny_step, most=self._enough(tiny_step)) if tiny_step < limit else math.inf
        trials = self._trials(delay, step=best.step, random=random)
        tiny_trials = (
            [trial.iterations for trial in self._trials(delay, step=tiny_step, random=random)]
            if tiny_step < limit
            else [math.inf]
        )
        return DelayPoint(
            delay=delay,
            limit=limit,
            best_step=best.step,
            best_iterations=best.iterations,
            by_step=best.tried,
            tiny_iterations=tiny,
            best_trials=interval_of([trial.iterations for trial in trials]),
            tiny_trials=interval_of(tiny_trials),
            curve=_curve(trials),
            served=self._served(delay, step=best.step),
        )

    def _served(self, bound: int, *, step: float) -> ServedPoint:
        random, most = np.random.default_rng((self.seed, bound)), self._enough(step)
        trials = []
        for _ in range(self.num_trials):
            served = serve(self.workers.draw_steps(random), bound=bound, num_updates=most)
            trials.append((served, self._trial(served.ages, step=step, random=random)))
        number = [min(len(trial.distance) - 1, most) for _, trial in trials]
        refused = [1 - last / served.pushed[last - 1] for (served, _), last in zip(trials, number, strict=True)]
        first, shown = trials[0][0], trials[0][1].distance
        places = np.unique(np.linspace(0, len(shown) - 1, _NUM_CURVE_POINTS).astype(int))
        return ServedPoint(
            refused=float(np.mean(refused)),
            mean_age=float(np.mean([served.ages.mean() for served, _ in trials])),
            max_age=max(int(served.ages.max()) for served, _ in trials),
            iterations=interval_of([trial.iterations for _, trial in trials]),
            steps=interval_of(
                [
                    float(served.at[int(trial.iterations) - 1]) if math.isfinite(trial.iterations) else math.inf
                    for served, trial in trials
                ]
            ),
            curve_steps=(0.0, *first.at[places[1:] - 1].tolist()),
            curve_distance=tuple(shown[places].tolist()),
        )

    def _enough(self, step: float) -> int:
        """Return the updates in which even a start that is far off in the slowest coordinate arrives."""
        return _PATIENCE * math.ceil(math.log(len(self.spectrum) / self.target) / (step * float(self.spectrum[0])))

    def _best_step(self, delay: int, *, limit: float) -> BestStep:
        most = self._enough(limit)
        return find_best_step(lambda step: self._constant(delay, step=step, most=most), largest=limit)

    def _constant(self, delay: int, *, step: float, most: int) -> float:
        return descend(
            eigenvalues=self.spectrum,
            start=np.ones(len(self.spectrum)),
            updates=LateUpdates.of(np.full(most, delay), steps=step),
            target=self.target,
        ).iterations

    def _trials(self, delay: int, *, step: float, random: np.random.Generator) -> list[DelayedDescent]:
        most = self._enough(step)
        return [
            self._trial(random.integers(0, delay + 1, most), step=step, random=random) for _ in range(self.num_trials)
        ]

    def _trial(self, delays: NDArray[np.int64], *, step: float, random: np.random.Generator) -> DelayedDescent:
        return descend(
            eigenvalues=self.spectrum,
            start=random.standard_normal(len(self.spectrum)),
            updates=LateUpdates.of(delays, steps=step),
            target=self.target,
            noise=self.noise,
            random=random,
        )


def _curve(trials: Sequence[DelayedDescent]) -> DistanceCurve:
    longest = max(len(trial.distance) for trial in trials)
    places = np.unique(np.linspace(0, longest - 1, _NUM_CURVE_POINTS).astype(int))
    logs = [
        interval_of([math.log(trial.distance[min(place, len(trial.distance) - 1)]) for trial in trials])
        for place in places
    ]
    return DistanceCurve(
        iterations=tuple(places.tolist()),
        distance=tuple(math.exp(log.mean) for log in logs),
        low=tuple(math.exp(log.low) for log in logs),
        high=tuple(math.exp(log.high) for log in logs),
    )
