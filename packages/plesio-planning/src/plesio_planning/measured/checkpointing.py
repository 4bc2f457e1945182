"""States written to this machine's disk and read back, beside `plesio_planning.studies.checkpointing`.

A state is what Adam keeps: parameters and two moments. *Full*: one process writes it (`torch.save`, then fsync).
*Sharded*: every process writes its part at the same time. Reading is from the disk, for the pages are dropped first.
Latency and bandwidth are fitted to the smallest sizes and the largest of one process; how many writers the disk keeps
up with is what the largest sharded state took. These predict the other sizes. Which interval between states is the best
is found by runs that are killed again and again (`checkpoint_intervals`).
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.fit import LineFit, fit_line
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.checkpoint_intervals import IntervalRuns, measure_intervals
from plesio_planning.measured.ranks import Ranks, slowest_s
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.measured import Measured

__all__ = ["FOUND", "measure", "measure_states", "state_times"]

FOUND = ("restart_s", "storage_writers")

NUM_RANKS = 2
FITTED_BYTES = (1_200_000, 12_000_000, 120_000_000)
OTHER_BYTES = (4_800_000, 36_000_000, 72_000_000)
REPEATS = 3

Times = list[tuple[float, float]]


def measure(
    twin: Twin,
    /,
    *,
    checkpoint_s: Annotated[float, Within(5e-3, 0.5)] = 0.02,
    cluster_mtbf_s: Annotated[float, Within(0.2, 10)] = 0.5,
    checkpoint_interval_s: Annotated[float | None, Within(0.02, 10)] = None,
    work_s: Annotated[float, Within(1, 30)] = 4.0,
) -> Measured:
    """Measure states of 1.2 to 120 MB and runs that fail twice a second; takes about a minute."""
    states = measure_states(on_step=twin.say)
    runs = measure_intervals(
        on_step=twin.say,
        checkpoint_s=checkpoint_s,
        mtbf_s=cluster_mtbf_s,
        work_s=work_s,
        interval_s=checkpoint_interval_s,
    )
    return with_runs(states, runs)


def with_runs(states: Measured, runs: IntervalRuns) -> Measured:
    """Add the measurements of runs that fail to those of states."""
    *totals, best = runs.predictions()
    error = statistics.median(abs(one.error) for one in totals)
    return replace(
        states,
        finding=f"Runs that were killed {runs.num_failures} times were fastest with a state every "
        f"{format_seconds(best.measured)}, where the model has {format_seconds(best.predicted)} for the best and is "
        f"off by {100 * error:.0f} % in what a run takes (median). {states.finding}",
        setting=f"{states.setting} Runs: {format_seconds(runs.work_s)} of work, a failure every "
        f"{format_seconds(runs.mtbf_s)}, states that took {format_seconds(runs.checkpoint_s)} and returns that took "
        f"{format_seconds(runs.restart_s)} (means); their baseline is the work alone, that of the best interval is "
        "Young's rule.",
        predictions=(*totals, best, *states.predictions),
        charts=(runs.chart(), *states.charts),
        rivals="interval",
    )


def measure_states(
    *,
    on_step: Callable[[str], None],
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    other_bytes: Sequence[int] = OTHER_BYTES,
    repeats: int = REPEATS,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        fitted_bytes: Sizes of the full state that the model is fitted to; three or more.
        other_bytes: Sizes that are predicted.
        repeats: Repetitions of each.
    """
    found: dict[str, dict[int, float]] = {}
    spreads = []
    with tempfile.TemporaryDirectory(prefix="plesio-states-") as folder, Ranks(NUM_RANKS) as ranks:
        for sharded in (False, True):
            for size in sorted({*fitted_bytes, *other_bytes}):
                way = "sharded" if sharded else "full"
                on_step(f"{way} state of {format_bytes(size)}")
                answers = ranks.run(state_times, folder=folder, num_bytes=size, sharded=sharded, repeats=repeats)
                for place, what in enumerate(("write", "read")):
                    # a state is there when its last shard is
                    times_s = slowest_s([answer[place] for answer in answers])
                    found.setdefault(f"{way} {what}", {})[size] = statistics.median(times_s)
                    spreads.append(statistics.stdev(times_s) / statistics.median(times_s) if repeats > 1 else 0.0)
    most = max(fitted_bytes)
    fits = {
        what: fit_line(list(fitted_bytes), [found[f"full {what}"][size] for size in fitted_bytes])
        for what in ("write", "read")
    }
    # how many writers the disk keeps up with, from the largest state, full against sharded
    writers = {
        what: min(float(NUM_RANKS), max(1.0, (most * fit.slope) / (found[f"sharded {what}"][most] - fit.intercept)))
        if found[f"sharded {what}"][most] > fit.intercept
        else float(NUM_RANKS)
        for what, fit in fits.items()
    }
    predictions = _predictions(found, fits=fits, writers=writers, most=most, sizes=sorted(other_bytes))
    errors = {
        quantity: statistics.median(abs(one.error) for one in predictions if one.quantity == quantity)
        for quantity in ("write (s)", "read (s)")
    }
    return Measured(
        study="checkpointing",
        finding=f"From three sizes, writing is predicted within {100 * errors['write (s)']:.0f} % and reading within "
        f"{100 * errors['read (s)']:.0f} % (medians); the disk keeps up with {writers['write']:.2g} of {NUM_RANKS} "
        "writers.",
        setting=f"torch.save with fsync into {tempfile.gettempdir()}, reading after the pages were dropped, "
        f"{NUM_RANKS} processes of one thread; medians of {repeats}, which vary by "
        f"{100 * statistics.median(spreads):.0f} %. Fitted: writing {format_seconds(fits['write'].intercept)} and "
        f"{_bandwidth_text(fits['write'].slope)}. The baseline is the bandwidth of the largest full state.",
        predictions=tuple(predictions),
        charts=(_chart(found, fits=fits, writers=writers),),
    )


def _predictions(
    found: Mapping[str, Mapping[int, float]],
    *,
    fits: Mapping[str, LineFit],
    writers: Mapping[str, float],
    most: int,
    sizes: Sequence[int],
) -> list[Prediction]:
    """Predict writing and reading by way and size; the baseline is the largest full state's bandwidth."""
    predictions = []
    for way in ("full", "sharded"):
        for size in sizes:
            times = {what: _modelled_s(fits[what], size, writers[what] if way == "sharded" else 1.0) for what in fits}
            setting = {"state": format_bytes(size), "way": way}
            for what, predicted_s in times.items():
                predictions.append(
                    Prediction(
                        setting=setting,
                        quantity=f"{what} (s)",
                        scale="relative",
                        predicted=predicted_s,
                        measured=found[f"{way} {what}"][size],
                        baseline=found[f"full {what}"][most] / most * size,
                    )
                )
    return predictions


def _bandwidth_text(s_per_byte: float) -> str:
    return format_bandwidth(1 / s_per_byte) if s_per_byte > 0 else "no bandwidth: larger states took no longer"


def state_times(group: TorchGroup, *, folder: str, num_bytes: int, sharded: bool, repeats: int) -> tuple[Times, Times]:
    """When each writing and each reading began and ended on a rank; without shards only rank 0 has something to do."""
    path = Path(folder) / f"state-{group.rank}"
    share = num_bytes // group.size if sharded else num_bytes
    state = {name: torch.randn(share // 12) for name in ("parameters", "first moment", "second moment")}
    at_work = sharded or group.rank == 0
    writes: Times = []
    reads: Times = []
    for _ in range(1 + repeats):
        dist.barrier(group=group.process_group)
        begun_s = time.monotonic()
        if at_work:
            with path.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
        writes.append((begun_s, time.monotonic()))
        if at_work:
            _drop_pages(path)
        dist.barrier(group=group.process_group)
        begun_s = time.monotonic()
        if at_work:
            torch.load(path, weights_only=True)
        reads.append((begun_s, time.monotonic()))
    path.unlink(missing_ok=True)
    return writes[1:], reads[1:]


def _drop_pages(path: Path) -> None:
    """Drop the file's pages from memory, so that it is read from the disk, where it has been written."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _modelled_s(fit: LineFit, num_bytes: int, writers: float) -> float:
    return fit.intercept + fit.slope * num_bytes / writers


def _chart(found: dict[str, dict[int, float]], *, fits: dict[str, LineFit], writers: dict[str, float]) -> LineChart:
    series = []
    for name, times_s in found.items():
        way, what = name.split()
        sizes = list(times_s)
        count = writers[what] if way == "sharded" else 1.0
        modelled = [1e3 * _modelled_s(fits[what], size, count) for size in sizes]
        x = [size / 1e6 for size in sizes]
        series.append(Series(name=f"{name}, modelled", group=name, x=x, y=modelled))
        series.append(
            Series(
                name=f"{name}, measured", group=name, x=x, y=[1e3 * each for each in times_s.values()], style="points"
            )
        )
    return LineChart(
        slug="measured",
        title=f"The disk keeps up with {writers['write']:.2g} of {NUM_RANKS} writers",
        caption="Writing a state with fsync, and reading it, by its size; medians.",
        x=Axis(title="state (MB)", log=True),
        y=Axis(title="time (ms)", log=True),
        series=series,
    )
