"""`plesio.join`: the one call that turns a training loop into a Plesio worker."""

import contextlib
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch

from plesio.core.arguments import checked
from plesio.core.clock import Clock, MonotonicClock
from plesio.core.errors import ConfigError, PlesioError, WorkerLostError
from plesio.core.logs import introduce
from plesio.core.records import to_values
from plesio.core.within import AT_LEAST_1
from plesio.cost.host_costs import LEAST_SERVED_BYTES
from plesio.policies import Policy
from plesio.runtime.checkpoints.beginning import ResumedCheckpoint, WorkerCheckpoints
from plesio.runtime.checkpoints.part_reports import Seat
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.island import island_of
from plesio.runtime.job import Job
from plesio.runtime.join_options import JoinOptions, checkpoints_of, place_of, surrounded
from plesio.runtime.parameters.optimizer_spec import optimizer_spec
from plesio.runtime.parameters.optimizers import as_one
from plesio.runtime.session_policy import policy_of, stoppable
from plesio.runtime.worker.callbacks import Callbacks, Transition
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.exchange import LocalExchange, SnapshotTaker
from plesio.runtime.worker.exchange.fragments import check_fragments
from plesio.runtime.worker.exchange.host_racks import HostRacks
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.gauges import Gauges
from plesio.runtime.worker.handover import Handover
from plesio.runtime.worker.job_handle import JobHandle
from plesio.runtime.worker.meter import History, Meter, WorkerTimeline
from plesio.runtime.worker.rack_choice import RackChoice, Racks, RackWish, check_racks
from plesio.runtime.worker.replica_checks import check_beginning, check_layers, left_out
from plesio.runtime.worker.session import Session
from plesio.runtime.worker.sharing import InRounds, Sharing
from plesio.runtime.worker.step_times import StepClock
from plesio.runtime.worker.world import SessionParts
from plesio.runtime.worlds.alone import AloneWorld
from plesio.runtime.worlds.alone_saving import AloneSaving
from plesio.runtime.worlds.distributed import DistributedWorld
from plesio.runtime.worlds.parts import Parts
from plesio.runtime.worlds.run_terms import RunTerms
from plesio.runtime.worlds.without_server import can_do_without_server

_log = logging.getLogger(__name__)

_PLAIN = JoinOptions()
_LOST_AT_START = "a worker was lost before the first step, while all took over rank 0's parameters; start the job again"


_Model = Annotated[torch.nn.Module, "plesio.join(model, optimizer), a torch.nn.Module first"]
OnTransition = Callable[[Transition, torch.optim.Optimizer], None]
_Optimizers = Annotated[
    torch.optim.Optimizer | Sequence[torch.optim.Optimizer], "an optimizer of torch.optim, or a list of them"
]


@checked
def join(
    model: _Model,
    optimizer: _Optimizers,
    *,
    policy: Annotated[Policy | str | None, 'a policy or its text, as in "ssp:4"'] = None,
    trace: Path | str | None = None,
    total_samples: Annotated[int, AT_LEAST_1] | None = None,
    on_transition: OnTransition | None = None,
    racks: Annotated[Racks, '"auto", "host", or the number of each rank\'s rack: (0, 0, 1, 1)'] = "auto",
    scaler: torch.amp.GradScaler | None = None,
    checkpoint: Path | str | None = None,
    every: str | float = "10 min",
    keep: Annotated[int, AT_LEAST_1] = 3,
    resume: str = "auto",
    options: JoinOptions = _PLAIN,
) -> Session:
    """Take part in training ``model`` with the other workers of this job; the start is common to all of them.

    Under torchrun's variables (``plesio run``, torchrun, Slurm ...) this process becomes one of the workers; without
    them it trains alone, in an ordinary loop. All workers start from rank 0's parameters and buffers.

    Args:
        model: Stays yours and is never wrapped; call it as before. Replicas must be alike on all workers.
        optimizer: Built from the model's parameters, or a list of several that share none of them. Learning rates are
            those of the synchronous step under every policy, and schedulers go on working.
        policy: A policy, or its text, ``"ssp:4"``. None for the launcher's (``PLESIO_POLICY``), or ``"adaptive"``;
            another than the launcher's is refused.
        trace: Folder for traces and ``results.json``; None for none.
        total_samples: Samples of the whole training, over workers and epochs, if known; ``adaptive`` goes by it.
        on_transition: A callback (`Session.add_callback`) for changes of the policy, which gets the optimizer too.
        racks: Each rank's rack, for ``hier:`` and ``adaptive``: ``(0, 0, 1, 1)``; ``"host"`` for one a host;
            ``"auto"`` measures between four hosts or more for some seconds. In the virtual world the cluster has them.
        scaler: What the program scales its losses by; the session steps and updates it. None for no scale.
        checkpoint: Folder for checkpoints, which every host sees; None for none (``PLESIO_CHECKPOINT`` names one).
        every: Between two of them: ``"10 min"``, ``"500 steps"``, or seconds.
        keep: How many are kept, the latest.
        resume: ``"auto"`` goes on from the latest whole one, ``"no"`` begins afresh; or the folder of one.
        options: What few sessions need: servers, snapshots, names for the results, a job to run in.

    Returns:
        The session; close it, or use it as a context manager.

    Raises:
        PolicySpecError: The policy's text cannot be read.
        TaskError: Nothing is to be trained, the optimizer has other parameters, or a scaler is for float16 ones.
        ExchangeError: The store's servers cannot run this optimizer.
        ConfigError: A late worker joins racks with a store, workers disagree on racks, or another run saved here.
        DataError: There are checkpoints, and none is whole.
        TransportError: The other workers cannot be reached, or the run cannot take in a worker that joins late.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> with join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
    ...     loss = model(torch.ones(4, 2)).square().mean()
    ...     loss.backward()
    ...     session.step(loss)
    >>> session.report().steps
    1
    """
    options, folder, around = surrounded(options, trace, policy=policy, checkpoint=checkpoint)
    setting = checkpoints_of(around, checkpoint, every=every, keep=keep, resume=resume)
    place = place_of(options)
    asked = policy_of(policy, around=around)
    one = as_one(model, optimizer)
    island = island_of(asked, options, place=place, saves=setting is not None)
    chosen = stoppable(asked, setting)
    replica = Replica(model, one, scaler=scaler, island=island)
    if around is not None and around.on_join is not None:
        around.on_join(model, one)
    introduce(0 if place is None else place.rank)
    _log.info("joins under %s", chosen.title)
    callbacks = Callbacks()
    if on_transition is not None:
        callbacks.add(_Transitions(on_transition, one))
    run = _Run(replica, policy=chosen, folder=folder, options=options, setting=setting, callbacks=callbacks)
    if place is None:
        return run.alone()
    return run.among_others(place, racks=racks, total_samples=total_samples)


@dataclass(frozen=True, slots=True)
class _Transitions:
    """The callback of ``on_transition``, which gets the optimizer too."""

    call: OnTransition
    optimizer: torch.optim.Optimizer

    def on_transition(self, transition: Transition) -> None:
        self.call(transition, self.optimizer)


_own: list[weakref.ref[Session]] = []
"""The latest session that this process has begun in a job of its own."""


def _check_first() -> None:
    if any(one is not None and one.is_open for one in (begun() for begun in _own)):
        raise ConfigError(
            "a session of this process is open, and a worker is in one at a time; close it before the second join "
            "(models that train in turns, as those of a GAN, can have two sessions in a process on its own)"
        )


def _check(policy: Policy, replica: Replica, *, place: WorkerPlace, racks: Racks, elastic: bool) -> None:
    """Refuse on every worker at once what cannot be done under the policy."""
    check_racks(racks, num_workers=place.num_workers)
    check_beginning(replica.model, replica.optimizer, in_island=replica.island is not None)
    if policy.exchange == "store" or policy.bound > 0:
        check_layers(replica.model, policy=policy.spec)
    check_fragments(policy, num_tensors=len(replica.parameters))
    if policy.needs_server_optimizer:
        optimizer_spec(replica.optimizer)
    if place.late and policy.racks_share_store:
        raise ConfigError(
            f"no worker can join {policy.title} while it runs: racks that share the store are settled at the start; "
            "under any other policy one can"
        )
    if policy.first.mirror and not elastic:
        raise ConfigError(
            f"{policy.title}: its copies of parts are to go on without a lost worker, and elastic=False ends the run "
            "then; leave out one of the two"
        )


@dataclass(frozen=True, slots=True)
class _Run:
    """The parts with which one worker begins a run."""

    replica: Replica
    _: KW_ONLY
    policy: Policy
    folder: Path | None
    options: JoinOptions
    setting: CheckpointSetting | None
    callbacks: Callbacks

    def _resumed(self, *, rank: int) -> ResumedCheckpoint | None:
        """Find the checkpoint to go on from, and refuse an unsuitable one before anything has begun."""
        if self.setting is None:
            return None
        island = self.replica.island
        seat, parts = Seat.of(rank, island), self.replica.tensors.parts(island)
        return ResumedCheckpoint.find(
            self.setting, policy=self.policy.title, seed=self.options.info.seed, seat=seat, parts=parts
        )

    def _checkpoints(
        self, timeline: WorkerTimeline, *, resumed: ResumedCheckpoint | None, rank: int, num_workers: int
    ) -> WorkerCheckpoints | None:
        if self.setting is None:
            return None
        return WorkerCheckpoints.begin(
            self.setting,
            self.replica,
            resumed=resumed,
            policy=self.policy,
            seed=self.options.info.seed,
            rank=rank,
            num_workers=num_workers,
            timeline=timeline,
        )

    def alone(self) -> Session:
        """Make the session of a single process."""
        gauges = Gauges(self.replica)
        meter = Meter(gauges=gauges, callbacks=self.callbacks)
        timeline = self._timeline(meter, rank=0, clock=MonotonicClock(), gauges=gauges)
        world = AloneWorld(policy=self.policy, info=self.options.info, folder=self.folder, meter=meter)
        snapshots = SnapshotTaker(self.options.snapshot_every)
        exchange = LocalExchange(self.replica, timeline=timeline, snapshots=snapshots)
        steps = StepClock()
        checkpoints = self._checkpoints(timeline, resumed=self._resumed(rank=0), rank=0, num_workers=1)
        sharing: Sharing = InRounds(rounds=world.rounds, group=None)
        if checkpoints is not None:
            steps.go_on_from(checkpoints.saving.clock)
            snapshots.passed(0 if checkpoints.point is None else checkpoints.point.samples)
            sharing = AloneSaving(
                exchange, checkpoints=checkpoints, world=world, policy=self.policy.title, timeline=timeline
            )
        return Session(
            self.replica,
            world=world,
            parts=SessionParts(
                policy=self.policy,
                exchange=exchange,
                sharing=sharing,
                deals=checkpoints is not None,
                past=None if checkpoints is None else checkpoints.past(),
            ),
            steps=steps,
            timeline=timeline,
            pacer=self.options.pacer,
            saver=None if checkpoints is None else checkpoints.saver,
        )

    def among_others(self, place: WorkerPlace, *, racks: Racks, total_samples: int | None) -> Session:
        """Make the session of a worker of the job that the options name; else of one that ends with the session."""
        _check(self.policy, self.replica, place=place, racks=racks, elastic=self.options.elastic)
        if self.replica.island is not None:
            place = place.as_island()
        in_job = partial(self._in_job, racks=racks, total_samples=total_samples)
        if self.options.job is not None:
            return in_job(self.options.job, owns_job=False)
        _check_first()
        session = in_job(Job(place), owns_job=True)
        _own[:] = [weakref.ref(session)]
        return session

    def _in_job(self, job: JobHandle, *, owns_job: bool, racks: Racks, total_samples: int | None) -> Session:
        policy, place, rank = self.policy, job.place, job.place.rank
        with contextlib.ExitStack() as undo:
            if owns_job:
                undo.callback(job.close)
            resumed = None if place.late else self._resumed(rank=rank)  # who joins late goes on from where the run is
            # Racks come first: they decide who serves whom, and all workers settle them together.
            wish = RackWish.of(place, racks, policy=policy.spec, by_racks=policy.goes_by_racks)
            choice = None if place.late else job.settle_racks(wish, device_type=self.replica.device.type)
            count, replicas = self._num_servers(num_hosts=place.num_hosts), self.options.num_replicas
            servers = job.servers(count, folder=self.folder, replicas=replicas)
            timeline = self._timeline_in(job)
            undo.callback(timeline.trace.close)
            if choice is not None:
                _enter(choice, timeline, rank=rank)
            checkpoints = self._checkpoints(timeline, resumed=resumed, rank=rank, num_workers=place.num_workers)
            if checkpoints is not None:
                undo.callback(checkpoints.saver.close, failed=True)
            world = DistributedWorld(
                job,
                servers=servers,
                owns_job=owns_job,
                terms=RunTerms(
                    policy=policy,
                    info=self.options.info,
                    folder=self.folder,
                    snapshot_every=self.options.snapshot_every,
                    elastic=self.options.elastic and (self.replica.island is None or self.setting is None),
                    log_bytes=self.options.log_bytes,
                    total_samples=total_samples,
                ),
                timeline=timeline,
                checkpoints=checkpoints,
                island=self.replica.island,
            )
            # From here on the others know of this worker: they must be told when it cannot begin.
            try:
                session = self._session_in(
                    world,
                    place=place,
                    timeline=timeline,
                    found=None if choice is None else choice.found,
                    checkpoints=checkpoints,
                    total_samples=total_samples,
                )
            except BaseException as error:
                timeline.trace.close()
                self._fail(world, error, late=place.late)
                raise
            undo.pop_all()
            return session

    def _session_in(
        self,
        world: DistributedWorld,
        *,
        place: WorkerPlace,
        timeline: WorkerTimeline,
        found: HostRacks | None,
        checkpoints: WorkerCheckpoints | None,
        total_samples: int | None,
    ) -> Session:
        """Make the session of a worker whose world is there."""
        steps, handover = StepClock(), Handover(self.replica, num_workers=place.num_workers)
        parts = Parts(
            self.replica,
            policy=self.policy,
            world=world,
            timeline=timeline,
            place=place,
            steps=steps,
            snapshots=SnapshotTaker(self.options.snapshot_every, keeps=place.rank == 0),
            found=found,
            total_samples=total_samples,
            handover=handover,
            checkpoints=checkpoints,
        ).make()
        return Session(
            self.replica,
            world=world,
            parts=parts,
            steps=steps,
            timeline=timeline,
            pacer=self.options.pacer,
            saver=None if checkpoints is None else checkpoints.saver,
            handover=handover,
        )

    def _fail(self, world: DistributedWorld, error: BaseException, *, late: bool) -> None:
        """End the run that could not begin; a worker that joins late only leaves it.

        Raises:
            WorkerLostError: Because a worker was lost.
            PlesioError: Because of what another worker's failure did to a collective.
        """
        if late:
            world.withdraw()
            return
        cause: PlesioError | None = None
        if world.cuts_off(error):
            cause = WorkerLostError(_LOST_AT_START, ranks=())
        elif isinstance(error, RuntimeError):
            cause = world.explain(error)
        world.close(status="failed", error=str(cause or error), in_rack=self.policy.racks_share_store)
        if cause is not None:
            raise cause from error

    def _num_servers(self, *, num_hosts: int) -> int:
        """Return the number asked for; else one a host, so that links are shared, and fewer for a small model."""
        if not self.policy.pushes or self.options.num_replicas > 1:
            return 1
        if self.options.num_servers is not None:
            return self.options.num_servers
        most = self.policy.most_servers
        usual = num_hosts if most is None else min(num_hosts, most)
        return min(usual, max(1, self.replica.tensors.num_bytes // LEAST_SERVED_BYTES))

    def _timeline_in(self, job: JobHandle) -> WorkerTimeline:
        history = History() if can_do_without_server(self.policy) else None
        sent = job.bytes_sent_since(job.bytes_sent())
        told_bytes = job.memory_bytes()
        gauges = Gauges(self.replica) if told_bytes is None else None
        meter = Meter(
            bytes_sent=sent,
            memory_bytes=told_bytes or 0,
            gauges=gauges,
            history=history,
            callbacks=self.callbacks,
            says=job.place.leads,
        )
        return self._timeline(meter, rank=job.place.rank, clock=job.clock, gauges=gauges)

    def _timeline(self, meter: Meter, *, rank: int, clock: Clock, gauges: Gauges | None) -> WorkerTimeline:
        """Make the timeline, with a trace in the folder, if there is one."""
        island = self.replica.island
        folder = None if island is not None and not island.leads else self.folder
        timeline = WorkerTimeline.of(meter, folder, worker=rank, policy=self.policy.title, clock=clock, gauges=gauges)
        if rank == 0 and (line := left_out(self.replica.model, self.replica.optimizer)) is not None:
            meter.warn(line)
        if self.replica.scaling is not None:
            self.replica.scaling.on_change(timeline.loss_scale)
        return timeline


def _enter(choice: RackChoice, timeline: WorkerTimeline, *, rank: int) -> None:
    """Put the choice of racks in this worker's trace, and what would be better in the result."""
    timeline.event("racks", at_s=timeline.now_s(), clock=0, **to_values(choice))
    if rank == 0 and choice.advice():
        timeline.meter.totals.fallbacks.append(choice.advice())
