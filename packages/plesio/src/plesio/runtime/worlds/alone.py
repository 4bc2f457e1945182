"""One process on its own: an ordinary training run with Plesio's records."""

from pathlib import Path
from typing import Literal

from plesio.core.errors import PlesioError
from plesio.core.results import Evaluation, RunResult, write_results
from plesio.policies import Policy
from plesio.protocol.figures import RunInfo
from plesio.runtime.coordinator.ledger import Ledger, LedgerState
from plesio.runtime.worker.machine import environment
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worker.rounds import RoundRecords


class AloneWorld:
    """One process, no servers: the records are kept here.

    Args:
        policy: For the results; there is no other to be consistent with.
    """

    rank = 0
    num_workers = 1
    elapsed_s = 0.0

    def __init__(self, *, policy: Policy, info: RunInfo, folder: Path | None, meter: Meter) -> None:
        self._folder = folder
        self.info = info
        self._meter = meter
        self._ledger = Ledger(policy=policy.title, info=info, num_workers=1)
        self._ledger.ran_on(environment())
        meter.hand_on(lambda report: self._ledger.report(0, report))
        self._result: RunResult | None = None
        self.rounds = RoundRecords(0, 1, warn=meter.totals.fallbacks.append)
        self._asked_to_save = False

    @property
    def samples(self) -> int:
        return self.rounds.global_samples

    @property
    def samples_by_now(self) -> int:
        return self.samples

    def assure(self) -> None:
        """Do nothing: no other could count it lost."""

    def explain(self, error: BaseException) -> PlesioError | None:
        """Return None: there is no other to lose."""
        return None

    def evaluated(
        self, evaluations: list[Evaluation], *, parameters_sha256: str | None, number: int | None = None
    ) -> None:
        self._ledger.metric.enter(evaluations, parameters_sha256=parameters_sha256)

    def save_soon(self) -> None:
        """Take a checkpoint after the next step: there is no other to agree with."""
        self._asked_to_save = True

    def was_asked_to_save(self) -> bool:
        """Tell once that a checkpoint is wanted."""
        asked, self._asked_to_save = self._asked_to_save, False
        return asked

    def ledger_state(self) -> LedgerState:
        self._ledger.report(0, self._meter.so_far())
        return self._ledger.state()

    def go_on_from(self, state: LedgerState) -> None:
        self._ledger.go_on_from(state)

    def leave(self) -> None:
        """Do nothing: there is no other to wait for."""

    def result(self, *, reports: bool = True) -> RunResult:
        if self._result is not None:
            return self._result
        self._ledger.report(0, self._meter.take())
        return self._ledger.result(status="running")

    def close(
        self, *, status: Literal["finished", "interrupted", "failed"], error: str | None, in_rack: bool = False
    ) -> None:
        self._ledger.report(0, self._meter.take())
        self._result = self._ledger.result(status=status, error=error)
        if self._folder is not None:
            write_results(self._folder / "results.json", [self._result])
