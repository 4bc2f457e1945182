"""How an iteration of synchronous data parallelism grows with the workers.

Every worker computes for c seconds on its own part of the batch, and all of them all-reduce d bytes, by a ring in ``m =
2(N-1)(α + d/(NB))`` or by another algorithm of `plesio.cost.collectives`. A share o of it may be hidden behind the
backward pass b: ``max(m - o b, 0)`` is exposed. If steps vary, all wait for the slowest, ``E[max]``
(`studies.order_statistics`). Efficiency is c over the iteration.

``docs/planning/studies/data-parallel.md`` has the model with its sources, its assumptions and its limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from plesio.core.charts import Axis, Chart, LineChart, Series, Table, Timeline, TimelineBar
from plesio.core.errors import ArgumentError
from plesio.core.only_with import OnlyWith
from plesio.core.units import counted, format_bytes, format_percent, format_seconds
from plesio.core.within import BANDWIDTH, DURATION_OR_0, SHARE, SIZE_OR_0, Within
from plesio.cost.collectives import ALL_REDUCES
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.models.collectives import RankLinks, ring_tree_crossover_bytes
from plesio_planning.studies.order_statistics import LogNormalTimes
from plesio_planning.studies.study import Answer

Algorithm = Literal["ring", "tree", "double tree", "halving-doubling", "hierarchical"]

_MOST_ROWS = 6
"""Workers of a timeline."""
_SHOWN: tuple[Algorithm, ...] = ("ring", "tree", "hierarchical")
"""All-reduces that are compared by number of workers."""
_BATCH_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One number of workers.

    Attributes:
        num_workers: N.
        waiting_s: Seconds for which a worker waits for the slowest, on average.
        exposed_s: Seconds of the all-reduce that nothing hides.
        efficiency: Share of an iteration that computes.
    """

    num_workers: int
    all_reduce_s: float
    waiting_s: float
    exposed_s: float
    iteration_s: float
    efficiency: float

    @property
    def speedup(self) -> float:
        """Samples per second, against one worker."""
        return self.num_workers * self.efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel(Answer):
    """The time of an iteration.

    Attributes:
        at: The number of workers that was asked for.
        scaling: Powers of two up to it, and itself.
        by_gradient: The same numbers of workers, for some sizes of the gradient.
        forward_s: Seconds of the forward pass.
        backward_s: Seconds of the backward pass.
        overtaken_at: The smallest number of workers whose all-reduce takes longer than computing, if there is one.
        algorithm: Algorithm of the all-reduce.
        all_reduces_s: Seconds of other all-reduces, by their name and the number of workers.
        tree_below_bytes: The size of a gradient below which a tree is faster than a ring; 0 if it never is.
        batch: Samples of a worker's step.
        by_batch: The number of workers that was asked for, by samples of a worker's step.
        drawn_s: Seconds that each of a few workers computes in one iteration, the slowest of all among them, by worker.
    """

    unit: ClassVar[str] = "s"
    at: ScalingPoint
    scaling: tuple[ScalingPoint, ...]
    by_gradient: Mapping[float, tuple[ScalingPoint, ...]]
    forward_s: float
    backward_s: float
    overtaken_at: int | None
    algorithm: str
    all_reduces_s: Mapping[str, Mapping[int, float]]
    tree_below_bytes: float
    batch: int
    by_batch: Mapping[int, ScalingPoint]
    drawn_s: Mapping[int, float]

    @property
    def finding(self) -> str:
        """Time, efficiency and speed-up; where communication overtakes computing."""
        at = self.at
        overtaken = (
            f"on up to {counted(at.num_workers, 'worker')} communication takes no longer than computing"
            if self.overtaken_at is None
            else f"from {counted(self.overtaken_at, 'worker')} on communication takes longer than computing"
        )
        link_idle = 1 - at.all_reduce_s / at.iteration_s
        return (
            f"An iteration of {counted(at.num_workers, 'worker')} takes {format_seconds(at.iteration_s)}, of which "
            f"{100 * at.efficiency:.1f} % is computing: {at.speedup:.0f} times one worker's pace, "
            f"{at.num_workers * self.batch / at.iteration_s:,.0f} samples a second; {overtaken}. "
            f"A device is idle {100 * (1 - at.efficiency):.1f} % of the time and its link "
            f"{100 * link_idle:.1f} %. {self._tree()}"
        )

    def _tree(self) -> str:
        """Write a sentence about the gradients with which a tree is faster than a ring."""
        if not self.tree_below_bytes:
            return "On so many workers a tree is faster than a ring for no size of the gradient."
        return (
            f"With {counted(self.at.num_workers, 'worker')} a tree is faster than a ring for less than "
            f"{format_bytes(self.tree_below_bytes)}."
        )

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return self.at.iteration_s

    @property
    def parts(self) -> Mapping[str, float]:
        """Forward, backward, waiting for the slowest, and what of the all-reduce is not hidden."""
        return {
            "forward": self.forward_s,
            "backward": self.backward_s,
            "waiting for the slowest": self.at.waiting_s,
            "exposed all-reduce": self.at.exposed_s,
        }

    def tables(self) -> Sequence[Table]:
        """List each number of workers; all-reduces; batches; the devices' idle times."""
        return [self._workers_table(), self._all_reduces_table(), self._batches_table(), self._idle_table()]

    def _workers_table(self) -> Table:
        headers = ("workers", "all-reduce", "exposed", "iteration", "efficiency", "speed-up")
        rows = [(str(point.num_workers), *_cells(point)) for point in self.scaling]
        return Table(title=f"By number of workers ({self.algorithm}):", headers=headers, rows=rows)

    def _all_reduces_table(self) -> Table:
        rows = [
            (
                str(point.num_workers),
                *(
                    format_seconds(times_s[point.num_workers]) if point.num_workers in times_s else "–"
                    for times_s in self.all_reduces_s.values()
                ),
            )
            for point in self.scaling
            if point.num_workers > 1
        ]
        return Table(title="All-reduces of the same size:", headers=("workers", *self.all_reduces_s), rows=rows)

    def _batches_table(self) -> Table:
        rows = [
            (str(batch), *_cells(point), f"{point.num_workers * batch / point.iteration_s:,.0f}")
            for batch, point in self.by_batch.items()
        ]
        headers = ("a worker's batch", "all-reduce", "exposed", "iteration", "efficiency", "speed-up", "samples/s")
        title = f"By batch of each of {counted(self.at.num_workers, 'worker')}:"
        return Table(title=title, headers=headers, rows=rows)

    def _idle_table(self) -> Table:
        at = self.at
        busy_s = {
            "device": {
                "computes": self.forward_s + self.backward_s,
                "waits for the slowest": at.waiting_s,
                "waits for the all-reduce": at.exposed_s,
            },
            "link": {"all-reduce": at.all_reduce_s, "idle": at.iteration_s - at.all_reduce_s},
        }
        rows = [
            (what, name, format_seconds(value), format_percent(value / at.iteration_s))
            for what, parts in busy_s.items()
            for name, value in parts.items()
        ]
        return Table(title="What a worker's device and link do:", headers=("", "", "time", "share"), rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Draw efficiency by gradient size; all-reduces; batches; a few workers' iteration."""
        return [self._efficiency(), self._all_reduces(), self._batches(), self._timeline()]

    def _all_reduces(self) -> LineChart:
        computed_ms = 1e3 * (self.forward_s + self.backward_s)
        return LineChart(
            slug="all-reduces",
            title=self._tree().removesuffix("."),
            caption="Time of the all-reduce by number of workers, which are in one host as long as they fit; the level "
            "is the time of computing.",
            x=Axis(title="workers", log=True),
            y=Axis(title="all-reduce (ms)", log=True),
            series=[
                Series(name=name, x=list(times_s), y=[1e3 * value for value in times_s.values()])
                for name, times_s in self.all_reduces_s.items()
            ],
            levels=[computed_ms] if computed_ms else [],
        )

    def _batches(self) -> LineChart:
        most = max(self.by_batch)
        return LineChart(
            slug="batch",
            title=f"With {most} samples a worker {100 * self.by_batch[most].efficiency:.0f} % of the time goes into "
            "computing",
            caption=f"Efficiency of {counted(self.at.num_workers, 'worker')} by batch of each: the gradient stays as "
            "large as it is.",
            x=Axis(title="samples of a worker's step", log=True),
            y=Axis(title="efficiency (%)"),
            series=lines_of(
                self.by_batch, {"efficiency": [100 * point.efficiency for point in self.by_batch.values()]}
            ),
        )

    def _efficiency(self) -> LineChart:
        efficiencies = {
            format_bytes(size): [100 * point.efficiency for point in points]
            for size, points in self.by_gradient.items()
        }
        return LineChart(
            slug="efficiency",
            title=f"At {counted(self.at.num_workers, 'worker')} {100 * self.at.efficiency:.0f} % of the time goes "
            "into computing",
            caption="Weak-scaling efficiency by size of the gradient: share of an iteration that computes.",
            x=Axis(title="workers", log=True),
            y=Axis(title="efficiency (%)"),
            series=lines_of([point.num_workers for point in self.scaling], efficiencies),
        )

    def _timeline(self) -> Timeline:
        """Draw one iteration; where steps do not vary, all workers are alike."""
        slowest_s = max(self.drawn_s.values())
        hidden_s = self.at.all_reduce_s - self.at.exposed_s
        begins_s, ends_s = slowest_s - hidden_s, slowest_s + self.at.exposed_s
        forward = self.forward_s / (self.forward_s + self.backward_s)
        spans = []
        for row, computed_s in enumerate(self.drawn_s.values()):
            device, link = 2 * row, 2 * row + 1
            spans += [
                TimelineBar(device, 0.0, forward * computed_s, "forward"),
                TimelineBar(device, forward * computed_s, computed_s, "backward"),
                TimelineBar(device, computed_s, slowest_s, "waits for the slowest"),
                TimelineBar(device, slowest_s, ends_s, "waits for the all-reduce"),
                TimelineBar(link, 0.0, begins_s, "link idle"),
                TimelineBar(link, begins_s, ends_s, "all-reduce"),
            ]
        return Timeline(
            slug="timeline",
            title=f"The all-reduce takes {format_seconds(self.at.all_reduce_s)}",
            caption=f"One iteration of {len(self.drawn_s)} of {counted(self.at.num_workers, 'worker')}: the device "
            "above, the link below.",
            axis=Axis(title="time (s)"),
            rows=[name for worker in self.drawn_s for name in (f"worker {worker}", "link")],
            spans=[span for span in spans if span.end > span.start],
        )


def _cells(point: ScalingPoint) -> tuple[str, ...]:
    return (
        format_seconds(point.all_reduce_s),
        format_seconds(point.exposed_s),
        format_seconds(point.iteration_s),
        f"{100 * point.efficiency:.1f} %",
        f"{point.speedup:.4g}",
    )


def data_parallel(
    *,
    num_workers: Annotated[int, Within(1, 2**20)] = 256,
    gradient_bytes: Annotated[float, SIZE_OR_0] = 700e6,
    forward_s: Annotated[float, DURATION_OR_0] = 0.045,
    backward_s: Annotated[float, DURATION_OR_0] = 0.080,
    bytes_per_s: Annotated[float, BANDWIDTH] = 25e9,
    latency_s: Annotated[float, DURATION_OR_0] = 10e-6,
    workers_per_host: Annotated[int, Within(1, 2**20)] = 8,
    local_bytes_per_s: Annotated[float, BANDWIDTH] = 600e9,
    local_latency_s: Annotated[float, DURATION_OR_0] = 1e-6,
    algorithm: Algorithm = "ring",
    batch_size: Annotated[int, Within(1, 10**9)] = 32,
    timed_batch_size: Annotated[int, Within(1, 10**9)] = 32,
    cv: Annotated[float, Within(0, 10)] = 0.0,
    overlap: Annotated[float, SHARE] = 0.0,
    other_gradients_bytes: Annotated[tuple[float, ...], Within(0, 1e18, fewest=0)] = (10e6, 100e6, 700e6, 3e9),
    seed: Annotated[int, OnlyWith("cv", above=0)] = 0,
) -> DataParallel:
    """Compute an iteration's time by number of workers and size of the gradient.

    >>> answer = data_parallel()
    >>> round(answer.total, 4), round(answer.at.efficiency, 3), round(answer.at.speedup)
    (0.1859, 0.672, 172)

    Args:
        num_workers: Workers, each with its own part of the batch.
        gradient_bytes: Bytes that each of them has to add up with the others.
        forward_s: The forward pass of a worker, of the timed batch.
        backward_s: Its backward pass.
        bytes_per_s: Bandwidth of one direction of a worker's link between hosts.
        latency_s: Latency of each message between hosts.
        workers_per_host: Workers of a host; as long as there is one host only its own links count.
        local_bytes_per_s: Bandwidth of one direction of a worker's link within its host.
        local_latency_s: Latency of each message within a host.
        algorithm: Algorithm of the all-reduce; hierarchical is a ring where hosts are not whole.
        batch_size: Samples of a worker's step.
        timed_batch_size: The samples that forward and backward times are of; they grow in proportion.
        cv: Coefficient of variation of a worker's computing time, lognormal.
        overlap: Share of the backward pass during which communication can go on, 0 to 1.
        other_gradients_bytes: Sizes for the picture, beside the one above.
        seed: Seed of the iteration in the timeline.
    """
    if forward_s + backward_s == 0:
        raise ArgumentError("`forward_s` and `backward_s` are 0; write more than 0 for one of them")

    links = RankLinks(
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        ranks_per_host=workers_per_host,
        local_latency_s=local_latency_s,
        local_bytes_per_s=local_bytes_per_s,
    )
    job = _Job(
        links=links, forward_s=forward_s, backward_s=backward_s, algorithm=algorithm, cv=cv, overlap=overlap
    ).times(batch_size / timed_batch_size)
    at = job.point(num_workers, gradient_bytes)
    counts = sorted({*(2**power for power in range(num_workers.bit_length())), num_workers})
    batches = sorted({max(round(factor * batch_size), 1) for factor in _BATCH_FACTORS})
    return DataParallel(
        at=at,
        scaling=tuple(job.point(count, gradient_bytes) for count in counts),
        by_gradient={
            size: tuple(job.point(count, size) for count in counts)
            for size in sorted({*other_gradients_bytes, gradient_bytes})
        },
        forward_s=job.forward_s,
        backward_s=job.backward_s,
        overtaken_at=job.overtaken_at(num_workers, gradient_bytes),
        algorithm=job.algorithm,
        all_reduces_s=job.all_reduces_s(counts, gradient_bytes),
        tree_below_bytes=job.tree_below_bytes(num_workers),
        batch=batch_size,
        by_batch={each: job.times(each / batch_size).point(num_workers, gradient_bytes) for each in batches},
        drawn_s=job.drawn_s(num_workers, random=np.random.default_rng(seed)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    links: RankLinks
    forward_s: float
    backward_s: float
    algorithm: Algorithm
    cv: float
    overlap: float

    @property
    def computed_s(self) -> float:
        return self.forward_s + self.backward_s

    def times(self, factor: float) -> "_Job":
        """Return the job with so many times as large a batch."""
        return replace(self, forward_s=factor * self.forward_s, backward_s=factor * self.backward_s)

    def all_reduce_s(self, num_workers: int, num_bytes: float) -> float:
        """Return the seconds of the all-reduce; inside one host by its own links."""
        name = self.algorithm if self.links.has(self.algorithm, num_ranks=num_workers) else "ring"
        if num_workers <= self.links.ranks_per_host:
            return ALL_REDUCES[name](num_bytes, num_ranks=num_workers, link=self.links.local)
        return self.links.all_reduce_s(name, num_bytes, num_ranks=num_workers)

    def all_reduces_s(self, counts: Sequence[int], num_bytes: float) -> dict[str, dict[int, float]]:
        """Return the seconds of its own all-reduce and of others, by name and number of workers; of 1 there is none."""
        return {
            name: {
                count: replace(self, algorithm=name).all_reduce_s(count, num_bytes)
                for count in counts
                if count > 1 and self.links.has(name, num_ranks=count)
            }
            for name in dict.fromkeys((*_SHOWN, self.algorithm))
        }

    def overtaken_at(self, most_workers: int, num_bytes: float) -> int | None:
        """Return the fewest workers, up to the most, whose all-reduce takes longer than computing."""
        counts = range(1, most_workers + 1)
        return next((count for count in counts if self.all_reduce_s(count, num_bytes) > self.computed_s), None)

    def tree_below_bytes(self, num_workers: int) -> float:
        """Return the size below which a tree is faster than a ring; 0 if it never is, as with few workers."""
        inside = num_workers <= self.links.ranks_per_host
        return ring_tree_crossover_bytes(num_workers, link=self.links.local if inside else self.links.link)

    def point(self, num_workers: int, num_bytes: float) -> ScalingPoint:
        """Compute an iteration of so many workers."""
        all_reduce_s = self.all_reduce_s(num_workers, num_bytes)
        computed_s, waiting_s = self.computed_s, 0.0
        if self.cv and num_workers > 1:
            times = LogNormalTimes(mean_s=computed_s, cv=self.cv)
            waiting_s = max(times.expected_s(rank=num_workers, of=num_workers) - computed_s, 0.0)
        exposed_s = max(all_reduce_s - self.overlap * self.backward_s, 0.0)
        iteration_s = computed_s + waiting_s + exposed_s
        return ScalingPoint(
            num_workers=num_workers,
            all_reduce_s=all_reduce_s,
            waiting_s=waiting_s,
            exposed_s=exposed_s,
            iteration_s=iteration_s,
            efficiency=computed_s / iteration_s,
        )

    def drawn_s(self, num_workers: int, *, random: np.random.Generator) -> dict[int, float]:
        """Return the seconds that a few workers compute in one iteration, by worker, the slowest of all among them."""
        if not self.cv:
            return dict.fromkeys(range(min(num_workers, _MOST_ROWS)), self.computed_s)
        times_s = LogNormalTimes(mean_s=self.computed_s, cv=self.cv).draw_s(random, (num_workers,))
        shown = sorted({*range(min(num_workers, _MOST_ROWS - 1)), int(times_s.argmax())})
        return {worker: float(times_s[worker]) for worker in shown}
