"""The end of a run on a collective whose server is lost: its workers put the records together by themselves.

A server of such a run holds no parameters and decides nothing but who goes on after a loss. All that it has of the run
the workers have reported, and each of them keeps its reports (`plesio.runtime.worker.meter`). So the workers go on,
and when all have trained, each sends all others its figures, and the first of them writes the results. They notice the
loss at different moments, and need not agree on it before: a worker sends nothing to the others by another way because
of it until its own training is over, and then all of them do.

The results lack what only the server had: the reports of a worker that was lost before (its samples count all the
same), the server's own traffic, and the policy's event log.
"""

import json
import logging
from collections.abc import Sequence

from plesio.core.errors import DataError, TransportError
from plesio.core.records import Record, from_values, to_values
from plesio.core.results import Evaluation, RunResult, write_results
from plesio.policies import Policy
from plesio.protocol.figures import Report
from plesio.protocol.to_server import Regrouped
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.worker.exchange.group import Group, broadcast_text
from plesio.runtime.worker.machine import environment
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worlds.run_terms import RunTerms

_log = logging.getLogger(__name__)


def can_do_without_server(policy: Policy) -> bool:
    """Tell whether workers under this policy can finish a run without its server, which holds and decides nothing."""
    return policy.exchange == "collective" and not policy.adapts


class _Figures(Record, frozen=True, kw_only=True):
    """The figures of one worker for the others.

    Attributes:
        regrouped: Its message on the group that it is the first of, if that is not the one the run began with.
    """

    worker: int
    rack: int
    report: Report
    regrouped: Regrouped | None = None


class WithoutServer:
    """One worker's part in it.

    Args:
        num_workers: Workers that the run began with.
    """

    def __init__(self, terms: RunTerms, *, num_workers: int, worker: int, rack: int, meter: Meter) -> None:
        self._terms = terms
        self._num_workers = num_workers
        self._worker = worker
        self._rack = rack
        self._meter = meter
        self._evaluations: list[Evaluation] = []
        self._parameters_sha256: str | None = None
        self._regrouped: Regrouped | None = None

    def evaluated(self, evaluations: Sequence[Evaluation], *, parameters_sha256: str | None) -> None:
        self._evaluations += evaluations
        self._parameters_sha256 = parameters_sha256 or self._parameters_sha256

    def regrouped(self, regrouped: Regrouped) -> None:
        """Take note that this worker is the first of a new group."""
        self._regrouped = regrouped

    def noticed(self) -> None:
        """Warn and record that the server is lost; the first of the workers that are there does."""
        step = self._meter.totals.clock
        line = f"the job's server was lost at step {step}: the workers go on, and write the results themselves"
        self._meter.totals.fallbacks.append(line)
        _log.warning("%s", line)

    def so_far(self) -> RunResult:
        figures = _Figures(worker=self._worker, rack=self._rack, report=self._meter.whole())
        return self._ledger([figures], members=[self._worker]).result(status="running")

    def finish(self, group: Group, members: Sequence[int]) -> tuple[RunResult, str | None]:
        """Finish the run's figures, which the first worker writes, or return why it could not; all of ``group`` call.

        Raises:
            TransportError: Another worker is gone.
        """
        regrouped = self._regrouped if len(members) < self._num_workers else None
        report = self._meter.whole()
        own = _Figures(worker=self._worker, rack=self._rack, report=report, regrouped=regrouped)
        try:
            text = json.dumps(to_values(own))
            texts = [broadcast_text(text, group=group, source=source) for source in range(group.size)]
            if group.rank == 0:
                figures = [from_values(json.loads(text), _Figures) for text in texts]
                result = self._ledger(figures, members=members).result(status="finished")
                unwritten = self._write(result)
                text = json.dumps({"result": result.to_json(), "unwritten": unwritten})
            answer = json.loads(broadcast_text(text, group=group, source=0))
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise TransportError(f"the job's server is lost, and then a worker was: no results ({reason})") from error
        return RunResult.from_json(answer["result"]), answer["unwritten"]

    def _ledger(self, figures: Sequence[_Figures], *, members: Sequence[int]) -> Ledger:
        ledger = Ledger(policy=self._terms.policy.title, info=self._terms.info, num_workers=self._num_workers)
        racks = {one.worker: one.rack for one in figures}
        ledger.begin(0.0, rack_of=[racks.get(worker, 0) for worker in range(self._num_workers)])
        ledger.meet(dict.fromkeys(members, tuple(members)))
        ledger.metric.enter(self._evaluations, parameters_sha256=self._parameters_sha256)
        ledger.ran_on(environment())
        for worker in range(self._num_workers):
            if worker not in members:
                ledger.lose(worker)
        for one in figures:
            ledger.report(one.worker, one.report)
            if one.regrouped is not None:
                regrouped = one.regrouped
                ledger.regrouped(members, samples=regrouped.samples, own=regrouped.own, dropped=regrouped.dropped)
        return ledger

    def _write(self, result: RunResult) -> str | None:
        folder = self._terms.folder
        if folder is None:
            return None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_results(folder / "results.json", [result])
        except (OSError, DataError) as error:
            return f"the run's figures could not be written to {folder}: {error}"
        return None
