"""The way of a run from one exchange to another: workers report that they have stopped, and get orders when all have.

Orders to leave the store say what is left of the plan. A worker that has stopped at the end of a stage on the store
rests. Where racks share the store, racks are formed when all have stopped on the way to it and dissolved when all have
left it.
"""

from msgspec.structs import replace

from plesio.core.trace import TraceWriter
from plesio.policies import LeaveReason, Left, Ready, Steer
from plesio.protocol.effects import Effect, StayOrder, Tell
from plesio.protocol.to_server import StageStop
from plesio.protocol.to_worker import Entered, Steering
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Answers, Members
from plesio.runtime.coordinator.regroupings import Regroupings
from plesio.runtime.coordinator.sampling import Sampling
from plesio.runtime.coordinator.stage import Stage


class StageChanges:
    """The changes of one run."""

    def __init__(
        self,
        members: Members,
        stage: Stage,
        *,
        ledger: Ledger,
        trace: TraceWriter,
        sampling: Sampling,
        regroupings: Regroupings,
    ) -> None:
        self._members = members
        self._stage = stage
        self._ledger = ledger
        self._trace = trace
        self._steered: Steer | None = None
        """The last one."""
        self._sampling = sampling
        self._regroupings = regroupings

    def ready(self, worker: int, stop: StageStop, *, now_s: float) -> Answers:
        """Take in that a worker has stopped between two exchanges; `Entered` or `StageEnd` lets it go on.

        That is at once if the stage does not end after all, or not in this plan.
        """
        if self._members.state != "running" or not self._members.is_live(worker):
            return
        self._members[worker].seen(now_s, clock=stop.clock)
        stage = self._stage
        if stage.exchange == "store":
            yield from self._stop_on_store(worker, stop)
        elif not self._regroupings.gathering:  # else it has been asked for its position, and sets out anew
            stage.stopped[worker] = stop
            yield from self._enter_store(now_s=now_s)

    def _stop_on_store(self, worker: int, stop: StageStop) -> Answers:
        """Take in that a worker has stopped on the store; its rack has stopped when all of it have.

        Only then do they get an answer, each its own: another loss may have ended their collectives meanwhile.
        """
        stage, rack = self._stage, self._members.rack_of(worker)
        speaker = rack[0]
        stage.stopping[worker] = stop
        if not stage.stopping.keys() >= set(rack):
            return
        for one in rack:
            del stage.stopping[one]
        if not stage.stops(stop.plan) or stage.is_done(stop.plan):
            yield from self._members.tell_racks([speaker], stage.stays())
            return
        stage.stopped[speaker] = stop
        if not self._members[speaker].resting:
            self._members[speaker].rest()
            yield Left(worker=speaker, reason=LeaveReason.RESTING)
        yield from self._sampling.release(speaker)
        yield from self.leave_store()

    def _ready_events(self) -> list[Ready]:
        """Return the events that all have stopped; none while a worker is still under way."""
        present = list(self._members.known())
        stopped = self._stage.stopped
        if not self._stage.all_stopped(present):
            return []
        return [Ready(worker=worker, clock=stopped[worker].clock) for worker in present]

    def _enter_store(self, *, now_s: float) -> Answers:
        events = self._ready_events()
        if not events:
            return
        if self._stage.policy.racks_share_store:
            racks = self._members.form_racks([event.worker for event in events], joined=True)
            self._ledger.meet(racks)
            events = [
                replace(event, speaker=racks[event.worker][0]) if self._members[event.worker].spoken_for else event
                for event in events
            ]
        samples, left_out = self._stage.enter_store(self._members.known())
        self._ledger.entered_store((event.worker for event in events), clock=events[0].clock, samples=samples)
        if left_out:
            self._ledger.fallbacks.note(
                f"{left_out} samples were left out at step {events[0].clock}: what the stage before had left of "
                "them was in pieces that are too small for a rack"
            )
        yield from events
        for event in events:
            yield Tell(worker=event.worker, message=Entered())
        yield from self._regroupings.entered_store(now_s=now_s)

    def leave_store(self) -> Answers:
        """End the stage on the store if that is what is asked for and no worker is under way any more."""
        events = self._ready_events() if self._stage.exchange == "store" else []
        if events and not self._stage.goes_round(sum(self._members.known().values())):
            yield from self._members.tell_racks([event.worker for event in events], self._stage.stays())
        else:
            yield from events  # the answer to the last one is how they go on

    def steer(self, steer: Steer, *, paused: bool, now_s: float) -> list[Effect]:
        """Carry out the policy's decision on how all go on.

        ``paused``: they stopped where they had to pause.
        """
        before, self._steered = self._steered, steer
        reshared = before is not None and before.shares != steer.shares
        if before is None or steer.policy != steer.before or reshared or steer.alarm:
            self._ledger.steered(steer, at_s=self._ledger.elapsed_s(now_s))
            self._trace.event("steer", at_s=now_s, clock=steer.clock, policy=steer.policy, reason=steer.reason)
        else:
            self._ledger.upheld(steer, at_s=self._ledger.elapsed_s(now_s))
        if self._stage.exchange == "store" and (steer.policy != steer.before or steer.restore or paused):
            return self._end_stage(steer)
        self._stage.steer(steer)
        # in a rack that shares the store one receives it for all
        receivers = [worker for worker in self._members.live if not self._members[worker].spoken_for]
        steering = Steering.of(steer, workers=self._members.training)
        return [Tell(worker=worker, message=steering) for worker in receivers]

    def resumed(self, steer: Steer) -> None:
        """Have the workers of a collective go on in a new group, in which none of them is stopped any more."""
        self._steered = self._steered and steer  # the first one that a review gives is entered as the first decision
        self._stage.stopped.clear()
        self._stage.steer(steer)
        self._regroupings.resumed(Steering.of(steer, workers=self._members.training))

    def _end_stage(self, steer: Steer) -> list[Effect]:
        speakers = sorted(self._stage.stopped)
        workers = [one for speaker in speakers for one in self._members.rack_of(speaker)]
        self._members.dissolve_racks()
        self._ledger.meet({})
        for worker in self._members.known():
            self._members[worker].wake()
            self._members[worker].go_on_from(steer.clock)
        end = self._stage.leave_store(steer, speakers, training=self._members.training)
        end = replace(end, regroup=self._regroupings.stale)
        return [Tell(worker=worker, message=end) for worker in workers]

    def stay(self, reason: str) -> list[Effect]:
        if reason:
            self._ledger.fallbacks.note(reason)
        stopped = self._stage.stay()
        return [StayOrder(), *self._members.tell_racks(stopped, self._stage.stays())]
