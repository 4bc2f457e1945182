"""How many more iterations gradient descent needs when its gradients are late.

On a quadratic with condition number κ, gradients τ updates old (`studies.delayed_descent`) are stable for ``αL < 2
sin(π / (2(2τ+1)))``. With the best step for each τ iterations grow linearly, about as ``κ ln(1/ε) / limit``; with one
tiny step for all nothing is lost, until it is unstable. Beside both are trials with random starts, noise and delays
from 0 to τ, and a server that refuses what is older than τ (`studies.refusing_server`).

``docs/planning/studies/bounded-staleness.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from plesio.core.charts import Axis, Chart, LineChart, Series, Table
from plesio.core.units import counted
from plesio.core.within import Within
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.delayed_descent import eigenvalues_of
from plesio_planning.studies.refusing_server import WorkerSpeeds
from plesio_planning.studies.staleness_trials import DelayPoint, StalenessProblem
from plesio_planning.studies.study import Answer
from plesio_planning.theory.stability import first_unstable_staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedStaleness(Answer):
    """The costs of staleness.

    Attributes:
        points: Points by delay, from no delay on.
        tiny_step: The step, in units of 1/L, that is the same for all delays.
        unstable_from: The smallest delay for which the tiny step is unstable.
        cost: Additional iterations for each unit of delay, as a share of those without.
        target: Distance from the optimum that is wanted.
        num_trials: Trials for each delay.
        num_workers: Workers that push to the server.
    """

    unit: ClassVar[str] = "iterations"
    points: tuple[DelayPoint, ...]
    tiny_step: float
    unstable_from: int
    cost: float
    target: float
    num_trials: int
    num_workers: int

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
            f"{self.tiny_step:g}/L for all {tiny}, and is unstable from a staleness of {self.unstable_from} on. "
            f"{self._served()}"
        )

    def _served(self) -> str:
        """Write a sentence about the updates that a server refuses, and the bound with which it is there first."""
        fastest = min(self.points, key=lambda point: point.served.steps.mean)
        first, last = self.points[0].served, self.points[-1].served
        return (
            f"A server with {counted(self.num_workers, 'worker')} refuses {100 * first.refused:.0f} % of the gradients "
            f"at a bound of 0 and {100 * last.refused:.0f} % at {self.points[-1].delay}; it is there first with a "
            f"bound of {fastest.delay}, in the time of {fastest.served.steps.mean:.0f} steps of a worker."
        )

    @property
    def total(self) -> float:
        """Iterations at the largest delay, with its best step."""
        return self.points[-1].best_iterations

    @property
    def parts(self) -> Mapping[str, float]:
        """The iterations without staleness, and those that staleness adds."""
        first = self.points[0].best_iterations
        return {"without staleness": first, "added by staleness": self.total - first}

    def tables(self) -> Sequence[Table]:
        """List staleness that is given, and a server that bounds it; a row for each."""
        trials = counted(self.num_trials, "trial")
        return [
            table_of(
                f"Iterations to a distance of {self.target:g}, and in {trials} (mean and 95 % interval):",
                self.points,
                {
                    "staleness": lambda point: str(point.delay),
                    "limit (1/L)": lambda point: f"{point.limit:.4f}",
                    "best step (1/L)": lambda point: f"{point.best_step:.4f}",
                    "iterations": lambda point: f"{point.best_iterations:.0f}",
                    "in trials": lambda point: f"{point.best_trials:.0f}",
                    "tiny step": lambda point: (
                        f"{point.tiny_iterations:.0f}" if math.isfinite(point.tiny_iterations) else "diverges"
                    ),
                    "tiny, in trials": lambda point: (
                        f"{point.tiny_trials:.0f}" if math.isfinite(point.tiny_trials.mean) else "diverges"
                    ),
                    "computing steps": lambda point: f"{point.computing_steps:.0f}",
                },
            ),
            self._server_table(),
        ]

    def _server_table(self) -> Table:
        return table_of(
            f"{counted(self.num_workers, 'worker')} and a server that refuses what is older, best steps:",
            self.points,
            {
                "bound": lambda point: str(point.delay),
                "refused": lambda point: f"{100 * point.served.refused:.1f} %",
                "mean age": lambda point: f"{point.served.mean_age:.1f}",
                "oldest": lambda point: str(point.served.max_age),
                "iterations": lambda point: f"{point.served.iterations:.0f}",
                "time (mean steps)": lambda point: f"{point.served.steps:.0f}",
            },
        )

    def charts(self) -> Sequence[Chart]:
        """Draw iterations by delay; curves over iterations and over computing time; where steps become unstable."""
        return [self._iterations(), self._curves(), self._wall_clock(), self._steps()]

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
                *lines_of(delays, {"best step, constant staleness": [point.best_iterations for point in self.points]}),
                *lines_of(
                    delays,
                    dashed={"best step, trials: staleness from 0 to this": [trial.mean for trial in trials]},
                    low=[trial.low for trial in trials],
                    high=[trial.high for trial in trials],
                ),
                *lines_of(
                    delays, {f"one step of {self.tiny_step:g}/L": [point.tiny_iterations for point in self.points]}
                ),
            ],
        )

    def _curves(self) -> LineChart:
        series = [
            Series(
                name=f"staleness up to {point.delay}",
                x=point.curve.iterations,
                y=point.curve.distance,
                low=point.curve.low,
                high=point.curve.high,
            )
            for point in self.points
        ]
        return LineChart(
            slug="curves",
            title="More staleness, more iterations",
            caption=f"Distance from the optimum, best steps: mean of {counted(self.num_trials, 'trial')}, 95 % "
            "interval; who has arrived stays there.",
            x=Axis(title="iterations"),
            y=Axis(title="distance", log=True),
            series=series,
        )

    def _wall_clock(self) -> LineChart:
        fastest = min(self.points, key=lambda point: point.served.steps.mean)
        return LineChart(
            slug="wall-clock",
            title=f"{counted(self.num_workers, 'worker')} are there first with a bound of {fastest.delay}",
            caption="Distance from the optimum over time, first trial: a server refuses what is older than its bound.",
            x=Axis(title="time (mean steps of a worker)"),
            y=Axis(title="distance", log=True),
            series=[
                Series(name=f"bound {point.delay}", x=point.served.curve_steps, y=point.served.curve_distance)
                for point in self.points
            ],
        )

    def _steps(self) -> LineChart:
        series = []
        for point in self.points:
            near = {step / point.limit: number for step, number in point.by_step.items() if step >= 0.3 * point.limit}
            series += lines_of(near, {f"staleness {point.delay}": near.values()})
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
    stalenesses: Annotated[tuple[int, ...], Within(0, 500)] = (0, 1, 5, 10, 20, 50),
    condition_number: Annotated[float, Within(1, 1e4)] = 100.0,
    target: Annotated[float, Within(1e-12, 1, without="high")] = 1e-4,
    tiny_step: Annotated[float, Within(1e-3, 2, without="high")] = 0.02,
    num_dimensions: Annotated[int, Within(2, 100)] = 10,
    num_trials: Annotated[int, Within(1, 100)] = 10,
    noise: Annotated[float, Within(0, 1e6)] = 1e-6,
    num_workers: Annotated[int, Within(1, 512)] = 8,
    cv: Annotated[float, Within(0, 10)] = 0.3,
    slowdown: Annotated[float, Within(1, 100)] = 3.0,
    seed: int = 0,
) -> BoundedStaleness:
    """Compute iterations by staleness, with the best step for each and with one tiny step.

    >>> answer = bounded_staleness(stalenesses=(0, 5), num_trials=2)
    >>> [point.best_iterations for point in answer.points]
    [462, 3271]

    Args:
        stalenesses: Staleness in updates; 0 is asked for anyway.
        condition_number: Largest over smallest eigenvalue.
        target: Distance from the optimum that is wanted; that of the start is 1 in each coordinate.
        tiny_step: The step, in units of 1/L, that is the same for all.
        num_dimensions: Dimensions of the quadratic; only the two ends of its spectrum decide.
        num_trials: Trials for each staleness, with random starts, delays and noise.
        noise: Standard deviation of a gradient's noise in each coordinate, in trials.
        num_workers: Workers that push to the server.
        cv: Coefficient of variation of their steps.
        slowdown: How many times as long one of them takes.
        seed: Seed of the trials.
    """
    spectrum = eigenvalues_of(condition_number, num_dimensions=num_dimensions)
    random = np.random.default_rng(seed)
    workers = WorkerSpeeds(num_workers=num_workers, cv=cv, slowdown=slowdown)
    problem = StalenessProblem(
        spectrum=spectrum, target=target, noise=noise, num_trials=num_trials, workers=workers, seed=seed
    )
    points = tuple(problem.point(delay, tiny_step=tiny_step, random=random) for delay in sorted({0, *stalenesses}))
    first, last = points[0], points[-1]
    cost = (last.best_iterations / first.best_iterations - 1) / last.delay if last.delay else 0.0
    return BoundedStaleness(
        points=points,
        tiny_step=tiny_step,
        unstable_from=first_unstable_staleness(step=tiny_step),
        cost=cost,
        target=target,
        num_trials=num_trials,
        num_workers=num_workers,
    )
