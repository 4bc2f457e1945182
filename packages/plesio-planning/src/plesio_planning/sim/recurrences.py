"""Times of workers under a consistency policy, from their step times alone: max-plus recurrences, compiled.

Theory of operation. If the order of messages does not matter, the time at which a step begins is a maximum of sums
of earlier ones (a max-plus linear system: Baccelli, Cohen, Olsder & Quadrat 1992, chapter 1), and a run is computed
step after step, without events. With C[w,k] the seconds that worker w computes at step k, b[w,k] the step's begin and
f = b + C its finish:

    barrier, period H, delay d     b[w,k] = max(f[w,k-1], E[r])     if k = rH + d, r >= 1; else f[w,k-1]
                                   E[r]   = max(max_v f[v,rH-1], E[r-1]) + X[r]
    bound s                        b[w,k] = max(f[w,k-1], max_v f[v,k-s-1]) + X     the second for k > s only
    no bound                       b[w,k] = f[w,k-1] + X

E[r] is the end of exchange r and X what an exchange takes. Hence, to the bit: a bound of 0 is a barrier with H = 1, and
a bound of at least the number of steps is none. The formulas are those of `plesio.policies.barrier` and, for a period
of 1, of `plesio.policies.asynchronous`.

Limits: X does not depend on other exchanges at the same time. If workers queue for a server, the order
of arrival decides; `plesio_planning.sim.store` simulates that.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plesio.sim.compiled import compiled

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """When every worker computes every step.

    Attributes:
        step_s: Seconds that a step computes, (workers, steps).
        begin_s: Virtual seconds at which it begins, (workers, steps).
        end_s: Virtual seconds at which the run is over, the last exchange included.
    """

    step_s: Times
    begin_s: Times
    end_s: float

    @property
    def finish_s(self) -> Times:
        """Virtual seconds at which a step's computing is finished, (workers, steps)."""
        return self.begin_s + self.step_s

    @property
    def blocked_s(self) -> Times:
        """Seconds of each worker, up to its last step's begin, in which it did not compute, (workers,)."""
        blocked_s: Times = self.begin_s[:, -1] - self.step_s[:, :-1].sum(axis=1)
        return blocked_s


def simulate_barrier(step_s: ArrayLike, *, exchange_s: ArrayLike = 0.0, period: int = 1, delay: int = 0) -> Schedule:
    """Simulate BSP (period 1) or local SGD, in which every exchange waits for all workers.

    >>> simulate_barrier([[1.0, 1.0], [2.0, 3.0]], exchange_s=0.5).end_s  # (2 + 0.5) + (3 + 0.5)
    6.0

    Args:
        step_s: Seconds that each step computes, (workers, steps).
        exchange_s: Seconds of an exchange, one for all or one for each of the ``steps // period`` exchanges.
        period: H, steps between two exchanges.
        delay: d, steps that a worker goes on behind its exchange; at most the period.

    Raises:
        ValueError: Times that are negative or not finite, or a period or delay that cannot be.
    """
    step_s = checked_step_times(step_s)
    if not (period >= 1 and 0 <= delay <= period):
        raise ValueError(
            f"period {period}, delay {delay}; write a period of 1 or more and a delay from 0 to the period"
        )
    exchanges_s = np.ascontiguousarray(np.broadcast_to(np.asarray(exchange_s, float), step_s.shape[1] // period))
    check_times("exchange_s", exchanges_s)
    begin_s = np.empty_like(step_s)
    end_s = _barrier(step_s, exchanges_s, period, delay, begin_s)
    return Schedule(step_s=step_s, begin_s=begin_s, end_s=end_s)


def simulate_bound(step_s: ArrayLike, *, bound: float, exchange_s: float = 0.0) -> Schedule:
    """Simulate SSP, or ASP with an infinite bound: no worker may be more than ``bound`` steps ahead.

    Every worker exchanges after every step (Ho et al. 2013; a period of 1), which it waits for.

    >>> simulate_bound([[1.0, 1.0, 1.0], [3.0, 1.0, 1.0]], bound=1).begin_s[0]  # the third waits
    array([0., 1., 3.])

    Args:
        step_s: Seconds that each step computes, (workers, steps).
        bound: s, the largest lead in steps; ``math.inf`` for none.
        exchange_s: Seconds from a step's finish until its update counts and the worker has the parameters.

    Raises:
        ValueError: Times that are negative or not finite, or a bound that is not a whole number, 0 or more.
    """
    step_s = checked_step_times(step_s)
    check_bound(bound)
    check_times("exchange_s", np.asarray(exchange_s, float))
    begin_s = np.empty_like(step_s)
    end_s = _bound(step_s, float(exchange_s), int(min(bound, step_s.shape[1])), begin_s)
    return Schedule(step_s=step_s, begin_s=begin_s, end_s=end_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateOrder:
    """The updates of a run, in the order in which they were applied.

    Attributes:
        workers: Whose it is, (updates,).
        staleness: τ, updates applied since its worker pulled, (updates,).
        applied_s: When it counted, in virtual seconds, (updates,).
    """

    workers: NDArray[np.int64]
    staleness: NDArray[np.int64]
    applied_s: NDArray[np.float64]


def order_updates(schedule: Schedule, *, exchange_s: float) -> UpdateOrder:
    """Order the updates of an asynchronous schedule; those that count at the same time in the order of workers.

    An update is of the parameters that its worker had when the step began, and counts ``exchange_s`` after its finish,
    as the schedule was simulated with.

    >>> order = order_updates(simulate_bound([[1.0, 1.0, 1.0], [1.5, 1.5, 1.5]], bound=9), exchange_s=0.0)
    >>> order.workers.tolist(), order.staleness.tolist()
    ([0, 1, 0, 0, 1, 1], [0, 1, 1, 0, 2, 0])
    """
    workers = np.repeat(np.arange(len(schedule.step_s)), schedule.step_s.shape[1])
    applied_s = (schedule.finish_s + exchange_s).ravel()
    order = np.argsort(applied_s, kind="stable")
    applied_s = applied_s[order]
    num_seen = np.searchsorted(applied_s, schedule.begin_s.ravel()[order], side="right")
    staleness = np.arange(len(order)) - np.minimum(num_seen, np.arange(len(order)))
    return UpdateOrder(workers=workers[order], staleness=staleness, applied_s=applied_s)


def while_all_run(order: UpdateOrder, schedule: Schedule, *, exchange_s: float) -> UpdateOrder:
    """Return the updates until the first worker has used up its steps: later ones are too few and too fresh."""
    running = order.applied_s <= schedule.finish_s[:, -1].min() + exchange_s
    return UpdateOrder(
        workers=order.workers[running], staleness=order.staleness[running], applied_s=order.applied_s[running]
    )


def check_bound(bound: float) -> None:
    if not (bound == math.inf or (bound >= 0 and bound == int(bound))):
        raise ValueError(f"bound {bound}; write a whole number of steps, 0 or more, or inf")


def checked_step_times(step_s: ArrayLike) -> Times:
    times_s = np.ascontiguousarray(step_s, dtype=np.float64)
    if times_s.ndim != 2 or times_s.size == 0:
        raise ValueError(f"step_s has shape {times_s.shape}; it must be (workers, steps), 1 or more of each")
    check_times("step_s", times_s)
    return times_s


def check_times(name: str, times_s: Times) -> None:
    # min and max rather than isfinite: no temporary array of the matrix's size. NaN fails both comparisons.
    if times_s.size and not (times_s.min() >= 0 and times_s.max() < math.inf):
        raise ValueError(f"{name} has values below 0 or not finite; write seconds, 0 or more")


@compiled
def _barrier(step_s: Times, exchanges_s: Times, period: int, delay: int, begin_s: Times) -> float:
    num_workers, num_steps = step_s.shape
    now_s = np.zeros(num_workers)
    exchange_ends_s = np.zeros(num_steps // period + 1)
    for k in range(num_steps):
        gate_s = 0.0
        if k >= period + delay and (k - delay) % period == 0:
            gate_s = exchange_ends_s[(k - delay) // period]
        latest_s = 0.0
        for w in range(num_workers):
            start_s = max(now_s[w], gate_s)
            begin_s[w, k] = start_s
            now_s[w] = start_s + step_s[w, k]
            latest_s = max(latest_s, now_s[w])
        if (k + 1) % period == 0:
            number = (k + 1) // period
            exchange_ends_s[number] = max(latest_s, exchange_ends_s[number - 1]) + exchanges_s[number - 1]
    return float(max(now_s.max(), exchange_ends_s[-1]))


@compiled
def _bound(step_s: Times, exchange_s: float, bound: int, begin_s: Times) -> float:
    num_workers, num_steps = step_s.shape
    ready_s = np.zeros(num_workers)  # when its last exchange ended
    all_ready_s = np.zeros(num_steps)  # when everyone's exchange after step k had ended
    for k in range(num_steps):
        gate_s = 0.0
        if k > bound:
            gate_s = all_ready_s[k - bound - 1]
        latest_s = 0.0
        for w in range(num_workers):
            start_s = max(ready_s[w], gate_s)
            begin_s[w, k] = start_s
            ready_s[w] = start_s + step_s[w, k] + exchange_s
            latest_s = max(latest_s, ready_s[w])
        all_ready_s[k] = latest_s
    return float(all_ready_s.max())
