"""Processor sharing: jobs on a host with fewer cores than jobs.

Theory of operation. With n jobs on c cores each runs at the rate ``r(n) = min(1, c/n)``: no job uses more than one
core, and what there is, is divided evenly (egalitarian processor sharing, Kleinrock 1967; for several cores Cohen
1979). All rates are equal, and so is the work that any two jobs get while both are there. *Service* is that work, as
of a job which was there since the host was last idle:

    d service / dt = r(n)          a job that finds service v and brings work x ends when service is v + x

This end does not change when others come and go (the virtual time of Demers, Keshav & Shenker 1989). So a heap of ends
is all there is to keep: one event is planned, for the smallest of them, and an arrival or an end takes O(log n). There
are no time slices, so the result is exact, to the rounding of the sums.
"""

import heapq
import math
from collections.abc import Callable

from plesio.sim.kernel import Cancellable, Kernel


class ProcessorSharing:
    """A host of ``capacity`` cores: n jobs each run at rate ``min(1, capacity / n)``.

    Jobs that end at the same moment end in the order in which they were submitted.

    >>> kernel = Kernel()
    >>> host = ProcessorSharing(kernel, capacity=1)
    >>> for name in "ab":
    ...     host.submit(1.0, lambda name=name: print(name, "at", kernel.now_s))
    >>> kernel.run()
    a at 2.0
    b at 2.0

    Args:
        capacity: Cores; need not be whole.

    Raises:
        ValueError: A capacity that is not above 0.
    """

    def __init__(self, kernel: Kernel, *, capacity: float) -> None:
        if not 0 < capacity < math.inf:
            raise ValueError(f"a capacity of {capacity} cores; write a finite number above 0")
        self._kernel = kernel
        self._capacity = capacity
        self._service_s = 0.0
        self._updated_s = 0.0
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        """Service at which it ends, number of its submission, what to call then; a heap."""
        self._num_submitted = 0
        self._next: Cancellable | None = None

    def submit(self, work_s: float, on_done: Callable[[], None]) -> None:
        """Begin a job of ``work_s`` seconds of one core; ``on_done`` is called by the kernel when it is done.

        Raises `ValueError` for work that is negative, infinite or not a number.
        """
        if not 0 <= work_s < math.inf:
            raise ValueError(f"a job of {work_s} s; write a finite number, 0 or more")
        self._advance()
        self._num_submitted += 1
        heapq.heappush(self._jobs, (self._service_s + work_s, self._num_submitted, on_done))
        self._plan()

    def _rate(self) -> float:
        return min(1.0, self._capacity / len(self._jobs))

    def _advance(self) -> None:
        now_s = self._kernel.now_s
        # Counted anew after an idle time, so that the sums stay small and a job on an idle host takes exactly its work.
        self._service_s = self._service_s + (now_s - self._updated_s) * self._rate() if self._jobs else 0.0
        self._updated_s = now_s

    def _plan(self) -> None:
        """Have one event for the job that ends first."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._jobs:
            left_s = max(0.0, self._jobs[0][0] - self._service_s)  # below 0 by rounding only
            self._next = Cancellable(self._finish)
            self._kernel.after(left_s / self._rate(), self._next)

    def _finish(self) -> None:
        self._advance()
        service_s, _, on_done = heapq.heappop(self._jobs)
        self._service_s = service_s  # to the bit: rounding must not carry over from job to job
        self._plan()
        on_done()
