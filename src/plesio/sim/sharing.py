"""Processor sharing: jobs on a host with fewer cores than jobs."""

import heapq
import itertools
from collections.abc import Callable

from plesio.sim.kernel import Event, Kernel

__all__ = ["ProcessorSharing"]


class ProcessorSharing:
    """A host of ``capacity`` cores: n jobs each run at rate ``min(1, capacity / n)``.

    Exact and without time slices: *service* is the work that a job which had been there from the beginning would have
    been done by now, so each job ends when service has grown by its work, whoever comes and goes (Kleinrock 1976).

    Args:
        kernel: The events.
        capacity: Cores; need not be whole.
    """

    def __init__(self, kernel: Kernel, *, capacity: float) -> None:
        if not capacity > 0:
            raise ValueError(f"a capacity of {capacity} cores; it must be more than 0")
        self._kernel = kernel
        self._capacity = capacity
        self._service_s = 0.0
        self._updated_s = 0.0
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._next: Event | None = None

    @property
    def num_jobs(self) -> int:
        """Jobs that are not done."""
        return len(self._jobs)

    def submit(self, work_s: float, on_done: Callable[[], None]) -> None:
        """Begin a job of ``work_s`` seconds of one core; ``on_done`` is called when it is done."""
        if not work_s >= 0:
            raise ValueError(f"a job of {work_s} s; it must be 0 or more")
        self._advance()
        heapq.heappush(self._jobs, (self._service_s + work_s, next(self._numbers), on_done))
        self._schedule()

    def _rate(self) -> float:
        return min(1.0, self._capacity / len(self._jobs))

    def _advance(self) -> None:
        now_s = self._kernel.now_s
        if self._jobs:
            self._service_s += (now_s - self._updated_s) * self._rate()
        self._updated_s = now_s

    def _schedule(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._jobs:
            left_s = max(0.0, self._jobs[0][0] - self._service_s)
            self._next = self._kernel.after(left_s / self._rate(), self._finish)

    def _finish(self) -> None:
        self._advance()
        service_s, _, on_done = heapq.heappop(self._jobs)
        self._service_s = max(self._service_s, service_s)  # what rounding left over
        self._schedule()
        on_done()
