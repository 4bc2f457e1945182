"""``[workers]`` of a recipe: how many, how fast, where, and what befalls them."""

import math
import statistics
from collections.abc import Iterator
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, InstanceOf, ValidationInfo, field_validator, model_validator

from plesio.bench.recipe_section import Rank, RecipeSection, Seconds, as_finding, recipe_folder
from plesio.bench.recipe_step_time import SlowdownsSection, StallsSection, StepTimeSection
from plesio.core.clock import Clock
from plesio.core.errors import ConfigError
from plesio.core.units import format_seconds
from plesio.cost.cluster import Cluster, parse_cluster
from plesio.cost.faults import Failures, Fault, faults_in_order
from plesio.cost.step_time import RackSlowdowns
from plesio.policies.grid import GridSetting
from plesio.runtime.worker.pacing import Pacer

_NUM_DRAWN = 99
"""Steps whose median is the time that a worker needs to be of use."""


class UnequalWorker(RecipeSection):
    """``[[workers.unequal]]``: a worker that is not like the others.

    Attributes:
        rank: Which worker.
        speed: Relative to the others: 0.5 takes twice as long for a step.
        step_time: Its own distribution; None is that of ``[workers]``.
    """

    rank: Rank
    speed: float = Field(default=1.0, gt=0)
    step_time: StepTimeSection | None = None


class FaultSection(RecipeSection):
    """``[[workers.faults]]``: a worker that is lost or cut off, or one that joins.

    Attributes:
        at: When, from the beginning of the run.
        at_step: Or when the workers have done so many steps together; on a testbed.
        kind: Which of the three. Cut off is a worker's host, on a testbed: nothing comes or goes over its interface.
        worker: The rank that is lost or cut off; a worker that joins is given the next free one.
        lasting: How long it is cut off; until the end if left out.
    """

    at: Seconds | None = None
    at_step: int | None = Field(default=None, ge=0)
    kind: Literal["lose", "join", "cut"]
    worker: Rank | None = None
    lasting: Seconds | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.at is None) == (self.at_step is None):
            given = "neither is" if self.at is None else "both are"
            raise ValueError(f'a fault has a time or a step; {given} given: write at = "2 s", or at_step = 100')
        if self.lasting is not None and self.kind != "cut":
            raise ValueError('lasting is how long a worker is cut off: kind = "cut"')
        if self.kind == "cut" and self.worker is None:
            raise ValueError("a fault that cuts a worker off needs its rank: worker = 2")
        if self.kind != "cut":
            with as_finding():
                self.fault()
        return self

    @property
    def order_s(self) -> float:
        """`at`; those at a step come last."""
        return math.inf if self.at is None else self.at

    @property
    def for_testbed_alone(self) -> bool:
        """True if the virtual world cannot do it."""
        return self.kind == "cut" or self.at is None

    def fault(self) -> Fault:
        """Return the fault in the virtual world; one at a step is at the run's beginning here."""
        assert self.kind != "cut", "for the testbed"
        return Fault(at_s=self.at or 0.0, kind=self.kind, worker=-1 if self.worker is None else self.worker)


class FailuresSection(RecipeSection):
    """``[workers.failures]``: workers are lost by chance, each for itself.

    Attributes:
        mtbf: Mean time until a worker fails.
        shape: Shape of the Weibull distribution of that time; 1 is the exponential distribution.
        rejoin_after: When a new worker joins in place of one that failed; None for never.
    """

    mtbf: Seconds
    shape: float = 1.0
    rejoin_after: Seconds | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        with as_finding():
            self.failures()
        return self

    def failures(self) -> Failures:
        return Failures(mtbf_s=self.mtbf, shape=self.shape, rejoin_after_s=self.rejoin_after)


def _cluster(value: object, info: ValidationInfo) -> object:
    if isinstance(value, Cluster) or info.mode == "json":
        return value
    if not isinstance(value, str):
        raise ValueError('write the name of a cluster or of its file in quotes, as in "16x1gbe"')
    with as_finding():
        return parse_cluster(str(recipe_folder(info) / value) if value.endswith(".toml") else value)


class WorkersSection(RecipeSection):
    """``[workers]``: how many, how fast, where, and what befalls them.

    Attributes:
        count: Workers at the start.
        uplink_oversubscription: Bandwidth of a rack's interfaces over its uplink's, instead of the cluster's.
        cluster: Hosts and links of the virtual world or the testbed; without it, one host with enough cores.
        step_time: Duration of a step of a worker of speed 1; without it, as long as the machine needs.
        stalls: Steps that take longer now and then, on all workers.
        slowdowns: Stretches of time in which a whole rack is slow.
        unequal: Workers that differ.
        faults: Workers that are lost, cut off, or join, and when; the virtual world cuts none off, the testbed has none
            join.
        failures: Workers that are lost by chance; in the virtual world only.
    """

    count: int = Field(ge=1)
    uplink_oversubscription: float | None = Field(default=None, gt=0)
    cluster: Annotated[InstanceOf[Cluster], BeforeValidator(_cluster)] | None = None
    step_time: StepTimeSection | None = None
    stalls: StallsSection | None = None
    slowdowns: SlowdownsSection | None = None
    unequal: tuple[UnequalWorker, ...] = Field(default=(), strict=False)
    faults: tuple[FaultSection, ...] = Field(default=(), strict=False)
    failures: FailuresSection | None = None

    @field_validator("cluster", mode="after")
    @classmethod
    def _with_room(cls, cluster: Cluster | None, info: ValidationInfo) -> Cluster | None:
        if cluster is None or "count" not in info.data:
            return cluster
        with as_finding():
            ratio = info.data.get("uplink_oversubscription")
            cluster = cluster if ratio is None else cluster.with_oversubscription(ratio)
            return cluster.for_workers(info.data["count"])

    @model_validator(mode="after")
    def _uplinks_are_there(self) -> Self:
        if self.uplink_oversubscription is not None and self.cluster is None:
            raise ValueError('uplink_oversubscription is of a cluster with racks; write cluster = "2-racks"')
        return self

    @model_validator(mode="after")
    def _steps_have_times(self) -> Self:
        if self.step_time is not None:
            return self
        for key in ("stalls", "slowdowns"):
            if getattr(self, key) is not None:
                raise ValueError(f'{key} lengthen step times, and there are none; write "step_time" under [workers]')
        rejoin = self.failures is not None and self.failures.rejoin_after is not None
        if rejoin or self._hosts_come or any(fault.kind == "join" for fault in self.faults):
            raise ValueError('a worker that joins has the common step time; write "step_time" under [workers]')
        for worker in self.unequal:
            if worker.step_time is None:
                raise ValueError(f'rank {worker.rank} has a speed but no step time; write "step_time" under [workers]')
        return self

    @model_validator(mode="after")
    def _workers_stay_for_a_step(self) -> Self:
        """Refuse workers that go before they have done a step and come again: such a run would never end."""
        if self.step_time is None:
            return self
        steps, generator = self.step_time.distribution(), np.random.default_rng(0)
        step_s = statistics.median(steps.sample_s(generator) for _ in range(_NUM_DRAWN))
        coming = [] if self.failures is None else [("failures", "mtbf", self.failures.failures())]
        for one in () if self.cluster is None else self.cluster.churn:
            coming.append((f"[{one.kind}]", "stay" if one.kind == "scavenged" else "mtbf", one.failures))
        for where, key, stays in coming:
            if stays.rejoin_after_s is not None and stays.mtbf_s < step_s:
                raise ValueError(
                    f"{where}: workers are there for {stays.mtbf_s:g} s and come again, and a step takes "
                    f"{step_s:.3g} s, so the run might never end; write {step_s:.3g} s or more as {key}"
                )
        return self

    @model_validator(mode="after")
    def _workers_exist(self) -> Self:
        seen: set[int] = set()
        for worker in self.unequal:
            self._check_rank(worker.rank)
            if worker.rank in seen:
                raise ValueError(f"rank {worker.rank} has two [[workers.unequal]] tables; write one")
            seen.add(worker.rank)
        for rack in () if self.slowdowns is None else self.slowdowns.racks or ():
            for rank in rack:
                self._check_rank(rank)
        return self

    def _check_rank(self, rank: int) -> None:
        if rank >= self.count:
            raise ValueError(f"there is no rank {rank} among {self.count} workers (0 is the first)")

    @model_validator(mode="after")
    def _lost_workers_are_there(self) -> Self:
        there, lost = self.count, set[int]()
        for fault in sorted(self.faults, key=lambda fault: fault.order_s):
            if fault.worker is None:
                there += 1
            elif fault.worker >= there:
                when = f"{fault.at:g} s" if fault.at is not None else f"step {fault.at_step}"
                raise ValueError(
                    f"there is no worker {fault.worker} to lose at {when}: {there} have begun (0 is the first)"
                )
            elif fault.kind == "cut":
                pass  # it may be cut off again
            elif fault.worker in lost:
                raise ValueError(f"worker {fault.worker} is lost twice; one that joins has the next free rank")
            else:
                lost.add(fault.worker)
        return self

    @property
    def any_faults(self) -> bool:
        """True if workers are lost or join; only the virtual world can do that to them."""
        return bool(self.faults) or self.fails_by_chance

    @property
    def fails_by_chance(self) -> bool:
        """True if workers are lost by chance, or hosts of the cluster come and go."""
        return self.failures is not None or (self.cluster is not None and bool(self.cluster.churn))

    @property
    def _hosts_come(self) -> bool:
        """True if workers join because hosts of the cluster come."""
        churn = () if self.cluster is None else self.cluster.churn
        return any(one.failures.rejoin_after_s is not None for one in churn)

    def faults_in_order(self, *, seed: int) -> Iterator[Fault]:
        """Yield the faults of the virtual run of ``seed``, in the order of time; perhaps without end.

        Raises:
            ConfigError: Something that only a testbed can do.
        """
        if any(fault.for_testbed_alone for fault in self.faults):
            raise ConfigError("workers that are cut off, and faults at a step, are for a testbed: --world testbed")
        return faults_in_order(
            self.count,
            given=(fault.fault() for fault in self.faults),
            failures=None if self.failures is None else self.failures.failures(),
            hosts=() if self.cluster is None else self.cluster.inconstant_hosts(self.count),
            seed=seed,
        )

    def missed(self, *, end_s: float) -> tuple[str, ...]:
        """Write a line on each planned fault of a virtual run that ended before it."""
        return tuple(
            f"{'a worker was to join' if fault.worker is None else f'worker {fault.worker} was to be lost'} at "
            f"{format_seconds(fault.at)}, and the run was over before ({format_seconds(end_s)})"
            for fault in self.faults
            if fault.at is not None and fault.at > end_s
        )

    def check_joins_of(self, grid: GridSetting) -> None:
        """Check that whole groups join a grid, and not single workers.

        Raises:
            ConfigError: Joining workers make no whole groups, or the grid takes none.
        """
        num_joins = sum(fault.kind == "join" for fault in self.faults)
        if num_joins % grid.stages:
            raise ConfigError(
                f"a group of {grid.spec} has {grid.stages} workers, and {num_joins} join; "
                "write a join for each worker of a group"
            )
        if num_joins:
            grid.regrouped(range(grid.groups), num_joined=1)
        if grid.stages > 1 and self._hosts_come:
            raise ConfigError(
                f"single workers cannot join {grid.spec}, only a group of {grid.stages}, and hosts of the cluster come "
                "back; leave repair and [scavenged] out"
            )
        if grid.stages > 1 and self.failures is not None and self.failures.rejoin_after is not None:
            raise ConfigError(
                f"one worker cannot join {grid.spec}, only a group of {grid.stages}; leave rejoin_after out"
            )

    def step_time_of(self, worker: int) -> "StepTimeSection | None":
        own = self._own(worker)
        return own.step_time if own is not None and own.step_time is not None else self.step_time

    def _own(self, worker: int) -> "UnequalWorker | None":
        return next((unequal for unequal in self.unequal if unequal.rank == worker), None)

    def pacer(self, worker: int, *, seed: int, clock: Clock, began_s: float | None = None) -> Pacer | None:
        """Return the pacer of a worker's steps in the run of ``seed``; None lets it go as fast as the machine does.

        Args:
            worker: Its rank. One that joined has the common step time and speed 1, in the rack of the worker whose
                host it is on.
            seed: Seed of the run.
            clock: The worker's.
            began_s: When the run began, on that clock; None is when the worker's first step begins.
        """
        step_time = self.step_time_of(worker)
        if step_time is None:
            return None
        own = self._own(worker)
        steps = step_time.distribution()
        return Pacer(
            step_time=steps if self.stalls is None else self.stalls.on(steps),
            speed=1.0 if own is None else own.speed,
            slowdowns=self._slowdowns_of(worker, seed=seed),
            seed=seed,
            worker=worker,
            clock=clock,
            began_s=began_s,
        )

    def _slowdowns_of(self, worker: int, *, seed: int) -> RackSlowdowns | None:
        if self.slowdowns is None:
            return None
        place = worker % self.count  # who joins late is put where the ranks begin again
        racks = self.slowdowns.racks
        if racks is None:
            rack = 0 if self.cluster is None else self.cluster.rack_of(place)
        else:
            rack = next((number for number, ranks in enumerate(racks) if place in ranks), -1)
        return None if rack < 0 else self.slowdowns.slowdowns().of_rack(rack, seed=seed)
