"""A pipeline's time and memory as asked for, and beside them all other ways to run it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Table, Timeline, TimelineBar
from plesio.core.units import counted, format_bytes, format_seconds
from plesio_planning.activations import Recomputation
from plesio_planning.sim.pipeline_schedules import Schedule
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.pipeline_stages import PipelinePoint, PipelineStages, frontier, points_of
from plesio_planning.studies.study import Answer
from plesio_planning.theory.parallelism import bubble_share, micro_batches_for

_SLOWER = 1.2
_SEND = 0.1
"""Shares of a forward pass; both for the table of what is not equal."""
_PUBLISHED: Mapping[str, tuple[float, float]] = {
    "gpipe": (1.0, math.nan),
    "1f1b": (1.0, 1.0),
    "zb1p": (1 / 3, 1.0),
    "zb2p": (0.0, 2.0),
    "zbv": (0.0, 1.0),
    "V-Half": (1 / 2, 1 / 2),
    "V-Min": (2 / 3, 1 / 3),
}
"""Bubble and activations relative to 1F1B's, equal times of the three operations (Qi et al. 2023 and 2024)."""
_STAGES_DRAWN = (4, 8, 16, 32)
_MOST_DRAWN, _NUM_DRAWN = 1024, 80
"""Micro-batches in the picture of utilisation, and points of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Answer):
    """The time of an iteration, and the alternatives.

    Attributes:
        at: Point that was asked for.
        num_stages: p.
        target_bubble: Share of the time.
        needed: Micro-batches of equal stages for that, with GPipe and 1F1B.
        memory_bytes: Bytes of each device.
        state_bytes: Bytes of a device's weights, gradients and optimizer state.
        by_schedule: All schedules that have an order, as asked for otherwise.
        points: Schedules, numbers of micro-batches and recomputations.
        frontier: Points than which none is faster with as little memory.
        fastest: The fastest of them that fits, if one does.
        layer_bytes: Bytes that a device keeps of a layer and a micro-batch, by recomputation.
        unequal: Seconds of an iteration by schedule, for stages that are equal, with a slower last one, with sends.
        computing_s: Seconds of an iteration in which devices compute on average, by what.
        drawn: First operations at the point that was asked for, device by device.
    """

    unit: ClassVar[str] = "s"
    at: PipelinePoint
    num_stages: int
    target_bubble: float
    needed: int
    memory_bytes: float
    state_bytes: float
    by_schedule: tuple[PipelinePoint, ...]
    points: tuple[PipelinePoint, ...]
    frontier: tuple[PipelinePoint, ...]
    fastest: PipelinePoint | None
    layer_bytes: Mapping[Recomputation, float]
    unequal: Mapping[str, tuple[float, ...]]
    computing_s: Mapping[str, float]
    drawn: tuple[TimelineBar, ...]

    @classmethod
    def of(
        cls,
        stages: PipelineStages,
        num_micro_batches: int,
        *,
        schedule: Schedule,
        recomputation: Recomputation,
        memory_bytes: float,
        target_bubble: float,
    ) -> "Pipeline":
        """Run the stages as asked for, and as they could be run instead."""
        points = points_of(stages, num_micro_batches, schedule=schedule, recomputation=recomputation)
        here = [p for p in points if (p.num_micro_batches, p.recomputation) == (num_micro_batches, recomputation)]
        fitting = [point for point in points if point.activation_bytes + stages.state_bytes <= memory_bytes]
        return cls(
            at=next(point for point in here if point.schedule == schedule),
            num_stages=len(stages.weights),
            target_bubble=target_bubble,
            needed=micro_batches_for(target_bubble, num_stages=len(stages.weights)),
            memory_bytes=memory_bytes,
            state_bytes=stages.state_bytes,
            by_schedule=tuple(here),
            points=points,
            frontier=frontier(points),
            fastest=min(fitting, key=lambda point: (point.micro_batch_s, point.activation_bytes), default=None),
            layer_bytes=stages.layer_bytes,
            unequal={p.schedule: stages.unequal_s(p, last_slower=_SLOWER, send_share=_SEND) for p in here},
            computing_s=stages.computing_s(num_micro_batches, recomputation),
            drawn=stages.drawn(schedule, recomputation, num_micro_batches=num_micro_batches),
        )

    @property
    def finding(self) -> str:
        """Time, bubble and memory; micro-batches for the target; what is fastest and fits."""
        at = self.at
        best = f"nothing fits into {format_bytes(self.memory_bytes)}"
        if self.fastest is not None:
            each = format_seconds(self.fastest.micro_batch_s)
            fits = f"of what fits into {format_bytes(self.memory_bytes)}"
            best = f"{fits}, {self.fastest.words} is fastest, {each} a micro-batch"
        return (
            f"{at.words} in {self.num_stages} stages takes {format_seconds(at.iteration_s)} an iteration, "
            f"{100 * at.bubble:.1f} % of it bubble, and holds {format_bytes(at.activation_bytes)} of activations "
            f"beside {format_bytes(self.state_bytes)} of weights, gradients and optimizer; for "
            f"{100 * self.target_bubble:g} % bubble GPipe and 1F1B need {self.needed} micro-batches; {best}."
        )

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return self.at.iteration_s

    @property
    def parts(self) -> Mapping[str, float]:
        """The mean work of a device, and its wait."""
        return {**self.computing_s, "bubble": self.at.iteration_s - math.fsum(self.computing_s.values())}

    def tables(self) -> Sequence[Table]:
        """List schedules, the frontier, recomputation, unequal stages."""
        return [self._schedules(), self._frontier_table(), self._recomputation(), self._unequal()]

    def _schedules(self) -> Table:
        base = next(point for point in self.by_schedule if point.schedule == "1f1b")
        base_s = base.iteration_s * base.bubble
        ours: dict[str, PipelinePoint] = {point.schedule: point for point in self.by_schedule}
        rows = []
        for name in dict.fromkeys((*ours, *_PUBLISHED)):
            bubble, activations = _PUBLISHED.get(name, (math.nan, math.nan))
            point = ours.get(name)
            numbers = ("–",) * 6
            if point is not None:
                waiting_s = point.iteration_s * point.bubble
                numbers = (
                    format_seconds(point.iteration_s),
                    f"{100 * point.bubble:.1f} %",
                    format_bytes(point.activation_bytes),
                    format_bytes(self.state_bytes + point.activation_bytes),
                    f"{waiting_s / base_s:.2f}" if base_s else "–",
                    f"{point.held / base.held:.2f}",
                )
            rows.append((name, *numbers, *("–" if math.isnan(one) else f"{one:.2g}" for one in (bubble, activations))))
        headers = (
            "schedule",
            "iteration",
            "bubble",
            "activations",
            "memory",
            "bubble by 1F1B's",
            "held by 1F1B's",
            "published bubble",
            "published held",
        )
        return Table(title=f"{self.at.num_micro_batches} micro-batches, by schedule:", headers=headers, rows=rows)

    def _frontier_table(self) -> Table:
        return table_of(
            "None is faster with as little memory:",
            self.frontier,
            {
                "schedule": lambda point: point.schedule,
                "micro-batches": lambda point: str(point.num_micro_batches),
                "recomputed": lambda point: point.recomputation,
                "activations": lambda point: format_bytes(point.activation_bytes),
                "memory": lambda point: format_bytes(self.state_bytes + point.activation_bytes),
                "time a micro-batch": lambda point: format_seconds(point.micro_batch_s),
                "bubble": lambda point: f"{100 * point.bubble:.1f} %",
                "fits": lambda point: "yes" if self.state_bytes + point.activation_bytes <= self.memory_bytes else "no",
            },
        )

    def _recomputation(self) -> Table:
        by = {
            point.recomputation: point
            for point in self.points
            if (point.schedule, point.num_micro_batches) == (self.at.schedule, self.at.num_micro_batches)
        }
        return table_of(
            "What is kept for the backward pass:",
            self.layer_bytes.items(),
            {
                "recomputed": lambda each: each[0],
                "a layer and micro-batch": lambda each: format_bytes(each[1]),
                "the fullest device": lambda each: format_bytes(by[each[0]].activation_bytes),
                "iteration": lambda each: format_seconds(by[each[0]].iteration_s),
            },
        )

    def _unequal(self) -> Table:
        headers = (
            "schedule",
            "as asked for",
            f"last stage {_SLOWER:g}x slower",
            f"sends of {100 * _SEND:g} % of a forward pass",
        )
        rows = [(name, *map(format_seconds, times_s)) for name, times_s in self.unequal.items()]
        return Table(title="Iteration of stages that are not equal:", headers=headers, rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Time against memory; who does what when; utilisation and memory by micro-batches; where the time goes."""
        return [self._time_memory(), self._timeline(), self._utilisation(), self._memory(), self._shares()]

    def _time_memory(self) -> LineChart:
        series = []
        for schedule in dict.fromkeys(point.schedule for point in self.points):
            points = [point for point in self.points if point.schedule == schedule]
            times_ms = [1e3 * point.micro_batch_s for point in points]
            # hollow, as some schedules are in one place
            series += lines_of([self._memory_gb(point) for point in points], points={schedule: times_ms}, hollow=True)
        times_ms = [1e3 * point.micro_batch_s for point in self.frontier]
        series += lines_of([self._memory_gb(point) for point in self.frontier], dashed={"frontier": times_ms})
        title = "Nothing fits" if self.fastest is None else f"{self.fastest.words} is the fastest that fits"
        return LineChart(
            slug="time-memory",
            title=title,
            caption="A point is a schedule, a number of micro-batches and a recomputation; nothing is below the line.",
            x=Axis(title="memory of the fullest device (GB)", log=True),
            y=Axis(title="time a micro-batch (ms)", log=True),
            series=series,
            marks={"memory": self.memory_bytes / 1e9},
        )

    def _memory_gb(self, point: PipelinePoint) -> float:
        return (self.state_bytes + point.activation_bytes) / 1e9

    def _timeline(self) -> Timeline:
        busy_s = math.fsum(span.end - span.start for span in self.drawn)
        waiting = 1 - busy_s / self.num_stages / max(span.end for span in self.drawn)
        return Timeline(
            slug="timeline",
            title=f"With few micro-batches devices wait {100 * waiting:.0f} % of the time ({self.at.schedule})",
            caption=f"A few micro-batches, whose numbers are in the boxes, in {self.num_stages} stages.",
            axis=Axis(title="time (s)"),
            rows=[f"device {device}" for device in range(self.num_stages)],
            spans=self.drawn,
        )

    def _utilisation(self) -> LineChart:
        counts = sorted({round(_MOST_DRAWN ** (step / _NUM_DRAWN)) for step in range(_NUM_DRAWN + 1)})
        numbers = sorted({*_STAGES_DRAWN, self.num_stages} - {1})
        lines = {
            f"{stages} stages": [
                100 * (1 - bubble_share(num_stages=stages, num_micro_batches=count)) for count in counts
            ]
            for stages in numbers
        }
        # with as many stages, each curve reaches the target somewhere else
        needed = {stages: micro_batches_for(self.target_bubble, num_stages=stages) for stages in numbers}
        drawn = {stages: count for stages, count in needed.items() if count <= _MOST_DRAWN}
        target = lines_of(
            drawn.values(),
            points={f"{100 * self.target_bubble:g} % bubble": [100 * (1 - self.target_bubble)] * len(drawn)},
            labels=[str(count) for count in drawn.values()],
        )
        twice = 100 * bubble_share(num_stages=self.num_stages, num_micro_batches=2 * self.num_stages)
        return LineChart(
            slug="utilisation",
            title=f"Twice as many micro-batches as stages leave {twice:.0f} % bubble",
            caption="Share of the time in which equal stages compute, with GPipe and 1F1B; points have the "
            f"micro-batches that leave {100 * self.target_bubble:g} % bubble, by number of stages.",
            x=Axis(title="micro-batches", log=True),
            y=Axis(title="utilisation (%)"),
            series=[*lines_of(counts, lines), *target],
            levels=[100 * (1 - self.target_bubble)],
        )

    def _memory(self) -> LineChart:
        at = self.at
        lines: dict[str, list[PipelinePoint]] = {}
        for schedule in dict.fromkeys(point.schedule for point in self.points):
            points = [p for p in self.points if (p.schedule, p.recomputation) == (schedule, at.recomputation)]
            points.sort(key=lambda point: point.num_micro_batches)
            same = next((name for name, line in lines.items() if line[-1].held == points[-1].held), None)
            if same is None:
                lines[schedule] = points
            else:  # one line would hide the other
                lines[f"{same}, {schedule}"] = lines.pop(same)
        series = []
        for name, line in lines.items():
            memory = [self._memory_gb(point) for point in line]
            series += lines_of([point.num_micro_batches for point in line], {name: memory})
        return LineChart(
            slug="memory",
            title="Only GPipe's memory goes on growing with the micro-batches",
            caption=f"Memory of the fullest device, recomputation: {at.recomputation}; the level is what a device has.",
            x=Axis(title="micro-batches", log=True),
            y=Axis(title="memory (GB)", log=True),
            series=series,
            levels=[self.memory_bytes / 1e9],
        )

    def _shares(self) -> BarChart:
        points = self.by_schedule
        least = min(points, key=lambda point: point.bubble)
        return BarChart(
            slug="schedules",
            title=f"{self.at.schedule} waits {100 * self.at.bubble:.0f} % of the time, {least.schedule} "
            f"{100 * least.bubble:.0f} %",
            caption=f"Seconds of an iteration of {counted(self.at.num_micro_batches, 'micro-batch')} in which a device "
            "computes, on average, and waits.",
            axis=Axis(title="time (s)"),
            rows=[point.schedule for point in points],
            parts={
                "computing": [point.iteration_s * (1 - point.bubble) for point in points],
                "bubble": [point.iteration_s * point.bubble for point in points],
            },
        )
