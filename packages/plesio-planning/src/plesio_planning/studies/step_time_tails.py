"""How heavy the tail of step times is, and what the slowest of N workers costs with it: four distributions.

The coefficient of variation and the ratio of the 99th percentile to the median are two ways to say how heavy a tail is.
A Pareto distribution with a shape of 2 or less has the second and not the first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plesio.core.charts import Axis, Chart, LineChart, Series, Table
from plesio.core.errors import ArgumentError
from plesio.core.units import counted
from plesio_planning.studies.order_statistics import Durations, GammaTimes, LogNormalTimes, ParetoTimes, UniformTimes

CVS = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Coefficients of variation that are shown."""
LEAST_VARIED_SHAPE = 2.0
"""Pareto's, up to which there is no variance."""
_SHAPES = (50.0, 20.0, 10.0, 5.0, 3.0, 2.5, 2.0, 1.5)
"""Shapes of Pareto's distribution, from a light tail to a heavy one."""
_TAILS = ("lognormal", "gamma", "uniform", "pareto")
_RATIO = 1.8


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPoint:
    """A distribution of step times.

    Attributes:
        cv: Standard deviation over mean; infinite where there is no variance.
        p99_over_median: The 99th percentile over the median.
        cost: E[max] over the mean.
    """

    kind: str
    cv: float
    p99_over_median: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tails:
    """Distributions from a light tail to a heavy one.

    Attributes:
        num_workers: N.
    """

    num_workers: int
    points: tuple[TailPoint, ...]

    def efficiencies_at(self, ratio: float) -> tuple[float, float]:
        """Return the lowest and highest efficiency, per cent, where the 99th percentile is so many times the median."""
        found = [
            float(np.interp(ratio, [one.p99_over_median for one in of_it], [100 / one.cost for one in of_it]))
            for of_it in self._by_kind().values()
        ]
        return min(found), max(found)

    def _by_kind(self) -> dict[str, list[TailPoint]]:
        return {kind: [point for point in self.points if point.kind == kind] for kind in _TAILS}

    def charts(self) -> Sequence[Chart]:
        """Draw efficiency by variation, and by the 99th percentile over the median."""
        return [self._tails(), self._percentiles()]

    def table(self) -> Table:
        """Make a row for each."""
        rows = [
            (
                point.kind,
                f"{point.cv:.2f}" if math.isfinite(point.cv) else "none",
                f"{point.p99_over_median:.2f}",
                f"{point.cost:.3f}",
                f"{100 / point.cost:.1f} %",
            )
            for point in self.points
        ]
        headers = ("distribution", "variation", "p99 over median", "slowest over mean", "efficiency")
        return Table(title=f"By tail, {counted(self.num_workers, 'worker')}:", headers=headers, rows=rows)

    def _tails(self) -> LineChart:
        return LineChart(
            slug="tails",
            title=f"At {counted(self.num_workers, 'worker')} the tail decides, not the variation alone",
            caption="Efficiency, mean over E[max], by coefficient of variation.",
            x=Axis(title="coefficient of variation"),
            y=Axis(title="efficiency (%)"),
            series=[
                Series(name=kind, x=[one.cv for one in varied], y=[100 / one.cost for one in varied])
                for kind, of_it in self._by_kind().items()
                if (varied := [one for one in of_it if math.isfinite(one.cv)])
            ],
        )

    def _percentiles(self) -> LineChart:
        low, high = self.efficiencies_at(_RATIO)
        return LineChart(
            slug="percentiles",
            title=f"Where the 99th percentile is {_RATIO:g} times the median, {low:.0f} to {high:.0f} % of the time is "
            "work",
            caption=f"Efficiency of {counted(self.num_workers, 'worker')}, mean over E[max], by the 99th percentile "
            "over the median.",
            x=Axis(title="99th percentile over median", log=True),
            y=Axis(title="efficiency (%)"),
            series=[
                Series(name=kind, x=[one.p99_over_median for one in of_it], y=[100 / one.cost for one in of_it])
                for kind, of_it in self._by_kind().items()
            ],
        )


def tails_of(num_workers: int) -> Tails:
    """Compute the tails of four distributions, for so many workers.

    >>> low, high = tails_of(256).efficiencies_at(1.8)
    >>> round(low), round(high)
    (49, 56)
    """
    return Tails(
        num_workers=num_workers,
        points=tuple(point for kind in _TAILS for point in _tail(kind, num_workers=num_workers)),
    )


def _tail(kind: str, *, num_workers: int) -> list[TailPoint]:
    """Compute the cost from a light tail to a heavy one, at a mean of 1.

    Tails are by the coefficient of variation, Pareto's by its shape.
    """
    if kind == "pareto":
        # the coefficient of variation is 1 / √(a (a - 2)), and infinite for a shape of 2 or less
        cvs = [1 / math.sqrt(shape * (shape - 2)) if shape > LEAST_VARIED_SHAPE else math.inf for shape in _SHAPES]
        named: list[tuple[float, Durations]] = [
            (cv, ParetoTimes(mean_s=1.0, shape=shape)) for cv, shape in zip(cvs, _SHAPES, strict=True)
        ]
    else:
        named = [(cv, varying_times(kind, mean_s=1.0, cv=cv)) for cv in CVS]
    return [
        TailPoint(
            kind=kind,
            cv=cv,
            p99_over_median=float(times.exceeded_s(np.array(0.01)) / times.exceeded_s(np.array(0.5))),
            cost=times.expected_s(rank=num_workers, of=num_workers),
        )
        for cv, times in named
    ]


def varying_times(kind: str, *, mean_s: float, cv: float) -> Durations:
    """Make lognormal, gamma or uniform times.

    Raises:
        ConfigError: Uniform times that would be negative.
    """
    if kind == "uniform":
        half = 3**0.5 * cv
        if half > 1:
            raise ArgumentError(
                f"`cv` is {cv:g}, and uniform times would be negative; write at most 0.577, or another `distribution`"
            )
        return UniformTimes(low_s=mean_s * (1 - half), high_s=mean_s * (1 + half))
    return GammaTimes(mean_s=mean_s, cv=cv) if kind == "gamma" else LogNormalTimes(mean_s=mean_s, cv=cv)
