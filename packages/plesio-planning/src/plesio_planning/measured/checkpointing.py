"""States written to this machine's disk and read back, beside `plesio_planning.studies.checkpointing`.

A state is what Adam keeps: parameters and two moments. *Full*: one process writes it (`torch.save`, then fsync).
*Sharded*: every process writes its part at the same time. Reading is from the disk, for the pages are dropped first.
Latency and bandwidth are fitted to the smallest sizes and the largest of one process; how many writers the disk keeps
up with is what the largest sharded state took. These predict the other sizes. Which interval between states is the best
is found by runs that are killed again and again (`checkpoint_intervals`).
"""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist

from plesio.core.charts import Axis, LineChart
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.fit import LineFit, fit_line
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.checkpoint_intervals import FACTORS, measure_intervals
from plesio_planning.measured.ranks import Ranks, slowest_s
from plesio_planning.measured.twin import Twin, beside
from plesio_planning.studies.measured import Measured

FOUND = ("restart_s", "storage_writers")

NUM_RANKS = 2
FITTED_BYTES = (1_200_000, 12_000_000, 120_000_000)
OTHER_BYTES = (4_800_000, 36_000_000, 72_000_000)
REPEATS = 3

Times = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCosts:
    """Writing and reading states.

    Attributes:
        times_s: Median seconds by way and what is done, ``full write``, and by the bytes of the state.
        fits: Lines through those of full states, by what is done.
        writers: Writers that the disk keeps up with, by what is done.
    """

    times_s: Mapping[str, Mapping[int, float]]
    fits: Mapping[str, LineFit]
    writers: Mapping[str, float]

    def modelled_s(self, name: str, num_bytes: int) -> float:
        way, what = name.split()
        return self.fits[what].intercept + self.fits[what].slope * num_bytes / (
            self.writers[what] if way == "sharded" else 1.0
        )

    def predict(self, twin: Twin, sizes: Sequence[int], *, most: int) -> None:
        """Predict writing and reading by way and size; the baseline is the largest full state's bandwidth."""
        for way in ("full", "sharded"):
            for size in sizes:
                for what in self.fits:
                    twin.predict(
                        f"{what} (s)",
                        {"state": format_bytes(size), "way": way},
                        predicted=self.modelled_s(f"{way} {what}", size),
                        measured=self.times_s[f"{way} {what}"][size],
                        baseline=self.times_s[f"full {what}"][most] / most * size,
                    )

    def chart(self) -> LineChart:
        lines = {
            name: (
                [size / 1e6 for size in times_s],
                [1e3 * self.modelled_s(name, size) for size in times_s],
                [1e3 * each_s for each_s in times_s.values()],
            )
            for name, times_s in self.times_s.items()
        }
        return beside(
            lines,
            title=f"The disk keeps up with {self.writers['write']:.2g} of {NUM_RANKS} writers",
            caption="Writing a state with fsync, and reading it, by its size; medians.",
            x=Axis(title="state (MB)", log=True),
            y=Axis(title="time (ms)", log=True),
        )


def measure(
    twin: Twin,
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    other_bytes: Sequence[int] = OTHER_BYTES,
    repeats: int = REPEATS,
    factors: Sequence[float] = FACTORS,
    /,
    *,
    checkpoint_s: Annotated[float, Within(5e-3, 0.5)] = 0.02,
    cluster_mtbf_s: Annotated[float, Within(0.2, 10)] = 0.5,
    checkpoint_interval_s: Annotated[float | None, Within(0.02, 10)] = None,
    work_s: Annotated[float, Within(1, 30)] = 4.0,
) -> Measured:
    """Measure states of 1.2 to 120 MB and runs that fail twice a second; takes about a minute."""
    states = measure_states(twin, fitted_bytes, other_bytes, repeats=repeats)
    runs = measure_intervals(
        on_step=twin.say,
        checkpoint_s=checkpoint_s,
        mtbf_s=cluster_mtbf_s,
        work_s=work_s,
        interval_s=checkpoint_interval_s,
        factors=factors,
    )
    runs.predict(twin)
    states.predict(twin, sorted(other_bytes), most=max(fitted_bytes))
    writing = states.fits["write"]
    return twin.measured(
        "checkpointing",
        finding=f"Runs that were killed {runs.num_failures} times were fastest with a state every "
        f"{format_seconds(runs.measured_best_s)}, where the model has {format_seconds(runs.modelled_best_s)} for the "
        f"best and is off by {twin.off('run (s)'):.0f} % in what a run takes (median). From three sizes, writing is "
        f"predicted within {twin.off('write (s)'):.0f} % and reading within {twin.off('read (s)'):.0f} % (medians); "
        f"the disk keeps up with {states.writers['write']:.2g} of {NUM_RANKS} writers.",
        setting=f"torch.save with fsync into {tempfile.gettempdir()}, reading after the pages were dropped, "
        f"{NUM_RANKS} processes of one thread; medians of {repeats}, which vary by {twin.spread:.0f} %. Fitted: "
        f"writing {format_seconds(writing.intercept)} and {_bandwidth_text(writing.slope)}. The baseline is the "
        f"bandwidth of the largest full state. Runs: {format_seconds(runs.work_s)} of work, a failure every "
        f"{format_seconds(runs.mtbf_s)}, states that took {format_seconds(runs.checkpoint_s)} and returns that took "
        f"{format_seconds(runs.restart_s)} (means); their baseline is the work alone, that of the best interval is "
        "Young's rule.",
        charts=[runs.chart(), states.chart()],
        rivals="interval",
    )


def measure_states(twin: Twin, fitted_bytes: Sequence[int], other_bytes: Sequence[int], *, repeats: int) -> StateCosts:
    """Write and read full and sharded states, and fit lines to three or more of their sizes."""
    found: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory(prefix="plesio-states-") as folder, Ranks(NUM_RANKS) as ranks:
        for sharded in (False, True):
            for size in sorted({*fitted_bytes, *other_bytes}):
                way = "sharded" if sharded else "full"
                twin.say(f"{way} state of {format_bytes(size)}")
                answers = ranks.run(state_times, folder=folder, num_bytes=size, sharded=sharded, repeats=repeats)
                for place, what in enumerate(("write", "read")):
                    # a state is there when its last shard is
                    times_s = slowest_s([answer[place] for answer in answers])
                    found.setdefault(f"{way} {what}", {})[size] = twin.median(times_s)
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
    return StateCosts(times_s=found, fits=fits, writers=writers)


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
