"""How the workers of a collective come from one group to the next: when one of them is lost, and when others join.

All stop at a `Barrier`. After a *loss* the group is called off for all at once, which wakes those that wait in it: some
may have to do their last step again. For workers that *join* no step is done twice: all hold before their next step and
report which one they have begun; the furthest of these is the one after which all stop.

Each reports its position; when all have, they receive the members, all positions, and where they meet. What
follows from that for the parameters and the samples, they work out alike (`plesio.protocol.positions`). Should one more
be lost on the way, or should they fail to meet, that is the next generation.

Reports of a worker from before it stops (that it leaves, or sets out for the store) do not count: it repeats them in
the new group.

On the store nobody meets. Those who join there have the stage paused (`plesio.policies.Pause`), and a group is formed
where all have stopped between that stage and the next.

Invariant: while workers gather or stop, those that have stopped are live, and one that is awaited has not.
"""

from collections.abc import Iterator
from itertools import chain

from plesio.core.trace import TraceWriter
from plesio.policies import Joined, Pause, Policy, Resumed
from plesio.policies.policy import NEVER
from plesio.protocol.effects import Tell
from plesio.protocol.positions import common_clock
from plesio.protocol.to_server import Holding, PositionReport, Regrouped
from plesio.protocol.to_worker import Expelled, Hold, Lost, MayLeave, Regroup, Regrouping, Steering, Stop
from plesio.runtime.coordinator.barrier import Barrier
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Answers, Member, Members
from plesio.runtime.coordinator.newcomers import AT_ITS_END, Newcomers
from plesio.runtime.coordinator.stage import Stage
from plesio.runtime.coordinator.unequal import Unequal


class Regroupings:
    """The generations of one run's collective.

    Args:
        elastic: Whether workers go on without one that is lost.
        grows: Whether one can join them.
    """

    def __init__(
        self,
        members: Members,
        stage: Stage,
        *,
        policy: Policy,
        elastic: bool,
        grows: bool,
        ledger: Ledger,
        trace: TraceWriter,
    ) -> None:
        self._members = members
        self._stage = stage
        self._elastic = elastic and policy.exchange == "collective"
        self.newcomers = Newcomers(members, policy=policy, ledger=ledger, elastic=self._elastic, grows=grows)
        """Workers that wait to take part."""
        self._unequal = Unequal(members, ledger=ledger)
        self._ledger = ledger
        self._trace = trace
        self._adapts = policy.adapts
        self._steering: Steering | None = None
        """How a policy that changes has the workers of the new group go on."""
        self.stale = False
        """True if a worker was lost or has come on the store since the workers last formed a group."""
        self._barrier = Barrier()

    @property
    def possible(self) -> bool:
        """True if the loss of a worker does not end the collectives of the others."""
        return self._elastic and self._members.state != "gathering"

    @property
    def gathering(self) -> bool:
        """True if the group is no more, and its workers have been asked for their positions."""
        return self._barrier.phase == "gathering"

    @property
    def _group(self) -> list[int]:
        """The workers that meet in collectives, or will again: all but those whose training is over for good."""
        return [one for one in self._members.live if not (self._members[one].answered or self._members[one].doomed)]

    def lost(self, worker: int, *, now_s: float) -> Answers:
        """Let the workers that met it in collectives form a new group; on the store they do when they come back."""
        self._barrier.forget(worker)
        if not self.possible or self._members[worker].answered:
            return
        if self._stage.exchange == "store":
            self.stale = True
        else:
            yield from self._stop()
        yield from self._go_on(now_s=now_s)

    def part(self, *, now_s: float, lease_s: float) -> Answers:
        """Have the others go on without workers that ended their loops a lease ago, or end all that cannot go on."""
        if self._stage.exchange == "store" or self.gathering or self._members.state == "gathering":
            return
        problem = self._unequal.mixed_up(generation=self._barrier.generation, now_s=now_s, lease_s=lease_s)
        if problem is not None:
            yield from self._give_up(problem)
            return
        if not self.possible or not (over := self._unequal.ended(now_s - lease_s)):
            return
        for worker in over:
            member = self._members[worker]
            self._ledger.fallbacks.ended_early(worker, evaluates=not member.answered)
            if member.part():
                yield Tell(worker=worker, message=MayLeave(evaluates=False))
        yield from self._stop()
        yield from self._go_on(now_s=now_s)

    def handle(self, worker: int, message: PositionReport | Regrouped | Holding, *, now_s: float) -> Answers:
        match message:
            case PositionReport() if worker in self.newcomers:
                self.newcomers.is_ready(worker, message)
                yield from self._make_room(now_s=now_s)
            case PositionReport():
                yield from self._cut_off(worker, message, now_s=now_s)
            case Holding():
                yield from self._holds(worker, message)
            case Regrouped(samples=samples, own=own, dropped=dropped):
                self._ledger.regrouped(self._group, samples=samples, own=own, dropped=dropped)

    def _cut_off(self, worker: int, report: PositionReport, *, now_s: float) -> Answers:
        """Take in that a worker has stopped; the others are stopped, if their collective cannot go on without it."""
        if not self._members.is_live(worker):
            yield Tell(worker=worker, message=Expelled())
            return
        self._members[worker].seen(now_s)
        if not (report.agreed and self._barrier.phase == "stopping"):
            yield from self._stop()
        self._barrier.stopped[worker] = report
        yield from self._go_on(now_s=now_s)

    def _stop(self) -> Answers:
        """End the group: all its workers are to report their positions."""
        if self.gathering:
            return
        self._barrier.begin("gathering")
        for worker in self._group:
            self._members[worker].take_back_leave()
        for worker in self._group:
            yield Tell(worker=worker, message=Regrouping(generation=self._barrier.generation))

    def _make_room(self, *, now_s: float) -> Answers:
        """Let all stop for workers that are ready to join, unless they do anyway."""
        if self._barrier.phase != "open":
            yield from self._go_on(now_s=now_s)
        elif self._stage.exchange == "store":
            self.stale = True
            yield Pause(reason="a worker joins")
        else:
            self._barrier.begin("holding")
            for worker in self._group:
                yield Tell(worker=worker, message=Hold(generation=self._barrier.generation))

    def _holds(self, worker: int, holding: Holding) -> Answers:
        """Take in that a worker begins no further step; when all hold, they stop where the furthest one is."""
        barrier, group = self._barrier, self._group
        if barrier.phase != "holding" or holding.generation != barrier.generation or worker not in group:
            return
        furthest = barrier.hold(worker, begun=holding.begun, group=group)
        if furthest is not None:
            yield from self._stop_at(furthest)

    def _stop_at(self, clock: int) -> Answers:
        stop = Stop(generation=self._barrier.generation, clock=clock)
        for worker in self._group:
            yield Tell(worker=worker, message=stop)

    def _call_off(self) -> Answers:
        """Have all go on that hold; one that has stopped already waits for the others as after a loss."""
        if self._barrier.phase in ("holding", "stopping") and not self._barrier.stopped:
            self._barrier.open_again()
            yield from self._stop_at(NEVER)

    def leaving(self) -> Answers:
        """Refuse the workers that would join: one has trained all it will, and so will the others."""
        yield from self.newcomers.refuse(AT_ITS_END)
        yield from self._call_off()

    def entered_store(self, *, now_s: float) -> Answers:
        """Take in that the workers have gone to the store before they came to where they would have stopped."""
        yield from self._call_off()
        if self.newcomers.ready:
            yield from self._make_room(now_s=now_s)

    def resumed(self, steering: Steering) -> None:
        """Keep how the policy has the new group go on, until it is formed."""
        self._steering = steering

    def _go_on(self, *, now_s: float) -> Answers:
        """Let all of the new group go on when they have stopped, or end them where there can be none."""
        group = self._group
        stopped = self._barrier.stopped
        if not self._barrier.is_complete(group):
            return
        # only newcomers are left: they have no position, and no state to go on from
        if all(stopped[worker].position is None for worker in group):
            yield from self._give_up("all workers that knew how far the run was are lost")
            return
        have_come = False
        # they take part in the policy before it decides how the new group goes on
        for joined in chain(self._take_in(now_s=now_s), self._take_back()):
            have_come = True
            yield joined
        members = tuple(self._group)
        positions = tuple(stopped[worker].position for worker in members)
        clock = common_clock(positions)
        self.stale = False
        # groups that form again and again without a step between them have a cause that no further one mends
        if not self._barrier.cross(clock, joined=have_come):
            yield from self._give_up("the workers cannot reach each other, though none of them is lost")
            return
        # all go on from one clock; the first of them hosts the meeting
        for member in members:
            self._members[member].go_on_from(clock)
        self._ledger.meet(dict.fromkeys(members, members))
        self._trace.event("regroup", at_s=now_s, clock=clock, workers=list(members))
        if self._adapts and self._stage.exchange != "store":
            yield Resumed(clock=clock)
        regroup = Regroup(
            generation=self._barrier.generation,
            members=members,
            positions=positions,
            meeting=stopped[members[0]].meeting,
            steer=self._steering,
        )
        self._steering = None
        for worker in members:
            yield Tell(worker=worker, message=regroup)

    def _take_in(self, *, now_s: float) -> Iterator[Joined]:
        for worker, rack, report in self.newcomers.take():
            self._members[worker] = Member(seen_s=now_s, rack=rack)
            self._barrier.stopped[worker] = report
            self._trace.event("join", at_s=now_s, clock=0, worker=worker)
            yield Joined(worker=worker)

    def _take_back(self) -> Iterator[Joined]:
        """Have those whose training was over take part as before."""
        for worker in self._group:
            member = self._members[worker]
            member.take_back_leave()
            if member.left:
                member.rejoin()
                yield Joined(worker=worker)

    def _give_up(self, text: str) -> Answers:
        self._barrier.open_again()
        lost = Lost(workers=(), fatal=True, error=text)
        yield from self.newcomers.refuse(text)
        for worker in self._group:
            yield Tell(worker=worker, message=lost)

    def validate(self) -> None:
        self.newcomers.validate()
        if self._barrier.phase in ("stopping", "gathering"):
            group, stopped = set(self._group), self._barrier.stopped
            assert stopped.keys() <= set(self._members.live), (stopped, group)
            assert not group or group - stopped.keys(), "all have stopped, and none has orders how to go on"
