"""The sentences of a result that people should read: what was given up, lost, or looks like a mistake."""

import logging
from collections.abc import Mapping

from plesio.protocol.figures import Report
from plesio.runtime.coordinator.odd_reports import OddReports

__all__ = ["Fallbacks"]

_log = logging.getLogger(__name__)


class Fallbacks:
    """The sentences of one run.

    Args:
        num_workers: Workers that began the run.
    """

    def __init__(self, *, num_workers: int) -> None:
        self.lines: list[str] = []
        self._odd = OddReports(num_workers=num_workers)

    def note(self, line: str) -> None:
        self.lines.append(line)

    def warn(self, line: str) -> None:
        """Add a sentence, and log it."""
        _log.warning(line)
        self.lines.append(line)

    def ended_early(self, worker: int, *, evaluates: bool) -> None:
        """Add a sentence, once the others train on without a worker that has ended its loop."""
        self._odd.ended_early(worker, evaluates=evaluates)

    def report(self, worker: int, report: Report, *, reports: Mapping[int, Report]) -> None:
        """Add a worker's sentences, each once for all workers, and warn of figures that contradict those of others."""
        self.lines += [line for line in dict.fromkeys(report.fallbacks) if line not in self.lines]
        for line in self._odd.lines(worker, report, reports=reports, known=self.lines):
            self.warn(line)
