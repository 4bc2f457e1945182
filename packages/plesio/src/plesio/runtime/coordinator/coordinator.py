"""The one place where a run is decided: membership, credit, the order of updates, and the dealing of samples.

A coordinator is a plain object: the server hands it workers' messages (`handle`) and the time; it answers with
*effects* that the server carries out: orders for every server's shard, and messages to workers
(`plesio.protocol.effects`). It opens no socket and reads no clock, so tests and the virtual world drive it as they
like.

Its parts answer with effects and with *events*, in order (`Answers`). The coordinator alone has the policy decide on an
event, and does what that decides, before the part goes on.

A run goes through three states::

    gathering --all expected workers joined--> running --none left--> ended

A lost worker that sends again is expelled, and none of its later updates count. Where racks share a store, a rack
without one of its workers cannot make a step: its others end with an error, and the rest of the run goes on.

The parts, each with its invariants:

    admission       how the run begins, and on what all must agree
    members         the workers, which of them speak for others, and when silence is a loss
    updates         which of them are whole, what is decided on them, and what is applied
    sampling        the leasing of samples, and the rest of workers without any
    newcomers       workers that wait to join a collective
    regroupings     new groups of a collective that has lost a worker, or takes one in, formed behind a barrier
    reviews         what workers report to a policy that adapts
    stage_changes   the way from one exchange to the next
    saving          when checkpoints are due, and the state of server 0 in them
    ledger          the figures
    recorder        the policy's machine, and the log of its events and answers
"""

from dataclasses import replace
from pathlib import Path

from plesio.core.clock import Clock
from plesio.core.trace import TraceWriter
from plesio.policies import (
    Admit,
    Apply,
    Await,
    Elapsed,
    Event,
    Grant,
    Halt,
    LeaveReason,
    Left,
    Pause,
    Recorder,
    Refuse,
    Resumed,
    Stay,
    Steer,
    parse_policy,
)
from plesio.policies.log_writer import LogWriter
from plesio.protocol.effects import AdmitOrder, CreditOrder, Effect, HaltOrder, Tell
from plesio.protocol.figures import Report, RunFigures, Snapshot, WorkerFigure
from plesio.protocol.to_server import (
    EvaluationRequest,
    Evaluations,
    Finish,
    FromWorker,
    Goodbye,
    Heartbeat,
    Holding,
    Join,
    LeaseRequest,
    Leave,
    NotFinite,
    PartArrived,
    PositionReport,
    Regrouped,
    Release,
    Review,
    SaveRequest,
    ServerStatePage,
    StageStop,
)
from plesio.protocol.to_worker import Alive, Expelled, Lost
from plesio.runtime.coordinator.admission import Admission
from plesio.runtime.coordinator.ledger import Ledger, World
from plesio.runtime.coordinator.members import Answers, Members, RunState, lease_s
from plesio.runtime.coordinator.newcomers import AT_ITS_END
from plesio.runtime.coordinator.regroupings import Regroupings
from plesio.runtime.coordinator.reviews import Reviews
from plesio.runtime.coordinator.sampling import Sampling
from plesio.runtime.coordinator.saving import Checkpoints
from plesio.runtime.coordinator.stage import Stage
from plesio.runtime.coordinator.stage_changes import StageChanges
from plesio.runtime.coordinator.updates import Updates

HIDDEN_SHARE = 0.5
"""Share of the time of hidden steps that a policy may wait; the rest is for what has been decided to travel."""


class Coordinator:
    """Decides one run.

    Args:
        join: The first worker's message, which describes the run; all workers must agree with it.
        folder: Where the run's logs are written; None for nowhere.
        clock: For the trace; None is the machine's.
    """

    def __init__(
        self, join: Join, *, folder: Path | None = None, clock: Clock | None = None, world: World = "process"
    ) -> None:
        policy, saving = parse_policy(join.policy), join.saving
        self._total_samples = join.total_samples
        self._awaited: dict[int, float] = {}
        """Ends of the times that the policy has asked for, by their numbers."""
        self.ledger = Ledger(policy=policy.title, info=join.info, num_workers=join.num_workers, world=world)
        note, entries, trace = self.ledger.fallbacks.note, None, None
        if folder is not None:
            entries, trace = folder / "events.jsonl", folder / "coordinator.jsonl"
        self._log = LogWriter(entries, policy=policy, limit_bytes=join.log_bytes, on_failure=note)
        """The policy's events and answers."""
        header = {"worker": None, "policy": policy.title}
        self._trace = TraceWriter(trace, header=header, on_failure=note, clock=clock)
        """Applied and refused updates, and changes of the membership and of the policy."""
        began = 0 if saving is None else saving.clock
        remembers = saving is not None and policy.remembers
        self.recorder = Recorder(policy, clock=began, entries=self._log, keeps_events=remembers)
        self._members = Members()
        self._stage = Stage(policy, clock=began)
        # each part is handed those before it on which it calls
        self._checkpoints = Checkpoints(
            saving,
            remembers=remembers,
            first_stop=policy.director(clock=began).next_review(began)[1],
            members=self._members,
            ledger=self.ledger,
            recorder=self.recorder,
            stage=self._stage,
        )
        self._sampling = Sampling(self._members, self._stage)
        self._updates = Updates(
            self._members,
            sampling=self._sampling,
            checkpoints=self._checkpoints,
            ledger=self.ledger,
            trace=self._trace,
            num_servers=join.num_servers,
            snapshot_every=join.snapshot_every if policy.pushes else None,
        )
        self._reviews = Reviews(self._members, self._stage, ledger=self.ledger, checkpoints=self._checkpoints)
        self._regroupings = Regroupings(
            self._members,
            self._stage,
            policy=policy,
            elastic=join.elastic,
            grows=join.grows,
            ledger=self.ledger,
            trace=self._trace,
        )
        self._changes = StageChanges(
            self._members,
            self._stage,
            ledger=self.ledger,
            trace=self._trace,
            sampling=self._sampling,
            regroupings=self._regroupings,
        )
        self._admission = Admission(
            join,
            policy=policy,
            members=self._members,
            newcomers=self._regroupings.newcomers,
            checkpoints=self._checkpoints,
            ledger=self.ledger,
        )

    @property
    def state(self) -> RunState:
        return self._members.state

    @property
    def live(self) -> list[int]:
        return self._members.live

    def is_live(self, worker: int) -> bool:
        return self._members.is_live(worker)

    @property
    def lease_s(self) -> float:
        """Seconds of silence after which a worker is lost."""
        return lease_s(self.ledger.workers.recent_step_s())

    @property
    def snapshots(self) -> list[Snapshot]:
        return self._updates.snapshots

    def handle(self, message: FromWorker | Join | PartArrived, *, worker: int, now_s: float) -> list[Effect]:
        """Return what follows from a worker's message, or from an update that a server has got from it."""
        effects = self._carry_out(self._answer(message, worker, now_s=now_s), now_s=now_s)
        return effects + self._pause_if_due(now_s) if self._checkpoints.exist else effects

    def _answer(self, message: FromWorker | Join | PartArrived, worker: int, *, now_s: float) -> Answers:
        match message:
            case Join():
                return self._admission.join(worker, message, now_s=now_s)
            case Heartbeat(report=report):
                return self._beat(worker, report, now_s=now_s)
            case PartArrived():
                return self._updates.part(message, now_s=now_s)
            case NotFinite():
                return self._updates.not_finite(message, now_s=now_s)
            case LeaseRequest():
                return self._sampling.lease(worker, message)
            case Finish(plan=plan, block=block, num_samples=number):
                return self._sampling.finish(worker, plan=plan, block=block, num_samples=number)
            case Release():
                return self._sampling.release(worker)
            case Review() | Evaluations() | EvaluationRequest():
                return self._reviews.handle(worker, message, now_s=now_s)
            case StageStop():
                return self._changes.ready(worker, message, now_s=now_s)
            case PositionReport() | Regrouped() | Holding():
                return self._regroupings.handle(worker, message, now_s=now_s)
            case Leave(samples=samples):
                return self._leave(worker, samples=samples, now_s=now_s)
            case SaveRequest() | ServerStatePage():
                self._checkpoints.handle(message, worker=worker)
                return self._admission.begin_if_all_are_there(now_s=now_s)
            case Goodbye():
                return self._bye(worker, message, now_s=now_s)

    def _leave(self, worker: int, *, samples: int, now_s: float) -> Answers:
        """End a worker's training; it gets `MayLeave`, the one that evaluates when all have left."""
        if not self.is_live(worker) or self._regroupings.gathering:
            return  # one that has been stopped repeats it in the new group
        yield from self._retire(worker, LeaveReason.CLOSED)
        self._members[worker].leave(now_s)
        self.ledger.samples.left(samples)
        yield from self._regroupings.leaving()
        yield from self._members.answer_leaving()

    def _bye(self, worker: int, goodbye: Goodbye, *, now_s: float) -> Answers:
        if not self.is_live(worker):
            return
        self._members[worker].seen(now_s)
        self.ledger.report(worker, goodbye.report)
        effects: list[Effect] = []
        if "finished" == self.ledger.status != goodbye.status and not self._members[worker].doomed:
            self.ledger.fail(goodbye.error, status=goodbye.status)
            lost = Lost(workers=(worker,), fatal=True, error=goodbye.error)
            bound = self._members.bound_to(worker, self._stage.exchange)
            effects += [Tell(worker=other, message=lost) for other in bound]
        yield from self._retire(worker, LeaveReason.CLOSED)
        yield from self._remove(worker)
        yield from effects

    def lose(self, worker: int, *, now_s: float) -> list[Effect]:
        return self._carry_out(self._lose(worker, now_s=now_s), now_s=now_s)

    def _lose(self, worker: int, *, now_s: float) -> Answers:
        self._regroupings.newcomers.forget(worker)
        if not self.is_live(worker):
            return
        mates = self._members.mates(worker)
        meets = self._stage.exchange == "collective" and not self._regroupings.possible
        fatal = meets or bool(mates and self._members.all_doomed_but(worker, *mates))
        handed_in = self._stage.exchange == "store" and not self._members.by_racks
        self.ledger.lose(worker, handed_in=handed_in, evaluates=self._members[worker].evaluates)
        self._trace.event("lost", at_s=now_s, clock=self._members[worker].clock, worker=worker)
        if fatal and not self._members[worker].leaving:
            self.ledger.fail(f"worker {worker} was lost, and a collective exchange cannot go on without it")
        reason = LeaveReason.REPLACED if self._regroupings.possible else LeaveReason.LOST
        yield from self._retire(worker, reason)
        yield from self._remove(worker)
        for mate in mates:
            yield from self._retire(mate, reason)
            self._members[mate].doom()
        if self.state == "ended" and self.ledger.status == "finished" and not self._members.ending:
            self.ledger.fail("all workers were lost")
        yield from self._regroupings.lost(worker, now_s=now_s)
        ends = {*self.live} if fatal else {*mates}
        for one in self.live:
            yield Tell(worker=one, message=Lost(workers=(worker,), fatal=one in ends))

    def _retire(self, worker: int, reason: LeaveReason) -> Answers:
        """Take a worker out of the policy and give back what it had leased; nothing that it pushed whole is dropped."""
        member = self._members[worker]
        self._stage.forget(worker)
        yield from self._updates.drop_parts(worker)
        yield from self._reviews.gone(worker)
        if self.state == "running" and not member.left:
            member.retire()
            yield Left(worker=worker, reason=reason)
        yield from self._sampling.withdraw(worker)
        yield from self._changes.leave_store()

    def _remove(self, worker: int) -> Answers:
        gathered = self.state != "gathering"
        self._members.remove(worker)
        if not self.live:
            yield from self._regroupings.newcomers.refuse(AT_ITS_END)
        elif gathered:
            yield from self._members.answer_leaving()
        else:
            yield from self._admission.fail(f"worker {worker} was gone before the run began")

    def tick(self, *, now_s: float, busy_s: float = 0.0) -> list[Effect]:
        """Lose every worker that has been silent for a lease. Call it several times a lease.

        For ``busy_s`` seconds the server took in no message (it loaded torch, applied an update): that is no silence.
        """
        self._members.excuse(busy_s)
        effects: list[Effect] = []
        for worker in self._members.silent_since(now_s - self.lease_s):
            effects += self.lose(worker, now_s=now_s)
        effects += self._carry_out(self._regroupings.part(now_s=now_s, lease_s=self.lease_s), now_s=now_s)
        effects += self.elapse(now_s=now_s)
        return effects + self._pause_if_due(now_s)

    @property
    def due_s(self) -> float | None:
        """The next moment at which `elapse` has something to do; None if there is none."""
        return min(self._awaited.values(), default=None)

    def elapse(self, *, now_s: float) -> list[Effect]:
        """Tell the policy which of the times that it asked for are over."""
        effects: list[Effect] = []
        for number in [number for number, at_s in self._awaited.items() if at_s <= now_s]:
            del self._awaited[number]
            effects += self._decide(Elapsed(number=number), now_s=now_s)
        return effects

    def _seconds_of(self, wish: Await) -> float:
        steps_s = [self.ledger.workers.latest(worker).recent_step_s for worker in self.live]
        return wish.for_s + HIDDEN_SHARE * wish.steps * min((one_s for one_s in steps_s if one_s > 0), default=0.0)

    def _pause_if_due(self, now_s: float) -> list[Effect]:
        return self._decide(Pause(), now_s=now_s) if self._checkpoints.due(now_s) else []

    def _beat(self, worker: int, report: Report, *, now_s: float) -> Answers:
        """Take in a sign of life, with figures. One that was declared lost is expelled."""
        if self.is_live(worker):
            self._members[worker].seen(now_s)
            self.ledger.report(worker, report)
        expelled = worker in self.ledger.lost and worker in self._members and not self.is_live(worker)
        yield Tell(worker=worker, message=Expelled() if expelled else Alive(lease_s=self.lease_s))

    def _carry_out(self, answers: Answers, *, now_s: float) -> list[Effect]:
        """Have the policy decide on each event before the part that answers so goes on; return the effects of all."""
        effects: list[Effect] = []
        for answer in answers:
            if isinstance(answer, Event):
                effects += self._decide(answer, now_s=now_s)
            else:
                effects.append(answer)
        return effects

    def _decide(self, event: Event, *, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        actions = self.recorder.machine.handle(event)
        self.recorder.record(event, actions)
        for action in actions:
            match action:
                case Admit(worker=worker, clock=clock):
                    self._members[worker].go_on_from(clock)
                    effects.append(AdmitOrder(worker=worker, clock=clock))
                case Grant(worker=worker, clock=clock):
                    effects.append(CreditOrder(worker=worker, clock=clock))
                case Refuse():
                    effects += self._updates.refuse(action, now_s=now_s)
                case Apply():
                    effects += self._updates.apply(action, now_s=now_s)
                case Steer() if isinstance(event, Resumed):
                    self._changes.resumed(action)
                case Steer(save=paused):
                    if paused and self._regroupings.stale:  # they form a new group first
                        action = self._checkpoints.postponed(action)
                    effects += self._changes.steer(action, paused=paused, now_s=now_s)
                    effects += self._checkpoints.take(action, now_s=now_s)
                case Await(number=number):
                    self._awaited[number] = now_s + self._seconds_of(action)
                case Halt():
                    self._stage.halting = True
                    effects += [HaltOrder(), *self._carry_out(self._sampling.answer(), now_s=now_s)]
                case Stay(reason=reason):
                    effects += self._changes.stay(reason)
        return effects

    def progress(self, *, now_s: float) -> RunFigures:
        """Return the figures of the run at this moment, for a display."""
        reports, members = self.ledger.workers, self._members
        least = min((one.clock for one in members.values() if one.live and not one.resting), default=0)
        leads = self._stage.exchange == "store"
        return replace(
            self.ledger.progress(),
            in_force=self._stage.policy.spec,
            total_samples=self._total_samples,
            checkpoint=self._checkpoints.latest(now_s),
            workers=tuple(
                WorkerFigure(
                    worker=worker,
                    clock=max(member.clock, reports.latest(worker).clock),
                    lead=max(0, member.clock - least) if leads and member.live else 0,
                    live=member.live,
                    step_s=reports.latest(worker).recent_step_s,
                    silent_s=now_s - member.seen_s,
                    within=reports.latest(worker).within or None,
                )
                for worker, member in sorted(members.items())
            ),
        )

    def close_logs(self) -> None:
        """Close the logs that are written beside the results; may be called twice."""
        self._trace.close()
        self._log.close()

    def validate(self) -> None:
        """Raise AssertionError when an invariant of the run's parts does not hold."""
        self._members.validate()
        self._updates.validate()
        self._sampling.validate()
        self._regroupings.validate()
        self.recorder.validate()
