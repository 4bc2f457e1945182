"""A progress sink that keeps what it is told."""

from plesio.bench.progress import RunLabel, RunSnapshot
from plesio.core.results import RunResult


class KeptProgress:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        """Kept, started, finished and failed runs in their order, with the policy."""
        self.labels: list[tuple[str, str, int, int]] = []
        """Kept and started runs with policy, number, and number of runs."""
        self.snapshots: list[RunSnapshot] = []

    def run_kept(self, label: RunLabel) -> None:
        self._begin("kept", label)

    def run_started(self, label: RunLabel, *, num_samples: int | None) -> None:
        self._begin("started", label)

    def _begin(self, how: str, label: RunLabel) -> None:
        self.calls.append((how, label.policy))
        self.labels.append((how, label.policy, label.number, label.num_runs))

    def run_advanced(self, snapshot: RunSnapshot) -> None:
        self.snapshots.append(snapshot)

    def run_finished(self, result: RunResult) -> None:
        self.calls.append(("finished", result.policy))

    def run_failed(self, result: RunResult) -> None:
        self.calls.append(("failed", result.policy))
