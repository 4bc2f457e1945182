"""The pictures of the study of pipelines (`plesio_planning.studies.models.pipeline`)."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Series, Timeline
from plesio.core.units import counted
from plesio_planning.studies.pipeline_stages import PipelinePoint
from plesio_planning.theory.parallelism import bubble_share, micro_batches_for

if TYPE_CHECKING:
    from plesio_planning.studies.models.pipeline import Pipeline

__all__ = ["charts_of", "words_of"]

_STAGES_DRAWN = (4, 8, 16, 32)
_MOST_DRAWN, _NUM_DRAWN = 1024, 80
"""Micro-batches in the picture of utilisation, and points of a line."""


def words_of(point: PipelinePoint) -> str:
    """Describe a way to run the pipeline."""
    again = "" if point.recomputation == "none" else f" and {point.recomputation} recomputation"
    return f"{point.schedule} with {point.num_micro_batches} micro-batches{again}"


def charts_of(asked: "Pipeline") -> Sequence[Chart]:
    """Time against memory; who does what when; utilisation and memory by micro-batches; where the time goes."""
    return [_time_memory(asked), _timeline(asked), _utilisation(asked), _memory(asked), _shares(asked)]


def _time_memory(asked: "Pipeline") -> LineChart:
    series = [
        Series(
            name=schedule,
            x=[_memory_gb(asked, point) for point in asked.points if point.schedule == schedule],
            y=[1e3 * point.micro_batch_s for point in asked.points if point.schedule == schedule],
            style="points",
            hollow=True,  # some schedules are in one place
        )
        for schedule in dict.fromkeys(point.schedule for point in asked.points)
    ]
    front = Series(
        name="frontier",
        x=[_memory_gb(asked, point) for point in asked.frontier],
        y=[1e3 * point.micro_batch_s for point in asked.frontier],
        style="dashed",
    )
    title = "Nothing fits" if asked.fastest is None else f"{words_of(asked.fastest)} is the fastest that fits"
    return LineChart(
        slug="time-memory",
        title=title,
        caption="A point is a schedule, a number of micro-batches and a recomputation; nothing is below the line.",
        x=Axis(title="memory of the fullest device (GB)", log=True),
        y=Axis(title="time a micro-batch (ms)", log=True),
        series=[*series, front],
        marks={"memory": asked.memory_bytes / 1e9},
    )


def _memory_gb(asked: "Pipeline", point: PipelinePoint) -> float:
    return (asked.state_bytes + point.activation_bytes) / 1e9


def _timeline(asked: "Pipeline") -> Timeline:
    busy_s = math.fsum(span.end - span.start for span in asked.drawn)
    waiting = 1 - busy_s / asked.num_stages / max(span.end for span in asked.drawn)
    return Timeline(
        slug="timeline",
        title=f"With few micro-batches devices wait {100 * waiting:.0f} % of the time ({asked.at.schedule})",
        caption=f"A few micro-batches, whose numbers are in the boxes, in {asked.num_stages} stages.",
        axis=Axis(title="time (s)"),
        rows=[f"device {device}" for device in range(asked.num_stages)],
        spans=asked.drawn,
    )


def _utilisation(asked: "Pipeline") -> LineChart:
    counts = sorted({round(_MOST_DRAWN ** (step / _NUM_DRAWN)) for step in range(_NUM_DRAWN + 1)})
    numbers = sorted({*_STAGES_DRAWN, asked.num_stages} - {1})
    series = [
        Series(
            name=f"{stages} stages",
            x=counts,
            y=[100 * (1 - bubble_share(num_stages=stages, num_micro_batches=count)) for count in counts],
        )
        for stages in numbers
    ]
    # with as many stages, each curve reaches the target somewhere else
    needed = {stages: micro_batches_for(asked.target_bubble, num_stages=stages) for stages in numbers}
    drawn = {stages: count for stages, count in needed.items() if count <= _MOST_DRAWN}
    target = Series(
        name=f"{100 * asked.target_bubble:g} % bubble",
        x=list(drawn.values()),
        y=[100 * (1 - asked.target_bubble)] * len(drawn),
        style="points",
        labels=[str(count) for count in drawn.values()],
    )
    twice = 100 * bubble_share(num_stages=asked.num_stages, num_micro_batches=2 * asked.num_stages)
    return LineChart(
        slug="utilisation",
        title=f"Twice as many micro-batches as stages leave {twice:.0f} % bubble",
        caption="Share of the time in which equal stages compute, with GPipe and 1F1B; points have the micro-batches "
        f"that leave {100 * asked.target_bubble:g} % bubble, by number of stages.",
        x=Axis(title="micro-batches", log=True),
        y=Axis(title="utilisation (%)"),
        series=[*series, target],
        levels=[100 * (1 - asked.target_bubble)],
    )


def _memory(asked: "Pipeline") -> LineChart:
    at = asked.at
    lines: dict[str, list[PipelinePoint]] = {}
    for schedule in dict.fromkeys(point.schedule for point in asked.points):
        points = [p for p in asked.points if (p.schedule, p.recomputation) == (schedule, at.recomputation)]
        points.sort(key=lambda point: point.num_micro_batches)
        same = next((name for name, line in lines.items() if line[-1].held == points[-1].held), None)
        if same is None:
            lines[schedule] = points
        else:  # one line would hide the other
            lines[f"{same}, {schedule}"] = lines.pop(same)
    series = [
        Series(
            name=name,
            x=[point.num_micro_batches for point in line],
            y=[_memory_gb(asked, point) for point in line],
        )
        for name, line in lines.items()
    ]
    return LineChart(
        slug="memory",
        title="Only GPipe's memory goes on growing with the micro-batches",
        caption=f"Memory of the fullest device, recomputation: {at.recomputation}; the level is what a device has.",
        x=Axis(title="micro-batches", log=True),
        y=Axis(title="memory (GB)", log=True),
        series=series,
        levels=[asked.memory_bytes / 1e9],
    )


def _shares(asked: "Pipeline") -> BarChart:
    points = asked.by_schedule
    least = min(points, key=lambda point: point.bubble)
    return BarChart(
        slug="schedules",
        title=f"{asked.at.schedule} waits {100 * asked.at.bubble:.0f} % of the time, {least.schedule} "
        f"{100 * least.bubble:.0f} %",
        caption=f"Seconds of an iteration of {counted(asked.at.num_micro_batches, 'micro-batch')} in which a device "
        "computes, on average, and waits.",
        axis=Axis(title="time (s)"),
        rows=[point.schedule for point in points],
        parts={
            "computing": [point.iteration_s * (1 - point.bubble) for point in points],
            "bubble": [point.iteration_s * point.bubble for point in points],
        },
    )
