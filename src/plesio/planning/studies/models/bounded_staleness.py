"""How many more iterations gradient descent needs when its gradients are late.

The model is a quadratic with condition number κ, whose gradients are τ updates old (`studies.delayed_descent`),
and the answer depends on how the step is chosen:

    best step for each τ     the stability limit ``αL < 2 sin(π / (2(2τ+1)))`` falls as 1/τ, and with it the step of the
                             slowest coordinate: iterations grow linearly, about ``κ ln(1/ε) / limit``
    one tiny step for all    the slowest coordinate goes down by ``1 - αλ`` an update, late or not: no penalty

Both are deterministic, with one delay for all updates. Beside them are trials: random starts, delays drawn from 0 to τ,
which is what a server does that refuses what is older (Ho et al. 2013), and noisy gradients. τ + 1 workers taking turns
have a delay of τ, so computing time, in steps of one worker, is iterations over τ + 1.

Where it stops being true: noise that is not small, where a smaller step is wanted anyway (Koloskova et al. 2022), and
momentum, with which the limit is far lower.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Axis, Chart, LineChart, Series, Table
from plesio.core.units import counted
from plesio.core.within import Within
from plesio.planning.studies.delayed_descent import (
    BestStep,
    Descent,
    descend,
    eigenvalues_of,
    find_best_step,
)
from plesio.planning.studies.interval import Interval, interval_of
from plesio.planning.studies.study import Answer
from plesio.planning.theory.stability import first_unstable_staleness, stability_limit

__all__ = ["BoundedStaleness", "Curve", "DelayPoint", "bounded_staleness"]

_NUM_CURVE_POINTS = 120
_PATIENCE = 2
"""How many times what undelayed descent needs, for each unit of delay, before a step counts as useless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Distance by iteration, over the trials.

    Attributes:
        iterations: Where it was looked at.
        distance: Geometric mean.
        low: Lower end of its 95 % confidence interval.
        high: Upper end.
    """

    iterations: tuple[int, ...]
    distance: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


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
    """

    delay: int
    limit: float
    best_step: float
    best_iterations: float
    by_step: Mapping[float, float]
    tiny_iterations: float
    best_trials: Interval
    tiny_trials: Interval
    curve: Curve

    @property
    def computing_steps(self) -> float:
        """Steps of one worker until τ + 1 workers, who take turns, are there."""
        return self.best_iterations / (self.delay + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedStaleness(Answer):
    """What staleness costs.

    Attributes:
        points: Points by delay, from no delay on.
        tiny_step: The step, in units of 1/L, that is the same for all delays.
        unstable_from: The smallest delay for which the tiny step is unstable.
        cost: Additional iterations for each unit of delay, as a share of those without.
        target: Distance from the optimum that is wanted.
        num_trials: Trials for each delay.
    """

    unit: ClassVar[str] = "iterations"
    points: tuple[DelayPoint, ...]
    tiny_step: float
    unstable_from: int
    cost: float
    target: float
    num_trials: int

    @property
    def finding(self) -> str:
        """Iterations with each protocol, and what a unit of staleness costs."""
        first, last = self.points[0], self.points[-1]
        tiny = (
            f"takes {first.tiny_iterations:.0f} and {last.tiny_iterations:.0f}"
            if math.isfinite(last.tiny_iterations)
            else f"takes {first.tiny_iterations:.0f} without staleness and diverges with it"
        )
        return (
            f"With the best step for each, a staleness of {counted(last.delay, 'update')} takes "
            f"{last.best_iterations:.0f} "
            f"iterations instead of {first.best_iterations:.0f}, {100 * self.cost:.0f} % more for each; one step of "
            f"{self.tiny_step:g}/L for all {tiny}, and is unstable from a staleness of {self.unstable_from} on."
        )

    @property
    def total(self) -> float:
        """Iterations at the largest delay, with its best step."""
        return self.points[-1].best_iterations

    @property
    def parts(self) -> Mapping[str, float]:
        """What it takes anyway, and what staleness adds."""
        first = self.points[0].best_iterations
        return {"without staleness": first, "added by staleness": self.total - first}

    def tables(self) -> Sequence[Table]:
        """A row for each delay."""
        rows = [
            (
                str(point.delay),
                f"{point.limit:.4f}",
                f"{point.best_step:.4f}",
                f"{point.best_iterations:.0f}",
                f"{point.best_trials:.0f}",
                _or_diverges(point.tiny_iterations),
                f"{point.tiny_trials:.0f}" if math.isfinite(point.tiny_trials.mean) else "diverges",
                f"{point.computing_steps:.0f}",
            )
            for point in self.points
        ]
        headers = (
            "staleness",
            "limit (1/L)",
            "best step (1/L)",
            "iterations",
            "in trials",
            "tiny step",
            "tiny, in trials",
            "computing steps",
        )
        trials = counted(self.num_trials, "trial")
        title = f"Iterations to a distance of {self.target:g}, and in {trials} (mean and 95 % interval):"
        return [Table(title=title, headers=headers, rows=rows)]

    def charts(self) -> Sequence[Chart]:
        """Iterations by delay; curves over iterations and over computing time; where steps become unstable."""
        return [
            self._iterations(),
            self._curves(slug="curves", title="More staleness, more iterations", unit="iterations", turns=False),
            self._curves(
                slug="wall-clock",
                title="Workers that take turns win back what staleness costs, and no more",
                unit="computing steps of one worker, τ + 1 workers",
                turns=True,
            ),
            self._steps(),
        ]

    def _iterations(self) -> LineChart:
        delays = [point.delay for point in self.points]
        trials = [point.best_trials for point in self.points]
        return LineChart(
            slug="iterations",
            title=f"Each update of staleness costs {100 * self.cost:.0f} % more iterations, or none with a tiny step",
            caption=f"Iterations until the distance from the optimum stays below {self.target:g}.",
            x=Axis(title="staleness (updates)"),
            y=Axis(title="iterations", log=True),
            series=[
                Series(name="best step, constant staleness", x=delays, y=[p.best_iterations for p in self.points]),
                Series(
                    name="best step, trials: staleness from 0 to this",
                    x=delays,
                    y=[trial.mean for trial in trials],
                    low=[trial.low for trial in trials],
                    high=[trial.high for trial in trials],
                    style="dashed",
                ),
                Series(
                    name=f"one step of {self.tiny_step:g}/L",
                    x=delays,
                    y=[_or_gap(point.tiny_iterations) for point in self.points],
                ),
            ],
        )

    def _curves(self, *, slug: str, title: str, unit: str, turns: bool) -> LineChart:
        series = [
            Series(
                name=f"staleness up to {point.delay}",
                x=[number / (point.delay + 1 if turns else 1) for number in point.curve.iterations],
                y=point.curve.distance,
                low=point.curve.low,
                high=point.curve.high,
            )
            for point in self.points
        ]
        return LineChart(
            slug=slug,
            title=title,
            caption=f"Distance from the optimum, best steps: mean of {counted(self.num_trials, 'trial')}, 95 % "
            "interval; who has "
            "arrived stays there.",
            x=Axis(title=unit),
            y=Axis(title="distance", log=True),
            series=series,
        )

    def _steps(self) -> LineChart:
        series = [
            Series(
                name=f"staleness {point.delay}",
                x=[step / point.limit for step in point.by_step if step >= 0.3 * point.limit],
                y=[_or_gap(number) for step, number in point.by_step.items() if step >= 0.3 * point.limit],
            )
            for point in self.points
        ]
        return LineChart(
            slug="steps",
            title="The best step is just below the stability limit",
            caption="Iterations by step, constant staleness; the limit is 2 sin(π / (2(2τ+1))) / L.",
            x=Axis(title="step, as a share of the stability limit"),
            y=Axis(title="iterations", log=True),
            series=series,
            marks={"limit": 1.0},
        )


def bounded_staleness(
    *,
    delays: Annotated[tuple[int, ...], Within(0, 500)] = (0, 1, 5, 10, 20, 50),
    condition_number: Annotated[float, Within(1, 1e4)] = 100.0,
    target: Annotated[float, Within(1e-12, 1, without="high")] = 1e-4,
    tiny_step: Annotated[float, Within(1e-3, 2, without="high")] = 0.02,
    num_dimensions: Annotated[int, Within(2, 100)] = 10,
    num_trials: Annotated[int, Within(1, 100)] = 10,
    noise: Annotated[float, Within(0, 1e6)] = 1e-6,
    seed: int = 0,
) -> BoundedStaleness:
    """Iterations by staleness, with the best step for each and with one tiny step.

    >>> answer = bounded_staleness(delays=(0, 5), num_trials=2)
    >>> [point.best_iterations for point in answer.points]
    [462, 3271]

    Args:
        delays: Staleness in updates; 0 is asked for anyway.
        condition_number: Largest over smallest eigenvalue.
        target: Distance from the optimum that is wanted; that of the start is 1 in each coordinate.
        tiny_step: The step, in units of 1/L, that is the same for all.
        num_dimensions: Dimensions of the quadratic; only the two ends of its spectrum decide.
        num_trials: Trials for each staleness, with random starts, delays and noise.
        noise: Standard deviation of a gradient's noise in each coordinate, in trials.
        seed: Seed of the trials.

    Raises:
        ConfigError: An input that is out of range.
    """
    spectrum = eigenvalues_of(condition_number, num_dimensions=num_dimensions)
    random = np.random.default_rng(seed)
    problem = _Problem(spectrum=spectrum, target=target, noise=noise, num_trials=num_trials)
    points = tuple(problem.point(delay, tiny_step=tiny_step, random=random) for delay in sorted({0, *delays}))
    first, last = points[0], points[-1]
    cost = (last.best_iterations / first.best_iterations - 1) / last.delay if last.delay else 0.0
    return BoundedStaleness(
        points=points,
        tiny_step=tiny_step,
        unstable_from=first_unstable_staleness(step=tiny_step),
        cost=cost,
        target=target,
        num_trials=num_trials,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    spectrum: NDArray[np.float64]
    target: float
    noise: float
    num_trials: int

    def point(self, delay: int, *, tiny_step: float, random: np.random.Generator) -> DelayPoint:
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
        )

    def _enough(self, step: float) -> int:
        """Updates in which even a start that is far off in the slowest coordinate arrives."""
        return _PATIENCE * math.ceil(math.log(len(self.spectrum) / self.target) / (step * float(self.spectrum[0])))

    def _best_step(self, delay: int, *, limit: float) -> BestStep:
        most = self._enough(limit)
        return find_best_step(lambda step: self._constant(delay, step=step, most=most), largest=limit)

    def _constant(self, delay: int, *, step: float, most: int) -> float:
        return descend(
            eigenvalues=self.spectrum,
            start=np.ones(len(self.spectrum)),
            steps=step,
            delays=np.full(most, delay),
            target=self.target,
        ).iterations

    def _trials(self, delay: int, *, step: float, random: np.random.Generator) -> list[Descent]:
        most = self._enough(step)
        return [
            descend(
                eigenvalues=self.spectrum,
                start=random.standard_normal(len(self.spectrum)),
                steps=step,
                delays=random.integers(0, delay + 1, most),
                target=self.target,
                noise=self.noise,
                random=random,
            )
            for _ in range(self.num_trials)
        ]


def _curve(trials: Sequence[Descent]) -> Curve:
    longest = max(len(trial.distance) for trial in trials)
    places = np.unique(np.linspace(0, longest - 1, _NUM_CURVE_POINTS).astype(int))
    logs = [
        interval_of([math.log(trial.distance[min(place, len(trial.distance) - 1)]) for trial in trials])
        for place in places
    ]
    return Curve(
        iterations=tuple(places.tolist()),
        distance=tuple(math.exp(log.mean) for log in logs),
        low=tuple(math.exp(log.low) for log in logs),
        high=tuple(math.exp(log.high) for log in logs),
    )


def _or_gap(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _or_diverges(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "diverges"
