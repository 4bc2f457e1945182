"""The best interval between states, found by running: the same work, killed as often, with states at several intervals.

The work waits, as a process does whose device computes. Its state is of a size whose writing takes about as long as
asked. The model is told what steps, states and returns took, and how often the run failed; the best interval is where a
parabola through the measured times, over the logarithm of the interval, is lowest.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plesio.core.charts import Axis, LineChart
from plesio.core.units import format_seconds
from plesio.cost.reliability import best_interval_s, expected_slowdown, young_interval_s
from plesio_planning.measured.failing_runs import FailingRun, failure_gaps_s, run_with_failures, write_state
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.declared import lines_of

STEP_S = 0.005
FACTORS = (0.33, 0.58, 1.0, 1.73, 3.0)
"""Intervals that are tried, over the one that the model has for the best."""
_LARGEST_BYTES = 256_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRuns:
    """Runs at several intervals.

    Attributes:
        work_s: Seconds of the work without failures and states.
        runs: A run for each interval, from the shortest on.
    """

    work_s: float
    mtbf_s: float
    runs: Mapping[float, FailingRun]

    @property
    def checkpoint_s(self) -> float:
        """Mean of writing a state, of all runs."""
        return statistics.fmean(each for run in self.runs.values() for each in run.writes_s)

    @property
    def restart_s(self) -> float:
        """Mean from a failure until the state was back."""
        return statistics.fmean([each for run in self.runs.values() for each in run.restarts_s] or [0.0])

    @property
    def num_failures(self) -> int:
        return sum(run.num_failures for run in self.runs.values())

    def modelled_s(self, interval_s: float, *, checkpoint_s: float, restart_s: float) -> float:
        """Return the expected seconds of a run: whole intervals with a state after each, and the rest without one."""
        number = max(0, round(self.work_s / interval_s + 0.499) - 1)
        left_s = self.work_s - number * interval_s
        common = {"mtbf_s": self.mtbf_s, "restart_s": restart_s}
        whole_s = number * interval_s
        if number:
            whole_s *= expected_slowdown(interval_s=interval_s, checkpoint_s=checkpoint_s, **common)
        return whole_s + left_s * expected_slowdown(interval_s=left_s, checkpoint_s=0.0, **common)

    @property
    def modelled_best_s(self) -> float:
        return best_interval_s(checkpoint_s=self.checkpoint_s, mtbf_s=self.mtbf_s)

    @property
    def measured_best_s(self) -> float:
        return lowest_point({interval_s: run.total_s for interval_s, run in self.runs.items()})

    def predict(self, twin: Twin) -> None:
        """Predict seconds of the run by interval, and the best interval; Young's rule is the baseline of the latter."""
        for interval_s, run in self.runs.items():
            twin.predict(
                "run (s)",
                {"interval": format_seconds(interval_s)},
                predicted=self.modelled_s(
                    interval_s,
                    checkpoint_s=statistics.fmean(run.writes_s or [self.checkpoint_s]),
                    restart_s=statistics.fmean(run.restarts_s or [0.0]),
                ),
                measured=run.total_s,
                baseline=self.work_s,
            )
        twin.predict(
            "best interval (s)",
            {"a failure every": format_seconds(self.mtbf_s)},
            predicted=self.modelled_best_s,
            measured=self.measured_best_s,
            baseline=young_interval_s(checkpoint_s=self.checkpoint_s, mtbf_s=self.mtbf_s),
        )

    def chart(self) -> LineChart:
        intervals_s, times = list(self.runs), {"checkpoint_s": self.checkpoint_s, "restart_s": self.restart_s}
        line_s = np.geomspace(intervals_s[0], intervals_s[-1], 40).tolist()
        return LineChart(
            slug="measured-interval",
            title=f"Measured, states every {format_seconds(self.measured_best_s)} are best; modelled, every "
            f"{format_seconds(self.modelled_best_s)}",
            caption="Time of a run that is killed again and again, over its work, by interval between states.",
            x=Axis(title="interval (s)", log=True),
            y=Axis(title="time over work"),
            series=[
                *lines_of(line_s, {"modelled": [self.modelled_s(each, **times) / self.work_s for each in line_s]}),
                *lines_of(intervals_s, points={"measured": [run.total_s / self.work_s for run in self.runs.values()]}),
            ],
        )


def lowest_point(totals_s: Mapping[float, float]) -> float:
    """Return the lowest point of the parabola through the logarithms of the times, over that of the interval.

    It is the best of the intervals itself where the parabola has no lowest point among them.

    >>> round(lowest_point({1.0: 4.0, 2.0: 2.0, 4.0: 2.0, 8.0: 4.0}), 3)  # half way between 2 and 4
    2.828
    """
    x, y = np.log(list(totals_s)), np.log(list(totals_s.values()))
    square, slope, _ = np.polyfit(x, y, 2)
    lowest = -slope / (2 * square) if square > 0 else np.inf
    if not x.min() <= lowest <= x.max():
        return min(totals_s, key=totals_s.__getitem__)
    return float(np.exp(lowest))


class WaitingWork:
    """The work of these runs: it waits, with a state of a given size."""

    def __init__(self, num_bytes: int) -> None:
        self._state = {"filler": torch.randn(max(1, num_bytes // 4))}

    def step(self, number: int) -> None:
        time.sleep(STEP_S)

    def state(self) -> dict[str, Any]:
        return self._state

    def load(self, state: dict[str, Any]) -> None:
        self._state = state


def measure_intervals(
    *,
    on_step: Callable[[str], None],
    checkpoint_s: float,
    mtbf_s: float,
    work_s: float,
    interval_s: float | None = None,
    factors: Sequence[float] = FACTORS,
) -> IntervalRuns:
    """Run the work once at each interval: ``factors`` over the one that should be best, rising, and ``interval_s``.

    Writing a state shall take about ``checkpoint_s``, and the work without failures about ``work_s``.
    """
    num_steps = max(2, round(work_s / STEP_S))
    with tempfile.TemporaryDirectory(prefix="plesio-runs-") as name:
        folder = Path(name)
        on_step(f"a state that takes {format_seconds(checkpoint_s)} to write")
        # a state that takes this disk the time that was asked for
        num_bytes, found_s = _state_bytes(checkpoint_s, folder)
        run = partial(run_with_failures, WaitingWork, arguments=(num_bytes,), num_steps=num_steps)
        on_step("the work without failures")
        # never saves: the work alone
        plain_s = run(steps_per_state=num_steps + 1, gaps_s=(), folder=folder / "plain").total_s
        best_s = best_interval_s(checkpoint_s=found_s, mtbf_s=mtbf_s)
        wanted_s = [factor * best_s for factor in factors] + ([interval_s] if interval_s else [])
        runs = {}
        for steps in sorted({min(num_steps // 2, max(1, round(each_s / STEP_S))) for each_s in wanted_s}):
            on_step(f"a state every {format_seconds(steps * STEP_S)}, a failure every {format_seconds(mtbf_s)}")
            # the same gaps between failures, in another order for each interval
            gaps_s = failure_gaps_s(mtbf_s, seed=steps)
            found = run(steps_per_state=steps, gaps_s=gaps_s, folder=folder / f"every-{steps}")
            runs[steps * plain_s / num_steps] = found
    return IntervalRuns(work_s=plain_s, mtbf_s=mtbf_s, runs=runs)


def _state_bytes(checkpoint_s: float, folder: Path) -> tuple[int, float]:
    """Find a size that takes about so long to write, and its time; by doubling."""
    num_bytes = 500_000
    while True:
        state = WaitingWork(num_bytes).state()
        times_s = []
        for _ in range(3):
            begun_s = time.monotonic()
            write_state(state, folder / "size")
            times_s.append(time.monotonic() - begun_s)
        found_s = statistics.median(times_s)
        if found_s >= checkpoint_s or num_bytes >= _LARGEST_BYTES:
            return num_bytes, found_s
        num_bytes *= 2
