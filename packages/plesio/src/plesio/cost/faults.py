"""The losses and joins of workers, and their times: as written down, and as chance has it.

Every worker has a lifetime from the moment it is there, exponentially distributed or Weibull's. Hosts of large systems
fail with a Weibull shape of 0.7 to 0.8, more often soon after they began than later (Schroeder & Gibson 2006); a shape
of 1 is the exponential distribution, where age does not matter. A worker that is replaced comes back as a new one with
the next free rank, which can fail as well: with replacements the faults of a run have no end, so they come one by one.
"""

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal

import numpy as np

from plesio.core.arguments import check_fields
from plesio.core.errors import ConfigError
from plesio.core.within import ABOVE_0, AT_LEAST_0, Within

__all__ = ["Failures", "Fault", "faults_in_order"]

_LIFETIME_STREAM = 2
"""Apart from the streams of steps (no spawn key) and of racks (1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that befalls a job.

    Attributes:
        at_s: Seconds since its beginning.
        kind: A worker is lost, or a new one joins.
        worker: Which is lost; a new worker is given the next free rank.
    """

    at_s: Annotated[float, AT_LEAST_0]
    kind: Literal["lose", "join"]
    worker: int = -1

    def __post_init__(self) -> None:
        check_fields(self, "fault: ")
        if self.kind == "lose" and self.worker < 0:
            raise ConfigError("a fault that loses a worker needs its rank: worker = 2")
        if self.kind == "join" and self.worker != -1:
            raise ConfigError('a worker that joins is given the next free rank; leave out "worker"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Workers fail by chance, each for itself.

    A lifetime has the Weibull distribution with ``P(longer than t) = exp(-(t / scale) ** shape)`` and
    ``scale = mtbf / gamma(1 + 1 / shape)``, so that ``mtbf`` is its mean whatever the shape.

    Attributes:
        mtbf_s: Mean time until a worker fails.
        shape: Weibull's; below 1 young workers fail more often, above 1 old ones.
        rejoin_after_s: When a new worker joins in place of one that failed; None leaves it at that.
    """

    mtbf_s: Annotated[float, ABOVE_0]
    shape: Annotated[float, Within(0.1, 10.0)] = 1.0
    rejoin_after_s: Annotated[float, AT_LEAST_0] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "")

    def lifetime_s(self, worker: int, *, seed: int) -> float:
        """Return how long after it began ``worker`` fails in the run of ``seed``; a function of the two alone."""
        sequence = np.random.SeedSequence(seed, spawn_key=(_LIFETIME_STREAM, worker))
        scale_s = self.mtbf_s / math.gamma(1 + 1 / self.shape)
        return scale_s * float(np.random.Generator(np.random.Philox(sequence)).weibull(self.shape))


def faults_in_order(
    num_workers: int, *, given: Iterable[Fault] = (), failures: Failures | None = None, seed: int = 0
) -> Iterator[Fault]:
    """Return all that befalls a job, in the order of time; without end if failed workers are replaced.

    A worker is lost once at most. Ranks are those of `plesio.runtime.worlds.virtual.simulate`: who joins gets the next
    one, in the order of joining. At one moment, what is ``given`` comes first, as it is given.

    >>> from itertools import islice
    >>> failures = Failures(mtbf_s=100.0, rejoin_after_s=10.0)
    >>> for fault in islice(faults_in_order(2, failures=failures), 4):
    ...     print(f"{fault.at_s:.0f} s: {fault.kind}", *([fault.worker] if fault.kind == "lose" else []))
    44 s: lose 1
    54 s: join
    195 s: lose 2
    205 s: join
    """
    coming: list[tuple[float, int, Fault, bool]] = []
    # breaks ties, so that faults of one moment come in the order in which they were expected
    number = count()

    def expect(fault: Fault, *, by_chance: bool) -> None:
        heapq.heappush(coming, (fault.at_s, next(number), fault, by_chance))

    def begin(worker: int, *, at_s: float) -> None:
        if failures is not None:
            fails_s = at_s + failures.lifetime_s(worker, seed=seed)
            expect(Fault(at_s=fails_s, kind="lose", worker=worker), by_chance=True)

    for fault in given:
        expect(fault, by_chance=False)
    for worker in range(num_workers):
        begin(worker, at_s=0.0)
    joiners = count(num_workers)
    lost: set[int] = set()
    while coming:
        at_s, _, fault, by_chance = heapq.heappop(coming)
        if fault.kind == "join":
            yield fault
            begin(next(joiners), at_s=at_s)
        # a worker can be lost by plan and by chance, and counts once
        elif fault.worker not in lost:
            lost.add(fault.worker)
            yield fault
            if by_chance and failures is not None and failures.rejoin_after_s is not None:
                expect(Fault(at_s=at_s + failures.rejoin_after_s, kind="join"), by_chance=True)
