"""Training with compressed gradients: the time of each compression to the target, and the break-even bandwidths."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Series, Table
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio_planning.studies.study import Answer

Scale = Literal["iterations", "seconds", "bytes"]

_BANDWIDTHS = tuple(10 ** (power / 4) for power in range(24, 45))
"""Bandwidths of the picture: 1 MB/s to 100 GB/s."""
_MOST_LINES = 6
"""Lines of a picture, and as many colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedRun:
    """One compression.

    Attributes:
        scheme: Its text, with its step if that was said.
        step: α L.
        iterations: Iterations until the target; None if it was not reached.
        relative_error: Mean of ``‖C(v) - v‖² / ‖v‖²``.
        sent_bytes: A worker's, an iteration.
        compute_s: Seconds of an iteration that compute.
        codec_s: Seconds of an iteration that code and decode.
        latency_s: Seconds of an iteration that are latencies.
        transfer_s: Seconds of an iteration that bytes are on the wire.
        break_even_bytes_per_s: Bandwidth below which it is faster than sending everything; infinite if it always is,
            None if it never is.
        at: Iterations of the curve.
        losses: Losses over the first, as many.
    """

    scheme: str
    step: float
    iterations: int | None
    diverged: bool
    relative_error: float
    sent_bytes: float
    compute_s: float
    codec_s: float
    latency_s: float
    transfer_s: float
    break_even_bytes_per_s: float | None
    at: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def fixed_s(self) -> float:
        """Seconds of an iteration that do not depend on the bandwidth."""
        return self.compute_s + self.codec_s + self.latency_s

    @property
    def parts_s(self) -> Mapping[str, float]:
        """Seconds of an iteration, by what they go into."""
        return {
            "compute": self.compute_s,
            "codec": self.codec_s,
            "latency": self.latency_s,
            "transfer": self.transfer_s,
        }

    @property
    def total_s(self) -> float:
        """Seconds until the target; infinite if it is not reached."""
        return math.inf if self.iterations is None else self.iterations * (self.fixed_s + self.transfer_s)

    @property
    def outcome(self) -> str:
        """Iterations, or why there is no number."""
        if self.iterations is not None:
            return f"{self.iterations:,}"
        return "diverges" if self.diverged else f"over {self.at[-1]:,}"

    def beside(self, dense: "CompressedRun") -> "CompressedRun":
        """Return the same with its break-even bandwidth against sending everything, by the module's formula."""
        if self.iterations is None or dense.iterations is None:
            return self
        saved_bytes = dense.iterations * dense.sent_bytes - self.iterations * self.sent_bytes
        lost_s = self.iterations * self.fixed_s - dense.iterations * dense.fixed_s
        if saved_bytes <= 0:
            return self
        return replace(self, break_even_bytes_per_s=math.inf if lost_s <= 0 else saved_bytes / lost_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedTraining(Answer):
    """The needs of each compression.

    Attributes:
        runs: Runs in the order asked for; sending everything first.
        bytes_per_s: Bandwidth of a link.
        num_workers: Workers that exchange.
        target: Target of the loss, over the first.
    """

    unit: ClassVar[str] = "s"
    runs: tuple[CompressedRun, ...]
    bytes_per_s: float
    num_workers: int
    target: float

    @property
    def dense(self) -> CompressedRun:
        """Sending everything."""
        return self.runs[0]

    @property
    def best(self) -> CompressedRun:
        """The first at the target."""
        return min(self.runs, key=lambda run: run.total_s)

    def run(self, scheme: str) -> CompressedRun:
        """Return the run of this text.

        Raises:
            KeyError: It was not asked for.
        """
        return {run.scheme: run for run in self.runs}[scheme]

    @property
    def finding(self) -> str:
        """The fastest, and below which bandwidths compressing pays."""
        best, dense = self.best, self.dense
        where = format_bandwidth(self.bytes_per_s)
        limits = [run.break_even_bytes_per_s for run in self.runs[1:] if run.break_even_bytes_per_s is not None]
        lost = [run.scheme for run in self.runs if run.iterations is None]
        found = (
            f"At {where} sending everything is the fastest: {format_seconds(dense.total_s)}"
            if best is dense
            else f"At {where} {best.scheme} is at the target in {format_seconds(best.total_s)}, sending everything in "
            f"{format_seconds(dense.total_s)}"
        )
        pays = f"; some compression pays below {_bandwidth_text(max(limits))}" if limits else "; nothing pays here"
        failed = f"; without a result: {', '.join(lost)}" if lost else ""
        return f"{found}{pays}{failed}."

    @property
    def total(self) -> float:
        """Seconds of the fastest."""
        return self.best.total_s

    @property
    def parts(self) -> Mapping[str, float]:
        """The parts of all its iterations."""
        best = self.best
        assert best.iterations is not None, "sending everything reaches the target"
        return {name: best.iterations * value for name, value in best.parts_s.items()}

    def tables(self) -> Sequence[Table]:
        """Make a row for each compression."""
        rows = [
            (
                run.scheme,
                f"{run.step:.3g}",
                run.outcome,
                f"{run.relative_error:.3g}",
                format_bytes(run.sent_bytes),
                f"{self.dense.sent_bytes / run.sent_bytes:.3g}x" if run.sent_bytes else "–",
                format_bytes(run.iterations * run.sent_bytes) if run.iterations else "–",
                format_seconds(run.total_s) if run.iterations else "–",
                "–" if run is self.dense else _bandwidth_text(run.break_even_bytes_per_s),
            )
            for run in self.runs
        ]
        headers = ("scheme", "step (1/L)", "iterations", "error", "sent", "less", "in all", "time", "pays below")
        title = f"To {self.target:g} of the first loss, at {format_bandwidth(self.bytes_per_s)} (sent: a worker's):"
        return [Table(title=title, headers=headers, rows=rows)]

    def charts(self) -> Sequence[Chart]:
        """Time by bandwidth; loss by iteration, by time and by bytes; where time goes."""
        finished = [run for run in self.runs if run.iterations is not None]
        shown = sorted(finished, key=lambda run: (run is not self.dense, run.total_s))[:_MOST_LINES]
        return [
            self._by_bandwidth(shown),
            self._by_iteration(),
            self._by_time(shown),
            self._by_bytes(),
            self._bars(finished),
        ]

    def _by_bandwidth(self, runs: Sequence["CompressedRun"]) -> LineChart:
        series = [
            Series(
                name=run.scheme,
                x=[rate / 1e6 for rate in _BANDWIDTHS],
                y=[(run.iterations or 0) * (run.fixed_s + run.sent_bytes / rate) for rate in _BANDWIDTHS],
                style="dashed" if run is self.dense else "line",
            )
            for run in runs
        ]
        limit = self.best.break_even_bytes_per_s
        known = self.best is not self.dense and limit is not None and math.isfinite(limit)
        return LineChart(
            slug="bandwidth",
            title=f"{self.best.scheme} pays below {_bandwidth_text(limit)}"
            if self.best is not self.dense
            else f"Nothing pays at {format_bandwidth(self.bytes_per_s)}",
            caption=f"Time to the target by bandwidth, of the {len(runs)} fastest at "
            f"{format_bandwidth(self.bytes_per_s)}; dashed: everything is sent.",
            x=Axis(title="bandwidth (MB/s)", log=True),
            y=Axis(title="time (s)", log=True),
            series=series,
            marks={"break-even": limit / 1e6} if known and limit is not None else {},
        )

    def _curves(self, runs: Sequence["CompressedRun"], *, scale: Scale) -> list[Series]:
        series = []
        for run in runs:
            unit = {"iterations": 1.0, "seconds": run.fixed_s + run.transfer_s, "bytes": run.sent_bytes / 1e9}[scale]
            x, y = [at * unit for at in run.at[1:]], run.losses[1:]
            series.append(Series(name=run.scheme, x=x, y=y, style="dashed" if run is self.dense else "line"))
        return series

    def _by_iteration(self) -> LineChart:
        finished = sorted((run for run in self.runs if run.iterations), key=lambda run: run.iterations or 0)
        places = {round(place * (len(finished) - 1) / (_MOST_LINES - 1)) for place in range(_MOST_LINES)}
        shown = [run for place, run in enumerate(finished) if place in places or run is self.dense][:_MOST_LINES]
        slowest = max(self.runs, key=lambda run: run.iterations or 0)
        return LineChart(
            slug="iterations",
            title=f"From {self.dense.iterations:,} iterations to {slowest.outcome} with {slowest.scheme}",
            caption=f"Loss over the first one by iteration: {len(shown)} of the {len(finished)} that reach the target.",
            x=Axis(title="iteration", log=True),
            y=Axis(title="loss / first loss", log=True),
            series=self._curves(shown, scale="iterations"),
        )

    def _by_time(self, runs: Sequence["CompressedRun"]) -> LineChart:
        best = self.best
        ahead = f"{best.scheme} is there first, after {format_seconds(best.total_s)}"
        return LineChart(
            slug="loss-time",
            title=ahead
            if best is not self.dense
            else f"Sending everything is there first, after {format_seconds(best.total_s)}",
            caption=f"Loss over the first one by time at {format_bandwidth(self.bytes_per_s)}, of the {len(runs)} that "
            "are there first.",
            x=Axis(title="time (s)"),
            y=Axis(title="loss / first loss", log=True),
            series=self._curves(runs, scale="seconds"),
        )

    def _by_bytes(self) -> LineChart:
        finished = [run for run in self.runs if run.iterations]
        least = min(finished, key=lambda run: (run.iterations or 0) * run.sent_bytes)
        all_bytes = (least.iterations or 0) * least.sent_bytes
        return LineChart(
            slug="bytes",
            title=f"The fewest bytes to the target: {format_bytes(all_bytes)} a worker, with {least.scheme}",
            caption="Loss over the first one by what a worker has sent, places and scales counted.",
            x=Axis(title="sent by a worker (GB)", log=True),
            y=Axis(title="loss / first loss", log=True),
            series=self._curves(sorted(finished, key=lambda run: run.total_s)[:_MOST_LINES], scale="bytes"),
        )

    def _bars(self, finished: Sequence["CompressedRun"]) -> BarChart:
        runs = sorted(finished, key=lambda run: run.total_s)
        times = self.dense.total_s / self.best.total_s
        parts = {name: [run.parts_s[name] * (run.iterations or 0) / 60 for run in runs] for name in self.dense.parts_s}
        return BarChart(
            slug="time",
            title=f"{self.best.scheme} is {times:.2g} times as fast as sending everything",
            caption=f"Time to the target at {format_bandwidth(self.bytes_per_s)} and what it is spent on.",
            axis=Axis(title="time (min)"),
            rows=[run.scheme for run in runs],
            parts=parts,
        )


def _bandwidth_text(limit: float | None) -> str:
    """Write a bandwidth below which something pays: always, never, or a number."""
    if limit is None:
        return "never"
    return "always" if limit == math.inf else format_bandwidth(limit)
