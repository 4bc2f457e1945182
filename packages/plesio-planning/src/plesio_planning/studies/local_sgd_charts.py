"""The pictures of the study of local SGD (`plesio_planning.studies.models.local_sgd`)."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plesio.core.charts import Axis, Chart, LineChart, Series
from plesio_planning.studies.declared import lines_of

if TYPE_CHECKING:
    from plesio_planning.studies.models.local_sgd import LocalSgd

__all__ = ["charts_of"]


def charts_of(asked: "LocalSgd") -> Sequence[Chart]:
    """Time by K, iterations by K, floors, loss over time, K* by Tm / Tc, and a loss that is not convex."""
    return [_times(asked), _iterations(asked), _floors(asked), _losses(asked), _best_periods(asked), _nonconvex(asked)]


def _times(asked: "LocalSgd") -> LineChart:
    lines = {
        f"Tm / Tc = {ratio:g}": [time_s / min(times.values()) for time_s in times.values()]
        for ratio, times in asked.times.items()
    }
    return LineChart(
        slug="time",
        title=f"{asked.best.period} local steps are the fastest where an exchange takes "
        f"{asked.communicate_s / asked.compute_s:g} steps",
        caption="Time until the target over the shortest, by communicating over computing.",
        x=Axis(title="local steps K", log=True),
        y=Axis(title="time over the shortest", log=True),
        series=lines_of([point.period for point in asked.points], lines),
    )


def _iterations(asked: "LocalSgd") -> LineChart:
    periods = [point.period for point in asked.points]
    arriving = [point for point in asked.points if math.isfinite(point.iterations)]
    scale = sum(each.iterations for each in arriving) / sum(1 + asked.penalty * each.period for each in arriving)
    lines = {
        "unequal workers": [point.iterations for point in asked.points],
        "equal Hessians": [point.equal_iterations for point in asked.points],
        "mean of K gradients": [point.gradient_iterations for point in asked.points],
    }
    return LineChart(
        slug="iterations",
        title=f"Each local step costs {100 * asked.penalty:.1f} % more iterations, or none with equal Hessians",
        caption=f"Iterations of each worker to a loss of {asked.target:g}, with the best step for each K.",
        x=Axis(title="local steps K"),
        y=Axis(title="iterations"),
        series=[
            *lines_of(periods, lines),
            *lines_of(periods, {"1 + cK": [scale * (1 + asked.penalty * each) for each in periods]}, style="dashed"),
        ],
    )


def _floors(asked: "LocalSgd") -> LineChart:
    periods = [point.period for point in asked.points]
    simulated = {"unequal workers, simulated": [point.simulated_floor.mean for point in asked.points]}
    expected = {
        "unequal workers": [point.floor for point in asked.points],
        "equal Hessians": [point.equal_floor for point in asked.points],
    }
    return LineChart(
        slug="floors",
        title="Unequal workers drift: the floor rises with the local steps",
        caption=f"Expected loss above the optimum in the end, with a step of {asked.floor_step:g} for all K.",
        x=Axis(title="local steps K", log=True),
        y=Axis(title="loss above the optimum", log=True),
        series=[
            *lines_of(periods, expected),
            *lines_of(periods, simulated, style="points"),
        ],
    )


def _losses(asked: "LocalSgd") -> LineChart:
    return LineChart(
        slug="loss",
        title="Fewer exchanges are faster until the drift costs more than they save",
        caption="Expected loss above the optimum over time, with the best step for each K.",
        x=Axis(title="time (s)"),
        y=Axis(title="loss above the optimum", log=True),
        series=[
            Series(name=f"K = {point.period}", x=list(point.loss), y=list(point.loss.values()))
            for point in asked.points
            if point.loss
        ],
    )


def _best_periods(asked: "LocalSgd") -> LineChart:
    ratios = list(asked.best_periods)
    return LineChart(
        slug="best-period",
        title="The best number of local steps grows as the root of communicating over computing",
        caption=f"K* = sqrt(Tm / (c Tc)) with c = {asked.penalty:.3f}, and the best of the K that were tried.",
        x=Axis(title="communicating over computing, Tm / Tc", log=True),
        y=Axis(title="local steps K", log=True),
        series=[
            *lines_of(ratios, {"formula": [formula for formula, _ in asked.best_periods.values()]}),
            *lines_of(ratios, {"best of the sweep": [best for _, best in asked.best_periods.values()]}, style="points"),
        ],
    )


def _nonconvex(asked: "LocalSgd") -> LineChart:
    periods = [point.period for point in asked.points]
    first = asked.points[0].iterations
    found = asked.nonconvex
    lines = [
        line
        for number, over in enumerate(found.over_first)
        for line in lines_of(over, {f"not convex, data {number}": list(over.values())}, style="points", hollow=True)
    ]
    return LineChart(
        slug="nonconvex",
        title=f"Where the loss is not convex each local step costs {100 * found.penalty:.1f} % more iterations",
        caption=f"Iterations of each worker over those with K = {periods[0]}, best steps: sigmoid neurons with data "
        "drawn anew, and the quadratics.",
        x=Axis(title="local steps K", log=True),
        y=Axis(title=f"iterations over those of K = {periods[0]}", log=True),
        series=[*lines_of(periods, {"quadratics": [point.iterations / first for point in asked.points]}), *lines],
    )
