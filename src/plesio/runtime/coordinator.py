"""The one place where a run is decided: membership, credit, the order of updates, and who gets which samples.

A coordinator is a plain object: the server hands it what arrived and the time; it answers with *effects* that the
server carries out: orders for every server's shard, and what workers are told (`plesio.protocol.effects`). It opens no
socket and reads no clock, so tests and the virtual world drive it as they like.

A run goes through three states::

    gathering --all expected workers joined--> running --nobody left--> ended

A worker that goes while the others gather, or disagrees with them, fails the run for all: they would wait in vain.

A worker is lost when nothing was heard of it for a lease. The lease follows the measured step time of the slowest
worker (`LEASE_STEPS` steps, within `MIN_LEASE_S` and `MAX_LEASE_S`): a constant would be too short for one model and
too long for another. A lost worker that speaks up again is told so, and none of its later updates count.

A worker that has no samples left *rests*: the policy sees it leave, so that nobody waits for its clock, and sees it
join again when it is given a block. Without this, a bound would deadlock at the end of every epoch. Under a synchronous
policy all who rest join again when the plan is done, before anybody can be given a block of the next one: otherwise the
first to ask would make rounds on its own, and the result would depend on who is quick.

Where racks share a store, in the whole run or in one of its stages, one worker speaks for its rack
(`plesio.runtime.members`). A rack without one of its workers cannot make a step: its others end with an error, and the
rest of the run goes on as without any lost worker.

Under a policy that changes, workers stand still between two exchanges (`ready`); how they go on is told when all do
(`plesio.runtime.stage`). One that stands still at the end of a stage on the store rests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from plesio.core.clock import Clock
from plesio.core.trace import TraceWriter
from plesio.policies import (
    Admit,
    Apply,
    Arrived,
    Evaluated,
    Event,
    Grant,
    Halt,
    Hierarchical,
    Joined,
    LeaveReason,
    Left,
    Policy,
    Ready,
    Recorder,
    Refuse,
    RefuseReason,
    Reviewed,
    Stay,
    Steer,
)
from plesio.protocol.effects import (
    AdmitOrder,
    ApplyOrder,
    CreditOrder,
    DropOrder,
    Effect,
    HaltOrder,
    SnapshotOrder,
    StayOrder,
    Tell,
)
from plesio.protocol.figures import Report, RunInfo, Snapshot, Status
from plesio.protocol.plans import Block, PlanFigures
from plesio.protocol.to_server import Finished, Standing
from plesio.protocol.to_worker import (
    Entered,
    Expelled,
    Failed,
    Lease,
    Lost,
    MayLeave,
    Start,
    Steering,
    Turn,
    UpdateRefused,
)
from plesio.runtime.ledger import Ledger, World
from plesio.runtime.members import Member, Members
from plesio.runtime.stage import Stage

__all__ = [
    "FIRST_LEASE_S",
    "LEASE_STEPS",
    "MAX_LEASE_S",
    "MIN_LEASE_S",
    "Coordinator",
]

FIRST_LEASE_S = 15.0
"""Lease before any step was measured: the first step may compile kernels and fill caches."""
MIN_LEASE_S = 2.0
MAX_LEASE_S = 60.0
LEASE_STEPS = 20


@dataclass(slots=True, kw_only=True)
class _Arriving:
    """An update of which some servers still lack their part."""

    servers: set[int] = field(default_factory=set)


class Coordinator:
    """Decides one run.

    Args:
        policy: What the workers run under.
        info: Names for the result.
        expected: Ranks that must join before the run starts.
        num_servers: Servers that hold a part of the parameters; 0 when the exchange is always collective.
        snapshot_every: Samples between two snapshots of the store; None for none.
        folder: Where the policy's event log is written; None for nowhere.
        clock: For the trace; None is the machine's.
        world: For the results.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        info: RunInfo,
        expected: Iterable[int],
        num_servers: int,
        snapshot_every: int | None = None,
        folder: Path | None = None,
        clock: Clock | None = None,
        world: World = "process",
    ) -> None:
        self.policy = policy
        self.expected = tuple(sorted(expected))
        self.state: Literal["gathering", "running", "ended"] = "gathering"
        self.status: Status = "finished"
        self.error: str | None = None
        self.started_s = 0.0
        self.snapshots: list[Snapshot] = []
        self.ledger = Ledger(policy=policy.spec, info=info, num_workers=len(self.expected), world=world)
        self.recorder = Recorder(policy)
        self.trace = TraceWriter(
            None if folder is None else folder / "coordinator.jsonl",
            header={"worker": None, "policy": policy.spec},
            on_failure=self.ledger.fallbacks.append,
            clock=clock,
        )
        self._num_servers = num_servers
        self._snapshot_every = snapshot_every
        self._members = Members()
        self._arriving: dict[tuple[int, int], _Arriving] = {}
        self._samples_of: dict[tuple[int, int], int] = {}
        self._asking: dict[int, int] = {}
        self._start_failed = False
        self._steered: Steer | None = None
        self._stage = Stage(policy)

    @property
    def live(self) -> list[int]:
        """Workers that take part, in order of rank."""
        return self._members.live

    def is_live(self, worker: int) -> bool:
        """Whether messages of this worker count."""
        return self._members.is_live(worker)

    @property
    def lease_s(self) -> float:
        """Silence after which a worker is lost."""
        step_s = self.ledger.recent_step_s()
        return FIRST_LEASE_S if step_s == 0.0 else min(MAX_LEASE_S, max(MIN_LEASE_S, LEASE_STEPS * step_s))

    def join(self, worker: int, *, now_s: float, rack: int = 0) -> list[Effect]:
        """A worker asks to take part; it is told ``start`` when the run starts, or at once when it runs already.

        Args:
            worker: Who.
            now_s: The time.
            rack: Where it is.
        """
        self._members[worker] = Member(heard_s=now_s, rack=rack)
        if self._start_failed:
            return [Tell(worker=worker, message=Failed(message=self.error or ""))]
        if self.state == "running":
            return self._admit([worker], now_s=now_s)
        if self.state == "gathering" and all(rank in self._members for rank in self.expected):
            self.state = "running"
            self.started_s = now_s
            self.ledger.rack_of = tuple(self._members[rank].rack for rank in self.expected)
            if _racks_share_store(self.policy):
                self.ledger.racks = self._members.form_racks(self.expected)
                for member in self._members.values():
                    member.left = member.spoken_for
            return self._admit(self.expected, now_s=now_s)
        return []

    def reject(self, worker: int, message: str, *, now_s: float) -> list[Effect]:
        """A worker asks to take part that disagrees with the others; before the start that fails the run."""
        if self.state == "running":
            return [Tell(worker=worker, message=Failed(message=message))]
        self._members[worker] = Member(heard_s=now_s)
        return self._fail_start(message)

    def _fail_start(self, message: str) -> list[Effect]:
        if self._start_failed:
            return []
        self._start_failed = True
        self.status, self.error = "failed", message
        return [Tell(worker=other, message=Failed(message=message)) for other in self.live]

    def _admit(self, workers: Sequence[int], *, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for worker in workers:
            if not self._members[worker].left:
                effects += self._decide(self._joined(worker), now_s=now_s)
        for worker in workers:
            clock = self._members[worker].clock
            start = Start(clock=clock, elapsed_s=now_s - self.started_s, workers=self.expected)
            effects.append(Tell(worker=worker, message=start))
        return effects

    def _joined(self, worker: int) -> Joined:
        member = self._members[worker]
        return Joined(worker=worker, num_workers=member.num_workers)

    def leave(self, worker: int, *, now_s: float) -> list[Effect]:
        """A worker has trained all it will. It is told ``left``.

        The worker that evaluates (the lowest rank that is there) is told when all others have left too, the rest at
        once.
        """
        if not self.is_live(worker):
            return []
        effects = self._retire(worker, LeaveReason.CLOSED, now_s=now_s)
        self._members[worker].leaving = True
        return effects + self._answer_leaving()

    def bye(self, worker: int, *, status: Status, error: str | None, now_s: float) -> list[Effect]:
        """A worker's session is closed."""
        if not self.is_live(worker):
            return []
        if self.status == "finished" and not self._members[worker].doomed:
            self.status, self.error = status, error
        effects = self._retire(worker, LeaveReason.CLOSED, now_s=now_s)
        return effects + self._remove(worker)

    def lose(self, worker: int, *, now_s: float) -> list[Effect]:
        """A worker is known to be gone."""
        if not self.is_live(worker):
            return []
        mates = self._members.mates(worker)
        fatal = self._stage.exchange == "collective" or bool(mates and self._members.all_doomed_but(worker, *mates))
        self.ledger.lost.append(worker)
        self.trace.event("lost", at_s=now_s, clock=self._members[worker].clock, worker=worker)
        if fatal and not self._members[worker].leaving:
            self.status = "failed"
            self.error = f"worker {worker} was lost, and a collective exchange cannot go on without it"
        effects = self._retire(worker, LeaveReason.LOST, now_s=now_s)
        effects += self._remove(worker)
        for mate in mates:
            effects += self._retire(mate, LeaveReason.LOST, now_s=now_s)
            self._members[mate].doomed = True
        if self.state == "ended" and self.status == "finished" and not any(m.leaving for m in self._members.values()):
            self.status, self.error = "failed", "all workers were lost"
        ends = {*self.live} if fatal else {*mates}
        return effects + [
            Tell(worker=other, message=Lost(workers=(worker,), fatal=other in ends)) for other in self.live
        ]

    def _retire(self, worker: int, reason: LeaveReason, *, now_s: float) -> list[Effect]:
        """Take a worker out of the policy and give back what it had leased; nothing that it pushed whole is dropped."""
        member = self._members[worker]
        effects: list[Effect] = []
        self._stage.standing.pop(worker, None)
        for key in [key for key in self._arriving if key[0] == worker]:
            del self._arriving[key]  # also of one that closed: it may come back, and be at this clock again
            effects.append(DropOrder(worker=worker, clock=key[1]))
        if self.state == "running" and not member.left:
            member.resting = member.left = True
            effects += self._decide(Left(worker=worker, reason=reason), now_s=now_s)
        self._asking.pop(worker, None)
        for plan in self._stage.plans.values():
            plan.release(worker)
        return effects + self._answer_asking(now_s=now_s) + self._leave_store(now_s=now_s)

    def _remove(self, worker: int) -> list[Effect]:
        self._members[worker].live = False
        if not self.live:
            self.state = "ended"
        if self.state == "gathering":
            return self._fail_start(f"worker {worker} was gone before the run began")
        return self._answer_leaving()

    def _answer_leaving(self) -> list[Effect]:
        told = self._members.told_left()
        return [Tell(worker=worker, message=MayLeave(evaluates=evaluates)) for worker, evaluates in told.items()]

    def excuse(self, busy_s: float) -> None:
        """The server did not listen for so long (it loaded torch, applied an update): that is nobody's silence."""
        for member in self._members.values():
            member.heard_s += busy_s

    def tick(self, *, now_s: float) -> list[Effect]:
        """Lose every worker that has been silent for a lease. Call it several times a lease."""
        effects: list[Effect] = []
        for worker in self._members.silent_since(now_s - self.lease_s):
            effects += self.lose(worker, now_s=now_s)
        return effects

    def heard(self, worker: int, *, now_s: float, report: Report | None = None) -> list[Effect]:
        """A sign of life, perhaps with figures. A worker that was declared lost is told so."""
        member = self._members.get(worker)
        if member is None or not member.live:
            expelled = member is not None and worker in self.ledger.lost
            return [Tell(worker=worker, message=Expelled())] if expelled else []
        member.heard_s = now_s
        if report is not None:
            self.ledger.report(worker, report)
        return []

    def arrived(
        self, event: Arrived, *, num_samples: int, finished: Sequence[Finished] = (), server: int, now_s: float
    ) -> list[Effect]:
        """One server holds its part of an update; when all do, the policy decides.

        Args:
            event: The update.
            num_samples: Samples of the worker's own in it.
            finished: (plan, block, number) of the leased ones among them: what never arrives is leased again.
            server: Who holds it.
            now_s: The time.
        """
        if self.state != "running" or not self.is_live(event.worker) or self._members[event.worker].resting:
            return [DropOrder(worker=event.worker, clock=event.clock)]
        key = (event.worker, event.clock)
        if event.finite:
            arriving = self._arriving.setdefault(key, _Arriving())
            arriving.servers.add(server)
            if len(arriving.servers) < self._num_servers:
                return []
            del self._arriving[key]
        member = self._members[event.worker]
        member.heard_s = now_s
        member.clock = event.clock
        slowest = min(other.clock for other in self._members.values() if other.live and not other.resting)
        # the lead is taken when a step begins: one step before the clock that it ends with
        self.ledger.max_lead = max(self.ledger.max_lead, event.clock - 1 - slowest)
        # of a rack's samples its speaker knows its own share, and the leases of all
        self._samples_of[key] = sum(number for *_, number in finished) if self._members.by_racks else num_samples
        if event.finite:
            self.ledger.arrived(event.worker, num_steps=event.num_steps, num_samples=num_samples)
        effects = self._decide(event, now_s=now_s)
        for plan, block, number in finished:
            effects += self.finish(event.worker, plan=plan, block=block, num_samples=number, now_s=now_s)
        return effects

    def reviewed(self, event: Reviewed, *, now_s: float) -> list[Effect]:
        """A worker tells what it saw; when all have, they are told ``steer``."""
        if self.state != "running" or not self.is_live(event.worker) or self._members[event.worker].left:
            return []
        self._members[event.worker].heard_s = now_s
        self._members[event.worker].clock = event.clock
        return self._decide(event, now_s=now_s)

    def evaluated(self, metric: float, *, now_s: float) -> list[Effect]:
        """The evaluating worker has a new validation metric; a policy that adapts hears of it."""
        if self.state != "running" or not self.policy.adapts:
            return []
        sign = 1.0 if self.ledger.info.metric_goal == "max" else -1.0
        return self._decide(Evaluated(metric=sign * metric), now_s=now_s)

    def _steer(self, action: Steer, *, now_s: float) -> list[Effect]:
        reshared = self._steered is not None and self._steered.shares != action.shares
        if self._steered is None or action.policy != action.before or reshared or action.alarm:
            self.ledger.steered(action, at_s=now_s - self.started_s)
            self.trace.event("steer", at_s=now_s, clock=action.clock, policy=action.policy, reason=action.reason)
        else:
            self.ledger.upheld(action, at_s=now_s - self.started_s)
        self._steered = action
        left = self._stage.exchange == "store" and (action.policy != action.before or action.restore)
        if left:
            return self._turn(action)
        self._stage.steer(action)
        # in a rack that shares the store one hears it for all
        steering = Steering.of(action)
        hear = [worker for worker in self.live if not self._members[worker].spoken_for]
        return [Tell(worker=worker, message=steering) for worker in hear]

    def _decide(self, event: Event, *, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for action in self.recorder.handle(event):
            match action:
                case Admit(worker=worker, clock=clock):
                    self._members[worker].clock = clock
                    effects.append(AdmitOrder(worker=worker, clock=clock))
                case Grant(worker=worker, clock=clock):
                    effects.append(CreditOrder(worker=worker, clock=clock))
                case Refuse(worker=worker, clock=clock, reason=reason):
                    self._samples_of.pop((worker, clock), None)
                    effects.append(DropOrder(worker=worker, clock=clock))
                    self.trace.event("refuse", at_s=now_s, clock=clock, worker=worker, reason=reason.value)
                    if reason is not RefuseReason.NOT_FINITE:  # that the worker found itself, and counted
                        effects.append(Tell(worker=worker, message=UpdateRefused(clock=clock, reason=reason)))
                case Apply():
                    effects += self._apply(action, now_s=now_s)
                case Steer():
                    effects += self._steer(action, now_s=now_s)
                case Halt():
                    self._stage.halting = True
                    effects += [HaltOrder(), *self._answer_asking(now_s=now_s)]
                case Stay(reason=reason):
                    effects += self._stay(reason)
        return effects

    def ready(self, worker: int, standing: Standing, *, now_s: float) -> list[Effect]:
        """A worker stands still between two exchanges; it is told ``ready`` when it may go on.

        On the way to the store that is when all stand there, and from the store too, with what is left of the plan;
        but at once if the stage does not end after all, or not in this plan.
        """
        if self.state != "running" or not self.is_live(worker):
            return []
        member, stage = self._members[worker], self._stage
        member.heard_s = now_s
        member.clock = standing.clock
        if stage.exchange == "store" and (not stage.stops(standing.plan) or stage.is_done(standing.plan)):
            return [self._tell_stays(worker)]
        stage.standing[worker] = standing
        if stage.exchange == "collective":
            return self._enter_store(now_s=now_s)
        effects: list[Effect] = []
        if not member.resting:
            member.resting = True
            effects += self._decide(Left(worker=worker, reason=LeaveReason.RESTING), now_s=now_s)
        return effects + self.release(worker, now_s=now_s) + self._leave_store(now_s=now_s)

    def _standing_events(self) -> list[Ready]:
        """Nothing if somebody is still under way."""
        present = list(self._members.known())
        standing = self._stage.standing
        if not self._stage.all_stand(present):
            return []
        return [Ready(worker=worker, clock=standing[worker].clock) for worker in present]

    def _enter_store(self, *, now_s: float) -> list[Effect]:
        events = self._standing_events()
        if events and _racks_share_store(self._stage.policy):
            racks = self._members.form_racks([event.worker for event in events])
            self.ledger.racks = racks
            events = [
                replace(event, speaker=racks[event.worker][0]) if self._members[event.worker].spoken_for else event
                for event in events
            ]
        effects: list[Effect] = []
        if events:
            samples, left_out = self._stage.enter_store(self._members.known())
            self.ledger.entered_store(samples)
            if left_out:
                self.ledger.fallbacks.append(
                    f"{left_out} samples were left out at step {events[0].clock}: what the stage before had left of "
                    "them was in pieces that are too small for a rack"
                )
        for event in events:
            effects += self._decide(event, now_s=now_s)
        return [*effects, *(Tell(worker=event.worker, message=Entered()) for event in events)]

    def _leave_store(self, *, now_s: float) -> list[Effect]:
        events = self._standing_events() if self._stage.exchange == "store" else []
        if events and not self._stage.goes_round(sum(self._members.known().values())):
            return [self._tell_stays(event.worker) for event in events]
        effects: list[Effect] = []
        for event in events:  # the answer to the last one is how they go on
            effects += self._decide(event, now_s=now_s)
        return effects

    def _turn(self, steer: Steer) -> list[Effect]:
        """All leave the store and go on together."""
        workers = sorted(self._stage.standing)
        self._members.dissolve_racks()
        self.ledger.racks = {}
        for worker in self._members.known():
            self._members[worker].resting = False
            self._members[worker].clock = steer.clock
        turn = self._stage.leave_store(steer, workers)
        return [Tell(worker=worker, message=turn) for worker in workers]

    def _stay(self, reason: str) -> list[Effect]:
        if reason:
            self.ledger.fallbacks.append(reason)
        return [StayOrder(), *(self._tell_stays(worker) for worker in self._stage.stay())]

    def _tell_stays(self, worker: int) -> Tell:
        return Tell(worker=worker, message=Turn(steer=None, to_the_end=self._stage.halting))

    def _apply(self, action: Apply, *, now_s: float) -> list[Effect]:
        self.ledger.applied(action)
        before = self.ledger.applied_samples
        self.ledger.applied_samples += sum(self._samples_of.pop(update, 0) for update in action.updates)
        num_workers = tuple(self._members[worker].num_workers for worker, _ in action.updates)
        order = ApplyOrder(
            updates=action.updates,
            weight=action.weight,
            version=action.version,
            num_live=max(1, sum(self._members.known().values())),  # as in the policy's weights, who rests counts
            num_workers=num_workers if self._members.by_racks else None,
            share=action.share,
            age=action.age,
        )
        effects: list[Effect] = [order]
        self.trace.event("apply", at_s=now_s, clock=action.version, updates=action.updates, weight=action.weight)
        if (
            self._snapshot_every
            and before // self._snapshot_every != self.ledger.applied_samples // self._snapshot_every
        ):
            snapshot = Snapshot(len(self.snapshots), self.ledger.applied_samples, now_s - self.started_s)
            self.snapshots.append(snapshot)
            effects.append(SnapshotOrder(number=snapshot.number))
        return effects

    def lease(self, worker: int, *, plan: int, idle: bool, figures: PlanFigures, now_s: float) -> list[Effect]:
        """A worker asks for its next block of plan ``plan``; it is told ``block``.

        An idle worker (nothing left to train on) is answered when there is a block or when the whole plan is done, and
        rests until then; another one is answered at once, with no block if there is none to be had now. The first to
        ask fixes the plan's figures; all workers of one program ask with the same.
        """
        if not self.is_live(worker) or self._members[worker].left:
            return []
        # who has left would be dealt batches of rounds that nobody trains on
        book = self._stage.book(plan, figures, workers=self._members.known())
        book.join(worker)
        if not idle:
            return self._give(worker, plan=plan, block=book.lease(worker), now_s=now_s)
        self._asking[worker] = plan
        return self._answer_asking(now_s=now_s)

    def release(self, worker: int, *, now_s: float) -> list[Effect]:
        """A worker left its loop early: what it holds goes to others."""
        for plan in self._stage.plans.values():
            plan.release(worker)
        return self._answer_asking(now_s=now_s)

    def finish(self, worker: int, *, plan: int, block: int, num_samples: int, now_s: float) -> list[Effect]:
        """A worker is done with the next ``num_samples`` samples of a block."""
        if plan in self._stage.plans and self.is_live(worker):
            self._stage.plans[plan].finish(worker, block, num_samples)
        return self._answer_asking(now_s=now_s)

    def _answer_asking(self, *, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for worker, number in list(self._asking.items()):
            if worker not in self._asking:
                continue
            plan, member = self._stage.plans[number], self._members[worker]
            stopped = self._stage.stops(number)
            block = None if stopped else plan.lease(worker)
            wakes = plan.done and self._stage.policy.synchronous and not stopped
            if block is None and not member.resting and not wakes:
                member.resting = True
                effects += self._decide(Left(worker=worker, reason=LeaveReason.RESTING), now_s=now_s)
            if block is None and not plan.done and not stopped:
                continue  # somebody's block may yet come back
            if self._asking.pop(worker, None) is None:
                continue  # its rest ended the stage, and that has answered it
            if stopped:
                effects.append(Tell(worker=worker, message=Lease(plan=number, block=None, halted=True)))
            else:
                effects += self._give(worker, plan=number, block=block, wakes=wakes, now_s=now_s)
        return effects + [self._tell_stays(worker) for worker in self._stage.let_go()]

    def _give(self, worker: int, *, plan: int, block: Block | None, wakes: bool = False, now_s: float) -> list[Effect]:
        member = self._members[worker]
        effects: list[Effect] = []
        clock = member.clock if wakes else None  # of the round that it handed in early
        if (block is not None or wakes) and member.resting:
            member.resting = False
            effects += self._decide(self._joined(worker), now_s=now_s)
            clock = member.clock
        return [*effects, Tell(worker=worker, message=Lease(plan=plan, block=block, clock=clock))]


def _racks_share_store(policy: Policy) -> bool:
    return isinstance(policy, Hierarchical) and policy.exchange == "store"
