"""The count of a run's samples, from several sources of which each may lack some.

Workers report their own samples, but one that is lost has not reported its last steps. On the store, updates that were
applied prove samples; in collectives every worker has the sum over all, and reports it when the workers form a new
group and when it leaves.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from plesio.protocol.figures import Report


class SampleCounts:
    """The samples of one run."""

    def __init__(self) -> None:
        self.applied = 0
        """Samples in the applied updates, with those of collectives before."""
        self.applied_positions = 0
        """Positions of the dealt orders (samples, mostly) in the applied updates."""
        self._at_end = 0
        """Samples of all workers in collectives, by the count of the workers that leave them."""
        self._in_collectives = 0
        """Samples trained on in collectives, as known when the last stage on the store was entered."""
        self._group: Collection[int] | None = None
        """Members of the last new group."""
        self._of_others = 0
        """Samples that all others than its members had trained on."""

    def entered_store(self, samples: int, *, arrived: int) -> None:
        """Begin a stage on the store after so many samples, of which ``arrived`` are in updates of earlier stages."""
        self.applied = self.applied_positions = samples
        self._in_collectives = samples - arrived

    def regrouped(self, members: Sequence[int], *, samples: int, own: int) -> None:
        """Enter that so many samples count when a new group is formed, and its members' ``own`` among them."""
        self._group, self._of_others = tuple(members), samples - own

    def left(self, samples: int) -> None:
        """Enter the samples of all workers in collectives, by the count of a worker that leaves them."""
        self._at_end = samples

    def total(self, reports: Mapping[int, Report], *, arrived: int, lost: Collection[int]) -> tuple[int, int]:
        """Return the samples of the run, and how many of these are in no worker's own figures.

        ``arrived`` are in updates that reached the store.
        """
        on_store = self._in_collectives + arrived
        told = sum(report.samples for report in reports.values())
        if self._group is not None and lost:  # a lost worker's last report may have more or less than what counts
            of_members = sum(reports[member].samples for member in self._group if member in reports)
            told = self._of_others + of_members
        samples = max(told, on_store, self._at_end if lost else 0)
        return samples, samples - told if lost else 0

    def corrected(self, reports: dict[int, Report], *, lost: Collection[int]) -> dict[int, Report]:
        """Return the reports with the samples of the lost workers as they count since the last new group."""
        if self._group is None:
            return reports
        gone = [worker for worker in reports if worker not in self._group]
        reported = sum(reports[worker].samples for worker in gone)
        first = next((worker for worker in gone if worker in lost), None)
        if first is None:
            return reports
        return {**reports, first: replace(reports[first], samples=reports[first].samples + self._of_others - reported)}
