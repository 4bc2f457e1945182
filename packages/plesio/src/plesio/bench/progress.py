"""The progress of a comparison: the interface between `plesio.bench.compare` and its displays."""

from dataclasses import dataclass, replace
from typing import Protocol

from plesio.core.results import RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabel:
    """Which run of the comparison.

    Attributes:
        policy: Spec of its policy.
        number: Its place in the comparison, from 1.
        num_runs: Runs in the comparison, those kept from an earlier one included.
    """

    policy: str
    seed: int
    number: int
    num_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """The state of a run at one moment.

    Attributes:
        samples: Samples trained on so far, over all workers.
        step: Optimizer steps so far, over all workers.
        loss: Recent mean training loss; None before the first.
        mean_staleness: Mean staleness τ of the updates so far; None where none was applied.
    """

    samples: int
    step: int
    samples_per_s: float
    loss: float | None = None
    mean_staleness: float | None = None


class ProgressSink(Protocol):
    """Takes the events of a comparison's runs: each is kept, or it is started, advances, and is finished or failed.

    Calls come from the thread that called `run_comparison`, one run at a time.
    """

    def run_kept(self, label: RunLabel) -> None:
        """Note that an earlier comparison finished the run, so that it is not repeated."""
        ...

    def run_started(self, label: RunLabel, *, num_samples: int | None) -> None:
        """Begin a run that ends after ``num_samples`` samples, or with its script (None)."""
        ...

    def run_advanced(self, snapshot: RunSnapshot) -> None:
        """Show the started run's progress; called a few times a second."""
        ...

    def run_finished(self, result: RunResult) -> None:
        """End the started run, which met its budget."""
        ...

    def run_failed(self, result: RunResult) -> None:
        """End the started run, which failed; ``result.status`` and ``result.error`` tell how and why."""
        ...


class PartOfAll:
    """Tells of one comparison's runs as a part of all runs.

    Args:
        where: Text behind a policy's name: ``at 1 Gbit/s``.
        before: Runs of the comparisons before it.
    """

    def __init__(self, progress: ProgressSink, *, where: str, before: int, total: int) -> None:
        self._progress = progress
        self._where = where
        self._before = before
        self._total = total

    def run_kept(self, label: RunLabel) -> None:
        self._progress.run_kept(self._label(label))

    def run_started(self, label: RunLabel, *, num_samples: int | None) -> None:
        self._progress.run_started(self._label(label), num_samples=num_samples)

    def run_advanced(self, snapshot: RunSnapshot) -> None:
        self._progress.run_advanced(snapshot)

    def run_finished(self, result: RunResult) -> None:
        self._progress.run_finished(replace(result, policy=self._name(result.policy)))

    def run_failed(self, result: RunResult) -> None:
        self._progress.run_failed(replace(result, policy=self._name(result.policy)))

    def _label(self, label: RunLabel) -> RunLabel:
        number = self._before + label.number
        return replace(label, policy=self._name(label.policy), number=number, num_runs=self._total)

    def _name(self, policy: str) -> str:
        return f"{policy} {self._where}"
