"""How a worker goes from one group to the next: it stops, forms a new group with the others, and takes part.

    cut off, or halted --PositionReport--> stopped --Regroup--> forming --state and samples agreed on--> going on
                                              ^                    |
                                              +-- cut off again ---+

Samples that a step had not brought into any replica are dealt out again, each sample once:

1. The *sources* are the workers whose replicas hold most (`plesio.protocol.positions`). If they hold the same, the
   others copy it; if each has trained by itself since the last averaging, all take the mean of what they have become.
2. The leader, one of them, reports the rest of the plan: rounds that no worker began, and those parts of rounds that
   are in no source's replica, such as what a lost worker had trained on since the last averaging.
3. Only then does anything change, on each worker at once; one that is cut off before is as it was.

One that *joins* stops without a position and takes all from the leader (`plesio.runtime.worker.handover`). The others
have settled what was under way by then, and go on as they were: nothing is forgotten, no step is done twice.
"""

import json
import logging
from typing import Any, Protocol

from msgspec import UNSET

from plesio.core.errors import ConfigError
from plesio.core.records import from_values, to_values
from plesio.protocol.plans import Remainder
from plesio.protocol.positions import Position, common_clock, common_plan, leader_of, sources_of
from plesio.protocol.to_server import Regrouped
from plesio.protocol.to_worker import Regroup, Steering
from plesio.runtime.worker.exchange.broadcasts import broadcast_bytes, broadcast_text
from plesio.runtime.worker.exchange.exchange import HeldSteps
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.live_group import LiveGroup
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.exchange.state_copy import average_state
from plesio.runtime.worker.exchange.takeover import Apply, copied_optimizer, copied_replica, mean_replica
from plesio.runtime.worker.handover import Handover, packed, unpacked
from plesio.runtime.worker.past import WorkerPast
from plesio.runtime.worker.rounds import RoundRecords, Unfinished
from plesio.runtime.worker.step_times import StepClock
from plesio.runtime.worker.timeline import WorkerTimeline

__all__ = ["Recovery", "Regroupable"]

_log = logging.getLogger(__name__)


class Regroupable(Protocol):
    """An exchange that is built anew in a new group."""

    def held_steps(self) -> HeldSteps | None:
        """Return the steps that this worker's replica holds; None if it has made none by this exchange."""
        ...

    def units(self) -> list[int]:
        """Return a number for each rank, shared by the ranks whose replicas are equal after every step."""
        ...

    @property
    def meets(self) -> bool:
        """True if the workers meet in every step or every few, so that all come to the same steps."""
        ...

    def settle(self) -> None:
        """Bring what is under way or held back to its end, so that all replicas are equal; all workers call it."""
        ...

    def memory(self) -> dict[str, Any]:
        """Return, as plain values, what joining workers need beside the replica: the exchange's memory is ``own``."""
        ...

    def regrouped(self, steer: Steering | None, *, memory: dict[str, Any] | None) -> None:
        """Drop what was under way, and go on in the new group; replicas are equal.

        Args:
            steer: How, under a policy that changes.
            memory: The leader's, if a worker joins; ``own`` is None if what was remembered is true no more.
        """
        ...


class Groups(Protocol):
    """The worker's world, where groups are formed."""

    @property
    def rounds(self) -> RoundRecords:
        """The samples that this worker's replica holds."""
        ...

    @property
    def cut_off(self) -> bool:
        """True if the workers' group is no more."""
        ...

    def cuts_off(self, error: BaseException) -> bool:
        """Tell whether ``error`` means that the collective cannot go on, while the others can in a new group."""
        ...

    def stops_after(self, clock: int) -> bool:
        """Tell whether all have agreed to stop after this step, for joining workers; if not, the next one is begun."""
        ...

    def await_regroup(self, position: Position | None, *, agreed: bool) -> Regroup:
        """Report this worker's position, and whether it has stopped where all agreed to; wait until all have."""
        ...

    def form(self, regroup: Regroup, *, device_type: str) -> Group:
        """Form the new group."""
        ...

    def regrouped(self, regrouped: Regrouped) -> None:
        """Report that the new group is there."""
        ...


class Recovery:
    """Brings one worker from one group to the next.

    Args:
        replica: Its state.
        group: The present one.
        world: Forms groups.
        steps: The clock; moved where the others are further.
        exchange: Built anew.
        timeline: Takes the time.
        handover: The handover to joining workers.
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
        self._replica = replica
        self._group = group
        self._world = world
        self._rounds = world.rounds
        self._steps = steps
        self._exchange = exchange
        self._timeline = timeline

    @property
    def due(self) -> bool:
        """True if the group is no more, by the latest news."""
        return self._world.cut_off

    def cuts_off(self, error: BaseException) -> bool:
        """Tell whether ``error`` is a matter of the group, and the workers can go on in another one."""
        return self._world.cuts_off(error)

    def trained(self, clock: int) -> None:
        """Step ``clock`` takes what this worker has trained on."""
        held = self._exchange.held_steps()
        self._rounds.mark(clock, settled=0 if held is None else held.settled)

    def counts(self, clock: int) -> bool:
        """Tell whether this worker's replica holds its step ``clock``."""
        held = self._exchange.held_steps()
        return held is not None and held.counted >= clock

    def join(self) -> WorkerPast:
        """Take part in the run that is under way: returns what the training loop has behind it.

        Raises:
            PlesioError: The run cannot take this worker in.
        """
        regroup = self._regroup(plan=0, samples=0, agreed=False)
        return self._handover.past(regroup, samples=self._rounds.global_samples)

    def let_others_join(self, *, plan: int, samples: int) -> None:
        """Take in workers that wait to join, between two steps, if all workers have agreed to stop here.

        Args:
            plan: See `recover`.
            samples: See `recover`.
        """
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
        self._exchange.settle()
        return True

    def recover(self, *, plan: int, samples: int) -> None:
        """Return when this worker has gone on in a new group; `StepClock` says from where.

        Args:
            plan: The loop over the data that it is in, or else the next one.
            samples: Its own samples that count.

        Raises:
            PlesioError: There can be no other group, or this worker was counted lost.
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
        """True if the workers meet in every step or every few; False if updates go through the store now."""
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
        """Form the group, agree, and apply; the worker has been waiting ``since_s``."""
        positions, place = regroup.positions, leader_of(regroup.positions)
        group = self._world.form(regroup, device_type=self._replica.device.type)
        text = self._agreement(regroup) if group.rank == place else ""
        agreement = json.loads(broadcast_text(text, group=group, source=place))
        memory = None
        if None in positions:
            memory = self._hand_over(group, leader=place)["exchange"]
            if agreement["how"].startswith("mean"):
                memory["own"] = None  # it was of one worker's steps
        applies = self._stage(group, how=agreement["how"], leader=place, weight=self._weight(regroup, group.rank))
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

    def _hand_over(self, group: Group, *, leader: int) -> dict[str, Any]:
        """Bring to joining workers all that they need of the leader; they take it at once.

        Raises:
            ConfigError: A registered object has a state that cannot be sent; on joining workers.
        """
        replica = copied_replica(self._replica, group, source=leader, frozen=True)
        optimizer = copied_optimizer(self._replica, group, source=leader)
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
            replica()
            optimizer()
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
        """Write the leader's agreement: how all come to one state, and the samples that are left."""
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

    def _stage(self, group: Group, *, how: str, leader: int, weight: float) -> list[Apply]:
        """Prepare the steps that make this worker's state that of all, to be applied."""
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
