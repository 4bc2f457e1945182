"""Runs that save their state and fail: what an interval costs by formula and in simulation; a failure, drawn."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, count

from plesio.core.charts import TimelineBar
from plesio.cost.faults import Failures
from plesio.cost.reliability import check_run_ends, expected_slowdown, slowdown_parts
from plesio_planning.sim.checkpoints import CheckpointTimes, Runs, simulate_runs, trace_run

_DRAWN_SEGMENTS = 4.5
"""Segments drawn before and after the first failure."""
_MOST_SEGMENT = 8.0
"""Mean times between failures that a segment may take; longer ones hardly ever end."""
_MOST_FAILURES = 1000.0
"""Failures of a simulated run; a part of a run that has more is as slow as all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedInterval:
    """An interval between states: what it costs by formula and by simulation.

    Attributes:
        factor: Factor of the best interval.
        interval_s: I.
        exact: Seconds that a second of work takes, by formula.
        poisson: The same of simulated runs with failures that have no memory.
        poisson_ci95: Ends of its 95 % confidence interval.
        weibull: The same with failures in bursts.
        weibull_ci95: Likewise.
    """

    factor: float
    interval_s: float
    exact: float
    poisson: float
    poisson_ci95: tuple[float, float]
    weibull: float
    weibull_ci95: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """A run that saves its state now and then, and fails.

    Attributes:
        checkpoint_s: C, seconds to write a state.
        restart_s: Seconds from a failure until the run goes on from its last state.
        failures: The whole cluster's.
    """

    work_s: float
    checkpoint_s: float
    restart_s: float
    failures: Failures

    def slowdown(self, interval_s: float) -> float:
        """Return the seconds that a second of work takes, by formula.

        Raises:
            ConfigError: Failures are so frequent that the run does not end.
        """
        check_run_ends(
            interval_s=interval_s, checkpoint_s=self.checkpoint_s, mtbf_s=self.failures.mtbf_s, restart_s=self.restart_s
        )
        return expected_slowdown(**self._times(interval_s))

    def slowdown_parts(self, interval_s: float) -> Mapping[str, float]:
        """Return the uses of a second of work beside itself: writing, lost work, and restarts."""
        return slowdown_parts(**self._times(interval_s))

    def lost_s(self, interval_s: float) -> float:
        """Return the seconds that a failure undoes, on average: work since the last state, and writing."""
        mtbf_s, segment_s = self.failures.mtbf_s, interval_s + self.checkpoint_s
        return mtbf_s - segment_s / math.expm1(segment_s / mtbf_s)

    def simulate(self, factor: float, interval_s: float, *, num_runs: int, seed: int) -> SimulatedInterval:
        """Return the cost of an interval, by formula and by simulation; one so long that runs hardly end is cut."""
        mtbf_s = self.failures.mtbf_s
        interval_s = min(interval_s, _MOST_SEGMENT * mtbf_s)
        exact = expected_slowdown(**self._times(interval_s))
        simulated_s = min(self.work_s, _MOST_FAILURES * mtbf_s / exact)

        def runs(shape: float) -> Runs:
            times = CheckpointTimes(**self._times(interval_s), shape=shape)
            number = max(1, round(simulated_s / interval_s))
            return simulate_runs(times, num_segments=number, num_runs=num_runs, seed=seed)

        poisson, weibull = runs(1.0), runs(self.failures.shape)
        return SimulatedInterval(
            factor=factor,
            interval_s=interval_s,
            exact=exact,
            poisson=poisson.slowdown,
            poisson_ci95=poisson.slowdown_ci95,
            weibull=weibull.slowdown,
            weibull_ci95=weibull.slowdown_ci95,
        )

    def draw_around_failure(self, interval_s: float, *, seed: int) -> tuple[TimelineBar, ...]:
        """Draw a run around its first failure, in hours: row 0 computes, row 1 writes states."""
        failures = Failures(mtbf_s=self.failures.mtbf_s)
        lifetimes_s = (failures.lifetime_s(worker, seed=seed) for worker in count())
        first_s = next(lifetimes_s)
        segment_s = interval_s + self.checkpoint_s
        around_s = _DRAWN_SEGMENTS * segment_s
        skipped_s = max(0.0, (first_s - around_s) // segment_s) * segment_s  # segments until the failure are alike
        first_s -= skipped_s
        phases = trace_run(
            chain([first_s], lifetimes_s),
            until_s=first_s + self.restart_s + around_s,
            interval_s=interval_s,
            checkpoint_s=self.checkpoint_s,
            restart_s=self.restart_s,
        )
        phases = [phase for phase in phases if phase.end_s > first_s - around_s]
        order = ("work", "lost", "writing", "restart")
        return tuple(
            TimelineBar(
                int(phase.kind == "writing"),
                (skipped_s + phase.start_s) / 3600,
                (skipped_s + phase.end_s) / 3600,
                phase.kind,
            )
            for phase in sorted(phases, key=lambda phase: (order.index(phase.kind), phase.start_s))
        )

    def _times(self, interval_s: float) -> dict[str, float]:
        return {
            "interval_s": interval_s,
            "checkpoint_s": self.checkpoint_s,
            "mtbf_s": self.failures.mtbf_s,
            "restart_s": self.restart_s,
        }
