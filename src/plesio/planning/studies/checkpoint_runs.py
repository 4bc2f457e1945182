"""Runs that save their state and fail: what an interval costs in simulation, and what a run does around a failure."""

from dataclasses import dataclass
from itertools import chain, count

from plesio.core.charts import TimelineBar
from plesio.cost.faults import Failures
from plesio.planning.theory.reliability import expected_slowdown
from plesio.sim.checkpoints import Runs, simulate_runs, trace_run

__all__ = ["SimulatedInterval", "draw_around_failure", "simulate_interval"]

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


def simulate_interval(
    factor: float,
    interval_s: float,
    *,
    checkpoint_s: float,
    restart_s: float,
    failures: Failures,
    work_s: float,
    num_runs: int,
    seed: int,
) -> SimulatedInterval:
    """What an interval costs, by formula and by simulation; one so long that runs hardly end is shortened."""
    interval_s = min(interval_s, _MOST_SEGMENT * failures.mtbf_s)
    exact = expected_slowdown(
        interval_s=interval_s, checkpoint_s=checkpoint_s, mtbf_s=failures.mtbf_s, restart_s=restart_s
    )
    simulated_s = min(work_s, _MOST_FAILURES * failures.mtbf_s / exact)

    def runs(shape: float) -> Runs:
        return simulate_runs(
            num_segments=max(1, round(simulated_s / interval_s)),
            interval_s=interval_s,
            checkpoint_s=checkpoint_s,
            mtbf_s=failures.mtbf_s,
            restart_s=restart_s,
            shape=shape,
            num_runs=num_runs,
            seed=seed,
        )

    poisson, weibull = runs(1.0), runs(failures.shape)
    return SimulatedInterval(
        factor=factor,
        interval_s=interval_s,
        exact=exact,
        poisson=poisson.slowdown,
        poisson_ci95=poisson.slowdown_ci95,
        weibull=weibull.slowdown,
        weibull_ci95=weibull.slowdown_ci95,
    )


def draw_around_failure(
    interval_s: float, *, checkpoint_s: float, restart_s: float, mtbf_s: float, seed: int
) -> tuple[TimelineBar, ...]:
    """What a run does around its first failure, in hours: row 0 computes, row 1 writes states."""
    failures = Failures(mtbf_s=mtbf_s)
    lifetimes_s = (failures.lifetime_s(worker, seed=seed) for worker in count())
    first_s = next(lifetimes_s)
    segment_s = interval_s + checkpoint_s
    around_s = _DRAWN_SEGMENTS * segment_s
    skipped_s = max(0.0, (first_s - around_s) // segment_s) * segment_s  # all segments until the failure are alike
    first_s -= skipped_s
    phases = trace_run(
        chain([first_s], lifetimes_s),
        until_s=first_s + restart_s + around_s,
        interval_s=interval_s,
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
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
