"""The pictures of the study of compression (`plesio_planning.studies.models.compression`)."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Series
from plesio.core.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from plesio_planning.studies.models.compression import CompressedRun, CompressedTraining

__all__ = ["bandwidth_text", "charts_of"]

Scale = Literal["iterations", "seconds", "bytes"]

_BANDWIDTHS = tuple(10 ** (power / 4) for power in range(24, 45))
"""Bandwidths of the picture: 1 MB/s to 100 GB/s."""
_MOST_LINES = 6
"""Lines of a picture, and as many colours."""


def bandwidth_text(limit: float | None) -> str:
    """Write a bandwidth below which something pays: always, never, or a number."""
    if limit is None:
        return "never"
    return "always" if limit == math.inf else format_bandwidth(limit)


def charts_of(asked: "CompressedTraining") -> Sequence[Chart]:
    """Time by bandwidth; loss by iteration, by time and by bytes; where time goes."""
    finished = [run for run in asked.runs if run.iterations is not None]
    shown = sorted(finished, key=lambda run: (run is not asked.dense, run.total_s))[:_MOST_LINES]
    return [
        _by_bandwidth(asked, shown),
        _by_iteration(asked),
        _by_time(asked, shown),
        _by_bytes(asked),
        _bars(asked, finished),
    ]


def _by_bandwidth(asked: "CompressedTraining", runs: Sequence["CompressedRun"]) -> LineChart:
    series = [
        Series(
            name=run.scheme,
            x=[rate / 1e6 for rate in _BANDWIDTHS],
            y=[(run.iterations or 0) * (run.fixed_s + run.sent_bytes / rate) for rate in _BANDWIDTHS],
            style="dashed" if run is asked.dense else "line",
        )
        for run in runs
    ]
    limit = asked.best.break_even_bytes_per_s
    known = asked.best is not asked.dense and limit is not None and math.isfinite(limit)
    return LineChart(
        slug="bandwidth",
        title=f"{asked.best.scheme} pays below {bandwidth_text(limit)}"
        if asked.best is not asked.dense
        else f"Nothing pays at {format_bandwidth(asked.bytes_per_s)}",
        caption=f"Time to the target by bandwidth, of the {len(runs)} fastest at "
        f"{format_bandwidth(asked.bytes_per_s)}; dashed: everything is sent.",
        x=Axis(title="bandwidth (MB/s)", log=True),
        y=Axis(title="time (s)", log=True),
        series=series,
        marks={"break-even": limit / 1e6} if known and limit is not None else {},
    )


def _curves(asked: "CompressedTraining", runs: Sequence["CompressedRun"], *, scale: Scale) -> list[Series]:
    series = []
    for run in runs:
        unit = {"iterations": 1.0, "seconds": run.fixed_s + run.transfer_s, "bytes": run.sent_bytes / 1e9}[scale]
        x, y = [at * unit for at in run.at[1:]], run.losses[1:]
        series.append(Series(name=run.scheme, x=x, y=y, style="dashed" if run is asked.dense else "line"))
    return series


def _by_iteration(asked: "CompressedTraining") -> LineChart:
    finished = sorted((run for run in asked.runs if run.iterations), key=lambda run: run.iterations or 0)
    places = {round(place * (len(finished) - 1) / (_MOST_LINES - 1)) for place in range(_MOST_LINES)}
    shown = [run for place, run in enumerate(finished) if place in places or run is asked.dense][:_MOST_LINES]
    slowest = max(asked.runs, key=lambda run: run.iterations or 0)
    return LineChart(
        slug="iterations",
        title=f"From {asked.dense.iterations:,} iterations to {slowest.outcome} with {slowest.scheme}",
        caption=f"Loss over the first one by iteration: {len(shown)} of the {len(finished)} that reach the target.",
        x=Axis(title="iteration", log=True),
        y=Axis(title="loss / first loss", log=True),
        series=_curves(asked, shown, scale="iterations"),
    )


def _by_time(asked: "CompressedTraining", runs: Sequence["CompressedRun"]) -> LineChart:
    best = asked.best
    ahead = f"{best.scheme} is there first, after {format_seconds(best.total_s)}"
    return LineChart(
        slug="loss-time",
        title=ahead
        if best is not asked.dense
        else f"Sending everything is there first, after {format_seconds(best.total_s)}",
        caption=f"Loss over the first one by time at {format_bandwidth(asked.bytes_per_s)}, of the {len(runs)} that "
        "are there first.",
        x=Axis(title="time (s)"),
        y=Axis(title="loss / first loss", log=True),
        series=_curves(asked, runs, scale="seconds"),
    )


def _by_bytes(asked: "CompressedTraining") -> LineChart:
    finished = [run for run in asked.runs if run.iterations]
    least = min(finished, key=lambda run: (run.iterations or 0) * run.sent_bytes)
    all_bytes = (least.iterations or 0) * least.sent_bytes
    return LineChart(
        slug="bytes",
        title=f"The fewest bytes to the target: {format_bytes(all_bytes)} a worker, with {least.scheme}",
        caption="Loss over the first one by what a worker has sent, places and scales counted.",
        x=Axis(title="sent by a worker (GB)", log=True),
        y=Axis(title="loss / first loss", log=True),
        series=_curves(asked, sorted(finished, key=lambda run: run.total_s)[:_MOST_LINES], scale="bytes"),
    )


def _bars(asked: "CompressedTraining", finished: Sequence["CompressedRun"]) -> BarChart:
    runs = sorted(finished, key=lambda run: run.total_s)
    times = asked.dense.total_s / asked.best.total_s
    parts = {name: [run.parts_s[name] * (run.iterations or 0) / 60 for run in runs] for name in asked.dense.parts_s}
    return BarChart(
        slug="time",
        title=f"{asked.best.scheme} is {times:.2g} times as fast as sending everything",
        caption=f"Time to the target at {format_bandwidth(asked.bytes_per_s)} and what it is spent on.",
        axis=Axis(title="time (min)"),
        rows=[run.scheme for run in runs],
        parts=parts,
    )
