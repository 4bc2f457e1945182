"""`plesio.join`: the one call that turns a training loop into a Plesio worker."""

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import torch

from plesio.core.clock import Clock, MonotonicClock
from plesio.core.errors import ConfigError
from plesio.core.logs import set_up_logging, speak_as
from plesio.core.trace import TraceWriter
from plesio.policies import Adaptive, Hierarchical, Policy, Switch, parse_policy
from plesio.policies.adaptive.system.setting import Sent
from plesio.policies.adaptive.training.rate_limit import RateLimit
from plesio.protocol.figures import RunInfo
from plesio.runtime.environment import Place
from plesio.runtime.exchange.adaptive import AdaptiveExchange, Transition
from plesio.runtime.exchange.collective import CollectiveExchanges
from plesio.runtime.exchange.exchange import Exchange, LocalExchange, SnapshotTaker
from plesio.runtime.exchange.flat_gradients import FlatGradients
from plesio.runtime.exchange.group import Group
from plesio.runtime.exchange.host_racks import HostRacks
from plesio.runtime.exchange.layout import Layout
from plesio.runtime.exchange.rack_store import RackStoreExchange
from plesio.runtime.exchange.rack_watch import RackWatch
from plesio.runtime.exchange.racks import Racks as RackMembers
from plesio.runtime.exchange.replica import Replica
from plesio.runtime.exchange.shard import optimizer_spec, runs_on_servers
from plesio.runtime.exchange.store import StoreExchange
from plesio.runtime.exchange.store_client import StoreClient
from plesio.runtime.exchange.store_stage import StoreExchanges
from plesio.runtime.exchange.synchronous import SynchronousExchange
from plesio.runtime.job import Job
from plesio.runtime.job_handle import JobHandle, ambient_job
from plesio.runtime.ledger import Meter
from plesio.runtime.monitor import StepMonitor
from plesio.runtime.pacing import Pacer
from plesio.runtime.rack_batches import Rack
from plesio.runtime.rack_choice import RackChoice, Racks, Wish, check_racks
from plesio.runtime.session import Session
from plesio.runtime.timeline import Timeline
from plesio.runtime.worlds.alone import AloneWorld
from plesio.runtime.worlds.distributed import DistributedWorld

__all__ = ["join"]

_log = logging.getLogger(__name__)

MOST_SERVERS_OF_ADAPTIVE = 4
"""Server 0 hears of every update from every server: with 16 that takes longer than a step (docs/log.md, section 21)."""
LEAST_SERVED_BYTES = 16_384
"""By one server: they take about as long on a link of 1 Gbit/s as a message to one server more (docs/log.md, 37)."""

OnTransition = Callable[[Transition, torch.optim.Optimizer], None]


def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    policy: Policy | str = "adaptive",
    trace: Path | str | None = None,
    num_servers: int | None = None,
    snapshot_every: int | None = None,
    pacer: Pacer | None = None,
    info: RunInfo | None = None,
    job: JobHandle | None = None,
    total_samples: int | None = None,
    on_transition: OnTransition | None = None,
    racks: Racks = "auto",
) -> Session:
    """Take part in training ``model`` with the other workers of this job; the start is common to all of them.

    Under torchrun's variables (``plesio run``, torchrun, Slurm ...) this process becomes one of the workers; without
    them it trains alone, in an ordinary loop. All workers start from rank 0's parameters and buffers.

    Args:
        model: Stays yours and is never wrapped; call it as before. Replicas must be alike on all workers.
        optimizer: Built from the model's parameters. Learning rates are those of the synchronous step under every
            policy, and schedulers go on working.
        policy: A policy such as ``plesio.SSP(bound=4)``, or its text, ``"ssp:4"``; found while training by default.
        trace: Folder for traces and ``results.json``; None for none.
        num_servers: Servers of the store exchange; None is one per host, under ``adaptive`` at most
            four, and one for every 16 KiB of parameters at most.
        snapshot_every: Keep the shared parameters at every so many samples, for `Session.finish` to evaluate.
        pacer: Makes steps take as long as another machine's would.
        info: Names for the results, and the seed of the sample order.
        job: A job to run in; None makes one for this session.
        total_samples: Samples of the whole training, over all workers and epochs, if that is known; tells the adaptive
            policy how far it is.
        on_transition: Called on every worker, with the optimizer, when a policy that changes has changed.
        racks: Which workers are near to each other, for policies that go by racks (``hier:``, ``adaptive``): ``"auto"``
            measures between four hosts or more, some seconds at the start; ``"host"`` takes every host for a rack; or
            the number of each rank's rack, ``(0, 0, 1, 1)``. In the virtual world the cluster has them.

    Returns:
        The session; close it, or use it as a context manager.

    Raises:
        PolicySpecError: The policy's text cannot be read.
        TaskError: The model has no trainable parameters, or the optimizer none of the model's.
        ExchangeError: The store's servers cannot run this optimizer.
        ConfigError: This worker joins late, and the policy's exchange is a collective; or workers disagree on racks.
        TransportError: The other workers cannot be reached.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> with join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
    ...     loss = model(torch.ones(4, 2)).square().mean()
    ...     loss.backward()
    ...     session.step(loss)
    >>> session.report().steps
    1
    """
    names = RunInfo() if info is None else info
    replica = Replica(model, optimizer)
    job = ambient_job() if job is None else job
    if job is not None:
        policy = policy if job.policy is None else job.policy
        trace = trace if trace is not None else job.trace
        pacer = pacer if pacer is not None else job.pacer
    chosen = parse_policy(policy) if isinstance(policy, str) else policy
    place = job.place if job is not None else Place.from_environment()
    folder = None if trace is None else Path(trace)
    meter = Meter()
    rank = 0 if place is None else place.rank
    if place is not None:
        _check(chosen, optimizer, place=place)
        check_racks(racks, num_workers=place.num_workers)
    set_up_logging()
    speak_as(f"worker {rank}")
    _log.info("joins under %s", chosen.spec)
    clock = MonotonicClock() if job is None else job.clock
    timeline = _begin_timeline(meter, policy=chosen, rank=rank, folder=folder, clock=clock)
    if place is None:
        alone = AloneWorld(policy=chosen, info=names, folder=folder, meter=meter)
        local = LocalExchange(replica, refuse=timeline.refuse, snapshots=SnapshotTaker(snapshot_every))
        return Session(replica, policy=chosen, world=alone, exchange=local, timeline=timeline, pacer=pacer)

    handle = job if job is not None else Job(place)
    world = DistributedWorld(
        handle,
        owns_job=job is None,
        policy=chosen,
        info=names,
        folder=folder,
        meter=meter,
        snapshot_every=snapshot_every,
    )
    try:
        wish = Wish.of(place, racks, policy=chosen.spec, by_racks=_goes_by_racks(chosen))
        choice = None if place.late else handle.settle_racks(wish, device_type=replica.device_type)
        if choice is not None:
            _enter(choice, timeline, rank=place.rank)
        parts = _Parts(
            replica,
            world=world,
            timeline=timeline,
            place=place,
            found=None if choice is None else choice.found,
        )
        if not chosen.pushes:
            num_servers = 1
        elif num_servers is None:
            num_servers = _usual_servers(chosen, num_hosts=place.num_hosts, num_bytes=replica.num_bytes)
        exchange = parts.exchange(
            chosen,
            world.connect(num_servers, on_refused=timeline.refuse),
            snapshots=SnapshotTaker(snapshot_every if place.rank == 0 else None),
            seed=names.seed,
            total_samples=total_samples,
            on_transition=on_transition,
        )
        return Session(replica, policy=chosen, world=world, exchange=exchange, timeline=timeline, pacer=pacer)
    except BaseException as error:
        timeline.trace.close()
        world.close(status="failed", error=str(error))
        raise


def _check(policy: Policy, optimizer: torch.optim.Optimizer, *, place: Place) -> None:
    """Refuse on every worker at once what the servers cannot run, and who comes too late for a collective."""
    if policy.pushes == "gradient" and not isinstance(policy, Adaptive):
        optimizer_spec(optimizer)
    if place.late and (policy.exchange == "collective" or isinstance(policy, Hierarchical)):
        raise ConfigError(
            f"no worker can join {policy.spec} while it runs: the membership of its collectives is fixed; "
            "use a policy that is all on the store (ssp, asp, or exchange=store)"
        )


def _begin_timeline(meter: Meter, *, policy: Policy, rank: int, folder: Path | None, clock: Clock) -> Timeline:
    """With a trace in ``folder``, if there is one; where that cannot be written, training goes on without."""

    def give_up_tracing(sentence: str) -> None:
        meter.totals.fallbacks.append(sentence)
        _log.warning("%s", sentence)

    path = None if folder is None else folder / f"trace-{rank}.jsonl"
    header = {"worker": rank, "policy": policy.spec}
    return Timeline(meter, TraceWriter(path, header=header, on_failure=give_up_tracing, clock=clock), clock=clock)


def _usual_servers(policy: Policy, *, num_hosts: int, num_bytes: int) -> int:
    """One a host, so that links are shared; fewer where a model is so small that messages take longer than bytes."""
    most = min(num_hosts, MOST_SERVERS_OF_ADAPTIVE) if isinstance(policy, Adaptive) else num_hosts
    return min(most, max(1, num_bytes // LEAST_SERVED_BYTES))


def _goes_by_racks(policy: Policy) -> bool:
    if isinstance(policy, Switch):
        return any(isinstance(stage, Hierarchical) for stage in policy.policies)
    return isinstance(policy, Hierarchical) or (isinstance(policy, Adaptive) and policy.topology is not None)


def _enter(choice: RackChoice, timeline: Timeline, *, rank: int) -> None:
    """Put the choice of racks in this worker's trace, and what would be better in the result."""
    timeline.event("racks", at_s=timeline.now_s(), clock=0, **choice.to_json())
    if rank == 0 and choice.advice():
        timeline.meter.totals.fallbacks.append(choice.advice())


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the exchanges of one worker are made of."""

    replica: Replica
    _: KW_ONLY
    world: DistributedWorld
    timeline: Timeline
    place: Place
    found: HostRacks | None

    @property
    def rank(self) -> int:
        return self.place.rank

    def exchange(
        self,
        policy: Policy,
        client: StoreClient,
        *,
        snapshots: SnapshotTaker,
        seed: int,
        total_samples: int | None,
        on_transition: OnTransition | None,
    ) -> Exchange:
        """That of ``policy``; only one on a collective looks at the last three."""
        if isinstance(policy, Hierarchical) and policy.pushes:
            return self.racks_on_store(policy, client, snapshots=snapshots)
        if policy.exchange == "store":
            return self.store(policy, client)
        return self.collective(
            policy,
            client,
            snapshots=snapshots,
            seed=seed,
            total_samples=total_samples,
            on_transition=on_transition,
        )

    def store(self, policy: Policy, client: StoreClient) -> Exchange:
        store = self._join_store(policy, client)
        store.begin(self.world.clock)
        self.world.before_rest = store.flush
        return store

    def _join_store(self, policy: Policy, client: StoreClient) -> StoreExchange:
        layout = Layout.of(self.replica.tensors(), num_servers=len(client.endpoints))
        store = StoreExchange(
            self.replica,
            policy=policy,
            client=client,
            layout=layout,
            timeline=self.timeline,
            refuse=self.timeline.refuse,
        )
        if self.rank == 0:
            store.offer_initial()
        self.world.join(layout=layout.digest())
        return store

    def racks_on_store(self, policy: Hierarchical, client: StoreClient, *, snapshots: SnapshotTaker) -> Exchange:
        store = self._join_store(policy, client)
        group = self._group()
        racks = RackMembers.among(group)
        alone = len(racks.members) == 1
        rack = group if alone else group.split(racks.members)
        assert rack is not None, "every rank is in a rack"
        [own] = [members for members in racks.members if group.rank in members]
        self.world.rack = Rack(
            group=rack, sizes=tuple(map(len, racks.members)), evaluates=0 in own, together=policy.synchronous
        )
        exchanges = CollectiveExchanges(
            self.replica,
            group=rack,
            timeline=self.timeline,
            refuse=self.timeline.refuse,
            snapshots=snapshots if alone else SnapshotTaker(None),
        )
        if alone:
            exchanges.make_equal()
            if self.rank == 0:
                line = f"all workers are in one rack, so {policy.spec} is {policy.inner.spec}"
                self.timeline.meter.totals.fallbacks.append(line)
            return exchanges.build(policy.inner)
        inner = exchanges.build(policy.inner)
        assert isinstance(inner, SynchronousExchange), inner
        exchange = RackStoreExchange(inner, store, rack=rack, replica=self.replica, timeline=self.timeline)
        exchange.begin(self.world.clock)
        self.world.before_rest = exchange.flush
        return exchange

    def _watch(self, group: Group) -> RackWatch | None:
        """If a probe found racks."""
        if self.found is None or self.found.between is None:
            return None
        say = self.timeline.meter.totals.fallbacks.append
        return RackWatch(self.found, group=group, workers_per_host=self.place.local_workers, say=say)

    def _group(self) -> Group:
        return self.world.group(self.replica.device_type)

    def collective(
        self,
        policy: Policy,
        client: StoreClient,
        *,
        snapshots: SnapshotTaker,
        seed: int,
        total_samples: int | None,
        on_transition: OnTransition | None,
    ) -> Exchange:
        # first: nobody may wait in a collective for one who disagrees
        self.world.join(layout=self.replica.digest())
        group = self._group()
        monitor = limit = None
        can_push = bool(policy.pushes) and runs_on_servers(self.replica.optimizer)
        if isinstance(policy, Adaptive):
            limit = None if policy.guard is None else RateLimit(jump=policy.guard.rate_jump)
            monitor = StepMonitor(
                self.rank,
                config=policy.review,
                guard=policy.guard,
                timeline=self.timeline,
                rounds=self.world.rounds,
                total_samples=total_samples,
                rack=group.rack,
                can_push=can_push,
                low_rank_share=FlatGradients(self.replica).share_sent(Sent.LOW_RANK.compression),
            )
        exchanges = CollectiveExchanges(
            self.replica,
            group=group,
            timeline=self.timeline,
            refuse=self.timeline.refuse,
            snapshots=snapshots,
            gauge=monitor,
            seed=seed,
            watch=self._watch(group),
        )
        exchanges.make_equal()
        if not isinstance(policy, Adaptive | Switch):
            return exchanges.build(policy)
        stores = None
        if can_push:
            stores = StoreExchanges(
                self.replica,
                client=client,
                timeline=self.timeline,
                refuse=self.timeline.refuse,
                gauge=monitor,
                exchanges=exchanges,
            )
        steered = AdaptiveExchange(
            self.replica,
            group=group,
            exchanges=exchanges,
            stores=stores,
            first=policy.first,
            first_review=policy.first_review,
            monitor=monitor,
            limit=limit,
            rounds=self.world.rounds,
            timeline=self.timeline,
            channel=self.world,
            on_transition=on_transition,
        )
        self.world.stages = steered
        self.world.before_rest, self.world.on_halt = steered.flush, steered.halt
        return steered
