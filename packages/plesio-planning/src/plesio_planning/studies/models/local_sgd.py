"""How many local steps between two averagings get to a target first.

A round is K local steps of every worker, each with its own data, and one exchange. If iterations grow as ``n (1 +
cK)``, for the workers drift apart, the time ``n (1 + cK)(Tc + Tm / K)`` is shortest at

    K* = sqrt(Tm / (c Tc))

The drift is that of `studies.heterogeneous_quadratic`, in closed form, with the step that arrives first for each K.
With equal Hessians there is none, even if optima differ. Averaging K gradients at the common parameters has none
either, but makes one step of them. Beside it stands a loss that is not convex (`studies.nonconvex_local_steps`), where
runs are done.

``docs/planning/studies/local-sgd.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from plesio.core.charts import Axis, Chart, LineChart, Table
from plesio.core.errors import ArgumentError
from plesio.core.units import format_seconds
from plesio.core.within import DURATION, DURATION_OR_0, Within
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.heterogeneous_quadratic import HeterogeneousQuadratic, best_rounds, make_heterogeneous
from plesio_planning.studies.interval import Interval, interval_of
from plesio_planning.studies.nonconvex_local_steps import (
    NonConvex,
    first_to_end,
    iterations_text,
    nonconvex_local_steps,
    penalty_of,
)
from plesio_planning.studies.study import Answer

_NUM_CURVE_POINTS = 80
_FLOOR_ITERATIONS = 1024
"""Iterations of the simulated floors. The first half settles them: five times the slowest coordinate's e-fold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodPoint:
    """One number of local steps.

    Attributes:
        period: K.
        floor: Expected loss above the optimum in the end, with the one step for all K.
        simulated_floor: The same, simulated.
        equal_floor: The same where all workers have the same Hessian.
        step: The step that arrives first.
        iterations: Steps of each worker until the loss stays at the target or below, with that step.
        equal_iterations: The same where all workers have the same Hessian.
        gradient_iterations: The same for the mean of K gradients at the common parameters.
        time_s: Seconds until the target.
        loss: Loss above the optimum by seconds, with the best step.
    """

    period: int
    floor: float
    simulated_floor: Interval
    equal_floor: float
    step: float
    iterations: float
    equal_iterations: float
    gradient_iterations: float
    time_s: float
    loss: Mapping[float, float]

    @property
    def num_exchanges(self) -> float:
        """Exchanges until the target."""
        return self.iterations / self.period


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd(Answer):
    """The cost and the savings of local steps.

    Attributes:
        points: Points by number of local steps.
        penalty: c, if iterations grow as 1 + cK.
        best_period: K* = sqrt(Tm / (c Tc)); infinite without a penalty.
        compute_s: Tc, seconds of a local step.
        communicate_s: Tm, seconds of an exchange.
        target: Loss above the optimum that is wanted.
        floor_step: The one step for all K of the floors.
        times: Seconds until the target by Tm / Tc and by K, where a step takes a second.
        best_periods: K* and the K that is best, by Tm / Tc.
        nonconvex: The same where the loss is not convex.
    """

    unit: ClassVar[str] = "s"
    points: tuple[PeriodPoint, ...]
    penalty: float
    best_period: float
    compute_s: float
    communicate_s: float
    target: float
    floor_step: float
    times: Mapping[float, Mapping[int, float]]
    best_periods: Mapping[float, tuple[float, int]]
    nonconvex: NonConvex

    @property
    def best(self) -> PeriodPoint:
        """The number of local steps that is first."""
        return min(self.points, key=lambda point: point.time_s)

    @property
    def finding(self) -> str:
        """The best K by the sweep and by the formula, and what drift costs."""
        best, first, last = self.best, self.points[0], self.points[-1]
        formula = "no penalty" if math.isinf(self.best_period) else f"the formula says {self.best_period:.2g}"
        return (
            f"{best.period} local steps get to the target first, in {format_seconds(best.time_s)} instead of "
            f"{format_seconds(first.time_s)} with {first.period} ({formula}); each local step costs "
            f"{100 * self.penalty:.1f} % more iterations, and the floor with one step of {self.floor_step:g} for all "
            f"rises from {first.floor:.2g} to {last.floor:.2g} at {last.period}. {self._where_not_convex()}"
        )

    def _where_not_convex(self) -> str:
        if not self.nonconvex.over_first:
            return "Where the loss is not convex nothing is at the target in time."
        return (
            f"Where the loss is not convex each costs {100 * self.nonconvex.penalty:.1f} %, and "
            f"{self.nonconvex.best_period} are first."
        )

    @property
    def total(self) -> float:
        """Seconds until the target, with the best K."""
        return self.best.time_s

    @property
    def parts(self) -> Mapping[str, float]:
        """Computing and communicating."""
        computing_s = self.best.iterations * self.compute_s
        return {"computing": computing_s, "communicating": self.total - computing_s}

    def tables(self) -> Sequence[Table]:
        """Make the tables by K, and the best K by Tm / Tc."""
        return [
            table_of(
                f"To a loss of {self.target:g}, with the best step for each:",
                self.points,
                {
                    "local steps": lambda point: str(point.period),
                    "step": lambda point: f"{point.step:.3f}",
                    "iterations": lambda point: iterations_text(point.iterations),
                    "equal Hessians": lambda point: iterations_text(point.equal_iterations),
                    "gradients": lambda point: iterations_text(point.gradient_iterations),
                    "exchanges": lambda point: iterations_text(point.num_exchanges),
                    "time": lambda point: format_seconds(point.time_s) if math.isfinite(point.time_s) else "never",
                },
            ),
            table_of(
                f"Floors of the loss with a step of {self.floor_step:g} (simulated: mean and 95 % interval):",
                self.points,
                {
                    "local steps": lambda point: str(point.period),
                    "floor": lambda point: f"{point.floor:.2e}",
                    "simulated": lambda point: f"{point.simulated_floor:.2e}",
                    "equal Hessians": lambda point: f"{point.equal_floor:.2e}",
                },
            ),
            Table(
                title="Best number of local steps:",
                headers=("communicating over computing", "sqrt(Tm/(c Tc))", "best of those above"),
                rows=[(f"{ratio:g}", f"{root:.2f}", str(best)) for ratio, (root, best) in self.best_periods.items()],
            ),
            self.nonconvex.table(),
        ]

    def charts(self) -> Sequence[Chart]:
        """Time by K, iterations by K, floors, loss over time, K* by Tm / Tc, and a loss that is not convex."""
        drift = [self._times(), self._iterations(), self._floors(), self._losses()]
        return [*drift, self._best_periods(), self._nonconvex()]

    def _times(self) -> LineChart:
        lines = {
            f"Tm / Tc = {ratio:g}": [time_s / min(times.values()) for time_s in times.values()]
            for ratio, times in self.times.items()
        }
        return LineChart(
            slug="time",
            title=f"{self.best.period} local steps are the fastest where an exchange takes "
            f"{self.communicate_s / self.compute_s:g} steps",
            caption="Time until the target over the shortest, by communicating over computing.",
            x=Axis(title="local steps K", log=True),
            y=Axis(title="time over the shortest", log=True),
            series=lines_of([point.period for point in self.points], lines),
        )

    def _iterations(self) -> LineChart:
        periods = [point.period for point in self.points]
        arriving = [point for point in self.points if math.isfinite(point.iterations)]
        scale = sum(each.iterations for each in arriving) / sum(1 + self.penalty * each.period for each in arriving)
        lines = {
            "unequal workers": [point.iterations for point in self.points],
            "equal Hessians": [point.equal_iterations for point in self.points],
            "mean of K gradients": [point.gradient_iterations for point in self.points],
        }
        return LineChart(
            slug="iterations",
            title=f"Each local step costs {100 * self.penalty:.1f} % more iterations, or none with equal Hessians",
            caption=f"Iterations of each worker to a loss of {self.target:g}, with the best step for each K.",
            x=Axis(title="local steps K"),
            y=Axis(title="iterations"),
            series=lines_of(periods, lines, dashed={"1 + cK": [scale * (1 + self.penalty * each) for each in periods]}),
        )

    def _floors(self) -> LineChart:
        return LineChart(
            slug="floors",
            title="Unequal workers drift: the floor rises with the local steps",
            caption=f"Expected loss above the optimum in the end, with a step of {self.floor_step:g} for all K.",
            x=Axis(title="local steps K", log=True),
            y=Axis(title="loss above the optimum", log=True),
            series=lines_of(
                [point.period for point in self.points],
                {
                    "unequal workers": [point.floor for point in self.points],
                    "equal Hessians": [point.equal_floor for point in self.points],
                },
                points={"unequal workers, simulated": [point.simulated_floor.mean for point in self.points]},
            ),
        )

    def _losses(self) -> LineChart:
        return LineChart(
            slug="loss",
            title="Fewer exchanges are faster until the drift costs more than they save",
            caption="Expected loss above the optimum over time, with the best step for each K.",
            x=Axis(title="time (s)"),
            y=Axis(title="loss above the optimum", log=True),
            series=[
                line
                for point in self.points
                if point.loss
                for line in lines_of(point.loss, {f"K = {point.period}": point.loss.values()})
            ],
        )

    def _best_periods(self) -> LineChart:
        formula, found = zip(*self.best_periods.values(), strict=True)
        return LineChart(
            slug="best-period",
            title="The best number of local steps grows as the root of communicating over computing",
            caption=f"K* = sqrt(Tm / (c Tc)) with c = {self.penalty:.3f}, and the best of the K that were tried.",
            x=Axis(title="communicating over computing, Tm / Tc", log=True),
            y=Axis(title="local steps K", log=True),
            series=lines_of(self.best_periods, {"formula": formula}, points={"best of the sweep": found}),
        )

    def _nonconvex(self) -> LineChart:
        periods = [point.period for point in self.points]
        first = self.points[0].iterations
        found = self.nonconvex
        lines = [
            line
            for number, over in enumerate(found.over_first)
            for line in lines_of(over, points={f"not convex, data {number}": over.values()}, hollow=True)
        ]
        return LineChart(
            slug="nonconvex",
            title=f"Where the loss is not convex each local step costs {100 * found.penalty:.1f} % more iterations",
            caption=f"Iterations of each worker over those with K = {periods[0]}, best steps: sigmoid neurons with "
            "data drawn anew, and the quadratics.",
            x=Axis(title="local steps K", log=True),
            y=Axis(title=f"iterations over those of K = {periods[0]}", log=True),
            series=[*lines_of(periods, {"quadratics": [point.iterations / first for point in self.points]}), *lines],
        )


def local_sgd(
    *,
    periods: Annotated[tuple[int, ...], Within(1, 10_000)] = (1, 2, 4, 8, 16, 32),
    compute_s: Annotated[float, DURATION] = 0.05,
    exchange_s: Annotated[float, DURATION_OR_0] = 0.1,
    num_workers: Annotated[int, Within(1, 256)] = 8,
    num_dimensions: Annotated[int, Within(2, 100)] = 10,
    condition_number: Annotated[float, Within(1, 1e4)] = 10.0,
    hessian_spread: Annotated[float, Within(0, 1, without="high")] = 0.5,
    heterogeneity: Annotated[float, Within(0, 1e6)] = 0.5,
    noise: Annotated[float, Within(0, 1e6)] = 0.1,
    target: Annotated[float, Within(1e-12, 1e6)] = 1e-3,
    floor_step: Annotated[float, Within(1e-3, 1, without="high")] = 0.1,
    ratios: Annotated[tuple[float, ...], Within(1e-9, 1e9)] = (0.1, 0.5, 2.0, 10.0, 50.0),
    num_trials: Annotated[int, Within(1, 100)] = 20,
    num_draws: Annotated[int, Within(1, 20)] = 3,
    seed: int = 0,
) -> LocalSgd:
    """Time to a target by number of local steps, and what the workers' drift costs.

    >>> answer = local_sgd(num_trials=2)
    >>> [point.iterations for point in answer.points]
    [120, 126, 156, 224, 368, 672]

    Args:
        periods: K, local steps between two averagings.
        compute_s: Time that a worker computes for a local step.
        exchange_s: Time of an exchange.
        num_workers: Workers, each with its own quadratic.
        num_dimensions: Dimensions of the quadratics.
        condition_number: Largest over smallest eigenvalue.
        hessian_spread: How far a worker's eigenvalues are from the mean's, as a share of them.
        heterogeneity: Standard deviation of the workers' optima; the start is at 1 in each coordinate.
        noise: Standard deviation of a gradient's noise.
        target: Loss above the optimum that is wanted.
        floor_step: One step for all K, for the floors.
        ratios: Communicating over computing, for the pictures.
        num_trials: Simulated runs for each floor.
        num_draws: Draws of the data of the loss that is not convex.
        seed: Seed of the quadratics and the simulation.

    Raises:
        ConfigError: An input that is out of range, or a target that no number of local steps reaches.
    """
    _check_floor_step(floor_step, hessian_spread=hessian_spread)
    random = np.random.default_rng(seed)
    unlike = make_heterogeneous(
        num_workers=num_workers,
        num_dimensions=num_dimensions,
        condition_number=condition_number,
        hessian_spread=hessian_spread,
        heterogeneity=heterogeneity,
        noise=noise,
        random=random,
    )
    point = partial(_point, unlike, target=target, floor_step=floor_step, num_trials=num_trials, random=random)
    points = [point(period=period, round_s=period * compute_s + exchange_s) for period in sorted(set(periods))]
    iterations = _iterations_of(points, target=target)
    penalty, ratio = penalty_of(iterations), exchange_s / compute_s
    times = _times_by_ratio(iterations, ratios={*ratios, ratio})
    return LocalSgd(
        points=tuple(points),
        penalty=penalty,
        best_period=_best_period(ratio, penalty),
        compute_s=compute_s,
        communicate_s=exchange_s,
        target=target,
        floor_step=floor_step,
        times=times,
        best_periods={each: (_best_period(each, penalty), first_to_end(of_it)) for each, of_it in times.items()},
        nonconvex=nonconvex_local_steps(
            list(iterations), heterogeneity=heterogeneity, noise=noise, ratio=ratio, num_draws=num_draws, seed=seed
        ),
    )


def _point(
    unlike: HeterogeneousQuadratic,
    *,
    period: int,
    target: float,
    floor_step: float,
    round_s: float,
    num_trials: int,
    random: np.random.Generator,
) -> PeriodPoint:
    """Find the floor at one step for all, and the way to the target at the best."""
    equal = _with_equal_hessians(unlike)
    step, iterations = best_rounds(unlike, period=period, target=target)
    losses = unlike.simulate(
        step=floor_step,
        period=period,
        num_rounds=max(_FLOOR_ITERATIONS // period, 2),
        num_trials=num_trials,
        random=random,
    )
    rounds = np.unique(np.linspace(0, iterations / period, _NUM_CURVE_POINTS).astype(int)) if step else np.array([])
    curve = unlike.rounds(step=step, period=period).loss(rounds) if step else rounds
    return PeriodPoint(
        period=period,
        floor=unlike.rounds(step=floor_step, period=period).floor,
        simulated_floor=interval_of(losses[:, losses.shape[1] // 2 :].mean(axis=1)),
        equal_floor=equal.rounds(step=floor_step, period=period).floor,
        step=step,
        iterations=iterations,
        equal_iterations=best_rounds(equal, period=period, target=target)[1],
        gradient_iterations=period * best_rounds(unlike, period=1, num_gradients=period, target=target)[1],
        time_s=iterations / period * round_s,
        loss=dict(zip((rounds * round_s).tolist(), curve.tolist(), strict=True)),
    )


def _times_by_ratio(iterations: Mapping[int, float], *, ratios: Set[float]) -> dict[float, dict[int, float]]:
    """Return the seconds until the target by Tm / Tc and by K, where a step takes a second."""
    return {
        ratio: {period: number * (1 + ratio / period) for period, number in iterations.items()}
        for ratio in sorted(ratios - {0.0})
    }


def _with_equal_hessians(problem: HeterogeneousQuadratic) -> HeterogeneousQuadratic:
    mean = np.broadcast_to(problem.eigenvalues.mean(axis=0), problem.eigenvalues.shape).copy()
    optima = problem.optima - problem.optima.mean(axis=0)
    return HeterogeneousQuadratic(eigenvalues=mean, optima=optima, noise=problem.noise)


def _best_period(ratio: float, penalty: float) -> float:
    return math.sqrt(ratio / penalty) if penalty else math.inf


def _check_floor_step(floor_step: float, *, hessian_spread: float) -> None:
    if floor_step * (1 + hessian_spread) >= 1:
        raise ArgumentError(
            f"`floor_step` is {floor_step:g} and `hessian_spread` is {hessian_spread:g}; "
            f"write less than {1 / (1 + hessian_spread):.3g} for `floor_step`"
        )


def _iterations_of(points: Sequence[PeriodPoint], *, target: float) -> dict[int, float]:
    """Return the iterations by period; one of them at least must get to the target."""
    if all(math.isinf(point.iterations) for point in points):
        raise ArgumentError(
            f"no period of `periods` gets to a `target` of {target:g}; write a larger `target` or less `noise`"
        )
    return {point.period: point.iterations for point in points}
