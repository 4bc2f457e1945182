"""Builds the collective exchange of a policy, on a replica that is equal on all ranks."""

from collections.abc import Mapping
from typing import Protocol

import torch

from plesio.policies import BSP, Delayed, Hierarchical, LocalSGD, Policy
from plesio.policies.compression import NO_COMPRESSION
from plesio.runtime.compression.comm_hooks import ddp_comm_hook
from plesio.runtime.exchange.averaging import AveragingExchange
from plesio.runtime.exchange.ddp import DdpExchange
from plesio.runtime.exchange.exchange import Exchange, Gauge, Refusal, SnapshotTaker
from plesio.runtime.exchange.gradient_mean import GradientMeanExchange
from plesio.runtime.exchange.group import Group, TorchGroup
from plesio.runtime.exchange.hierarchical import HierarchicalExchange
from plesio.runtime.exchange.outer_step import OuterStep
from plesio.runtime.exchange.racks import BetweenRacks, Racks
from plesio.runtime.exchange.replica import Replica
from plesio.runtime.exchange.synchronous import ReducingExchange
from plesio.runtime.timeline import Timeline

__all__ = ["CollectiveExchange", "CollectiveExchanges"]


class CollectiveExchange(Exchange, Protocol):
    """An exchange that another one can follow in the middle of a run.

    Attributes:
        share: What this rank's parameters count in a mean of parameters, relative to an equal share; set between steps,
            on all ranks after the same one.
    """

    share: float

    def settle(self) -> None:
        """Make all replicas equal, and equal to their mean. All workers call it after the same step."""
        ...


class CollectiveExchanges:
    """Builds one exchange after another for one worker.

    Args:
        replica: What it trains.
        group: The ranks.
        timeline: Where blocked spans go.
        refuse: Called when a gradient of this worker is not finite.
        snapshots: Kept on rank 0.
        gauge: Shown this rank's own gradients; None for a policy that never adapts.
        seed: Of the run; equal on all ranks.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        group: Group,
        timeline: Timeline,
        refuse: Refusal,
        snapshots: SnapshotTaker,
        gauge: Gauge | None = None,
        seed: int = 0,
    ) -> None:
        self._replica = replica
        self._group = group
        self._timeline = timeline
        self._refuse = refuse
        self._snapshots = snapshots
        self._gauge = gauge
        self._seed = seed
        self._outer: dict[torch.dtype, OuterStep] = {}
        self._outer_made_as: tuple[float, float] | None = None

    @torch.no_grad()
    def make_equal(self) -> None:
        """Give all ranks rank 0's parameters and buffers."""
        for tensor in (*self._replica.parameters.values(), *self._replica.model.buffers()):
            self._group.broadcast(tensor)

    def passed(self, samples: int) -> None:
        """So many samples have been trained on by way of another exchange, which has kept its own snapshots."""
        self._outer_made_as = None  # nor has it moved on by the steps that were made here
        self._snapshots.passed(samples)

    def build(self, policy: Policy) -> CollectiveExchange:
        """The exchange of ``policy``."""
        if not isinstance(policy, LocalSGD):
            self._outer_made_as = None  # what it moved on is no longer what is trained
        match policy:
            case Hierarchical():
                return self._build_levels(policy)
            case LocalSGD():
                return AveragingExchange(
                    self._replica,
                    policy=policy,
                    group=self._group,
                    timeline=self._timeline,
                    refuse=self._refuse,
                    snapshots=self._snapshots,
                    gauge=self._gauge,
                    compression=policy.compression,
                    inner_rate=policy.inner_rate,
                    outer=self._outer_steps(policy),
                    seed=self._seed,
                )
            case BSP() if isinstance(self._group, TorchGroup) and (
                policy.compression == NO_COMPRESSION or ddp_comm_hook(policy.compression) is not None
            ):
                return DdpExchange(
                    self._replica,
                    group=self._group,
                    timeline=self._timeline,
                    refuse=self._refuse,
                    snapshots=self._snapshots,
                    gauge=self._gauge,
                    comm_hook=ddp_comm_hook(policy.compression),
                )
            case Delayed() | BSP() if policy.delay > 0 or policy.compression != NO_COMPRESSION:
                return GradientMeanExchange(
                    self._replica,
                    policy=policy,
                    group=self._group,
                    timeline=self._timeline,
                    refuse=self._refuse,
                    snapshots=self._snapshots,
                    gauge=self._gauge,
                    seed=self._seed,
                )
            case Delayed():
                return self.build(BSP())
        return ReducingExchange(
            self._replica,
            group=self._group,
            timeline=self._timeline,
            refuse=self._refuse,
            snapshots=self._snapshots,
            gauge=self._gauge,
        )

    def _outer_steps(self, policy: LocalSGD) -> Mapping[torch.dtype, OuterStep] | None:
        """Those of the exchange before, if it made them alike: their momentum outlives a change of the period."""
        made_as = policy.inner_rate, policy.momentum
        if self._outer_made_as != made_as:
            dtypes = {parameter.dtype for parameter in self._replica.parameters.values()}
            self._outer_made_as = made_as
            self._outer = {dtype: OuterStep(inner_rate=made_as[0], momentum=made_as[1]) for dtype in dtypes}
        return self._outer if policy.has_outer_step else None

    def _build_levels(self, policy: Hierarchical) -> CollectiveExchange:
        racks = Racks.among(self._group)
        if len(racks.members) == 1:
            if self._group.rank == 0:
                self._timeline.meter.totals.fallbacks.append(
                    f"all workers are in one rack, so {policy.spec} is {policy.inner.spec}"
                )
            return self.build(policy.inner)
        between = BetweenRacks(self._group, racks)
        inner = CollectiveExchanges(
            self._replica,
            group=between.inside,
            timeline=self._timeline,
            refuse=self._refuse,
            snapshots=SnapshotTaker(None),
        )
        outer = AveragingExchange(
            self._replica,
            policy=policy,
            group=between,
            timeline=self._timeline,
            refuse=self._refuse,
            snapshots=self._snapshots,
        )
        return HierarchicalExchange(inner.build(policy.inner), outer)
