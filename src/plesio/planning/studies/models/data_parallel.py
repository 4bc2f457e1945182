"""How an iteration of synchronous data parallelism grows with the workers.

Every worker computes for c seconds on its own part of the batch (weak scaling: parts do not shrink) and all of them
all-reduce d bytes by a ring, which takes ``2(N-1)(α + d/(NB))`` (Patarasuk & Yuan 2009). A share o of the communication
may be hidden behind the backward pass, but never more than fits: what is exposed is ``max(m - o b, 0)`` with m the
all-reduce and b the backward pass. Efficiency is ``c / (c + exposed)`` and the speed-up N times that.

Where it stops being true: links that are shared, workers that are unequal (`studies.stragglers`), an all-reduce
in buckets (`plesio.planning.studies.overlap`), another algorithm (`plesio.planning.studies.collectives`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.charts import Axis, Chart, LineChart, Series, Table, Timeline, TimelineBar
from plesio.core.errors import ArgumentError
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.core.within import BANDWIDTH, DURATION_OR_0, SHARE, SIZE_OR_0, Within
from plesio.cost.all_reduce import ring_all_reduce_s
from plesio.cost.link import Link
from plesio.planning.studies.study import Answer

__all__ = ["DataParallel", "ScalingPoint", "data_parallel"]

_MOST_ROWS = 8
"""Rows of a timeline."""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One number of workers.

    Attributes:
        num_workers: N.
        all_reduce_s: Seconds of the ring.
        exposed_s: Seconds of it that nothing hides.
        iteration_s: Seconds of an iteration.
        efficiency: Share of an iteration that computes.
    """

    num_workers: int
    all_reduce_s: float
    exposed_s: float
    iteration_s: float
    efficiency: float

    @property
    def speedup(self) -> float:
        """Samples per second, against one worker."""
        return self.num_workers * self.efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel(Answer):
    """What an iteration takes.

    Attributes:
        at: The number of workers that was asked for.
        scaling: Powers of two up to it, and itself.
        by_gradient: The same numbers of workers, for some sizes of the gradient.
        forward_s: Seconds of the forward pass.
        backward_s: Seconds of the backward pass.
        overtaken_at: The smallest number of workers whose all-reduce takes longer than computing, if there is one.
    """

    unit: ClassVar[str] = "s"
    at: ScalingPoint
    scaling: tuple[ScalingPoint, ...]
    by_gradient: Mapping[float, tuple[ScalingPoint, ...]]
    forward_s: float
    backward_s: float
    overtaken_at: int | None

    @property
    def finding(self) -> str:
        """Time, efficiency and speed-up; where communication overtakes computing."""
        at = self.at
        overtaken = (
            "communication never takes longer than computing"
            if self.overtaken_at is None
            else f"from {counted(self.overtaken_at, 'worker')} on communication takes longer than computing"
        )
        return (
            f"An iteration of {counted(at.num_workers, 'worker')} takes {format_seconds(at.iteration_s)}, of which "
            f"{100 * at.efficiency:.1f} % is computing: {at.speedup:.0f} times one worker's pace; {overtaken}."
        )

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return self.at.iteration_s

    @property
    def parts(self) -> Mapping[str, float]:
        """Forward, backward, and what of the all-reduce is not hidden."""
        return {"forward": self.forward_s, "backward": self.backward_s, "exposed all-reduce": self.at.exposed_s}

    def tables(self) -> Sequence[Table]:
        """A row for each number of workers."""
        rows = [
            (
                str(point.num_workers),
                format_seconds(point.all_reduce_s),
                format_seconds(point.exposed_s),
                format_seconds(point.iteration_s),
                f"{100 * point.efficiency:.1f} %",
                f"{point.speedup:.4g}",
            )
            for point in self.scaling
        ]
        headers = ("workers", "all-reduce", "exposed", "iteration", "efficiency", "speed-up")
        return [Table(title="By number of workers:", headers=headers, rows=rows)]

    def charts(self) -> Sequence[Chart]:
        """Efficiency by gradient size; a few workers' iteration."""
        return [self._efficiency(), self._timeline()]

    def _efficiency(self) -> LineChart:
        series = [
            Series(
                name=format_bytes(size),
                x=[point.num_workers for point in points],
                y=[100 * point.efficiency for point in points],
            )
            for size, points in self.by_gradient.items()
        ]
        return LineChart(
            slug="efficiency",
            title=f"At {counted(self.at.num_workers, 'worker')} {100 * self.at.efficiency:.0f} % of the time goes "
            "into computing",
            caption="Weak-scaling efficiency by size of the gradient: share of an iteration that computes.",
            x=Axis(title="workers", log=True),
            y=Axis(title="efficiency (%)"),
            series=series,
        )

    def _timeline(self) -> Timeline:
        """All are alike here; a few rows show it."""
        num_rows = min(self.at.num_workers, _MOST_ROWS)
        computed_s = self.forward_s + self.backward_s
        all_reduce_begins_s = self.at.iteration_s - self.at.all_reduce_s
        spans = [
            span
            for row in range(num_rows)
            for span in (
                TimelineBar(2 * row, 0.0, self.forward_s, "forward"),
                TimelineBar(2 * row, self.forward_s, computed_s, "backward"),
                TimelineBar(2 * row + 1, all_reduce_begins_s, self.at.iteration_s, "all-reduce"),
            )
        ]
        return Timeline(
            slug="timeline",
            title=f"The all-reduce takes {format_seconds(self.at.all_reduce_s)}",
            caption=f"One iteration of {num_rows} of {counted(self.at.num_workers, 'worker')}: computing above, the "
            "link below.",
            axis=Axis(title="time (s)"),
            rows=[name for row in range(num_rows) for name in (f"worker {row}", "link")],
            spans=spans,
        )


def data_parallel(
    *,
    num_workers: Annotated[int, Within(1, 2**20)] = 256,
    gradient_bytes: Annotated[float, SIZE_OR_0] = 700e6,
    forward_s: Annotated[float, DURATION_OR_0] = 0.045,
    backward_s: Annotated[float, DURATION_OR_0] = 0.080,
    bytes_per_s: Annotated[float, BANDWIDTH] = 25e9,
    latency_s: Annotated[float, DURATION_OR_0] = 10e-6,
    overlap: Annotated[float, SHARE] = 0.0,
    gradients_bytes: Annotated[tuple[float, ...], Within(0, 1e18, fewest=0)] = (10e6, 100e6, 700e6, 3e9),
) -> DataParallel:
    """An iteration's time by number of workers and size of the gradient.

    >>> answer = data_parallel()
    >>> round(answer.total, 4), round(answer.at.efficiency, 3), round(answer.at.speedup)
    (0.1859, 0.672, 172)

    Args:
        num_workers: Workers, each with its own part of the batch.
        gradient_bytes: What each of them has to add up with the others.
        forward_s: The forward pass of a worker.
        backward_s: Its backward pass.
        bytes_per_s: Bandwidth of one direction of a worker's link.
        latency_s: Latency of each message.
        overlap: Share of the backward pass during which communication can go on, 0 to 1.
        gradients_bytes: Sizes for the picture, beside the one above.

    Raises:
        ConfigError: An input that is out of range.
    """
    if forward_s + backward_s == 0:
        raise ArgumentError("`forward_s` and `backward_s` are 0; write more than 0 for one of them")

    def point(workers: int, size: float) -> ScalingPoint:
        all_reduce_s = ring_all_reduce_s(
            size, num_ranks=workers, link=Link(latency_s=latency_s, bytes_per_s=bytes_per_s)
        )
        exposed_s = max(all_reduce_s - overlap * backward_s, 0.0)
        iteration_s = forward_s + backward_s + exposed_s
        return ScalingPoint(workers, all_reduce_s, exposed_s, iteration_s, (forward_s + backward_s) / iteration_s)

    at = point(num_workers, gradient_bytes)
    counts = sorted({*(2**power for power in range(num_workers.bit_length())), num_workers})
    counts = [count for count in counts if count <= num_workers]
    sizes = sorted({*gradients_bytes, gradient_bytes})
    computed_s = forward_s + backward_s
    overtaken = (n for n in range(1, num_workers + 1) if point(n, gradient_bytes).all_reduce_s > computed_s)
    return DataParallel(
        at=at,
        scaling=tuple(point(count, gradient_bytes) for count in counts),
        by_gradient={size: tuple(point(count, size) for count in counts) for size in sizes},
        forward_s=forward_s,
        backward_s=backward_s,
        overtaken_at=next(overtaken, None),
    )
