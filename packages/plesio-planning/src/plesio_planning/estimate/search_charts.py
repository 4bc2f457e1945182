"""A search in words, tables and charts (`plesio.core.charts`)."""

import math
from collections.abc import Sequence

from plesio.core.charts import Axis, Chart, HeatMap, LineChart, Series, Table
from plesio.core.units import format_seconds
from plesio_planning.estimate.frontier import Frontier
from plesio_planning.estimate.search import Search
from plesio_planning.estimate.search_walk import FoundLayout
from plesio_planning.estimate.training import Training
from plesio_planning.estimate.training_charts import format_days, format_dollars, format_gib, format_layout

_DAY_S = 86_400.0
_CAUTION = (
    "The interval does not cover layouts that nobody has calibrated: "
    "runs that others reported took 1.2 to 1.6 times the device-hours of the fastest layouts found for them."
)
"""The table of docs/planning/index.md, by benchmarks/whole_runs.py."""


def search_finding(training: Training, frontier: Frontier) -> str:
    """Name the best layout, its lead over the others, and the reasons why those are out."""
    found = frontier.searches[training.machine.name]
    cheapest = min(frontier.trainings, key=lambda one: one.cost)
    return (
        f"The fastest layout is {format_layout(training.layout)}. Of {found.num_tried:,} layouts "
        f"{found.num_not_divisible:,} do not divide the model, the batch or the machine, {found.num_too_large:,} do "
        f"not fit into memory, {found.num_slower:,} cannot be as fast, and {len(found.candidates):,} were timed. "
        f"The cheapest machine of those tried is {cheapest.machine.name}: {format_dollars(cheapest.cost)} and "
        f"{format_days(cheapest.total_s)}. {_CAUTION}"
    )


def search_tables(training: Training, frontier: Frontier, *, top: int) -> Sequence[Table]:
    """List the fastest layouts, and the machines."""
    return [_fastest(training, frontier.searches[training.machine.name], top=top), _machines(frontier)]


def _fastest(training: Training, found: Search, *, top: int) -> Table:
    rows = [
        (
            format_layout(one.layout),
            f"{one.step.num_samples:,}",
            format_seconds(one.step.total_s),
            format_days(_run_s(training, one)),
            f"{100 * one.step.mfu:.1f} %",
            format_gib(one.memory.total_bytes),
            str(as_fast) if as_fast else "",
        )
        for one, as_fast in found.distinct(top)
    ]
    wanted = found.question.wanted
    saving = f", where a batch that is not {wanted:,} has to save time" if found.question.near else ""
    title = (
        f"The fastest layouts on {training.machine.name}{saving}; of those that are as fast, that of the least memory:"
    )
    return Table(title=title, headers=("layout", "batch", "step", "run", "MFU", "memory", "others as fast"), rows=rows)


def _run_s(training: Training, other: FoundLayout) -> float:
    """Return the seconds of a run on the same machine in another layout: failures and states stretch all alike."""
    return training.total_s * other.step.sample_s / training.step.sample_s


def _machines(frontier: Frontier) -> Table:
    front = {training.machine.name for training in frontier.front}
    rows = [
        (
            training.machine.name,
            format_layout(training.layout),
            f"{training.step.num_samples:,}",
            format_days(training.total_s),
            format_dollars(training.cost),
            f"{100 * training.step.mfu:.1f} %",
            f"{100 * training.goodput.share:.1f} %",
            "yes" if training.machine.name in front else "no",
        )
        for training in frontier.trainings
    ]
    rows += [(name, "nothing fits", "", "", "", "", "", "no") for name in frontier.refused]
    headers = ("machine", "fastest layout", "batch", "run", "cost", "MFU", "goodput", "on the front")
    return Table(title="Time and cost by machine:", headers=headers, rows=rows)


def search_charts(training: Training, frontier: Frontier) -> Sequence[Chart]:
    """Draw days by tensor and pipeline parallelism, and time against cost of the machines."""
    charts: list[Chart] = [_heat_map(training, frontier.searches[training.machine.name])]
    if len(frontier.trainings) > 1:
        charts.append(_front(frontier))
    return charts


def _heat_map(training: Training, found: Search) -> HeatMap:
    cells = found.best_by_degrees()
    tps, pps = (sorted({degrees[place] for degrees in cells}) for place in (0, 1))
    days = [[_run_s(training, cells[tp, pp]) / _DAY_S if (tp, pp) in cells else math.nan for pp in pps] for tp in tps]
    best = found.best.layout
    return HeatMap(
        slug="degrees",
        title=f"{format_days(training.total_s)} with tp {best.tp} and pp {best.pp}",
        caption="Days of the run by tensor and pipeline parallelism, all else the best; an empty cell does not fit.",
        x=Axis(title="pipeline stages (pp)"),
        y=Axis(title="tensor-parallel devices (tp)"),
        columns=[str(pp) for pp in pps],
        rows=[str(tp) for tp in tps],
        values=days,
        scale=Axis(title="time (days)"),
    )


def _front(frontier: Frontier) -> LineChart:
    front = frontier.front
    fastest, cheapest = front[0], front[-1]
    word, unit = ("million", 1e6) if fastest.cost >= 1e6 else ("thousand", 1e3)

    def days(trainings: Sequence[Training]) -> list[float]:
        return [one.total_s / _DAY_S for one in trainings]

    def dollars(trainings: Sequence[Training]) -> list[float]:
        return [one.cost / unit for one in trainings]

    every = frontier.trainings
    names = [one.machine.name for one in every]
    return LineChart(
        slug="front",
        title=f"{format_days(fastest.total_s)} for {format_dollars(fastest.cost)} with {fastest.machine.name}, "
        f"{format_days(cheapest.total_s)} for {format_dollars(cheapest.cost)} with {cheapest.machine.name}",
        caption="Cost and days of the run on each machine, in its fastest layout; the line joins what nothing beats.",
        x=Axis(title="time (days)"),
        y=Axis(title=f"cost ({word} dollars)"),
        series=[
            Series(name="front", x=days(front), y=dollars(front)),
            Series(name="machines", x=days(every), y=dollars(every), style="points", labels=names),
        ],
    )
