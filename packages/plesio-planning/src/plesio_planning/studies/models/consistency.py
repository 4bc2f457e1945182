"""Which consistency model reaches a target first: BSP, local SGD, SSP or no bound at all.

Time to a target is steps times seconds of a step:

    seconds    from step times and exchanges, worker by worker (`plesio_planning.sim.recurrences`); a barrier is charged
               to the workers that wait at it, an exchange to those that make it
    steps      from the order in which updates then arrive (`order_updates` there), by gradient descent with just these
               delays (`studies.delayed_descent`); behind barriers by `studies.heterogeneous_quadratic`

Noise adds its variance: behind a barrier exactly, else that of the stochastic delay equation ``dx = -a x(t-T) dt +
dW``, ``(1 + sin aT) / (2a cos aT)`` (Küchler & Mensch 1992), with the mean staleness. Ties, within a hundredth, go to
the stricter model: communication that is hidden makes many of them.

``docs/planning/studies/consistency.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, ClassVar

import numpy as np

from plesio.core.charts import Axis, Chart, HeatMap, LineChart, Table
from plesio.core.errors import ArgumentError
from plesio.core.units import format_seconds
from plesio.core.within import DURATION, SHARE, Within
from plesio_planning.studies.consistency_contest import FAMILIES, LEARNING_STEPS, Cell, Contest
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.heterogeneous_quadratic import best_rounds, make_heterogeneous
from plesio_planning.studies.study import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Consistency(Answer):
    """The winners by situation.

    Attributes:
        at: The situation that was asked for.
        curves: Loss above the optimum by seconds there, of the best of each family, until the target.
        transient: Winners by ratio and variation, without a slow worker.
        persistent: Winners by ratio and slowdown of one worker, with little variation.
        step_s: Mean seconds of a step.
    """

    unit: ClassVar[str] = "s"
    at: Cell
    curves: Mapping[str, Mapping[float, float]]
    transient: tuple[Cell, ...]
    persistent: tuple[Cell, ...]
    step_s: float

    @property
    def finding(self) -> str:
        """The winner here, and how often each wins."""
        at, winner = self.at, self.at.winner
        won = {
            family: sum(cell.winner.family == family for cell in (*self.transient, *self.persistent))
            for family in FAMILIES
        }
        wins = ", ".join(f"{family} {number}" for family, number in won.items())
        return (
            f"Where an exchange takes {at.ratio:g} steps, steps vary by {at.cv:g} and one worker is {at.slowdown:g} "
            f"times slower, {winner.spec} is first: {format_seconds(winner.time_s)}, {at.gain:.2f} times as fast as "
            f"BSP. Of {len(self.transient) + len(self.persistent)} situations each wins: {wins}."
        )

    @property
    def total(self) -> float:
        """The winner's seconds."""
        return self.at.winner.time_s

    @property
    def parts(self) -> Mapping[str, float]:
        """Computing, and the rest: waiting and communicating."""
        computing_s = self.at.winner.computing_s
        return {"computing": computing_s, "waiting and communicating": max(self.total - computing_s, 0.0)}

    def tables(self) -> Sequence[Table]:
        """List all contenders here, and the effect of a persistently slow worker."""
        slow = [cell for cell in self.persistent if cell.ratio == self.at.ratio]
        return [
            table_of(
                "Time to the target:",
                self.at.contenders,
                {
                    "model": lambda each: each.spec,
                    "time": lambda each: _seconds(each.time_s),
                    "steps of a worker": lambda each: f"{each.steps:.0f}" if math.isfinite(each.steps) else "–",
                    "mean staleness": lambda each: f"{each.mean_staleness:.1f}",
                },
            ),
            Table(
                title=f"One worker that is slow for good, an exchange of {self.at.ratio:g} steps:",
                headers=("slowdown", *FAMILIES, "BSP, rebalanced"),
                rows=[
                    (
                        f"{cell.slowdown:g}",
                        *(_seconds(cell.best_of(family).time_s) for family in FAMILIES),
                        _seconds(cell.rebalanced_s),
                    )
                    for cell in slow
                ],
            ),
        ]

    def charts(self) -> Sequence[Chart]:
        """Draw the two maps, a line through one, and loss over time."""
        return [
            _map(
                self.transient,
                slug="transient",
                rows=sorted({cell.cv for cell in self.transient}, reverse=True),
                row_of=lambda cell: cell.cv,
                title="Transient stragglers: communication asks for local steps, variation for slack",
                axis="coefficient of variation of the steps",
            ),
            _map(
                self.persistent,
                slug="persistent",
                rows=sorted({cell.slowdown for cell in self.persistent}, reverse=True),
                row_of=lambda cell: cell.slowdown,
                title=_who_is_first([cell for cell in self.persistent if cell.slowdown == self._slowest]),
                axis="slowdown of one worker",
            ),
            self._by_slowdown(),
            self._losses(),
        ]

    def _losses(self) -> LineChart:
        winner = self.at.winner
        return LineChart(
            slug="loss-time",
            title=f"{winner.spec} is at the target first, after {format_seconds(winner.time_s)}",
            caption="Expected loss above the optimum by time, of the best of each family, until it stays at the target "
            f"or below; an exchange takes {self.at.ratio:g} steps.",
            x=Axis(title="time (s)"),
            y=Axis(title="loss above the optimum", log=True),
            series=[line for spec, curve in self.curves.items() for line in lines_of(curve, {spec: curve.values()})],
        )

    @property
    def _slowest(self) -> float:
        return max(cell.slowdown for cell in self.persistent)

    def _slow_title(self, cells: Sequence[Cell]) -> str:
        """Describe the winner where one worker is slowest."""
        slowest = next(cell for cell in cells if cell.slowdown == self._slowest)
        if slowest.slowdown == 1:
            return "Where nobody is slow for good, there is nothing to rebalance"
        winner = slowest.winner
        first = "giving it less work" if slowest.rebalanced_s <= winner.time_s else winner.spec
        return f"Against a worker that is {slowest.slowdown:g} times slower for good, {first} helps most"

    def _by_slowdown(self) -> LineChart:
        cells = [cell for cell in self.persistent if cell.ratio == self.at.ratio]
        slowdowns = [cell.slowdown for cell in cells]
        families = {family: [cell.best_of(family).time_s for cell in cells] for family in FAMILIES}
        return LineChart(
            slug="slowdown",
            title=self._slow_title(cells),
            caption=f"Time to the target, the best of each family; an exchange takes {self.at.ratio:g} steps. A line "
            "ends where the target is not reached.",
            x=Axis(title="slowdown of one worker"),
            y=Axis(title="time (s)"),
            series=lines_of(slowdowns, families, dashed={"BSP, rebalanced": [cell.rebalanced_s for cell in cells]}),
        )


def consistency(
    *,
    ratio: Annotated[float, Within(0, 1e6)] = 1.0,
    cv: Annotated[float, Within(0, 10)] = 0.3,
    slowdown: Annotated[float, Within(1, 1e6)] = 1.0,
    overlap: Annotated[float, SHARE] = 0.0,
    compute_s: Annotated[float, DURATION] = 0.05,
    num_workers: Annotated[int, Within(2, 64)] = 8,
    bounds: Annotated[tuple[int, ...], Within(1, 10_000)] = (1, 4),
    periods: Annotated[tuple[int, ...], Within(2, 1000)] = (2, 4, 8, 16),
    ratios: Annotated[tuple[float, ...], Within(0, 1e6, most=12)] = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0),
    cvs: Annotated[tuple[float, ...], Within(0, 10, most=12)] = (0.0, 0.1, 0.3, 0.6, 1.0),
    slowdowns: Annotated[tuple[float, ...], Within(1, 1e6, most=12)] = (1.0, 1.2, 1.5, 2.0, 4.0),
    heterogeneity: Annotated[float, Within(0, 1e6)] = 0.1,
    noise: Annotated[float, Within(0, 1e6)] = 0.2,
    target: Annotated[float, Within(1e-12, 1e6)] = 1e-3,
    seed: int = 0,
) -> Consistency:
    """Time to a target of four consistency models, in one situation and over maps of them.

    >>> answer = consistency(ratios=(3.0,), cvs=(0.0,), slowdowns=(1.0,), ratio=3.0, cv=0.0)
    >>> answer.at.winner.family
    'local SGD'

    Args:
        ratio: Seconds of an exchange over those of a step.
        cv: Coefficient of variation of the steps.
        slowdown: Slow-down of one worker, for good.
        overlap: Share of a step behind which an exchange can hide, 0 to 1.
        compute_s: Mean time that a worker computes for a step.
        num_workers: Workers, each with its own quadratic.
        bounds: Bounds of SSP that are tried.
        periods: Local steps that are tried.
        ratios: Ratios of the maps.
        cvs: Coefficients of variation of the map without a slow worker.
        slowdowns: Slow-downs of the map with one.
        heterogeneity: Standard deviation of the workers' optima; the start is at 1 in each coordinate.
        noise: Standard deviation of a gradient's noise.
        target: Loss above the optimum that is wanted.
        seed: Seed of quadratics and step times.
    """
    problem = make_heterogeneous(
        num_workers=num_workers,
        num_dimensions=4,
        condition_number=10.0,
        hessian_spread=0.5,
        heterogeneity=heterogeneity,
        noise=noise,
        random=np.random.default_rng(seed),
    )
    barriers = {period: best_rounds(problem, period=period, target=target) for period in (1, *periods)}
    contest = Contest(
        problem=problem,
        target=target,
        bounds=bounds,
        barriers=barriers,
        learning_steps=tuple((barriers[1][0] * LEARNING_STEPS).tolist()),
        overlap=overlap,
        step_s=compute_s,
        seed=seed,
    )
    if math.isinf(barriers[1][1]):
        raise ArgumentError(
            f"BSP itself does not get to a `target` of {target:g}; write a larger `target` or less `noise`"
        )
    quiet = min(cvs)
    maps_ratios = sorted({*ratios, ratio})
    at = contest.cell(ratio=ratio, cv=cv, slowdown=slowdown)
    return Consistency(
        at=at,
        curves=contest.curves(at),
        transient=tuple(contest.cell(ratio=x, cv=y, slowdown=1.0) for y in cvs for x in maps_ratios),
        persistent=tuple(
            contest.cell(ratio=x, cv=max(quiet, 0.1), slowdown=y) for y in sorted(slowdowns) for x in maps_ratios
        ),
        step_s=compute_s,
    )


def _map(
    cells: Sequence[Cell], *, slug: str, rows: Sequence[float], row_of: Callable[[Cell], float], title: str, axis: str
) -> HeatMap:
    """Draw the winners, and how much faster than BSP they are."""
    columns = sorted({cell.ratio for cell in cells})
    places = {(row_of(cell), cell.ratio): cell for cell in cells}
    return HeatMap(
        slug=slug,
        title=title,
        caption="The model that reaches the target first, and BSP's time over its; ties go to the stricter model.",
        x=Axis(title="seconds of an exchange over those of a step"),
        y=Axis(title=axis),
        columns=[f"{column:g}" for column in columns],
        rows=[f"{row:g}" for row in rows],
        values=[[FAMILIES.index(places[row, column].winner.family) for column in columns] for row in rows],
        categories=FAMILIES,
        texts=[[f"{places[row, column].gain:.2f}" for column in columns] for row in rows],
    )


def _who_is_first(cells: Sequence[Cell]) -> str:
    """Name the winners in situations that differ by the length of an exchange alone, from short to long."""
    by_ratio = sorted(cells, key=lambda cell: cell.ratio)
    runs = [
        (family, max(cell.ratio for cell in run)) for family, run in groupby(by_ratio, lambda cell: cell.winner.family)
    ]
    slowdown = cells[0].slowdown
    worker = f"With a worker {slowdown:g} times slower for good" if slowdown > 1 else "With equal workers"
    first = [f"{family} up to a ratio of {ratio:g}" for family, ratio in runs[:-1]]
    return f"{worker} the fastest is {', '.join([*first, runs[-1][0]])}{' beyond' if first else ''}"


def _seconds(value_s: float) -> str:
    return format_seconds(value_s) if math.isfinite(value_s) else "never"
