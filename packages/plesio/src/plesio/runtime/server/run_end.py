"""How a run ends that several servers serve.

    server 0       asks the others to end it -> gets each one's traffic -> writes the results
                   -> lets the workers go -> the next generation begins
    the others     forget the parameters, report their traffic, and begin the next generation

The run is over when every server has forgotten it: only then may the next one's messages reach them. A server that is
gone is not waited for.
"""

import logging
import shutil
from pathlib import Path

from plesio.core.errors import DataError
from plesio.core.results import RunResult, write_results
from plesio.protocol.effects import EndRun
from plesio.protocol.peers import heartbeat_identity, worker_identity
from plesio.protocol.to_server import Ended
from plesio.protocol.to_worker import Expelled, RunEnded
from plesio.runtime.coordinator.coordinator import Coordinator
from plesio.runtime.server.effect_carrier import EffectCarrier
from plesio.runtime.server.server_traffic import ServerTraffic

_log = logging.getLogger(__name__)

ASIDE = "backup"
"""Folder of a backup's logs, beside those of its primary."""


class RunEnd:
    """Ends run after run, at server 0.

    Args:
        writes: Whether results are written, or left until `take_over`: a backup's are those of the primary.
    """

    def __init__(self, traffic: ServerTraffic, carrier: EffectCarrier, *, writes: bool = True) -> None:
        self._writes = writes
        self._left: tuple[Path, RunResult] | None = None
        self._aside: Path | None = None
        self._traffic = traffic
        self._carrier = carrier
        self._others: set[bytes] = set()
        self._awaited: set[bytes] = set()
        self._closing: list[int] = []
        self._ending: Coordinator | None = None
        self._folder: Path | None = None
        self.results: list[RunResult] = []
        """Results of the runs that have ended."""

    @property
    def under_way(self) -> bool:
        return self._ending is not None

    def serves(self, peer: bytes) -> None:
        """Add another server that has joined the job."""
        self._others.add(peer)

    def gone(self, peer: bytes) -> None:
        """Take note that a connection ended; if it was a server's, that one has nothing more to send."""
        if peer in self._others:
            self._others.discard(peer)
            self.ended_at(peer, Ended(sent={}, refused={}))

    def let_go(self, worker: int) -> None:
        """Add a worker that has taken leave: it waits for the run's result."""
        self._closing.append(worker)

    def result(self, coordinator: Coordinator) -> RunResult:
        """Return the run's figures, as far as they are known."""
        self._traffic.enter(coordinator.ledger)
        return coordinator.ledger.result(status=coordinator.ledger.status, error=coordinator.ledger.error)

    def begin(self, coordinator: Coordinator, *, folder: Path | None) -> None:
        """End a run that is over for the workers: have the other servers forget it."""
        self._ending, self._folder = coordinator, folder
        self._awaited = set(self._others)
        for peer in self._others:
            self._carrier.tell(peer, EndRun())
        self._close_if_all_have()

    def ended_at(self, peer: bytes, traffic: Ended) -> None:
        """Take note that another server has ended the run, or is gone."""
        self._traffic.add(traffic)
        self._awaited.discard(peer)
        self._close_if_all_have()

    def give_up_waiting(self) -> None:
        self._awaited.clear()
        self._close_if_all_have()

    def _close_if_all_have(self) -> None:
        if self._ending is not None and not self._awaited:
            coordinator, self._ending = self._ending, None
            self._close(coordinator)

    def _close(self, coordinator: Coordinator) -> None:
        """Write the run's figures, let its workers go, and be ready for the next run."""
        coordinator.close_logs()
        result = self.result(coordinator)
        unwritten: str | None = None
        if self._folder is not None and self._writes:
            unwritten = self._write(self._folder, result)
        elif self._folder is not None:
            self._left = self._folder, result
        self.results.append(result)
        for worker in self._closing:
            self._carrier.tell(worker_identity(worker).encode(), RunEnded(result=result, unwritten=unwritten))
        lost = {*coordinator.ledger.lost}.difference(self._closing)
        for worker in sorted(lost):  # asleep, perhaps: its next message is of an earlier run
            self._carrier.tell(heartbeat_identity(worker).encode(), Expelled(over=True))
        self._closing.clear()
        self._traffic.begin_run()

    def aside(self, folder: Path) -> Path:
        """Return the folder of a backup's logs of a run until it takes over, emptied of the run before."""
        self.discard()
        self._aside = folder / ASIDE
        return self._aside

    def discard(self) -> None:
        if self._aside is not None:
            shutil.rmtree(self._aside, ignore_errors=True)
            self._aside = None

    def take_over(self) -> None:
        """Take over from the lost primary: write results from now on, and the last run's if it has ended."""
        self._writes = True
        if self._left is not None:
            self._write(*self._left)
            self._left = None

    def _write(self, folder: Path, result: RunResult) -> str | None:
        """Write a run's figures, and put its logs where they belong; returns why they could not be."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in () if self._aside is None else sorted(self._aside.iterdir()):
                path.replace(folder / path.name)
            self.discard()
            write_results(folder / "results.json", [result])
        except (OSError, DataError) as error:
            unwritten = f"the run's figures could not be written to {folder}: {error}"
            _log.warning("%s", unwritten)
            return unwritten
        return None
