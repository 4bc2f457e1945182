"""A worker of a job, in one run of it."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from plesio.core.errors import ConfigError, PlesioError, TransportError, WorkerLostError
from plesio.core.results import Evaluation, RunResult
from plesio.policies import Policy, Reviewed
from plesio.protocol.figures import RunInfo
from plesio.protocol.plans import PlanFigures
from plesio.protocol.to_server import Evaluations, Goodbye, Join, ResultRequest, Review, Standing
from plesio.protocol.to_worker import Entered, Result, RunEnded, Start, Steering, Turn
from plesio.runtime.exchange.group import Group
from plesio.runtime.exchange.store_client import Leases, StoreClient
from plesio.runtime.job_handle import JobHandle, Pulse
from plesio.runtime.ledger import Meter
from plesio.runtime.loading import BatchSource, LeasedBatches, SynchronousBatches
from plesio.runtime.machine import environment
from plesio.runtime.rack_batches import Rack, RackBatches, RackBlocks, figures_for_racks
from plesio.runtime.rounds import RoundRecords
from plesio.runtime.staged_batches import StagedBatches, Stages

__all__ = ["DistributedWorld"]

_log = logging.getLogger(__name__)

GOODBYE_S = 10.0
"""How long a worker that failed waits for the run to end before it goes without its figures."""


class DistributedWorld:
    """A worker of a job, in one run of it. Joins the run when made.

    Args:
        job: The job.
        owns_job: Whether the job ends with this run.
        policy: The consistency policy.
        info: Names for the results.
        folder: Where traces and results go; None for nowhere.
        meter: This worker's figures.
        snapshot_every: Samples between two snapshots.
    """

    def __init__(
        self,
        job: JobHandle,
        *,
        owns_job: bool,
        policy: Policy,
        info: RunInfo,
        folder: Path | None,
        meter: Meter,
        snapshot_every: int | None,
    ) -> None:
        self.rank = job.place.rank
        self.num_workers = job.place.num_workers
        self.clock = 0
        self.elapsed_s = 0.0
        self.on_admitted: Callable[[int], None] = lambda clock: None
        self.before_rest: Callable[[], None] = lambda: None
        self.on_halt: Callable[[], None] = lambda: None
        self.client: StoreClient | None = None
        self.stages: Stages | None = None
        """The exchanges of a policy that changes; set before the first loop."""
        self.rounds = RoundRecords(self.rank, self.num_workers)
        self.rack: Rack | None = None
        """Where racks share a store in the whole run, this worker's; set before the first loop."""
        self._job = job
        self._owns_job = owns_job
        self._policy = policy
        self._info = info
        self._folder = folder
        self._meter = meter
        self._snapshot_every = snapshot_every
        self._heartbeat: Pulse | None = None
        self._group: Group | None = None
        self._batches: StagedBatches | None = None
        self._result: RunResult | None = None

    def connect(self, num_servers: int, *, on_refused: Callable[[int, str], None]) -> StoreClient:
        """Connect to the job's servers."""
        endpoints = self._job.servers(num_servers)
        self.client = StoreClient(
            endpoints, rank=self.rank, clock=self._job.clock, failure=self._failure, on_refused=on_refused
        )
        self._meter.bytes_sent = self._job.bytes_sent_since(self._job.bytes_sent())
        return self.client

    def group(self, device_type: str) -> Group:
        """The collective's group."""
        self._group = self._job.group(device_type)
        return self._group

    def join(self, *, layout: str) -> None:
        """Take part: returns when the run has started.

        Args:
            layout: Digest of the replica's tensors, which must be alike on all workers.

        Raises:
            TransportError: Not all workers came, or they disagree.
        """
        assert self.client is not None
        join = Join(
            policy=self._policy.spec,
            info=self._info,
            num_workers=self.num_workers,
            num_servers=len(self.client.endpoints) if self._policy.pushes else 0,
            snapshot_every=self._snapshot_every,
            folder=None if self._folder is None else str(self._folder.absolute()),
            layout=layout,
            rack=self._job.rack,
            environment=environment(),
        )
        self._heartbeat = self._job.heartbeat()
        self._heartbeat.begin(self._meter, abort=self._abort)
        self.client.tell(join)
        started = self.client.await_message(Start, timeout_s=self._job.meet_s, explain=self._who_is_missing)
        self.clock = started.clock
        self.elapsed_s = started.elapsed_s

    def _who_is_missing(self) -> str:
        missing = self._job.missing()
        return f"; of the job's workers {missing} have not come" if missing else ""

    def _abort(self) -> None:
        if self._policy.exchange == "collective" or self._group is not None:
            self._job.abort_collectives()

    def batch_source(self, figures: PlanFigures, *, plan: int) -> BatchSource:
        """Fixed batches for a collective, leased blocks for the store."""
        if not self._policy.pushes or (self.rack is not None and len(self.rack.sizes) == 1):
            return SynchronousBatches(
                figures.whole(),
                batch_size=figures.batch_size,
                first_epoch=plan,
                seed=self._info.seed,
                rounds=self.rounds,
            )
        if self.stages is None:
            return self._leased_batches(figures, plan=plan)
        self._batches = StagedBatches(
            figures,
            plan=plan,
            seed=self._info.seed,
            rounds=self.rounds,
            lease=lambda: self._leased_batches(figures, plan=plan),
            stages=self.stages,
        )
        return self._batches

    @property
    def _rack_now(self) -> Rack | None:
        """This worker's rack, if racks share the store now."""
        return self.rack if self.stages is None else self.stages.rack

    def _leased_batches(self, figures: PlanFigures, *, plan: int) -> LeasedBatches | RackBatches:
        if (rack := self._rack_now) is not None:
            return self._rack_batches(figures, plan=plan, rack=rack)
        leases = self._leases(figures, plan=plan, on_admitted=self._admitted, on_halt=lambda: self.on_halt())
        return LeasedBatches(leases, num_samples=figures.num_samples, first_epoch=plan, seed=self._info.seed)

    def _leases(
        self, figures: PlanFigures, *, plan: int, on_admitted: Callable[[int], None], on_halt: Callable[[], None]
    ) -> Leases:
        assert self.client is not None
        return Leases(
            self.client,
            plan=plan,
            figures=figures,
            on_admitted=on_admitted,
            before_rest=lambda: self.before_rest(),
            on_halt=on_halt,
        )

    def _rack_batches(self, figures: PlanFigures, *, plan: int, rack: Rack) -> RackBatches:
        figures = figures_for_racks(figures, sizes=rack.sizes, together=rack.together)
        blocks = RackBlocks(
            rack.group,
            lease=lambda on_admitted, on_halt: self._leases(
                figures, plan=plan, on_admitted=on_admitted, on_halt=on_halt
            ),
            before_rest=lambda: self.before_rest(),
            on_admitted=self._admitted,
            on_halt=lambda: self.on_halt(),
        )
        whole = LeasedBatches(blocks, num_samples=figures.num_samples, first_epoch=plan, seed=self._info.seed)
        return RackBatches(whole, rack=rack.group)

    def review(self, review: Reviewed) -> None:
        """Report what this worker saw."""
        assert self.client is not None
        self.client.tell(Review(event=review))

    def steer(self) -> Steering:
        """Wait for the answer to the last review."""
        assert self.client is not None
        return self.client.await_message(Steering)

    def news(self) -> Steering | None:
        """The answer to the last review, if it has come; not waited for. A rack's leader tells the rack."""
        assert self.client is not None
        rack = self._rack_now
        news = self.client.heard(Steering) if rack is None or rack.leads else None
        return news if rack is None else rack.tell(news, Steering)

    def enter_store(self, clock: int, *, turn: Turn | None = None) -> None:
        """All workers stand at the same step and the store has their state: returns when all have said so.

        Args:
            clock: The step.
            turn: How they have left another stage on the store, if they have.

        Raises:
            ConfigError: The samples are not dealt by `Session.shard`, so there is nothing to lease.
        """
        source = self._batches
        if source is None and clock > 0:
            raise ConfigError(
                f"{self._policy.spec} trains on the store from step {clock} on, where each worker has as many samples "
                "as it gets to; write session.shard(loader) around the loader, so that they can be dealt out"
            )
        standing = Standing(clock=clock)
        if source is not None:
            samples = self.rounds.global_samples
            if turn is None:
                remainder = source.to_leases()
            else:
                remainder = source.figures.whole() if turn.remainder is None else turn.remainder
            standing = Standing(
                clock=clock, plan=source.plan, figures=source.figures, remainder=remainder, samples=samples
            )
        assert self.client is not None
        self.client.tell(standing)
        self.client.await_message(Entered)

    def leave_store(self, clock: int, *, plan: int) -> Turn:
        """This worker has handed in all it had: returns when it is known how it goes on."""
        assert self.client is not None
        rack, turn = self._rack_now, None
        if rack is None or rack.leads:
            self.client.tell(Standing(clock=clock, plan=plan))
            turn = self.client.await_message(Turn)
        if rack is not None:  # one speaks for a rack, so that all of it hear the same
            turn = rack.tell(turn, Turn)
        assert turn is not None
        if turn.steer is not None:
            self.rounds.global_samples = turn.samples
        return turn

    def _admitted(self, clock: int) -> None:
        self.clock = clock
        self.on_admitted(clock)

    def _failure(self) -> PlesioError | None:
        return None if self._heartbeat is None else self._heartbeat.failure

    def explain(self, error: BaseException) -> PlesioError | None:
        """What lies behind ``error``, if it is that the run cannot go on.

        A collective notices a broken connection before the server has counted anyone lost, and does not know whose loss
        it was; so then the server's verdict is waited for, a lease at most.
        """
        if self._heartbeat is not None and _from_collective(error):
            return self._heartbeat.wait_for_failure()
        return self._failure()

    def evaluated(self, evaluations: list[Evaluation], *, parameters_sha256: str | None) -> None:
        """Enter evaluations in the records."""
        assert self.client is not None
        self.client.tell(Evaluations(evaluations=tuple(evaluations), parameters_sha256=parameters_sha256))

    def share_metric(self, metric: float | None) -> float | None:
        """Rank 0's metric, on all ranks of a collective and of rank 0's rack; else everyone's own, on the store."""
        group = self._group
        if self.rack is not None:
            group = self.rack.group if self.rack.evaluates else None
        elif self._policy.exchange == "store" or (self.stages is not None and self.stages.on_store):
            group = None
        if group is None:
            return metric
        value = torch.tensor([float("nan") if metric is None else metric], dtype=torch.float64)
        group.broadcast(value)
        return float(value.item())

    def leave(self) -> None:
        """This worker has trained all it will; the one that evaluates waits for the others."""
        assert self.client is not None
        self.client.leave()

    def result(self) -> RunResult:
        """The figures that the server has; after `close` those of the whole run."""
        if self._result is None:
            assert self.client is not None
            self.client.tell(ResultRequest())
            result = self.client.await_message(Result).result
            if result is None:
                raise TransportError("the job's server has no run under way")
            return result
        return self._result

    def close(self, *, status: Literal["finished", "interrupted", "failed"], error: str | None) -> None:
        """Say goodbye, wait until the records are closed, and let go of the run."""
        try:
            if self._heartbeat is not None and self.client is not None:
                self._heartbeat.quiet()
                self.client.tell(Goodbye(status=status, error=error, report=self._meter.take()))
                # the run ends for all at once; a failing worker does not wait for those that go on
                timeout_s = None if status == "finished" else GOODBYE_S
                self._result = self.client.await_message(RunEnded, timeout_s=timeout_s).result
                self._job.next_run()
        except TransportError as failure:
            if status == "finished":
                raise
            _log.warning("could not say goodbye: %s", failure)
        finally:
            if self._heartbeat is not None:
                self._heartbeat.quiet()
            if self._rack_now is not None and isinstance(self._failure(), WorkerLostError):
                self._job.let_servers_go_on()  # this rack is at its end, others are not
            if self._owns_job:
                self._job.close()


def _from_collective(error: BaseException) -> bool:
    """Whether torch.distributed raised it; Gloo's errors are bare RuntimeErrors that begin with its source's path."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
