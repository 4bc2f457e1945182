"""Runs that fail and go back to their last saved state, many at a time.

A run computes for I and writes its state for C, again and again. It fails by chance; then it needs R to be back at the
newest state that was whole, and what it had done since is lost. It can fail at any time, also while it writes or comes
back. If states are written while the run goes on, a state counts from a lag w after the run went on.

The times between failures are drawn anew after each (a renewal process): exponential ones have no memory, Weibull's of
a shape below 1 come in bursts. The time between two failures has a closed form, so a run takes as many rounds as it has
failures, and all runs take them together. A run without an end is a single one, whose failures are looked at together;
it says what share of the time is work even where no run would ever end.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTimes:
    """A run that saves its state and fails.

    Attributes:
        interval_s: I, seconds of work between two states.
        checkpoint_s: C, seconds that the run stands still for each.
        mtbf_s: M, mean seconds between two failures.
        restart_s: R, seconds from a failure until the run goes on.
        lag_s: w, seconds from then on until the state can be gone back to.
        shape: Weibull's; 1 is the exponential distribution.
    """

    interval_s: float
    checkpoint_s: float
    mtbf_s: float
    restart_s: float = 0.0
    lag_s: float = 0.0
    shape: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """The outcome of some runs.

    Attributes:
        work_s: Seconds of useful work, the same of all.
    """

    elapsed_s: Times
    num_failures: NDArray[np.int64]
    work_s: float

    @property
    def slowdown(self) -> float:
        """Seconds that a second of work took, on average."""
        return float(self.elapsed_s.mean()) / self.work_s

    @property
    def slowdown_ci95(self) -> tuple[float, float]:
        """Ends of its 95 % confidence interval, from the spread between runs."""
        half = 1.96 * float(self.elapsed_s.std(ddof=1)) / math.sqrt(len(self.elapsed_s)) / self.work_s
        return self.slowdown - half, self.slowdown + half


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """The uses of a run's time without an end: shares that add up to 1.

    Attributes:
        work: Work that counts.
        writing: Writing states that count.
        lost: Work and writing that failures undid.
        work_ci95: Ends of the 95 % confidence interval of ``work``, from the spread between failures.
    """

    work: float
    writing: float
    lost: float
    restarts: float
    work_ci95: tuple[float, float]


def simulate_long_run(times: CheckpointTimes, *, num_failures: int = 10_000, seed: int = 0) -> LongRun:
    """Simulate a run over so many failures, two or more, which come without memory, and whose states do not lag.

    >>> times = CheckpointTimes(interval_s=60.0, checkpoint_s=1.0, mtbf_s=1e9)
    >>> run = simulate_long_run(times, num_failures=100)
    >>> round(run.work, 4), round(run.writing, 4)
    (0.9836, 0.0164)
    """
    until_failure_s = times.mtbf_s * np.random.default_rng(seed).exponential(size=num_failures)
    restarting_s = np.minimum(until_failure_s, times.restart_s)
    segments = np.floor((until_failure_s - restarting_s) / (times.interval_s + times.checkpoint_s))
    work_s, total_s = segments * times.interval_s, float(until_failure_s.sum())
    work = float(work_s.sum()) / total_s
    writing, restarts = float(segments.sum()) * times.checkpoint_s / total_s, float(restarting_s.sum()) / total_s
    # of a ratio of two means
    half = 1.96 * float((work_s - work * until_failure_s).std(ddof=1)) * math.sqrt(num_failures) / total_s
    return LongRun(
        work=work,
        writing=writing,
        lost=max(1 - work - writing - restarts, 0.0),
        restarts=restarts,
        work_ci95=(max(work - half, 0.0), min(work + half, 1.0)),
    )


def simulate_runs(times: CheckpointTimes, *, num_segments: int, num_runs: int = 1000, seed: int = 0) -> Runs:
    """Simulate two or more runs, of ``num_segments`` intervals of work each, to the end.

    >>> times = CheckpointTimes(interval_s=60.0, checkpoint_s=1.0, mtbf_s=1e12)
    >>> runs = simulate_runs(times, num_segments=10, num_runs=2)
    >>> runs.elapsed_s.tolist(), runs.work_s
    ([610.0, 610.0], 600.0)
    """
    random = np.random.default_rng(seed)
    scale_s = times.mtbf_s / math.gamma(1 + 1 / times.shape)
    segment_s = times.interval_s + times.checkpoint_s
    elapsed_s, left = np.zeros(num_runs), np.full(num_runs, num_segments, dtype=np.int64)
    num_failures = np.zeros(num_runs, dtype=np.int64)
    back_s = np.zeros(num_runs)  # until a run goes on: nothing at first, then R
    ongoing = np.arange(num_runs)
    while ongoing.size:
        until_failure_s = scale_s * random.weibull(times.shape, ongoing.size)
        needed_s = back_s[ongoing] + left[ongoing] * segment_s + times.lag_s
        ends = until_failure_s >= needed_s
        done = ongoing[ends]
        elapsed_s[done] += needed_s[ends]
        failed, survived_s = ongoing[~ends], until_failure_s[~ends]
        saved = np.floor((survived_s - back_s[failed] - times.lag_s) / segment_s)
        left[failed] -= np.maximum(saved, 0).astype(np.int64)
        elapsed_s[failed] += survived_s
        num_failures[failed] += 1
        back_s[failed] = times.restart_s
        ongoing = failed
    return Runs(elapsed_s=elapsed_s, num_failures=num_failures, work_s=num_segments * times.interval_s)


class Phase(NamedTuple):
    """An activity of a run, and its duration."""

    kind: Literal["work", "writing", "lost", "restart"]
    start_s: float
    end_s: float


def trace_run(
    until_failures_s: Iterator[float], *, until_s: float, interval_s: float, checkpoint_s: float, restart_s: float
) -> list[Phase]:
    """Return the phases of one run in turn; work and writing that a failure undoes are lost.

    >>> [phase.kind for phase in trace_run(iter([25.0, 99.0]), until_s=45, interval_s=9, checkpoint_s=1, restart_s=5)]
    ['work', 'writing', 'work', 'writing', 'lost', 'restart', 'work', 'writing']

    Args:
        until_failures_s: Seconds from a start or a failure to the next failure; enough of them for ``until_s``.
        until_s: When to look away.
        interval_s: I.
        checkpoint_s: C.
        restart_s: R.
    """
    phases: list[Phase] = []
    now_s, back_s = 0.0, 0.0
    while now_s < until_s:
        fails_s = now_s + next(until_failures_s)
        if back_s:
            phases.append(Phase("restart", now_s, min(fails_s, now_s + back_s)))
            now_s = phases[-1].end_s
        while now_s + interval_s + checkpoint_s <= min(fails_s, until_s):
            written_s = now_s + interval_s
            phases.append(Phase("work", now_s, written_s))
            now_s = written_s + checkpoint_s
            phases.append(Phase("writing", written_s, now_s))
        if fails_s > until_s:
            break
        if fails_s > now_s:
            phases.append(Phase("lost", now_s, fails_s))
        now_s, back_s = fails_s, restart_s
    return phases
