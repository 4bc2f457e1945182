"""A worker of a job, in one run of it."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch.distributed as dist

from plesio.core.errors import DataError, PlesioError, TransportError, WorkerLostError
from plesio.core.results import Evaluation, RunResult
from plesio.protocol.positions import Position
from plesio.protocol.to_server import (
    Evaluations,
    Goodbye,
    Join,
    PositionReport,
    Regrouped,
    ResultRequest,
    SaveRequest,
    ServerStatePage,
)
from plesio.protocol.to_worker import Regroup, Result, RunEnded, ServerState, Start, Steering, Stop
from plesio.runtime.checkpoints.beginning import WorkerCheckpoints
from plesio.runtime.transport.connection import ServerConnection
from plesio.runtime.worker.callbacks import MembersChanged
from plesio.runtime.worker.exchange.group import AwaitedGroup, CutOffError, Group
from plesio.runtime.worker.exchange.island_client import IslandClient
from plesio.runtime.worker.exchange.store_client import StoreClient
from plesio.runtime.worker.island import BrokenIslandError, Island, together
from plesio.runtime.worker.job_handle import JobHandle, Pulse
from plesio.runtime.worker.machine import environment
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.recovery import StopPoint
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worlds.run_terms import RunTerms
from plesio.runtime.worlds.without_server import WithoutServer, can_do_without_server

_log = logging.getLogger(__name__)

GOODBYE_S = 10.0
"""How long a worker that failed waits for the run to end before it goes without its figures."""
FAREWELL_S = 0.5
"""The same where the others wait for it in a collective."""
NOTICE_S = 2.0
"""How long the two connections to a server that is lost may take to notice it, one after the other."""
DOUBT_S = 0.01
"""How often a worker that may have been counted lost looks whether it has been."""


class DistributedWorld:
    """A worker of a job, in one run of it.

    Args:
        owns_job: Whether the job ends with this run.
        island: The ranks that are this worker together; None for one process.
        timeline: This worker's figures, and where updates go that the policy refuses.
    """

    def __init__(
        self,
        job: JobHandle,
        *,
        servers: Sequence[ServerConnection],
        owns_job: bool,
        terms: RunTerms,
        timeline: WorkerTimeline,
        checkpoints: WorkerCheckpoints | None = None,
        island: Island | None = None,
    ) -> None:
        self.rank = job.place.rank
        self.num_workers = job.place.num_workers
        self.rounds = RoundRecords(self.rank, self.num_workers, warn=timeline.meter.totals.fallbacks.append)
        self.elapsed_s = 0.0
        """How long the run had been going on when this worker was admitted."""
        self.terms = terms
        self.info = terms.info
        self._timeline = timeline
        self._heartbeat: Pulse | None = None
        make = StoreClient if island is None else partial(IslandClient, island=island)
        self.client = make(
            servers,
            rank=self.rank,
            clock=job.clock,
            failure=self._failure,
            disconnected=self._disconnected,
            on_refused=timeline.refuse,
        )
        """This worker's connections to the servers."""
        self._job, self._island = job, island
        self._is_broken = False
        """True if a rank of this island is lost: the others go as it has gone."""
        self._owns_job = owns_job
        self._checkpoints = checkpoints
        self._result: RunResult | None = None
        self._generation = 0
        """Generation of the group that this worker is in."""
        self._stop_point = StopPoint(clock=0 if checkpoints is None else checkpoints.saving.clock)
        self._group: Group | None = None
        self._members: Sequence[int] = range(self.num_workers)
        self._without: WithoutServer | None = None
        """The way to go on if the server is lost; None if the run ends then."""
        if can_do_without_server(terms.policy) and island is None:
            self._without = WithoutServer(
                terms, num_workers=self.num_workers, worker=self.rank, rack=job.rack, meter=timeline.meter
            )

    @property
    def samples(self) -> int:
        """Samples of all workers: those of rounds, and on the store those in the parameters that were pulled last."""
        return max(self.rounds.global_samples, self.client.samples)

    @property
    def samples_by_now(self) -> int:
        return max(self.rounds.global_samples, self.client.samples + self.client.own_since * self.num_workers)

    def group(self, device_type: str) -> Group:
        """Return the collective's group; for a worker that joins the run, one of its own until it has joined.

        Islands that share updates by the store alone have none: not all are equally large.
        """
        if self._job.place.late:
            self._group = AwaitedGroup(rack=self._job.rack)
        elif self._island is not None and self.terms.policy.pushes:
            self._group = AwaitedGroup(rack=self._job.rack, rank=self.rank, size=self.num_workers)
        else:
            self._group = self._job.group(device_type)
        if self._job.shares_gpus and self.rank == 0:
            self._timeline.meter.warn(
                "workers share a GPU, which NCCL refuses: Gloo carries the collectives, through main memory; "
                "start one worker a GPU where it is speed that counts"
            )
        return self._group

    def join(self, *, layout: str, optimizer: tuple[str, ...]) -> int:
        """Take part: returns when the run has started, with the clock at which this worker begins.

        Both arguments must be alike on all workers.

        Raises:
            TransportError: Not all workers came, or they disagree.
        """
        terms = self.terms
        join = Join(
            policy=terms.policy.spec,
            info=terms.info,
            num_workers=self.num_workers,
            num_servers=len(self.client.endpoints) if terms.policy.pushes else 0,
            snapshot_every=terms.snapshot_every,
            folder=None if terms.folder is None else str(terms.folder.absolute()),
            layout=layout,
            optimizer=optimizer,
            rack=self._job.rack,
            environment=environment(),
            saving=None if self._checkpoints is None else self._checkpoints.saving,
            elastic=terms.elastic,
            grows=self._island is None,
            log_bytes=terms.log_bytes,
            total_samples=terms.total_samples,
        )
        # before it joins: from then on the server counts a silent worker lost
        if self._job.place.leads:
            self._heartbeat = self._job.heartbeat()
            self._heartbeat.begin(
                self._timeline.meter,
                abort=self._abort,
                hold=self._stop_point.hold,
                lost=self._note_lost,
                on_server_lost=None if self._without is None else self._server_is_lost,
            )
        self.client.send(join)
        for page in () if self._checkpoints is None else self._checkpoints.pages:
            self.client.send(ServerStatePage(text=page))
        started = self.client.await_message(
            Start, timeout_s=self._job.meet_s, explain=self._who_is_missing, check=self._job.start.assure_all_come
        )
        self.elapsed_s = started.elapsed_s
        self._job.start.begun()
        return started.clock

    def _who_is_missing(self) -> str:
        missing = self._job.start.missing()
        return f"; of the job's workers {missing} have not come" if missing else ""

    def _abort(self) -> None:
        # where this worker was cut off by an error and was the quicker, its new group may be there already
        if self.terms.policy.has_collectives and (self.cut_off or self._failure() is not None):
            self._job.abort_collectives()

    def _note_lost(self, workers: Sequence[int]) -> None:
        self._timeline.meter.callbacks.later("on_members", MembersChanged(lost=tuple(workers)))
        if self._checkpoints is not None:
            self._checkpoints.saver.writer.lost.update(workers)

    def _server_is_lost(self) -> None:
        if self._without is not None and self.rank == self._members[0]:
            self._without.noticed()

    def _server_lost(self) -> bool:
        return self._heartbeat is not None and self._heartbeat.server_lost

    def _goes_on_without(self, error: TransportError) -> WithoutServer:
        """Return the way to go on without the server; raise ``error`` if its cause is not the server's loss."""
        deadline_s = self._job.clock.now_s() + NOTICE_S
        while self._without is not None and self._failure() is None and self._job.clock.now_s() < deadline_s:
            if self._server_lost():
                return self._without
            self._job.clock.sleep_s(DOUBT_S)  # the heartbeat's thread finds out too
        raise error

    def _failure(self) -> PlesioError | None:
        return None if self._heartbeat is None else self._heartbeat.failure

    def _disconnected(self, error: TransportError) -> PlesioError:
        overslept = self._heartbeat is not None and self._heartbeat.overslept
        return WorkerLostError.unanswered(self.rank) if overslept else error

    def explain(self, error: BaseException) -> PlesioError | None:
        """Explain ``error``, if it means that the run cannot go on.

        A collective notices a broken connection before the server has counted a worker lost, and cannot tell which
        worker it was; so then the server's verdict is waited for, a lease at most.
        """
        if self._server_lost() and _from_collective(error):
            return TransportError(
                "a worker was lost after the job's server: nobody is left who could say who goes on "
                f"({str(error).splitlines()[0]})"
            )
        if self._island is not None and _from_collective(error):
            self._is_broken = True
            averages = self.terms.policy.pushes is None and not self.terms.elastic
            known = self._heartbeat.wait_for_failure() if self._heartbeat is not None and averages else None
            return known or WorkerLostError.of_island(self.rank, averages=averages)
        if self._heartbeat is not None and _from_collective(error):
            return self._heartbeat.wait_for_failure()
        return self._failure()

    @property
    def cut_off(self) -> bool:
        """True if the workers' group is no more, and they are to form another."""
        return self._heartbeat is not None and self._heartbeat.generation > self._generation

    def check_group(self) -> None:
        if self.cut_off:
            raise CutOffError

    def cuts_off(self, error: BaseException) -> bool:
        """Tell whether ``error`` means that the collective cannot go on, while the others can in a new group."""
        if not self.terms.elastic or self._server_lost() or self._failure() is not None:
            return False
        if isinstance(error, BrokenIslandError):
            return False
        return isinstance(error, CutOffError) or _from_collective(error)

    def assure(self) -> None:
        """Return when it is certain that this worker has not been counted lost.

        Raises:
            WorkerLostError: It has; what it did since counts for nothing.
        """
        while self._heartbeat is not None and self._heartbeat.doubtful:
            if (failure := self._failure()) is not None:
                raise failure
            self._job.clock.sleep_s(DOUBT_S)

    def stops_after(self, clock: int) -> bool:
        """Tell whether all have agreed to stop after step ``clock`` for joining workers; if not, the next is begun.

        Raises:
            CutOffError: The workers' group is no more.
        """
        while (found := self._stop_point.begin(clock + 1, generation=self._generation)) == "holds":
            self._stop_point.stop(self.client.await_message(Stop, check=self.check_group))
        return found == "stops"

    def await_regroup(self, position: Position | None, *, agreed: bool) -> Regroup:
        """Report this worker's position, and whether it has stopped where all agreed to; wait until all have."""
        self.client.send(PositionReport(position=position, meeting=self._job.meeting(), agreed=agreed))
        regroup = self.client.await_message(Regroup)
        for kind in (Steering, ServerState):
            while self.client.received(kind) is not None:
                pass  # it was meant for the group that is no more
        return regroup

    def form(self, regroup: Regroup, *, device_type: str) -> Group:
        """Form the new group.

        Raises:
            RuntimeError: It could not be formed, or there is to be yet another one.
        """
        self._generation = regroup.generation
        if joined := tuple(worker for worker in regroup.members if worker not in self._members):
            self._timeline.meter.callbacks.later("on_members", MembersChanged(joined=joined))
        self._group, self._members = None, regroup.members
        form = partial(
            self._job.regroup,
            regroup.members,
            at=regroup.meeting,
            generation=regroup.generation,
            device_type=device_type,
            called_off=lambda: self.cut_off,
        )
        self._group = together(self._island, form)
        return self._group

    def regrouped(self, regrouped: Regrouped) -> None:
        self.client.send(regrouped)
        if self._without is not None:
            self._without.regrouped(regrouped)

    def evaluated(
        self, evaluations: list[Evaluation], *, parameters_sha256: str | None, number: int | None = None
    ) -> None:
        points = tuple(evaluations)
        self.client.send(Evaluations(evaluations=points, parameters_sha256=parameters_sha256, number=number))
        if self._without is not None:
            self._without.evaluated(evaluations, parameters_sha256=parameters_sha256)

    def save_soon(self) -> None:
        self.client.send(SaveRequest())

    def leave(self) -> None:
        """End this worker's training; the one that evaluates waits for the others."""
        try:
            self.client.leave(samples=self.rounds.global_samples, check=self.check_group)
        except TransportError as error:
            self._goes_on_without(error)  # in a collective all have trained as far

    def result(self, *, reports: bool = True) -> RunResult:
        """Return the figures that the server has; after `close` those of the whole run."""
        if self._result is not None:
            return self._result
        try:
            self.client.send(ResultRequest(report=self._timeline.meter.take() if reports else None))
            result = self.client.await_message(Result).result
        except TransportError as error:
            return self._goes_on_without(error).so_far()
        if result is None:
            raise TransportError("the job's server has no run under way")
        return replace(result, status="running") if result.status == "finished" else result

    def withdraw(self) -> None:
        """Go as one that is lost: a worker that could not join has no part in the run's end."""
        if self._heartbeat is not None:
            self._heartbeat.quiet()
        if self._owns_job:
            self._job.close()

    def close(
        self, *, status: Literal["finished", "interrupted", "failed"], error: str | None, in_rack: bool = False
    ) -> None:
        """Take leave, wait until the records are closed, and let go of the run.

        ``in_rack``: it is one of a rack that shares the store, and other racks go on without it.

        Raises:
            TransportError: The server did not answer.
            DataError: The run has finished, and its figures could not be written.
        """
        try:
            if self._heartbeat is None and self._island is not None and status == "finished":
                self._result = self.client.await_message(RunEnded).result
            if self._heartbeat is not None and not self._is_broken:
                self._heartbeat.quiet()
                self.client.send(Goodbye(status=status, error=error, report=self._timeline.meter.take()))
                # the run ends for all at once; a failing worker does not wait for those that go on, nor for those that
                # wait for it: Gloo wakes them when this process has ended, and they know of the error by then
                failing_s = FAREWELL_S if self.terms.policy.has_collectives else GOODBYE_S
                timeout_s = None if status == "finished" else failing_s
                ended = self._ended(timeout_s=timeout_s)
                self._result = ended.result
                if ended.result.status == status == "finished" and ended.result.lost_workers:
                    self._job.start.finished_without(ended.result.lost_workers)
                self._job.next_run()
                if ended.unwritten is not None and status == "finished":
                    raise DataError(ended.unwritten)
        except TransportError as failure:
            if status == "finished":
                raise
            level = logging.DEBUG if self.terms.policy.has_collectives else logging.WARNING
            _log.log(level, "could not say goodbye: %s", failure)
        finally:
            if self._heartbeat is not None:
                self._heartbeat.quiet()
            self._group = None
            lost = self._failure()
            if self._is_broken or (isinstance(lost, WorkerLostError) and (in_rack or self.rank in lost.ranks)):
                self._job.let_servers_go_on()  # this worker or its rack is at its end, others are not
            if self._owns_job:
                self._job.close()

    def _ended(self, *, timeout_s: float | None) -> RunEnded:
        """Return the run's end: the server's result, or what the workers have put together without it."""
        wait = self.client.await_message if timeout_s is None else self.client.await_alone
        try:
            return wait(RunEnded, timeout_s=timeout_s)
        except TransportError as error:
            if timeout_s is not None or self._group is None:
                raise
            result, unwritten = self._goes_on_without(error).finish(self._group, self._members)
            return RunEnded(result=result, unwritten=unwritten)


def _from_collective(error: BaseException) -> bool:
    """Tell whether torch.distributed raised it; Gloo's errors are bare RuntimeErrors that begin with a path of Gloo."""
    torchs_own = isinstance(error, BrokenIslandError | dist.DistError)
    return torchs_own or (isinstance(error, RuntimeError) and "gloo" in str(error))
