"""A worker's own records: what it sends to the server, which adds them up (`plesio.runtime.coordinator.ledger`)."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import UNSET, UnsetType

from plesio.protocol.figures import Alike, Report, Within
from plesio.runtime.worker.gauges import Gauges
from plesio.runtime.worker.history import History

__all__ = ["Meter"]

_log = logging.getLogger(__name__)

_TOTALS = ("clock", "steps", "samples", "elapsed_s", "compute_s", "wait_s", "communicate_s", "peak_memory_bytes")


MOST_NEWS = 4096
"""Losses and collectives that are kept until they are taken."""
FIRST_LOSSES = 3
"""By which the server sees whether all workers draw the same batches."""


class Meter:
    """A worker's own records; the training thread writes, it and the heartbeat thread take what is new.

    Lists are handed over by swapping them, so only takers need a lock.

    Args:
        bytes_sent: Tells the bytes sent so far, by class of link.
        memory_bytes: The worker's configured need, where nothing measures it.
        gauges: Tell the memory that it has used, what of it is what, and what else was used.
        history: Keeps what was taken, if this worker may have to report all of it again.
    """

    RECENT = 20

    def __init__(
        self,
        *,
        bytes_sent: Callable[[], dict[str, int]] = dict,
        memory_bytes: int = 0,
        gauges: Gauges | None = None,
        history: History | None = None,
    ) -> None:
        self.totals = Report()
        self._bytes_sent = bytes_sent
        self._memory_bytes = memory_bytes
        self._gauges = gauges
        self._recent: list[float] = []
        self._hand_on: Callable[[Report], None] | None = None
        self.latest: tuple[int, float, float] | None = None
        """Clock, seconds of training and loss of the latest step that had one."""
        self._history = history
        self._taking = threading.RLock()

    def step(self, *, clock: int, samples: int, duration_s: float, loss: float | None, at_s: float) -> None:
        """Count a finished step."""
        totals = self.totals
        totals.clock = clock
        totals.steps += 1
        totals.samples += samples
        totals.elapsed_s = at_s
        if loss is not None:
            self.latest = clock, at_s, loss
            totals.losses.append(self.latest)
        if totals.steps > 1:  # the first loads and compiles what all others need
            self._recent.append(duration_s)
        if len(self._recent) > self.RECENT:
            del self._recent[0]
        if self._hand_on is not None and len(totals.losses) + len(totals.blocked) >= MOST_NEWS:
            self._hand_on(self.take())

    @contextmanager
    def within(self, place: Within | UnsetType) -> Iterator[None]:
        """Mark the place at which this worker waits for the others, for its heartbeats."""
        before, self.totals.within = self.totals.within, place
        try:
            yield
        finally:
            self.totals.within = UNSET if place in ("forward", "step") else before

    def drew(self, loss: float) -> None:
        """Record the loss of a step on a batch that the worker drew by itself, and was not dealt."""
        if len(self.totals.own_losses) < FIRST_LOSSES:
            self.totals.own_losses.append(loss)

    def has_alike(self, kind: Alike, number: int, values: list[float]) -> None:
        """Tell values that all workers must have alike at this place of their program."""
        self.totals.alike = [*(self.totals.alike or []), (kind, number, values)]

    def mean_step_s(self) -> float:
        """Return the seconds of training for each step so far; 0 before the first."""
        return self.totals.elapsed_s / max(1, self.totals.steps)

    def measured_by(self, gauges: Gauges) -> None:
        """Measure memory by ``gauges`` from here on, where what is measured was not there at the beginning."""
        self._gauges = gauges

    def hand_on(self, to: Callable[[Report], None]) -> None:
        """Have ``to`` take what is new whenever there is much of it, where no heartbeat does."""
        self._hand_on = to

    def warn(self, line: str) -> None:
        """Tell the user once, in the log and among the result's ``fallbacks``, what is not as the script asks."""
        if line not in self.totals.fallbacks:
            _log.warning(line)
            self.totals.fallbacks.append(line)

    def refuse(self, reason: str, *, num_returned: int = 0) -> None:
        """Count a refused update of this worker; samples that are given back are not trained on."""
        self.totals.samples -= num_returned
        self.totals.refused[reason] = self.totals.refused.get(reason, 0) + 1

    def go_on_from(self, report: Report) -> None:
        """Go on from the totals of a run that is resumed."""
        sent = self._bytes_sent
        for name in _TOTALS:
            setattr(self.totals, name, getattr(report, name))
        self._bytes_sent = lambda: dict(Counter(report.bytes_sent) + Counter(sent()))
        self.totals.refused = dict(report.refused)

    def so_far(self) -> Report:
        """Return the totals, without news."""
        report = Report(**{name: getattr(self.totals, name) for name in _TOTALS})
        report.bytes_sent, report.refused = self._bytes_sent(), dict(self.totals.refused)
        return report

    def take(self) -> Report:
        """Return the totals, with the lists' news since the last call."""
        with self._taking:
            return self._take()

    def _take(self) -> Report:
        totals = self.totals
        losses, totals.losses = totals.losses, []
        blocked, totals.blocked = totals.blocked, []
        recent = sorted(self._recent)
        totals.recent_step_s = recent[(len(recent) - 1) // 2] if recent else 0.0
        memory_bytes = self._memory_bytes if self._gauges is None else self._gauges.peak_bytes()
        totals.peak_memory_bytes = max(totals.peak_memory_bytes, memory_bytes)
        report = Report(**{name: getattr(totals, name) for name in Report.__slots__})
        report.losses, report.blocked = losses, blocked
        totals.alike = UNSET
        report.bytes_sent, report.refused = self._bytes_sent(), dict(totals.refused)
        self._gauge(report)
        if self._history is not None:
            self._history.add(report)
        return report

    def whole(self) -> Report:
        """Return the totals, with all that the lists have ever had; with a history only."""
        assert self._history is not None
        self.take()
        report = self.so_far()
        report.fallbacks = list(self.totals.fallbacks)
        self._gauge(report)
        self._history.complete(report)
        return report

    def _gauge(self, report: Report) -> None:
        if self._gauges is not None:
            memory = self._gauges.memory()
            if memory is not None:
                report.memory = memory
                if memory.device == "cpu":
                    report.peak_memory_bytes = memory.peak_bytes  # it may have grown since it was read
            report.utilisation = self._gauges.utilisation() or UNSET
