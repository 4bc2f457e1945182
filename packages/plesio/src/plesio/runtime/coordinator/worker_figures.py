"""Each worker's reports in a run, with the evidence of its updates and its collectives.

Workers send `Report`s of what is new since their last one (`plesio.runtime.worker.meter`). The time for which a worker
is blocked in a collective is waiting and communicating in one, and is split when all that met have reported it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from plesio.core.results import WorkerTimes
from plesio.core.trace import split_blocked
from plesio.protocol.figures import Report

MOST_OPEN = 16_384
"""Collectives that not all participants have reported; of a worker that is lost there may never come more."""


class WorkerFigures:
    """The workers' figures of one run."""

    def __init__(self) -> None:
        self.reports: dict[int, Report] = {}
        """The latest report of each worker."""
        self._arrived: dict[int, tuple[int, int]] = {}
        """Steps and samples in a worker's updates that reached the store."""
        self._at_store: dict[int, tuple[int, int, int]] = {}
        """Steps and samples that each had reported of collectives when it last entered the store, and later steps."""
        self._before: Mapping[int, Report] = {}
        """Reports of the part of the run before it was resumed."""
        self._blocked: dict[tuple[int, int], dict[int, float]] = {}
        """Seconds by worker, for a clock and the first participant."""
        self._wait_s: Counter[int] = Counter()
        self._communicate_s: Counter[int] = Counter()

    def latest(self, worker: int) -> Report:
        return self.reports.get(worker, Report())

    def report(self, worker: int, report: Report, *, meets: Sequence[int]) -> None:
        """Take in a worker's figures.

        ``meets`` are the workers of its collectives, itself among them.
        """
        self.reports[worker] = report
        for clock, blocked_s in report.blocked:
            # a step may be blocked twice: its gradients, and then its parameters
            blocked = self._blocked.setdefault((clock, meets[0]), {})
            blocked[worker] = blocked.get(worker, 0.0) + blocked_s
            if len(blocked) == len(meets):
                self._split((clock, meets[0]))
        while len(self._blocked) > MOST_OPEN:
            self._split(next(iter(self._blocked)))

    def _split(self, met: tuple[int, int]) -> None:
        for worker, (wait_s, communicate_s) in split_blocked(self._blocked.pop(met)).items():
            self._wait_s[worker] += wait_s  # type: ignore[assignment]
            self._communicate_s[worker] += communicate_s  # type: ignore[assignment]

    def arrived(self, worker: int, *, num_steps: int, num_samples: int) -> None:
        """Take in an update that reached the store: it counts even if its worker never reports it."""
        steps, samples = self._arrived.get(worker, (0, 0))
        self._arrived[worker] = (steps + num_steps, samples + num_samples)

    def entered_store(self, workers: Iterable[int], *, clock: int) -> None:
        """Begin a stage on the store, at this clock of all."""
        for worker in workers:
            report, (steps, samples) = self.latest(worker), self._arrived.get(worker, (0, 0))
            self._at_store[worker] = report.steps - steps, report.samples - samples, clock - report.clock

    def lost_on_store(self, worker: int) -> None:
        """Count of a lost worker's steps on the store those that it had handed in: others train on the rest."""
        report, before, arrived = (
            self.latest(worker),
            self._before.get(worker, Report()),
            self._arrived.get(worker, (0, 0)),
        )
        steps, samples, untold = self._at_store.get(worker, (before.steps, before.samples, 0))
        samples += untold * (report.samples // max(1, report.steps))  # about: its report was of an earlier step
        steps, samples = steps + untold + arrived[0], samples + arrived[1]
        undone = max(0, report.steps - steps)
        if undone:  # computing that came to nothing
            report = replace(report, lost_s=(report.lost_s or 0.0) + undone * report.compute_s / report.steps)
        self.reports[worker] = replace(report, steps=steps, samples=samples)

    @property
    def arrived_samples(self) -> int:
        """Samples of all workers in the updates that reached the store."""
        return sum(samples for _, samples in self._arrived.values())

    def go_on_from(self, reports: Mapping[int, Report]) -> None:
        """Take in what the workers had reported when the run was interrupted that is resumed now."""
        self._before = reports

    def recent_step_s(self) -> float:
        """Return the median step of the slowest worker lately; 0 before anyone has reported."""
        return max((report.recent_step_s for report in self.reports.values()), default=0.0)

    def settled(self) -> "WorkerFigures":
        """Return these figures with every collective taken apart, also those that not all have reported yet."""
        settled = copy(self)
        settled._blocked = dict(self._blocked)
        settled._wait_s, settled._communicate_s = Counter(self._wait_s), Counter(self._communicate_s)
        for met in self._blocked:
            settled._split(met)
        return settled

    def totals(self) -> dict[int, Report]:
        return {worker: self._total(worker) for worker in sorted({*self.reports, *self._arrived, *self._before})}

    def _total(self, worker: int) -> Report:
        """Return a worker's last report; a lost worker's updates may prove more steps than it reported."""
        report = self.latest(worker)
        steps, samples = self._arrived.get(worker, (0, 0))
        before = self._before.get(worker)
        if before is not None:
            if worker not in self.reports:
                return before  # its next report has the totals of both parts
            steps, samples = steps + before.steps, samples + before.samples
        return replace(report, steps=max(report.steps, steps), samples=max(report.samples, samples))

    def times(self, worker: int, report: Report) -> WorkerTimes:
        return WorkerTimes(
            worker=worker,
            compute_s=report.compute_s,
            wait_s=report.wait_s + self._wait_s[worker],
            communicate_s=report.communicate_s + self._communicate_s[worker],
            steps=report.steps,
            samples=report.samples,
            peak_memory_bytes=report.peak_memory_bytes,
            lost_s=report.lost_s or 0.0,
            checkpoint_s=report.checkpoint_s or 0.0,
            restart_s=report.restart_s or 0.0,
            memory=report.memory or None,
            utilisation=report.utilisation or None,
        )
