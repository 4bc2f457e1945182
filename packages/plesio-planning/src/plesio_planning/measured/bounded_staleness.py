"""Asynchronous runs with gradients that are late by a known number of updates, beside `studies.bounded_staleness`.

Workers whose steps all take the same time take turns at a store, so of τ + 1 of them each update is about τ updates
late. They descend on a quadratic with steps below and above the limit from which on that diverges. How much of the loss
an update leaves is what is measured; where it leaves all of it is the limit. Predicted are the former from the
staleness that the run's updates had, drawn independently, and the latter from these as well, and from τ alone.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.results import RunResult
from plesio.core.units import counted
from plesio.core.within import Within
from plesio_planning.measured.quadratics import problem_of, run_quadratics
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.delayed_descent import descend
from plesio_planning.studies.measured import Measured
from plesio_planning.theory.stability import stability_limit

__all__ = ["FOUND", "left_by_update", "measure", "measure_delays", "where_it_leaves_all"]

Array = NDArray[np.float64]

FOUND = ()
DELAYS = (1, 3, 5)
SHARES = (0.5, 0.8, 1.1, 1.4, 1.7)
"""Steps over the limit."""
NUM_STEPS = 100
STEP_MS = 12
NUM_DRAWS = 10


def measure(
    twin: Twin,
    /,
    *,
    stalenesses: Annotated[tuple[int, ...], Within(1, 7, most=4)] = DELAYS,
    condition_number: Annotated[float, Within(1, 100)] = 1.0,
    num_dimensions: Annotated[int, Within(2, 100)] = 10,
) -> Measured:
    """Measure two, four and six workers that take turns; takes about a minute.

    Args:
        twin: Keeps what is measured.
        stalenesses: Staleness in updates; one worker more than that.
        condition_number: Condition number of the quadratic; with more than 1 slow coordinates hide for a while that
            fast ones diverge.
        num_dimensions: Its dimensions.
    """
    return measure_delays(
        on_step=twin.say,
        delays=sorted(set(stalenesses)),
        condition_number=condition_number,
        num_dimensions=num_dimensions,
    )


def measure_delays(
    *,
    on_step: Callable[[str], None],
    delays: Sequence[int] = DELAYS,
    shares: Sequence[float] = SHARES,
    num_steps: int = NUM_STEPS,
    condition_number: float = 1.0,
    num_dimensions: int = 10,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        delays: Staleness in updates, rising.
        shares: Steps over the limit, rising, on both sides of 1.
        num_steps: Steps of each worker.
        condition_number: Condition number of the quadratic; with more than 1 slow coordinates hide for a while that
            fast ones diverge.
        num_dimensions: Its dimensions.
    """
    options = {
        "num_dimensions": num_dimensions,
        "condition_number": condition_number,
        "hessian_spread": 0.0,
        "heterogeneity": 0.0,
        "noise": 0.0,
    }
    eigenvalues = problem_of(num_workers=1, **options).eigenvalues[0]  # type: ignore[arg-type]
    predictions, limits, staleness = [], [], {}
    lines: dict[int, tuple[list[float], list[float]]] = {}
    for delay in delays:
        count, limit = delay + 1, stability_limit(staleness=delay)
        steps = [share * limit for share in shares]
        runs = run_quadratics(
            ["asp"],
            options={"learning_rate": [step * count for step in steps], **options},  # a worker's update is an N-th
            workers={"count": count, "step_time": {"kind": "constant", "mean": f"{STEP_MS} ms"}},
            num_steps=num_steps,
            evaluate_every=max(1, num_steps // 20),
            seeds=range(len(steps)),
            on_step=lambda what, count=count: on_step(f"{count} workers, {what}"),  # type: ignore[misc]
        )
        staleness[delay] = statistics.fmean(run.staleness.mean for run in runs)
        measured = [left_by_update(_curve(run)) for run in runs]
        modelled = [
            _modelled(eigenvalues, run, step=step, num_updates=num_steps * count)
            for run, step in zip(runs, steps, strict=True)
        ]
        lines[delay] = modelled, measured
        fresh = [left_by_update(_fresh(eigenvalues, step=step, num_updates=num_steps * count)) for step in steps]
        predictions += _losses_left(delay, shares, modelled=modelled, measured=measured, fresh=fresh)
        limits += _limits(delay, steps, modelled=modelled, measured=measured)
    points = statistics.median(abs(one.error) for one in predictions)
    found = ", ".join(f"{one.measured:.3g} ({one.predicted:.3g})" for one in limits[::2])
    return Measured(
        study="bounded-staleness",
        finding=f"With a staleness of {', '.join(map(str, delays))} real runs diverge from a step of {found} on, the "
        f"model's limit for constant staleness in brackets, and what an update leaves of the loss is off by "
        f"{points:.1f} points (median).",
        setting=f"{', '.join(str(delay + 1) for delay in delays)} processes and a store, no bound, steps of {STEP_MS} "
        f"ms; {counted(num_steps, 'step')} of each, without noise. Updates were "
        f"{', '.join(f'{staleness[delay]:.2f}' for delay in delays)} updates late on average. The baseline has no "
        "staleness.",
        predictions=(*limits, *predictions),
        charts=(_chart(lines, shares=shares),),
    )


def _losses_left(
    delay: int,
    shares: Sequence[float],
    *,
    modelled: Sequence[float],
    measured: Sequence[float],
    fresh: Sequence[float],
) -> list[Prediction]:
    """What an update leaves of the loss, by step over the limit; beside it what it would leave without staleness."""
    return [
        Prediction(
            setting={"staleness": str(delay), "step over limit": f"{share:g}"},
            quantity="loss that an update leaves",
            scale="points",
            predicted=predicted,
            measured=found,
            baseline=baseline,
        )
        for share, predicted, found, baseline in zip(shares, modelled, measured, fresh, strict=True)
    ]


def _limits(
    delay: int, steps: Sequence[float], *, modelled: Sequence[float], measured: Sequence[float]
) -> list[Prediction]:
    """The step from which on runs diverge: by the limit for constant staleness, and by the run's own staleness."""
    ways = (("constant", stability_limit(staleness=delay)), ("the run's", where_it_leaves_all(steps, modelled)))
    return [
        Prediction(
            setting={"staleness": str(delay), "taken as": how},
            quantity="limit of the step (1/L)",
            scale="relative",
            predicted=predicted,
            measured=where_it_leaves_all(steps, measured),
            baseline=stability_limit(staleness=0),
        )
        for how, predicted in ways
    ]


def left_by_update(losses: dict[int, float]) -> float:
    """The share of the loss that an update leaves, from a quarter of the run on; by a line through the logarithms.

    >>> round(left_by_update({number: 0.9**number for number in range(20)}), 6)
    0.9
    """
    begin = max(losses) / 4
    points = [(number, math.log(loss)) for number, loss in losses.items() if number >= begin and loss > 0]
    x, y = zip(*points, strict=True)
    return math.exp(np.polyfit(x, y, 1)[0])


def where_it_leaves_all(steps: Sequence[float], left: Sequence[float]) -> float:
    """The step at which an update leaves the whole loss; on the line through the two next to it.

    >>> where_it_leaves_all([1.0, 2.0, 3.0], [0.5, 0.75, 1.25])
    2.5
    """
    above = next((place for place, share in enumerate(left) if share >= 1), len(left) - 1)
    first = max(above - 1, 0)
    (low, high), (before, after) = steps[first : first + 2], left[first : first + 2]
    return low + (1 - before) / (after - before) * (high - low)


def _curve(run: RunResult) -> dict[int, float]:
    """Loss by updates."""
    return {each.samples: each.metric for each in run.evaluations}


def _modelled(eigenvalues: Array, run: RunResult, *, step: float, num_updates: int) -> float:
    """With delays drawn from those of the run; the mean of some draws."""
    counts = np.array(run.staleness.counts, dtype=float)
    random = np.random.default_rng(0)
    found = []
    for _ in range(NUM_DRAWS):
        delays = random.choice(len(counts), size=num_updates, p=counts / counts.sum())
        found.append(left_by_update(_descended(eigenvalues, step=step, delays=delays)))
    return statistics.fmean(found)


def _fresh(eigenvalues: Array, *, step: float, num_updates: int) -> dict[int, float]:
    return _descended(eigenvalues, step=step, delays=np.zeros(num_updates, np.int64))


def _descended(eigenvalues: Array, *, step: float, delays: NDArray[np.int64]) -> dict[int, float]:
    """Loss by updates, as the study descends."""
    scale = np.sqrt(eigenvalues)  # in these coordinates the distance is the root of twice the loss
    going = descend(eigenvalues=eigenvalues, start=scale, steps=step, delays=delays, target=0.0)
    return dict(enumerate((0.5 * going.distance**2).tolist()))


def _chart(lines: dict[int, tuple[list[float], list[float]]], *, shares: Sequence[float]) -> LineChart:
    series = []
    for delay, (modelled, measured) in lines.items():
        group = f"staleness {delay}"
        for name, left, style in (("modelled", modelled, "line"), ("measured", measured, "points")):
            y = [100 * (share - 1) for share in left]
            series.append(Series(name=f"{group}, {name}", group=group, x=shares, y=y, style=style))  # type: ignore[arg-type]
    return LineChart(
        slug="measured",
        title="Real runs begin to diverge where the model says",
        caption="Growth of the loss by an update, by step over the stability limit of its staleness.",
        x=Axis(title="step over the limit"),
        y=Axis(title="growth of the loss (% an update)"),
        series=series,
        marks={"limit": 1.0},
    )
