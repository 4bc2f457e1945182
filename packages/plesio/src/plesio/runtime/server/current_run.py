"""The run that is under way at server 0, from its first worker's word to its end, and then the next one.

    none has come --join--> waits until its folder is allowed --may_write--> under way --all have left--> ending

Its coordinator decides; what follows is carried out before the next message is read.
"""

import logging
from pathlib import Path

from plesio.core.clock import Clock
from plesio.core.errors import TransportError
from plesio.core.results import RunResult
from plesio.policies import parse_policy
from plesio.protocol.effects import Effect
from plesio.protocol.figures import Report, RunFigures, Snapshot
from plesio.protocol.peers import worker_identity, worker_of
from plesio.protocol.to_server import FromWorker, Goodbye, Join, PartArrived
from plesio.protocol.to_worker import RunEnded
from plesio.runtime.coordinator.coordinator import Coordinator
from plesio.runtime.coordinator.ledger import World
from plesio.runtime.server.effect_carrier import EffectCarrier
from plesio.runtime.server.refusals import Refusals
from plesio.runtime.server.run_end import RunEnd
from plesio.runtime.server.shard_server import ShardFailedError, ShardServer

_log = logging.getLogger(__name__)


class CurrentRun:
    """The run under way, one at a time; without one, the methods do nothing and return that.

    Args:
        folders: Where results may be written, see `may_write`; None for anywhere.
        writes: Whether anything is written; a backup does when it has taken over.
    """

    def __init__(
        self,
        shard: ShardServer,
        carrier: EffectCarrier,
        end: RunEnd,
        refusals: Refusals,
        *,
        clock: Clock,
        world: World,
        folders: set[str] | None,
        writes: bool,
    ) -> None:
        self._shard = shard
        self._carrier = carrier
        self._ending = end
        self._refusals = refusals
        self._clock = clock
        self._world: World = world
        self._folders = folders
        self._writes = writes
        self._early: dict[bytes, Join] = {}
        self._coordinator: Coordinator | None = None
        self._folder: Path | None = None

    @property
    def live_workers(self) -> frozenset[int]:
        return frozenset() if self._coordinator is None else frozenset(self._coordinator.live)

    @property
    def snapshots(self) -> list[Snapshot]:
        return [] if self._coordinator is None else self._coordinator.snapshots

    def progress(self) -> RunFigures | None:
        return None if self._coordinator is None else self._coordinator.progress(now_s=self._clock.now_s())

    def result(self, peer: bytes, report: Report | None) -> RunResult | None:
        """Return the run's figures so far, with those that the peer brings; None where there is no run."""
        if self._coordinator is None:
            return None
        if report is not None and (worker := worker_of(peer)) is not None and self._coordinator.is_live(worker):
            self._coordinator.ledger.report(worker, report)
        return self._ending.result(self._coordinator)

    def enter(self, worker: int, report: Report) -> None:
        """Take in a worker's figures that come without a message (in a simulation)."""
        if self._coordinator is not None:
            self._coordinator.ledger.report(worker, report)

    def note(self, line: str) -> bool:
        """Enter a sentence in its records; whether there is a run."""
        if self._coordinator is None:
            return False
        self._coordinator.ledger.fallbacks.note(line)
        return True

    def may_write(self, folder: str) -> None:
        """Allow results of runs in ``folder``.

        Every holder of the job's secret can ask for any folder, and the server has the rights of the user whose process
        started it. So that process decides where they may go; workers that ask for a folder wait until then.
        """
        assert self._folders is not None, "anywhere"
        self._folders.add(folder)
        self._handle_early()

    def _handle_early(self) -> None:
        early, self._early = self._early, {}
        for peer, join in early.items():
            try:
                self.handle(peer, join)
            except Exception as error:
                self.distrust(peer, error)

    def handle(self, peer: bytes, message: FromWorker | Join) -> None:
        """Act on a worker's message; a `Join` begins a run where none is under way."""
        worker = worker_of(peer)
        if self._coordinator is None and isinstance(message, Join) and worker is not None:
            if self._ending.under_way:
                return
            allowed = self._folders is None or message.folder is None or message.folder in self._folders
            if not allowed or worker >= message.num_workers:  # whoever comes late begins no run: there may be none more
                self._early[peer] = message
                return
            self._begin(message)
            self._handle_early()
        if self._coordinator is None or worker is None:
            return
        if isinstance(message, Goodbye):
            if not self._coordinator.is_live(worker):  # counted lost, or never let in: the run goes on without it
                farewell = RunEnded(result=self._ending.result(self._coordinator))
                self._carrier.tell(worker_identity(worker).encode(), farewell)
                return
            self._ending.let_go(worker)
        self._act(self._coordinator.handle(message, worker=worker, now_s=self._clock.now_s()))

    def _begin(self, join: Join) -> None:
        self._folder = None if join.folder is None else Path(join.folder)
        aside = None if self._folder is None or self._writes else self._ending.aside(self._folder)
        folder = self._folder if aside is None else aside
        self._coordinator = Coordinator(join, folder=folder, clock=self._clock, world=self._world)
        self._carrier.begin_run(join.num_servers)
        if parse_policy(join.policy).pushes:  # at once or later in the run: then everybody would wait for it
            self._shard.load()

    def arrived(self, part: PartArrived) -> bool:
        """Act on a part of an update that has arrived at a server; whether there is a run that it can be of."""
        if self._coordinator is None:
            return False
        self._act(self._coordinator.handle(part, worker=part.event.worker, now_s=self._clock.now_s()))
        return True

    def distrust(self, peer: bytes, error: Exception) -> None:
        """Refuse a message of ``peer`` that could be read and not be acted on, and lose that worker.

        The others go on. Its sender would wait for an answer in vain, and what it is waiting for is no longer clear.

        Raises:
            ShardFailedError: The error is one: the job goes on, or ends, as where a server is lost.
        """
        if isinstance(error, ShardFailedError):
            raise error
        name = peer.decode(errors="replace")
        self._refusals.refuse(TransportError(f"{name} sent what makes no sense ({type(error).__name__}: {error})"))
        _log.debug("where it went wrong:", exc_info=error)
        worker = worker_of(peer)
        if worker is not None:
            self.lose(worker)

    def lose(self, worker: int) -> None:
        """Lose a worker that takes part."""
        if self._coordinator is not None and self._coordinator.is_live(worker):
            self._act(self._coordinator.lose(worker, now_s=self._clock.now_s()))

    def gone(self, peer: bytes) -> None:
        """Lose a worker whose heartbeat connection ended: it ends with its process only, so the lease need not pass."""
        self._early.pop(peer, None)
        worker = worker_of(peer)
        if self._coordinator is not None and worker is not None and peer.startswith(b"heartbeat"):
            self._act(self._coordinator.lose(worker, now_s=self._clock.now_s()))

    def check_leases(self, *, busy_s: float) -> None:
        """Lose the workers that have been silent for a lease; for ``busy_s`` seconds the server did not listen."""
        if self._coordinator is not None:
            self._act(self._coordinator.tick(now_s=self._clock.now_s(), busy_s=busy_s))

    @property
    def due_s(self) -> float | None:
        """The next moment at which `elapse` has something to do; None if there is none."""
        return None if self._coordinator is None else self._coordinator.due_s

    def elapse(self) -> None:
        """Tell the policy which of the times that it asked for are over, and act on its answer."""
        if self._coordinator is not None:
            self._act(self._coordinator.elapse(now_s=self._clock.now_s()))

    def take_over(self, line: str) -> None:
        """Take over from the server that this one is a backup of, and note ``line`` in the results."""
        self._writes = True
        self._ending.take_over()
        self.note(line)

    def discard(self) -> None:
        """Remove what this backup has put aside: the job is over, and it was not needed."""
        if self._coordinator is not None:
            self._coordinator.close_logs()
        self._ending.discard()

    def end(self) -> None:
        """End the job: close the records of a run that is under way."""
        self._end_now()
        self._ending.give_up_waiting()

    def _act(self, effects: list[Effect]) -> None:
        self._carrier.carry_out(effects)
        if self._coordinator is not None and self._coordinator.state == "ended":
            self._end_now()

    def _end_now(self) -> None:
        if self._coordinator is not None:
            coordinator, self._coordinator = self._coordinator, None
            self._shard.end_run()
            self._ending.begin(coordinator, folder=self._folder)
