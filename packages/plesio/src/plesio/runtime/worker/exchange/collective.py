"""Builds the collective exchange of a policy, on a replica that is equal on all ranks."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from plesio.core.errors import ExchangeError
from plesio.policies import BSP, Policy, TorchHook
from plesio.policies.compression import NO_COMPRESSION, HalfPrecision
from plesio.policies.outer_rule import OuterRule
from plesio.runtime.parameters.optimizers import kind_of
from plesio.runtime.worker.compression import CompressedReducer
from plesio.runtime.worker.compression.comm_hooks import CommHook, ddp_comm_hook, torch_comm_hook
from plesio.runtime.worker.exchange.averaging import AveragingExchange, DeltaAveraging, ReducerMaker
from plesio.runtime.worker.exchange.ddp import DdpExchange
from plesio.runtime.worker.exchange.equality import Equality
from plesio.runtime.worker.exchange.exchange import CollectiveExchange, HeldSteps, Participant, SnapshotTaker
from plesio.runtime.worker.exchange.fsdp import FsdpExchange
from plesio.runtime.worker.exchange.gradient_mean import GradientMeanExchange
from plesio.runtime.worker.exchange.group import Group, LiveGroup, TorchGroup
from plesio.runtime.worker.exchange.hierarchical import HierarchicalExchange
from plesio.runtime.worker.exchange.island_client import layout_for
from plesio.runtime.worker.exchange.local_part import local_part, part_kept, part_placed
from plesio.runtime.worker.exchange.mean_moments import MeanMoments
from plesio.runtime.worker.exchange.outer_step import OuterStep, outer_optimizer
from plesio.runtime.worker.exchange.parts import givers_of
from plesio.runtime.worker.exchange.post_local import PostLocalExchange
from plesio.runtime.worker.exchange.rack_reducer import RackReducer
from plesio.runtime.worker.exchange.rack_store import RackStoreExchange
from plesio.runtime.worker.exchange.racks import BetweenRacks, Racks, RackWatch
from plesio.runtime.worker.exchange.replica import all_finite
from plesio.runtime.worker.exchange.sharded_mean import ShardedMeanExchange
from plesio.runtime.worker.exchange.sharding import Sharding
from plesio.runtime.worker.exchange.store import StoreExchange
from plesio.runtime.worker.exchange.store_client import StoreClient
from plesio.runtime.worker.exchange.synchronous import ReducingExchange, SynchronousExchange
from plesio.runtime.worker.island import Island, Rail, together
from plesio.runtime.worker.rack_batches import Rack

StageExchange = StoreExchange | RackStoreExchange
"""On the store: a worker's by itself, or as one of a rack."""


class CollectiveExchanges:
    """Builds one exchange after another for one worker.

    Args:
        group: The workers that are there; an exchange is built on the group that they are now.
        watch: Shown what exchanges by racks take; None where nothing was predicted.
        elastic: Whether workers go on when one of them is lost.
    """

    def __init__(
        self, own: Participant, *, group: LiveGroup, elastic: bool, seed: int = 0, watch: RackWatch | None = None
    ) -> None:
        self._own_at_first = own
        self._replica, self._timeline, self._gauge = own.replica, own.timeline, own.gauge
        self._live = group
        self._seed, self._watch, self._elastic = seed, watch, elastic
        self._outer: list[dict[torch.dtype, OuterStep]] = []
        """The outer steps of each fragment, by dtype."""
        self._outer_made_as: OuterRule | None = None
        self._served: tuple[OuterRule, Optimizer] | None = None
        """The outer optimizer of the servers, as it was when the last stage on the store ended."""
        self._sharding: Sharding | None = None
        self._cut_among: Sequence[int] | None = None
        """Workers among whom a replica was said to be cut that is whole, as in the virtual world."""
        self._samples = 0
        """Samples of all workers when the present group was formed."""
        self._racks: Racks | None = None
        """Known when it is first needed: all ranks take part in that."""

    @property
    def _group(self) -> Group:
        return self._live.current

    def regrouped(self, samples: int) -> None:
        """Forget the racks after the workers changed at so many samples; they are found anew when they are needed."""
        self._racks = None
        self._outer_made_as = None
        self._samples = samples
        if self._group.rank == 0:
            self._own_at_first.snapshots.take_over(samples)

    @torch.no_grad()
    def make_equal(self) -> None:
        """Give all ranks rank 0's parameters, frozen ones too, and buffers, and one loss scale."""
        for tensor in self._replica.tensors.all():
            self._group.broadcast(local_part(tensor))
        self.agree_on_scale()

    def told_by_first(self, number: float) -> float:
        """Return the number of rank 0, on all ranks."""
        told = torch.tensor([number], dtype=torch.float32, device=self._replica.device)  # mps has no float64
        self._group.broadcast(told)
        return told.item()

    def compare(self, held_steps: HeldSteps | None) -> None:
        """Find out a replica that is another one, where ``held_steps`` says that all are equal. All workers call it."""
        warn = self._timeline.meter.warn
        Equality(self._replica, group=self._live, held_steps=lambda: held_steps, warn=warn).compare()

    def agree_on_scale(self) -> None:
        """Scale the loss alike on all ranks from here on, where it is scaled."""
        if self._replica.scaling is not None:
            scaling, device = self._replica.scaling, self._replica.device
            together(self._replica.island, lambda: scaling.agree(self._group, device=device))

    def own(self) -> dict[str, Any]:
        if self._served is not None:
            rule, optimizer = self._served
            states = [
                {key: part_kept(value) for key, value in state.items()}
                for state in (optimizer.state.get(p, {}) for p in self._replica.parameters.values())
            ]
            return {"made_as": None, "served_as": asdict(rule), "served": states}
        if self._outer_made_as is None:
            return {"made_as": None}
        states = [{str(dtype): step.state() for dtype, step in one.items()} for one in self._outer]
        return {"made_as": asdict(self._outer_made_as), "outer": states}

    def take_own(self, own: dict[str, Any]) -> None:
        if "served_as" in own:
            optimizer = self._serve(OuterRule(**own["served_as"]))
            assert optimizer is not None, "made of a rule"
            for parameter, state in zip(self._replica.parameters.values(), own["served"], strict=True):
                optimizer.state[parameter] = {key: part_placed(kept, parameter) for key, kept in state.items()}
        if own["made_as"] is None:
            return
        self._make_outer(OuterRule(**own["made_as"]), num_fragments=len(own["outer"]))
        for one, states in zip(self._outer, own["outer"], strict=True):
            for dtype, step in one.items():
                step.go_on_from(states[str(dtype)], device=self._replica.device)

    def _serve(self, rule: OuterRule | None) -> Optimizer | None:
        """Return the servers' outer optimizer of this rule, the last one if it was made alike; none without a rule."""
        if rule is None:
            self._served = None
        elif self._served is None or self._served[0] != rule:
            self._served = rule, outer_optimizer(rule, self._replica.optimizer)
        return None if self._served is None else self._served[1]

    def _make_outer(self, rule: OuterRule, *, num_fragments: int) -> None:
        self._outer_made_as = rule
        dtypes = {parameter.dtype for parameter in self._replica.parameters.values()}
        self._outer = [{dtype: OuterStep(rule) for dtype in dtypes} for _ in range(num_fragments)]

    def passed(self, samples: int) -> None:
        """Take note of samples trained by way of another exchange, which has kept its own snapshots."""
        self._outer_made_as = None  # nor has it moved on by the steps that were made here
        self._own_at_first.snapshots.passed(samples)

    def share(self, policy: Policy, shares: Sequence[float]) -> float:
        """Return the weight of this rank's parameters in a mean under ``policy``, relative to an equal share.

        An empty ``shares`` is equal shares; a rack has those of its ranks together.
        """
        if not shares:
            return 1.0
        ranks = [self._group.rank] if policy.inner is None else self._rack_mates()
        return statistics.fmean(shares[rank] for rank in ranks) * self._group.size

    def _rack_mates(self) -> Sequence[int]:
        """Return the ranks of this rank's rack, which the first policy by racks has found."""
        assert self._racks is not None, "no policy by racks has been built"
        return next(ranks for ranks in self._racks.members if self._group.rank in ranks)

    def build(self, policy: Policy) -> CollectiveExchange:
        changes, warn = self._replica.changes, self._timeline.meter.warn
        refuses, elsewhere = self._gauge is None, policy.outer_step is not None  # else there will be another policy
        changes.lost_under(policy, warn=warn, refuses=refuses, elsewhere=elsewhere)
        self._serve(None)
        return self._build(policy)

    def _build(self, policy: Policy) -> CollectiveExchange:
        if policy.inner is not None:
            self._outer_made_as = None  # what it moved on is no longer what is trained
            return self._build_levels(policy, policy.inner)
        if policy.shards:
            return self._build_sharded(policy)
        if policy.hook is not None:
            return self._build_hooked(policy, policy.hook)
        if policy.update == "gradient":
            return self._build_in_step(policy)
        group = self._group
        deltas = self._deltas(policy, group, num_replicas=group.size, outer=self._outer_steps(policy))
        sums = group if self._replica.island is None else Rail(group, self._replica.island)
        return AveragingExchange(self._own, policy=policy, group=sums, deltas=deltas)

    @property
    def _own(self) -> Participant:
        return replace(self._own_at_first, group=self._group)

    def _deltas(
        self,
        policy: Policy,
        group: Group | BetweenRacks,
        *,
        num_replicas: int,
        outer: Sequence[Mapping[torch.dtype, OuterStep]] = (),
    ) -> DeltaAveraging | None:
        """Return how deltas are averaged under ``policy``; None where the parameters themselves are."""
        make_reducer = _reducers_of(group, policy, seed=self._seed, island=self._replica.island)
        moments = self._moments(policy, num_replicas=num_replicas)
        if make_reducer is None and not outer and moments is None:
            return None
        return DeltaAveraging(make_reducer=make_reducer, outer=outer, moments=moments)

    def _moments(self, policy: Policy, *, num_replicas: int) -> MeanMoments | None:
        if policy.moments == "own":
            return None
        if not self._replica.stepper.can_share_moments:
            raise ExchangeError(
                f"{policy.spec}: moments=mean is for Adam, AdamW, RMSprop and Adagrad with dense gradients and without "
                f"amsgrad, centered, lr_decay or maximize, not for this {kind_of(self._replica.optimizer)}; "
                "leave it out"
            )
        return MeanMoments(self._replica.optimizer, num_replicas=num_replicas, behind=policy.delay > 0)

    def _build_sharded(self, policy: Policy) -> SynchronousExchange:
        """Build the exchange of a policy that cuts the replica; the virtual world cuts nothing and sends everything."""
        sharding = self.cutter(policy, self._group)
        if sharding is None:
            if self._cut_among is not None:  # as if parts were lost with their workers
                givers_of(self._cut_among, self._live.workers, mirrored=policy.mirror > 0)
            self._cut_among = self._live.workers
            return ShardedMeanExchange(self._own, blocks=policy.blocks, mirror=policy.mirror)
        assert isinstance(self._group, TorchGroup), "only there replicas are cut"
        return FsdpExchange(
            self._own,
            sharding=sharding,
            group=self._group,
            workers=self._live.workers,
            mirror=policy.mirror,
            elastic=self._elastic,
            samples=self._samples,
        )

    def cutter(self, policy: Policy, group: Group) -> Sharding | None:
        """Return the cutter of the replica under ``policy``; None where it is whole, as in the virtual world."""
        if not (policy.shards and isinstance(group, TorchGroup)):
            return None
        if self._sharding is None:
            self._sharding = Sharding(self._replica, blocks=policy.blocks, mirrored=policy.mirror > 0)
        return self._sharding

    def _build_in_step(self, policy: Policy) -> SynchronousExchange:
        self._outer_made_as = None
        if policy.delay == 0 and isinstance(self._group, TorchGroup) and self._ddp_can(policy):
            return self._build_ddp(self._group, comm_hook=ddp_comm_hook(policy.compression))
        if policy.delay > 0 or policy.compression != NO_COMPRESSION:
            return GradientMeanExchange(self._own, policy=policy, seed=self._seed)
        return ReducingExchange(self._own)

    def _build_ddp(self, group: TorchGroup, *, comm_hook: CommHook | None) -> DdpExchange:
        return DdpExchange(self._own, group=group, comm_hook=comm_hook, elastic=self._elastic)

    def _build_hooked(self, policy: Policy, hook: TorchHook) -> SynchronousExchange:
        """Build DDP with one of torch's hooks; in the virtual world, without DDP, only for those that just cast."""
        if self._replica.sparse:
            raise ExchangeError(f"{policy.spec}: torch's hooks send no sparse gradients; use bsp, or sparse=False")
        if not isinstance(self._group, TorchGroup):
            if hook.form == "powersgd" or hook.form == "post_local_sgd":
                raise ExchangeError(
                    f"{policy.spec} is torch's own code, which runs on real processes alone: use --world process or "
                    "testbed, or Plesio's own: bsp,compress=powersgd:2 or switch:bsp/local_sgd:8@100"
                )
            return self._build_in_step(BSP(compression=HalfPrecision(form=hook.form)))
        if hook.form == "post_local_sgd":
            own = replace(self._own, gauge=None)
            return PostLocalExchange(own, group=self._group, policy=policy, hook=hook, elastic=self._elastic)
        self._outer_made_as = None
        return self._build_ddp(self._group, comm_hook=torch_comm_hook(hook, self._group.process_group))

    def _ddp_can(self, policy: Policy) -> bool:
        """Tell whether DDP can make this mean; of sparse gradients only on CPUs (by Gloo), without a casting hook."""
        if policy.compression == NO_COMPRESSION:
            return all(parameter.device.type == "cpu" for parameter in self._replica.sparse.values())
        return not self._replica.sparse and ddp_comm_hook(policy.compression) is not None

    def _outer_steps(self, policy: Policy) -> Sequence[Mapping[torch.dtype, OuterStep]]:
        """Return the outer steps, the previous ones if made alike: their momentum outlives a change of the period."""
        rule = policy.outer_step
        if rule is None:
            self._outer_made_as, self._outer = None, []
        elif rule != self._outer_made_as or len(self._outer) != policy.fragments:
            self._make_outer(rule, num_fragments=policy.fragments)
        return self._outer

    def racks(self) -> Racks:
        """Find the racks of all ranks once; all of them call it."""
        if self._racks is None:
            self._racks = Racks.among(self._group)
        return self._racks

    def _own_rack(self) -> Group:
        rack = self._group.split(self.racks().members)
        assert rack is not None, "every rank is in a rack"
        return rack

    def rack(self, *, together: bool) -> Rack:
        """Describe this rank's rack, in a stage whose racks share the store; all ranks call it."""
        members = self.racks().members
        return Rack(
            group=self._own_rack(),
            sizes=tuple(map(len, members)),
            evaluates=self._group.rank in members[0],
            together=together,
        )

    def build_store(self, policy: Policy, client: StoreClient) -> StageExchange:
        """Build the exchange of a policy on the store, in the middle of a run, for a replica that is equal on all."""
        tensors = self._replica.tensors.exchanged()
        if self._replica.island is not None:  # whose group has not made the rest equal
            tensors += self._replica.tensors.still()
        store = StoreExchange(
            self._replica,
            policy=policy,
            client=client,
            layout=layout_for(client, tensors),
            timeline=self._timeline,
            gauge=self._gauge,
            outer=self._serve(policy.outer_step),
            seed=self._seed,
        )
        return store if policy.inner is None else self.build_on_store(policy.inner, store)

    def build_on_store(self, inner: Policy, store: StoreExchange) -> RackStoreExchange:
        """Build the exchange of racks that share a store, with ``store`` for a rack's first rank; all call it."""
        rack = self._own_rack()
        in_step = self._inside(rack)._build_in_step(inner)
        return RackStoreExchange(in_step, store, rack=rack, replica=self._replica, timeline=self._timeline)

    def _inside(self, rack: Group) -> "CollectiveExchanges":
        mates = self._rack_mates()
        own = replace(self._own, snapshots=SnapshotTaker(None), ranks=mates)
        return CollectiveExchanges(own, group=LiveGroup(rack, mates), elastic=self._elastic)

    def _build_levels(self, policy: Policy, inner: Policy) -> CollectiveExchange:
        racks = self.racks()
        if len(racks.members) == 1:
            if self._group.rank == 0:
                self._timeline.meter.totals.fallbacks.append(
                    f"all workers are in one rack, so {policy.spec} is {inner.spec}"
                )
            return self.build(inner)
        between = BetweenRacks(self._group, racks, rails=policy.compression.cuts, watch=self._watch)
        deltas = self._deltas(policy, between, num_replicas=len(racks.members))
        outer = AveragingExchange(self._own, policy=policy, group=between, deltas=deltas)
        return HierarchicalExchange(self._inside(between.inside)._build(inner), outer, racks=racks.members)


def _reducers_of(
    group: Group | BetweenRacks, policy: Policy, *, seed: int, island: Island | None
) -> ReducerMaker | None:
    """Return the maker of reducers; None where everything is sent in full."""
    compression = policy.compression
    if compression == NO_COMPRESSION:
        return None
    if isinstance(group, BetweenRacks):
        return lambda shapes: RackReducer(group, compression, shapes=shapes, seed=seed)

    def spread(mean: torch.Tensor) -> torch.Tensor:
        """Refuse the mean on all ranks of the island, or on none: what each keeps back follows from it."""
        taken = island is None or island.all_agree(all_finite([mean]))
        return mean if taken else torch.full_like(mean, torch.nan)

    return lambda shapes: CompressedReducer(
        group, compression, shapes=shapes, seed=seed, spread=spread, together=partial(together, island)
    )
