"""Workers that update a store through one server, which takes one update at a time: an event loop, compiled.

Theory of operation. Updates wait for the server in the order in which they arrive, and who arrives first depends on
every earlier queue; so there is no recurrence over steps, as `plesio_planning.sim.recurrences` has, but only the next
arrival. One event is one update's arrival:

    applied  = max(arrived, server free) + service          first come, first served; versions count the updates applied
    answered = applied + latency                            with the parameters as they then are
    arrives  = answered + compute + latency                 of the worker's next update

Under a bound s an update that leaves its worker more than s steps ahead of the slowest is answered later: with the
update that makes the slowest catch up (`plesio.policies.asynchronous`, with a period of 1). An update's staleness is
the number of updates applied between its worker's last answer and its own application.

Arrivals happen in the order (time, worker). Each worker has one update under way at most, so the queue of arrivals is a
binary heap with one place per worker, in which an event replaces the root: about ``log₂(workers)`` comparisons.

For equal workers this is the machine-repairman model, a closed queue: with n workers that compute C and a server that
takes S an update takes ``max(S, (C + S + 2L)/n)`` seconds at least (Lazowska et al. 1984, section 5.2), and no more,
once the workers are spread out, where nothing varies.

Limits: with several servers an update has arrived when all of them have it, which is the largest of
as many queues; and bandwidth that answers share is not in it. The virtual world simulates both.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plesio.sim.compiled import compiled
from plesio_planning.sim.recurrences import check_bound, check_times, checked_step_times

Times = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreSchedule:
    """When every update is computed and applied; each array is (workers, steps).

    Attributes:
        begin_s: Virtual seconds at which a step begins.
        arrived_s: Virtual seconds at which its update has reached the server.
        applied_s: Virtual seconds at which the update has been applied.
        staleness: Updates applied between the pull that the update was computed from and its own application.
    """

    begin_s: Times
    arrived_s: Times
    applied_s: Times
    staleness: Counts

    @property
    def end_s(self) -> float:
        """Virtual seconds at which the last update has been applied."""
        return float(self.applied_s.max())


def simulate_store(
    step_s: ArrayLike, *, service_s: float, latency_s: float = 0.0, bound: float = math.inf
) -> StoreSchedule:
    """Simulate ASP, or SSP with a bound, on one server: the waits of workers, and the staleness of every update.

    >>> schedule = simulate_store([[1.0, 1.0], [1.0, 1.0]], service_s=0.25)
    >>> schedule.applied_s
    array([[1.25, 2.5 ],
           [1.5 , 2.75]])
    >>> schedule.staleness  # the second worker read what the first had just updated, and the other way round
    array([[0, 1],
           [1, 1]])

    Args:
        step_s: Seconds that each step computes, (workers, steps).
        service_s: Seconds of the server for one update.
        latency_s: Seconds from a worker to the server, and as many back.
        bound: s, the largest lead in steps; ``math.inf`` for none.

    Raises:
        ValueError: Times that are negative or not finite, or a bound that is not a whole number, 0 or more.
    """
    step_s = checked_step_times(step_s)
    check_times("service_s", np.asarray(service_s, float))
    check_times("latency_s", np.asarray(latency_s, float))
    check_bound(bound)
    schedule = StoreSchedule(
        begin_s=np.empty_like(step_s),
        arrived_s=np.empty_like(step_s),
        applied_s=np.empty_like(step_s),
        staleness=np.empty(step_s.shape, np.int64),
    )
    _serve(
        step_s,
        float(service_s),
        float(latency_s),
        # a bound beyond the run's length is none, and fits an integer
        int(min(bound, step_s.shape[1])),
        schedule.begin_s,
        schedule.arrived_s,
        schedule.applied_s,
        schedule.staleness,
    )
    return schedule


@compiled
def _serve(
    step_s: Times,
    service_s: float,
    latency_s: float,
    bound: int,
    begin_s: Times,
    arrived_s: Times,
    applied_s: Times,
    staleness: Counts,
) -> None:
    num_workers, num_steps = step_s.shape
    clocks = np.zeros(num_workers, np.int64)  # updates of each worker that were applied
    read_version = np.zeros(num_workers, np.int64)  # what it computes from
    num_at_clock = np.zeros(num_steps + 1, np.int64)  # workers at each clock
    num_at_clock[0] = num_workers
    floor = 0  # clock of the slowest
    blocked = np.empty(num_workers, np.int64)  # who waits for the floor to rise
    num_blocked = 0
    begin_s[:, 0] = 0.0
    first_s = step_s[:, 0] + latency_s
    workers = np.argsort(first_s, kind="mergesort")  # stable: sorted by (time, worker), hence a heap already
    times_s = first_s[workers]
    size: int = num_workers
    server_free_s = 0.0
    for version in range(step_s.size):
        worker, arrival_s = workers[0], times_s[0]
        k = clocks[worker]
        server_free_s = max(server_free_s, arrival_s) + service_s
        arrived_s[worker, k] = arrival_s
        applied_s[worker, k] = server_free_s
        staleness[worker, k] = version - read_version[worker]
        clocks[worker] = k + 1
        num_at_clock[k] -= 1
        num_at_clock[k + 1] += 1
        num_released = 0
        if num_at_clock[floor] == 0:
            floor += 1
            num_released, num_blocked = num_blocked, 0
        answered_s = server_free_s + latency_s
        if k + 1 < num_steps and k + 1 <= floor + bound:
            read_version[worker] = version + 1
            begin_s[worker, k + 1] = answered_s
            _replace_root(workers, times_s, size, worker, answered_s + step_s[worker, k + 1] + latency_s)
        else:
            size -= 1
            _replace_root(workers, times_s, size, workers[size], times_s[size])
        # Those who wait are all at the same clock, the last that the floor allowed.
        for released in blocked[:num_released]:
            step = clocks[released]
            read_version[released] = version + 1
            begin_s[released, step] = answered_s
            _sift_up(workers, times_s, size, released, answered_s + step_s[released, step] + latency_s)
            size += 1
        if floor + bound < k + 1 < num_steps:
            blocked[num_blocked] = worker
            num_blocked += 1


@compiled
def _replace_root(workers: Counts, times_s: Times, size: int, worker: int, time_s: float) -> None:
    """Take the root out and put another in, of which there are ``size`` then."""
    # The hole goes down to a leaf along the earlier children, and what is put in goes up from there. That is half the
    # comparisons of sifting it down, since a next arrival is among the later ones as a rule.
    place, child = 0, 1
    while child < size:
        if child + 1 < size:
            left_s, right_s = times_s[child], times_s[child + 1]
            child += right_s < left_s  # without a branch, which could not be predicted
            if right_s == left_s and workers[child + 1] < workers[child]:
                child += 1
        workers[place], times_s[place] = workers[child], times_s[child]
        place, child = child, 2 * child + 1
    _sift_up(workers, times_s, place, worker, time_s)


@compiled
def _sift_up(workers: Counts, times_s: Times, place: int, worker: int, time_s: float) -> None:
    """Put an arrival in at the free ``place`` or as far above it as its time says."""
    while place > 0:
        parent = (place - 1) // 2
        if times_s[parent] < time_s or (times_s[parent] == time_s and workers[parent] < worker):
            break
        workers[place], times_s[place] = workers[parent], times_s[parent]
        place = parent
    workers[place], times_s[place] = worker, time_s
