"""The cost of a barrier when step times vary.

N workers compute for independent times and wait for the slowest: efficiency is ``mean / E[max]``. Means of order
statistics are integrals (`studies.order_statistics`), and a simulation stands beside them. Ways out:

    backup workers     N + b begin and the fastest N are waited for (Chen et al. 2016): ``E[X_(N : N+b)]``
    fewer barriers     one every K steps waits for the slowest sum of K, whose variation is K^(-1/2) of one step's

Both help against slowness that comes and goes, so a trace with a worker that is always slow is composed as well. A
Pareto distribution with a shape of 2 or less has no variance: a simulated mean does not settle, its interval is not
one, and quantiles of the slowest worker are what can be relied on.

``docs/planning/studies/stragglers.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Table
from plesio.core.errors import ArgumentError
from plesio.core.only_with import OnlyWith
from plesio.core.units import counted, format_seconds
from plesio.core.within import DURATION, DURATION_OR_0, Within
from plesio.cost.step_time import EmpiricalTrace
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.interval import Interval, interval_of
from plesio_planning.studies.order_statistics import Durations, LogNormalTimes, ParetoTimes, TraceTimes
from plesio_planning.studies.step_time_tails import CVS, LEAST_VARIED_SHAPE, Tails, tails_of, varying_times
from plesio_planning.studies.straggler_trace import PERIODS, ComposedTrace, compose_trace, slowest_sum
from plesio_planning.studies.study import Answer

Kind = Literal["lognormal", "gamma", "uniform", "pareto", "trace"]

_WORKERS = (1, 4, 16, 64, 256, 1024)
_BACKUPS = (0, 1, 2, 4, 8, 13, 26, 52)
_MOST_DRAWS = 10**7
_LEVELS = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierPoint:
    """A number of workers and a coefficient of variation.

    Attributes:
        num_workers: N.
        cv: Standard deviation over mean.
        cost: E[max] over the mean.
    """

    num_workers: int
    cv: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers(Answer):
    """The cost of the slowest worker.

    Attributes:
        num_workers: N.
        mean_s: Mean seconds of a worker's step.
        all_reduce_s: Seconds of the exchange behind the barrier.
        cost: E[max] over the mean, by the exact integral.
        simulated_cost: The same from the simulation; its interval is meaningless without a variance.
        has_variance: Whether the distribution has one.
        quantiles: Quantiles of the slowest worker's time over the mean, by level.
        backups: E[the N-th fastest of N + b] over the mean, by b.
        periods: The slowest worker's K steps over K means, by K, with a barrier every K steps; simulated.
        by_workers: Costs of the same distribution by number of workers.
        grid: Costs of lognormal times by number of workers and coefficient of variation.
        tails: Costs by kind of distribution and how heavy its tail is, at N workers.
        late: Probability that a worker takes longer, by the time over the mean.
        late_twice: Probability that at least one of them takes more than twice the mean.
        composed: A trace of several causes.
    """

    unit: ClassVar[str] = "s"
    num_workers: int
    mean_s: float
    all_reduce_s: float
    cost: float
    simulated_cost: Interval
    has_variance: bool
    quantiles: Mapping[float, float]
    backups: Mapping[int, float]
    periods: Mapping[int, float]
    by_workers: Mapping[int, float]
    grid: tuple[BarrierPoint, ...]
    tails: Tails
    late: Mapping[float, float]
    late_twice: float
    composed: ComposedTrace

    @property
    def finding(self) -> str:
        """The barrier's cost, what backups leave of it, and who is the slowest in a composed trace."""
        numbers = [number for number in self.backups if number]
        helper = min(numbers, key=lambda number: abs(number - 0.05 * self.num_workers))
        simulated = (
            f"simulated {self.simulated_cost:.3f}"
            if self.has_variance
            else f"no variance, so look at quantiles: {self.quantiles[0.5]:.3g} in half of all iterations, "
            f"{self.quantiles[0.99]:.3g} in one of a hundred"
        )
        composed = self.composed
        return (
            f"Waiting for the slowest of {counted(self.num_workers, 'worker')} takes {self.cost:.4g} times the mean "
            "step "
            f"({simulated}), an efficiency of {100 / self.cost:.1f} %. {counted(helper, 'backup worker')} bring it to "
            f"{self.backups[helper]:.3g}. In a trace with one slow worker, unequal stages and varying content, worker "
            f"{composed.slowest_worker} is the slowest in {100 * composed.slowest_share:.0f} % of the iterations, and "
            f"a barrier only every {max(PERIODS)} steps still costs {composed.cost_by_period[max(PERIODS)]:.2f}."
        )

    @property
    def total(self) -> float:
        """Seconds of an iteration, without backups."""
        return self.cost * self.mean_s + self.all_reduce_s

    @property
    def parts(self) -> Mapping[str, float]:
        """A mean step, waiting for the slowest, and the exchange."""
        return {
            "computing": self.mean_s,
            "waiting for the slowest": (self.cost - 1) * self.mean_s,
            "all-reduce": self.all_reduce_s,
        }

    def tables(self) -> Sequence[Table]:
        """Make the tables by workers and variation, of backups, quantiles, and the composed trace."""
        cells = {(point.num_workers, point.cv): point.cost for point in self.grid}
        return [
            Table(
                title="Lognormal step times, slowest over mean, by number of workers and coefficient of variation:",
                headers=("workers", *(f"{cv:g}" for cv in CVS)),
                rows=[(str(number), *(f"{cells[number, cv]:.3f}" for cv in CVS)) for number in _WORKERS],
            ),
            Table(
                title=f"Backups, waiting for the fastest {self.num_workers}:",
                headers=("backups", "over mean", "step", "efficiency of all workers"),
                rows=[
                    (
                        str(number),
                        f"{cost:.3f}",
                        format_seconds(cost * self.mean_s),
                        f"{100 * self.num_workers / ((self.num_workers + number) * cost):.1f} %",
                    )
                    for number, cost in self.backups.items()
                ],
            ),
            Table(
                title="The slowest worker's step:",
                headers=("in this share of iterations at most", "over mean", "seconds"),
                rows=[
                    (f"{100 * level:g} %", f"{value:.3f}", format_seconds(value * self.mean_s))
                    for level, value in self.quantiles.items()
                ],
            ),
            self.tails.table(),
            *self.composed.tables(),
        ]

    def charts(self) -> Sequence[Chart]:
        """Draw efficiency by tail and by workers, ways out, distribution, and the composed trace."""
        barrier = [self._workers(), self._backups(), self._late()]
        return [*self.tails.charts(), *barrier, self._causes(), self._slowest()]

    def _workers(self) -> LineChart:
        cells = {(point.num_workers, point.cv): point.cost for point in self.grid}
        lines = {f"lognormal, cv {cv:g}": [100 / cells[number, cv] for number in _WORKERS] for cv in CVS}
        return LineChart(
            slug="workers",
            title=f"The efficiency of {counted(self.num_workers, 'worker')} is {100 / self.cost:.0f} %",
            caption="Efficiency, mean over E[max], by number of workers: exact integrals, and one simulated point.",
            x=Axis(title="workers", log=True),
            y=Axis(title="efficiency (%)"),
            series=[
                *lines_of(_WORKERS, lines, dashed={"as asked": [100 / cost for cost in self.by_workers.values()]}),
                *lines_of([self.num_workers], points={"simulated": [100 / self.simulated_cost.mean]}),
            ],
        )

    def _backups(self) -> LineChart:
        return LineChart(
            slug="ways-out",
            title="A few backups, or a few steps between barriers, save most of the waiting",
            caption=f"Time over the mean: the fastest {self.num_workers} of {self.num_workers} + b; the slowest sum of "
            "K steps.",
            x=Axis(title="backups b, or steps K between barriers"),
            y=Axis(title="time over mean"),
            series=[
                *lines_of(self.backups, {"backups": self.backups.values()}),
                *lines_of(
                    self.periods,
                    points={"a barrier every K steps, by K": self.periods.values()},
                    labels=[f"K = {period}" for period in self.periods],
                ),
            ],
        )

    def _late(self) -> LineChart:
        return LineChart(
            slug="late",
            title=f"{100 * self.late_twice:.0f} % of the iterations have a worker that takes more than twice the mean",
            caption=f"Iterations in which a worker takes longer: the slowest of {self.num_workers}, and a given one.",
            x=Axis(title="time over mean"),
            y=Axis(title="iterations (%)"),
            series=lines_of(
                self.late,
                {
                    "slowest worker": [100 * _any_of(self.num_workers, share) for share in self.late.values()],
                    "a given worker": [100 * share for share in self.late.values()],
                },
            ),
            marks={f"{100 * level:g} % of them": value for level, value in self.quantiles.items() if level < 0.99},
        )

    def _causes(self) -> BarChart:
        causes = self.composed.cost_by_causes
        added = [cost - before for cost, before in zip(causes.values(), [1.0, *causes.values()], strict=False)]
        return BarChart(
            slug="causes",
            title=f"Composed of several causes, the barrier costs {list(causes.values())[-1]:.2f} times the mean",
            caption="What each cause adds to the slowest worker's time over the mean, in this order.",
            axis=Axis(title="added to the slowest worker's time, over the mean"),
            rows=list(causes),
            parts={"added": added},
        )

    def _slowest(self) -> BarChart:
        shown = self.composed.most_often_slowest()
        return BarChart(
            slug="slowest",
            title=f"Worker {self.composed.slowest_worker} is the slowest in "
            f"{100 * self.composed.slowest_share:.0f} % of the iterations",
            caption=f"How often each worker is the slowest, composed trace; independent times give each "
            f"{100 / self.num_workers:.2g} %.",
            axis=Axis(title="iterations (%)"),
            rows=[f"worker {worker}" for worker in shown],
            parts={"slowest": [100 * share for share in shown.values()]},
        )


def stragglers(
    *,
    num_workers: Annotated[int, Within(1, 10_000)] = 256,
    distribution: Kind = "lognormal",
    compute_s: Annotated[float, DURATION, OnlyWith("distribution", "lognormal", "gamma", "uniform", "pareto")] = 0.05,
    cv: Annotated[float, Within(1e-3, 10), OnlyWith("distribution", "lognormal", "gamma", "uniform")] = 0.3,
    shape: Annotated[float, Within(1, 1e3, without="low"), OnlyWith("distribution", "pareto")] = 1.5,
    trace: Annotated[str, OnlyWith("distribution", "trace")] = "",
    exchange_s: Annotated[float, DURATION_OR_0] = 0.0,
    slowdown: Annotated[float, Within(1, 1e6)] = 1.5,
    content_cv: Annotated[float, Within(0, 10)] = 0.1,
    stage_weights: Annotated[tuple[float, ...], Within(1e-9, 1e9)] = (1.0, 1.05, 1.1, 1.0),
    num_steps: Annotated[int, Within(2, 100_000)] = 2000,
    seed: int = 0,
) -> Stragglers:
    """Compute the cost of a barrier, exactly and simulated, and the savings of backups.

    >>> answer = stragglers()
    >>> round(answer.cost, 2), round(answer.backups[13], 2), f"{answer.total:.3f}"
    (2.21, 1.55, '0.111')

    Args:
        num_workers: Workers that are waited for.
        distribution: Distribution of a worker's step; a trace needs a file.
        compute_s: Mean time that a worker computes for a step; a trace has its own.
        cv: Standard deviation over mean; not for pareto and trace.
        shape: Shape of pareto: 2 or less has no variance, 1 or less no mean.
        trace: File with a duration a line, such as 18.3 ms, or a CSV file with a column named seconds.
        exchange_s: Seconds of the exchange behind the barrier.
        slowdown: Slow-down of the persistently slow worker in the composed trace.
        content_cv: Coefficient of variation of what varies from step to step in the composed trace.
        stage_weights: Work of the composed trace's stages; workers belong to them in turn.
        num_steps: Simulated iterations.
        seed: Seed of the simulation.

    Raises:
        ConfigError: An input that is out of range.
        DataError: A trace that cannot be read.
    """
    if num_workers * num_steps > _MOST_DRAWS:
        raise ArgumentError(
            f"`num_steps` is {num_steps} with `num_workers` of {num_workers}, which takes too long to "
            f"simulate; write at most {_MOST_DRAWS // num_workers} for `num_steps`"
        )
    times = _times(distribution, mean_s=compute_s, cv=cv, shape=shape, trace=trace)
    random = np.random.default_rng(seed)
    drawn_s = times.draw_s(random, (num_steps, num_workers))
    late = np.linspace(0.5, max(2.0, 1.3 * times.slowest_quantile_s(0.9, of=num_workers) / times.mean_s), 60)
    return Stragglers(
        num_workers=num_workers,
        mean_s=times.mean_s,
        all_reduce_s=exchange_s,
        cost=max(times.expected_s(rank=num_workers, of=num_workers) / times.mean_s, 1.0),  # 1 but for rounding
        simulated_cost=interval_of(drawn_s.max(axis=1) / times.mean_s),
        has_variance=distribution != "pareto" or shape > LEAST_VARIED_SHAPE,
        quantiles={level: times.slowest_quantile_s(level, of=num_workers) / times.mean_s for level in _LEVELS},
        backups={
            number: times.expected_s(rank=num_workers, of=num_workers + number) / times.mean_s for number in _BACKUPS
        },
        periods={period: slowest_sum(drawn_s, period=period) / times.mean_s for period in PERIODS},
        by_workers={number: times.expected_s(rank=number, of=number) / times.mean_s for number in _WORKERS},
        grid=_lognormal_grid(),
        tails=tails_of(num_workers),
        late={float(time): _share_later(times, float(time) * times.mean_s) for time in late},
        late_twice=_any_of(num_workers, _share_later(times, 2 * times.mean_s)),
        composed=compose_trace(
            num_workers=num_workers,
            num_iterations=num_steps,
            slowdown=slowdown,
            content_cv=content_cv,
            stages=stage_weights,
            random=random,
        ),
    )


def _times(kind: Kind, *, mean_s: float, cv: float, shape: float, trace: str) -> Durations:
    if kind == "trace":
        if not trace:
            raise ArgumentError(
                '`distribution` is "trace", and no `trace` is given; write the path of a file for `trace`'
            )
        return TraceTimes(np.sort(EmpiricalTrace.read(Path(trace)).durations_s))
    if kind == "pareto":
        return ParetoTimes(mean_s=mean_s, shape=shape)
    return varying_times(kind, mean_s=mean_s, cv=cv)


def _lognormal_grid() -> tuple[BarrierPoint, ...]:
    return tuple(
        BarrierPoint(
            num_workers=number, cv=cv, cost=LogNormalTimes(mean_s=1.0, cv=cv).expected_s(rank=number, of=number)
        )
        for number in _WORKERS
        for cv in CVS
    )


def _any_of(number: int, share: float) -> float:
    """Return the probability that at least one of ``number`` does what each does with probability ``share``."""
    return 1.0 if share == 1 else -math.expm1(number * math.log1p(-share))


def _share_later(times: Durations, time_s: float) -> float:
    """Return the share of durations above ``time_s``, by bisection of the quantile function."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if float(times.exceeded_s(np.array(middle))) > time_s else (low, middle)
    return low
