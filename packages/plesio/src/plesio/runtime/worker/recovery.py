"""How a worker goes from one group to the next: it stops, forms a new group with the others, and takes part.

    cut off, or halted --PositionReport--> stopped --Regroup--> forming --state and samples agreed on--> going on
                                              ^                    |
                                              +-- cut off again ---+

Samples that a step had not brought into any replica are dealt out again, each sample once:

1. The *sources* are the workers whose replicas hold most (`plesio.protocol.positions`). If they hold the same, the
   others copy it; if each has trained by itself since the last averaging, all take the mean of what they have become.
2. The leader, one of them, reports the rest of the plan: rounds that no worker began, and those parts of rounds that
   are in no source's replica, such as what a lost worker had trained on since the last averaging.
   A replica in parts is put together by all, and each takes a new part (`plesio.runtime.worker.exchange.sharding`).
3. Only then does anything change, on each worker at once; one that is cut off before is as it was.

One that *joins* stops without a position and takes all from the leader (`plesio.runtime.worker.handover`). The others
have settled what was under way by then, and go on as they were: nothing is forgotten, no step is done twice.
"""

import json
import logging
import threading
from typing import Any, Literal, Protocol

from msgspec import UNSET

from plesio.core.errors import ConfigError
from plesio.core.records import from_values, to_values
from plesio.protocol.plans import Remainder
from plesio.protocol.positions import Position, common_clock, common_plan, leader_of, sources_of
from plesio.protocol.to_server import Regrouped
from plesio.protocol.to_worker import Regroup, Stop
from plesio.runtime.worker.exchange.elastic import ElasticExchange
from plesio.runtime.worker.exchange.group import Group, LiveGroup, TorchGroup, broadcast_bytes, broadcast_text
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.exchange.sharding import Sharding
from plesio.runtime.worker.exchange.staged import StagedExchange
from plesio.runtime.worker.exchange.state_copy import (
    Apply,
    average_state,
    copied_optimizer,
    copied_replica,
    mean_replica,
)
from plesio.runtime.worker.handover import Handover, packed, unpacked
from plesio.runtime.worker.island import together
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.rounds import RoundRecords, Unfinished
from plesio.runtime.worker.step_times import StepClock


class StopPoint:
    """The step at which a worker stops so that others can join: agreed on while all work, so no step is done twice.

        Hold --> reports the step it has begun, begins none beyond it --Stop--> goes on to the named step, waits there

    The heartbeat's thread answers the first half at once, whatever the training thread does; that one begins no other
    step before all agree on the last. All come to the same steps in a collective, so the furthest step that any worker
    has begun is one that all can finish.

    Args:
        clock: Steps that are finished when the run begins: the next one is begun.
    """

    def __init__(self, *, clock: int) -> None:
        self._lock = threading.Lock()
        self._begun = clock + 1
        self._asked = 0
        """The generation of the last `Hold`."""
        self._stop = Stop(generation=0, clock=0)

    def hold(self, generation: int) -> int:
        """Begin no further step for now; returns the last one that has been begun."""
        with self._lock:
            self._asked = generation
            return self._begun

    def stop(self, stop: Stop) -> None:
        self._stop = stop

    def begin(self, step: int, *, generation: int) -> Literal["begins", "stops", "holds"]:
        """Begin this step, if this worker neither holds nor stops before it."""
        with self._lock:
            if self._asked > generation:
                if self._stop.generation != self._asked:
                    return "holds"
                if step > self._stop.clock:
                    return "stops"
            self._begun = step
            return "begins"


_log = logging.getLogger(__name__)


Regroupable = ElasticExchange | StagedExchange
"""An exchange that is built anew in a new group."""


class Groups(Protocol):
    """The worker's world, where groups are formed."""

    @property
    def rounds(self) -> RoundRecords: ...

    @property
    def cut_off(self) -> bool: ...

    def cuts_off(self, error: BaseException) -> bool: ...

    def stops_after(self, clock: int) -> bool:
        """Tell whether all have agreed to stop after this step, for joining workers; if not, the next one is begun."""
        ...

    def await_regroup(self, position: Position | None, *, agreed: bool) -> Regroup:
        """Report this worker's position, and whether it has stopped where all agreed to; wait until all have."""
        ...

    def form(self, regroup: Regroup, *, device_type: str) -> Group: ...

    def regrouped(self, regrouped: Regrouped) -> None: ...


class Recovery:
    """Brings one worker from one group to the next.

    Args:
        steps: The clock; moved where the others are further.
        late: Whether this worker joins a run that is under way.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        group: LiveGroup,
        world: Groups,
        steps: StepClock,
        exchange: Regroupable,
        timeline: WorkerTimeline,
        handover: Handover,
        late: bool = False,
    ) -> None:
        self._handover = handover
        self._late = late
        """It has been in no group yet."""
        self._replica, self._group, self._world = replica, group, world
        self._rounds = world.rounds
        self._steps, self._exchange, self._timeline = steps, exchange, timeline

    @property
    def due(self) -> bool:
        """True if this worker is to go on in a new group; an island's ranks find that out together, in a collective."""
        return self._replica.island is None and self._world.cut_off

    def cuts_off(self, error: BaseException) -> bool:
        return self._world.cuts_off(error)

    def trained(self, clock: int) -> None:
        held = self._exchange.held_steps()
        self._rounds.mark(clock, settled=0 if held is None else held.settled)

    def counts(self, clock: int) -> bool:
        held = self._exchange.held_steps()
        return held is not None and held.counted >= clock

    def join(self) -> WorkerPast:
        """Take part in the run that is under way: returns what the training loop has behind it."""
        regroup = self._regroup(plan=0, samples=0, agreed=False)
        return self._handover.past(regroup, samples=self._rounds.global_samples)

    def let_others_join(self, *, plan: int, samples: int) -> None:
        """Take in workers that wait to join, between two steps, if all have agreed to stop here; see `recover`."""
        try:
            agreed = self._stops()
        except RuntimeError as error:
            if not self.cuts_off(error):
                raise
            self.recover(plan=plan, samples=samples)
            return
        if agreed:
            self._regroup(plan=plan, samples=samples, agreed=True)

    def _stops(self) -> bool:
        """Tell whether all stop here for others; then the exchanges under way have been finished."""
        if not self._exchange.meets or not self._world.stops_after(self._steps.finished):
            return False
        self.settle()
        return True

    def settle(self) -> None:
        """Finish the exchanges under way, after which a loss takes no steps away. All call it after the same step."""
        self._exchange.settle()

    def recover(self, *, plan: int, samples: int) -> None:
        """Return when this worker has gone on in a new group; `StepClock` says from where.

        It raises PlesioError if there can be no other group, or this worker was counted lost. ``plan`` is the loop over
        the data that it is in, or else the next one; ``samples`` are its own that count.
        """
        self._regroup(plan=plan, samples=samples, agreed=False)
        self._replica.changes.begin()

    def _regroup(self, *, plan: int, samples: int, agreed: bool) -> Regroup:
        begun_s = self._timeline.now_s()
        while True:
            with self._timeline.meter.within(UNSET):
                regroup = self._world.await_regroup(self._position(plan=plan, samples=samples), agreed=agreed)
            agreed = False
            try:
                with self._timeline.meter.within(UNSET):
                    self._follow(regroup, since_s=begun_s)
                if not (agreed := self._stops()):
                    break
            except RuntimeError as error:
                if not self.cuts_off(error):
                    raise
                _log.info("cut off again: %s", str(error).splitlines()[0] if str(error) else "another one is lost")
        self._waited(begun_s)
        now_s, clock = self._timeline.now_s(), self._steps.finished
        self._timeline.meter.totals.clock = clock
        self._timeline.event("regroup", at_s=now_s, clock=clock, workers=list(regroup.members))
        _log.info("goes on with workers %s", ", ".join(map(str, regroup.members)))
        return regroup

    def _waited(self, since_s: float) -> None:
        """Count all time since then as waiting, except what the records have already."""
        since_s, now_s = max(since_s, self._timeline.ended_s), self._timeline.now_s()
        if since_s < now_s:
            self._timeline.wait(since_s, now_s, clock=self._steps.finished)

    @property
    def meets(self) -> bool:
        return self._exchange.meets

    def own_steps(self) -> int:
        """Count the steps in which this worker's replica is ahead of what all have merged."""
        settled, counted = self._held()
        return counted - settled

    def _held(self) -> tuple[int, int]:
        """Return the clocks up to which the replica holds the steps of all workers, and those of this one."""
        held, clock = self._exchange.held_steps(), self._steps.finished
        return (clock, clock) if held is None else (held.settled, held.counted)

    def _position(self, *, plan: int, samples: int) -> Position | None:
        if self._late:
            return None
        settled, counted = self._held()
        rounds = self._rounds
        return Position(
            base=rounds.generation,
            settled=rounds.at(settled).rounds,
            trained=rounds.at(counted).rounds,
            clock=max(self._steps.finished, counted),
            plan=plan,
            samples=samples,
            scheduled=self._handover.schedules.clock.reached,
        )

    def _follow(self, regroup: Regroup, *, since_s: float) -> None:
        positions = regroup.positions
        group = self._world.form(regroup, device_type=self._replica.device.type)
        agreement, memory, applies = together(self._replica.island, lambda: self._agree(regroup, group))
        clock, plan = common_clock(positions), common_plan(positions)
        left = Unfinished(
            remainder=None if agreement["remainder"] is None else from_values(agreement["remainder"], Remainder),
            samples=agreement["samples"],
            dropped=agreement["dropped"],
        )
        for apply in applies:
            apply()
        self._replica.optimizer.zero_grad(set_to_none=True)
        self._group.become(group, regroup.members)
        self._steps.go_on_from(clock)
        self._rounds.regroup(group.rank, group.size, generation=regroup.generation, clock=clock, plan=plan, left=left)
        self._late = False
        if group.rank == 0:
            own = sum(one.samples for one in positions if one is not None)
            self._world.regrouped(Regrouped(samples=left.samples, own=own, dropped=left.dropped))
        self._waited(since_s)  # before the exchange begins anew to tell steps' times
        self._exchange.regrouped(regroup.steer, memory=memory)
        self._handover.schedules.meet(max(one.scheduled for one in positions if one is not None))

    def _agree(self, regroup: Regroup, group: Group) -> tuple[dict[str, Any], dict[str, Any] | None, list[Apply]]:
        """Return what the leader says, what it hands over if a worker joins, and what is to be done by it."""
        positions, place = regroup.positions, leader_of(regroup.positions)
        text = self._agreement(regroup) if group.rank == place else ""
        agreement = json.loads(broadcast_text(text, group=group, source=place))
        memory = None
        if None in positions:
            memory = self._hand_over(group, leader=place)["exchange"]
            if agreement["how"].startswith("mean"):
                memory["own"] = None  # it was of one worker's steps
        if (sharding := self._exchange.cutter(group)) is not None:
            return agreement, memory, [self._stage_parts(sharding, group, regroup)]
        weight = self._weight(regroup, group.rank)
        return agreement, memory, self._stage(group, how=agreement["how"], leader=place, weight=weight)

    def _hand_over(self, group: Group, *, leader: int) -> dict[str, Any]:
        """Bring to joining workers all that they need of the leader; they take it at once."""
        applies: list[Apply] = []
        if self._exchange.cutter(group) is None:  # else all take parts
            applies = [
                copied_replica(self._replica, group, source=leader, frozen=True),
                copied_optimizer(self._replica, group, source=leader),
            ]
        data = b""
        if group.rank == leader:
            self._handover.warn(self._timeline.meter.warn)
            try:
                data = packed({**self._handover.state(), "exchange": self._exchange.memory()})
            except ConfigError as error:
                data = packed({"problem": str(error), "exchange": None})
        received = unpacked(broadcast_bytes(data, group=group, source=leader))
        if self._late and "problem" in received:
            raise ConfigError(f"this worker cannot join the run: {received['problem']}")
        if self._late:
            for apply in applies:
                apply()
            self._handover.take(received)
        return received

    def _done(self, regroup: Regroup) -> list[int]:
        """Count, for each rank of the former group, the rounds that a source's replica holds, as a source sees it."""
        units = self._exchange.units()
        done = [0] * len(units)
        for place in sources_of(regroup.positions):
            worker, position = regroup.members[place], regroup.positions[place]
            if position is None or worker not in self._group.workers:
                continue
            unit = units[self._group.workers.index(worker)]
            done = [max(before, position.trained) if units[r] == unit else before for r, before in enumerate(done)]
        return done

    def _weight(self, regroup: Regroup, place: int) -> float:
        """Return the weight of this worker's parameters in a mean: one of each unit counts for all that there were."""
        sources = sources_of(regroup.positions)
        if place not in sources:
            return 0.0
        units = self._exchange.units()
        unit = units[self._group.rank]
        peers = [p for p in sources if units[self._group.workers.index(regroup.members[p])] == unit]
        furthest = max(peers, key=lambda p: (position.trained if (position := regroup.positions[p]) else -1, -p))
        return float(units.count(unit)) if furthest == place else 0.0

    def _agreement(self, regroup: Regroup) -> str:
        positions = regroup.positions
        settled, counted = self._held()
        left = self._rounds.left(common_plan(positions), clock=counted, settled=settled, rounds_of=self._done(regroup))
        sources = sources_of(positions)
        units = self._exchange.units()
        alone = any(position.trained > position.settled for p in sources if (position := positions[p]) is not None)
        if alone and len(set(units)) > 1:
            how = "mean" if len(set(units)) == len(units) else "mean of racks"
        elif len(sources) == len(positions) - positions.count(None):
            how = "keep"
        else:
            how = "copy all" if len(set(units)) == 1 else "copy"
        remainder = None if left.remainder is None else to_values(left.remainder)
        return json.dumps({"how": how, "remainder": remainder, "samples": left.samples, "dropped": left.dropped})

    def _stage_parts(self, sharding: Sharding, group: Group, regroup: Regroup) -> Apply:
        assert isinstance(group, TorchGroup), "only there replicas are cut"
        leader = leader_of(regroup.positions)
        data = packed(sharding.describe()) if group.rank == leader else b""
        told = unpacked(broadcast_bytes(data, group=group, source=leader))
        return sharding.stage(group, told, workers=regroup.members, generation=regroup.generation)

    def _stage(self, group: Group, *, how: str, leader: int, weight: float) -> list[Apply]:
        match how:
            case "copy":
                return [copied_replica(self._replica, group, source=leader)]
            case "copy all":
                optimizer = copied_optimizer(self._replica, group, source=leader)
                return [copied_replica(self._replica, group, source=leader), optimizer]
            case "mean":
                return [mean_replica(self._replica, group, weight=weight)]
            case "mean of racks":
                mean = mean_replica(self._replica, group, weight=weight)
                average_state(self._replica, group, parameters=False)
                return [mean]
        return []
