"""A worker's reports so far, kept in case the server is lost and its records with it."""

from array import array

from plesio.protocol.figures import Report

__all__ = ["History"]


class History:
    """The lists of all reports so far, in 40 bytes a step."""

    def __init__(self) -> None:
        self._losses = array("q"), array("d"), array("d")
        self._blocked = array("q"), array("d")

    def add(self, report: Report) -> None:
        """Add the report's losses and times."""
        for clock, at_s, loss in report.losses:
            self._losses[0].append(clock)
            self._losses[1].append(at_s)
            self._losses[2].append(loss)
        for clock, blocked_s in report.blocked:
            self._blocked[0].append(clock)
            self._blocked[1].append(blocked_s)

    def complete(self, report: Report) -> None:
        """Put all of them into a report of the totals."""
        report.losses = list(zip(*self._losses, strict=True))
        report.blocked = list(zip(*self._blocked, strict=True))
