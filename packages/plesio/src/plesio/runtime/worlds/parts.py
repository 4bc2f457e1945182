"""The parts with which a worker of a job trains under a policy: its exchange, its sharing of samples and metrics."""

from dataclasses import KW_ONLY, dataclass, replace

from plesio.policies import Policy, parse_policy
from plesio.policies.adaptive.rate_limit import RateLimit
from plesio.policies.adaptive.system.setting import Sent
from plesio.runtime.checkpoints.beginning import WorkerCheckpoints
from plesio.runtime.parameters.optimizer_spec import runs_on_servers
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.collective import CollectiveExchanges
from plesio.runtime.worker.exchange.elastic import ElasticExchange
from plesio.runtime.worker.exchange.equality import Equality
from plesio.runtime.worker.exchange.exchange import CollectiveExchange, Exchange, Gauge, Participant, SnapshotTaker
from plesio.runtime.worker.exchange.flat_gradients import FlatGradients
from plesio.runtime.worker.exchange.group import LiveGroup
from plesio.runtime.worker.exchange.host_racks import HostRacks
from plesio.runtime.worker.exchange.island_client import layout_for
from plesio.runtime.worker.exchange.island_parts import check_alike
from plesio.runtime.worker.exchange.racks import RackWatch
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.exchange.review_reporter import ReviewReporter, ServerSteering
from plesio.runtime.worker.exchange.staged import StagedExchange, StageParts
from plesio.runtime.worker.exchange.store import StoreExchange
from plesio.runtime.worker.handover import Handover
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.monitor import StepMonitor, WorkerTraits
from plesio.runtime.worker.quiescent_point import QuiescentPoint
from plesio.runtime.worker.recovery import Recovery, Regroupable
from plesio.runtime.worker.sharing import ByLeases, InRounds, Leasing, Sharing
from plesio.runtime.worker.step_times import StepClock
from plesio.runtime.worker.world import SessionParts
from plesio.runtime.worlds.distributed import DistributedWorld

SLOW_S = 1.0
"""Seconds to send all parameters once, from which on links count as slow."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Makes the parts of one worker, which joins its run meanwhile: all workers make theirs together.

    Args:
        snapshots: Kept on rank 0.
        found: A probe's result about hosts.
        total_samples: Samples of the whole training, where that is known.
    """

    replica: Replica
    _: KW_ONLY
    policy: Policy
    world: DistributedWorld
    timeline: WorkerTimeline
    place: WorkerPlace
    steps: StepClock
    snapshots: SnapshotTaker
    found: HostRacks | None
    total_samples: int | None
    handover: Handover
    checkpoints: WorkerCheckpoints | None = None

    def make(self) -> SessionParts:
        """Make the exchange of the policy, and the way in which samples and metrics are shared under it."""
        if self.policy.exchange == "collective":
            parts = self._on_collective()
        elif self.policy.inner is None:
            parts = self._on_store()
        else:
            parts = self._racks_on_store(self.policy.inner)
        if self.checkpoints is None or parts.past is not None:
            return parts
        return replace(parts, past=self.checkpoints.past())

    def _on_store(self) -> SessionParts:
        store = self._join_store()
        store.begin(self.steps.finished)
        return self._parts(store, ByLeases(leasing=self._leasing(), exchange=store))

    def _racks_on_store(self, inner: Policy) -> SessionParts:
        store = self._join_store()
        group = self._group()
        exchanges = self._exchanges(group, gauge=None, seed=0, watch=None)
        if len(exchanges.racks().members) == 1:
            store.close()
            exchanges.make_equal()
            if group.rank == 0:
                line = f"all workers are in one rack, so {self.policy.spec} is {inner.spec}"
                self.timeline.meter.totals.fallbacks.append(line)
            return replace(self._parts(exchanges.build(inner), self._in_rounds(group, in_rack=True)), bound=inner.bound)
        rack = exchanges.rack(together=self.policy.synchronous)
        exchange = exchanges.build_on_store(inner, store)
        exchange.begin(self.steps.finished)
        return self._parts(exchange, ByLeases(leasing=self._leasing(), exchange=exchange, rack=rack))

    def _join_store(self) -> StoreExchange:
        tensors = [*self.replica.tensors.exchanged(), *self.replica.tensors.still()]
        layout = layout_for(self.world.client, tensors)
        store = StoreExchange(
            self.replica,
            policy=self.policy,
            client=self.world.client,
            layout=layout,
            timeline=self.timeline,
            seed=self.world.info.seed,
        )
        if self.place.rank == 0:
            store.offer()
        self.steps.go_on_from(self.world.join(layout=layout.digest(), optimizer=self.replica.stepper.settings))
        return store

    def _on_collective(self) -> SessionParts:
        # first: nobody may wait in a collective for one who disagrees
        self.steps.go_on_from(
            self.world.join(layout=self.replica.tensors.digest(), optimizer=self.replica.stepper.settings)
        )
        group, policy = self._group(), self.policy
        meets = policy.pushes is None or self.replica.island is None  # islands on the store have no group
        if meets and self.replica.island is not None:
            check_alike(self.replica.tensors, group.current)
        can_push = bool(policy.pushes) and runs_on_servers(self.replica.optimizer)
        monitor = self._monitor(group, can_push=can_push)
        exchanges = self._exchanges(group, gauge=monitor, seed=self.world.info.seed, watch=self._watch(group))
        # else all have read the same parameters, or receive them
        is_slow = False
        if meets and self._point is None and not self.place.late:
            begun_s = self.timeline.now_s()
            exchanges.make_equal()
            if policy.first_if_slow != policy.first:
                is_slow = exchanges.told_by_first(self.timeline.now_s() - begun_s) >= SLOW_S
        if policy.adapts:
            return self._steered(group, exchanges, monitor, can_push=can_push, is_slow=is_slow)
        in_rounds = self._in_rounds(group)
        if not self.world.terms.elastic:
            built = exchanges.build(policy)
            return self._parts(built, in_rounds, equality=self._equality(group, built))
        elastic = ElasticExchange(policy, exchanges=exchanges, rounds=self.world.rounds, late=self.place.late)
        parts = self._parts(elastic, in_rounds, equality=self._equality(group, elastic))
        return self._regroupable(parts, group, elastic)

    @property
    def _point(self) -> QuiescentPoint | None:
        """The quiescent point that the run goes on from, if it is resumed."""
        return None if self.checkpoints is None else self.checkpoints.point

    def _steered(
        self,
        group: LiveGroup,
        exchanges: CollectiveExchanges,
        monitor: StepMonitor | None,
        *,
        can_push: bool,
        is_slow: bool,
    ) -> SessionParts:
        self.replica.changes.watch()
        client, policy, timeline = self.world.client, self.policy, self.timeline
        first, first_review = self._first(self._point, is_slow=is_slow)
        channel = ServerSteering(client, check=self.world.check_group)
        limit = RateLimit() if policy.guard else None
        steered = StagedExchange(
            self.replica,
            first,
            parts=StageParts(
                group=group,
                exchanges=exchanges,
                client=client if can_push else None,
                channel=channel,
                rounds=self.world.rounds,
                leasing=self._leasing(),
                steps=self.steps,
                timeline=timeline,
                cuts_off=self.world.cuts_off,
            ),
            reporter=ReviewReporter(
                self.replica,
                group=group,
                channel=channel,
                timeline=timeline,
                limit=limit,
                monitor=monitor,
                first_review=first_review,
                began_slow=is_slow,
            ),
            saver=None if self.checkpoints is None else self.checkpoints.saver,
            resumed=self._point,
            late=self.place.late,
        )
        deals = policy.pushes or self.checkpoints is not None
        sharing = steered.sharing if deals else self._in_rounds(group)
        parts = self._parts(steered, sharing, equality=self._equality(group, steered))
        return self._regroupable(parts, group, steered) if self.world.terms.elastic else parts

    def _parts(self, exchange: Exchange, sharing: Sharing, *, equality: Equality | None = None) -> SessionParts:
        return SessionParts(policy=self.policy, exchange=exchange, sharing=sharing, equality=equality)

    def _equality(self, group: LiveGroup, exchange: CollectiveExchange | Regroupable) -> Equality:
        return Equality(self.replica, group=group, held_steps=exchange.held_steps, warn=self.timeline.meter.warn)

    def _first(self, point: QuiescentPoint | None, *, is_slow: bool) -> tuple[Policy, tuple[int, int]]:
        """Return the static policy to begin under, and the clocks of the first review and of its answer."""
        if point is None:
            return self.policy.first_if_slow if is_slow else self.policy.first, self.policy.first_review
        if self.policy.remembers and point.own:
            return parse_policy(point.policy), (point.next_review, point.next_clock)
        director = self.policy.director(clock=point.clock)
        return director.first, director.next_review(point.clock)

    def _regroupable(self, parts: SessionParts, group: LiveGroup, exchange: Regroupable) -> SessionParts:
        """Wrap an exchange with what brings this worker from group to group: into the first one, if it joins."""
        recovery = Recovery(
            self.replica,
            group=group,
            world=self.world,
            steps=self.steps,
            exchange=exchange,
            timeline=self.timeline,
            handover=self.handover,
            late=self.place.late,
        )
        return replace(parts, recovery=recovery, past=recovery.join() if self.place.late else None)

    def _monitor(self, group: LiveGroup, *, can_push: bool) -> StepMonitor | None:
        if not self.policy.remembers:
            return None
        traits = WorkerTraits(
            self.place.rank,
            rack=group.current.rack,
            can_push=can_push,
            low_rank_share=FlatGradients(self.replica).share_sent(Sent.LOW_RANK.compression),
            scales_loss=self.replica.scaling is not None,
        )
        return StepMonitor(
            traits,
            guard=self.policy.guard,
            timeline=self.timeline,
            rounds=self.world.rounds,
            total_samples=self.total_samples,
        )

    def _watch(self, group: LiveGroup) -> RackWatch | None:
        if self.found is None or self.found.between is None:
            return None
        warn = self.timeline.meter.totals.fallbacks.append
        return RackWatch(self.found, group=group, workers_per_host=self.place.local_workers, warn=warn)

    def _exchanges(
        self, group: LiveGroup, *, gauge: Gauge | None, seed: int, watch: RackWatch | None
    ) -> CollectiveExchanges:
        own = Participant(
            replica=self.replica, group=group.current, timeline=self.timeline, snapshots=self.snapshots, gauge=gauge
        )
        return CollectiveExchanges(own, group=group, elastic=self.world.terms.elastic, seed=seed, watch=watch)

    def _group(self) -> LiveGroup:
        workers = [self.place.rank] if self.place.late else range(self.place.num_workers)
        return LiveGroup(self.world.group(self.replica.device.type), workers)

    def _in_rounds(self, group: LiveGroup, *, in_rack: bool = False) -> InRounds:
        island = self.replica.island
        return InRounds(rounds=self.world.rounds, group=group, in_rack=in_rack, island=island)

    def _leasing(self) -> Leasing:
        return Leasing(client=self.world.client, steps=self.steps)
