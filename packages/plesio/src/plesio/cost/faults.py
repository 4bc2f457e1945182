"""The losses and joins of workers, and their times: as written down, and as chance has it.

Every worker has a lifetime from the moment it is there, exponentially distributed or Weibull's. Hosts of large systems
fail with a Weibull shape of 0.7 to 0.8, more often soon after they began than later (Schroeder & Gibson 2006); a shape
of 1 is the exponential distribution, where age does not matter. A worker that is replaced comes back as a new one with
the next free rank, which can fail as well: with replacements the faults of a run have no end, so they come one by one.

A cluster's hosts come and go likewise, each with all its workers: they fail and are repaired, are taken away for others
who pay more, or are there only while nobody else wants them. These are one process with three beginnings: a host is
there for a lifetime, and then away for a fixed time or one that has the exponential distribution.
"""

import heapq
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Annotated, Literal

from plesio.core.arguments import check_fields
from plesio.core.errors import ConfigError
from plesio.core.within import ABOVE_0, AT_LEAST_0, Within

_LIFETIME_STREAM = 2
"""Apart from the streams of steps (no spawn key) and of racks (1)."""
_HOST_STREAM = 3


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
        return self._drawn_s((_LIFETIME_STREAM, worker), seed=seed)

    def host_s(self, host: int, life: int, *, seed: int) -> float:
        """Return how long after it came for the ``life``-th time ``host`` goes in the run of ``seed``."""
        return self._drawn_s((_HOST_STREAM, host, life), seed=seed)

    def _drawn_s(self, key: tuple[int, ...], *, seed: int) -> float:
        import numpy as np  # a tenth of a second, which a cluster without failures need not wait for

        sequence = np.random.SeedSequence(seed, spawn_key=key)
        scale_s = self.mtbf_s / math.gamma(1 + 1 / self.shape)
        return scale_s * float(np.random.Generator(np.random.Philox(sequence)).weibull(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class InconstantHost:
    """A host that comes and goes by chance, with all its workers.

    Attributes:
        number: Its number, which its random streams follow from.
        num_workers: Workers that it brings whenever it comes.
        workers: The workers that are on it when the run begins; none if it is away then.
        stays: How long it is there, and how long it is away then.
        away_by_chance: It is away for a time of the exponential distribution with that mean; else for exactly that.
    """

    number: int
    num_workers: int
    workers: tuple[int, ...]
    stays: Failures
    away_by_chance: bool = False

    def away_s(self, life: int, *, seed: int) -> float:
        """Return how long it is away before its ``life``-th time; infinity if it never comes again."""
        mean_s = self.stays.rejoin_after_s
        if mean_s is None:
            return math.inf
        if not self.away_by_chance or mean_s == 0:
            return mean_s
        return Failures(mtbf_s=mean_s).host_s(self.number, 2 * life + 1, seed=seed)

    def stay_s(self, life: int, *, seed: int) -> float:
        """Return how long it is there the ``life``-th time."""
        return self.stays.host_s(self.number, 2 * life, seed=seed)


_Happening = Callable[[float], Iterable[Fault]]
"""Yields the faults of a moment, and expects what follows from them."""


def faults_in_order(
    num_workers: int,
    *,
    given: Iterable[Fault] = (),
    failures: Failures | None = None,
    hosts: Iterable[InconstantHost] = (),
    seed: int = 0,
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
    coming = _Coming(num_workers, failures=failures, seed=seed)
    for fault in given:
        coming.expect(fault.at_s, partial(coming.given, fault))
    for worker in range(num_workers):
        coming.begin(worker, at_s=0.0)
    for host in hosts:
        coming.begin_host(host)
    return coming.in_order()


class _Coming:
    """All that is expected to befall a job."""

    def __init__(self, num_workers: int, *, failures: Failures | None, seed: int) -> None:
        self._failures = failures
        self._seed = seed
        self._joiners = count(num_workers)
        self._lost: set[int] = set()
        self._heap: list[tuple[float, int, _Happening]] = []
        self._numbers = count()
        """Breaks ties, so that faults of one moment come in the order in which they were expected."""

    def expect(self, at_s: float, happening: _Happening) -> None:
        if at_s < math.inf:
            heapq.heappush(self._heap, (at_s, next(self._numbers), happening))

    def in_order(self) -> Iterator[Fault]:
        while self._heap:
            at_s, _, happening = heapq.heappop(self._heap)
            yield from happening(at_s)

    def given(self, fault: Fault, at_s: float) -> Iterator[Fault]:
        yield from self._join(at_s) if fault.kind == "join" else self._lose(fault.worker, at_s)

    def begin(self, worker: int, *, at_s: float) -> None:
        if self._failures is not None:
            self.expect(at_s + self._failures.lifetime_s(worker, seed=self._seed), partial(self._fail, worker))

    def begin_host(self, host: InconstantHost) -> None:
        if host.workers:
            self.expect(host.stay_s(0, seed=self._seed), partial(self._go, host, host.workers, 1))
        else:
            self.expect(host.away_s(0, seed=self._seed), partial(self._come, host, 0))

    def _join(self, at_s: float) -> Generator[Fault, None, int]:
        yield Fault(at_s=at_s, kind="join")
        worker = next(self._joiners)
        self.begin(worker, at_s=at_s)
        return worker

    def _lose(self, worker: int, at_s: float) -> Generator[Fault, None, bool]:
        """Lose a worker, unless it is lost already: by plan and by chance, say, which counts once."""
        if worker in self._lost:
            return False
        self._lost.add(worker)
        yield Fault(at_s=at_s, kind="lose", worker=worker)
        return True

    def _fail(self, worker: int, at_s: float) -> Iterator[Fault]:
        is_news = yield from self._lose(worker, at_s)
        assert self._failures is not None, "it fails by chance"
        if is_news and self._failures.rejoin_after_s is not None:
            self.expect(at_s + self._failures.rejoin_after_s, self._join)

    def _go(self, host: InconstantHost, workers: Iterable[int], life: int, at_s: float) -> Iterator[Fault]:
        for worker in workers:
            yield from self._lose(worker, at_s)
        self.expect(at_s + host.away_s(life, seed=self._seed), partial(self._come, host, life))

    def _come(self, host: InconstantHost, life: int, at_s: float) -> Iterator[Fault]:
        workers = []
        for _ in range(host.num_workers):
            workers.append((yield from self._join(at_s)))
        self.expect(at_s + host.stay_s(life, seed=self._seed), partial(self._go, host, workers, life + 1))
