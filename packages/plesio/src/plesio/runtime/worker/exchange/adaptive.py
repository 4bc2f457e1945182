"""The exchange of a policy that changes while it runs: one static exchange after another.

On a collective a worker reports to server 0 after the step that the last answer named, goes on, and does what the
answer says after the step from which it holds (`policies.review_clocks`). All ranks make a change there, alike:

1. *settle*: what is under way is merged and all replicas become their mean; no step of anybody is lost;
2. where workers that stepped by themselves step together from now on, all of them or those of a rack, the optimizer's
   state becomes the mean over the ranks;
3. the next exchange is built, and `on_transition` is called. On the way to the store one worker first gives the servers
   its state, the optimizer's with it where they step it, and all say that they are there; then the store admits them.

A stage on the store ends by a halt, which comes with the answer to a pull. The worker goes on to its batches, as others
may be in the next loop over the data already (`plesio.runtime.worker.staged_batches`), and stands still there:

1. it hands in what it has, gives its samples back, and says that it stands still;
2. when all do, everything that was pushed is applied, so the version that the servers hold is the last one, and all
   take it over, the optimizer's state with it where the servers have stepped it;
3. the clock becomes that of the furthest worker, the next exchange is built, and `on_transition` is called.

Learning rates stay as they are: under every policy they are those of the synchronous step, of which local SGD takes a
share by itself (`outer_step`). So does momentum: each replica's is that of its own steps, and their mean that of the
mean gradient, which is what BSP would have had; the servers' is that of all updates.

Going back (the guard's alarm) is to a copy of the state (`state_copy`).
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from plesio.core.records import to_values
from plesio.core.results import Found
from plesio.policies import Policy, Reviewed, parse_policy
from plesio.policies.adaptive.training.rate_limit import RateLimit
from plesio.policies.steered import NEVER
from plesio.protocol.plans import PlanFigures
from plesio.protocol.to_server import Standing
from plesio.protocol.to_worker import Steering, Turn
from plesio.runtime.worker.exchange.collective import CollectiveExchange, CollectiveExchanges
from plesio.runtime.worker.exchange.exchange import Exchange, Progress, SharedState, Stand
from plesio.runtime.worker.exchange.held_rate import HeldRate
from plesio.runtime.worker.exchange.live_group import LiveGroup
from plesio.runtime.worker.exchange.no_group import NoGroup
from plesio.runtime.worker.exchange.own_parts import OwnParts
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.exchange.state_copy import StateCopy, average_state
from plesio.runtime.worker.exchange.steering_channel import SteeringChannel
from plesio.runtime.worker.exchange.store_stage import StageExchange, StoreExchanges
from plesio.runtime.worker.exchange.transition import Transition, own_states_meet
from plesio.runtime.worker.loading import BatchSource
from plesio.runtime.worker.monitor import StepMonitor
from plesio.runtime.worker.rack_batches import Rack
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worker.sharing import Leasing, tell_metric
from plesio.runtime.worker.staged_batches import StagedBatches, standing
from plesio.runtime.worker.standstill import Saver, Standstill
from plesio.runtime.worker.step_clock import StepClock
from plesio.runtime.worker.timeline import Timeline

__all__ = ["AdaptiveExchange"]

_log = logging.getLogger(__name__)


class AdaptiveExchange:
    """Runs the policies that the policy's machine asks for, and has samples dealt as the one in force needs it.

    Args:
        replica: Equal on all ranks.
        group: The ranks.
        exchanges: Builds the exchange of each policy on the collective.
        stores: Builds that of each policy on the store; None where there is none.
        first: The policy to begin with.
        first_review: Clock of the first review and the one from which its answer holds.
        monitor: Gathers reviews; None where nobody reads them.
        limit: Holds learning rates that leap; None lets them.
        rounds: This rank's; dealt in the shares that are asked for.
        timeline: Where waiting for an answer goes.
        channel: Where answers come from.
        leasing: Where samples come from on the store.
        steps: Moved where all go on together.
        on_transition: Called after every change, with the optimizer, on every worker.
        saver: Takes checkpoints where all stand for one.
        resumed: Where the run stood when it was saved, if it is resumed; ``first`` and ``first_review`` are then those
            from there on.
        late: Whether this worker has yet to join the others.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        group: LiveGroup,
        exchanges: CollectiveExchanges,
        stores: StoreExchanges | None,
        first: Policy,
        first_review: tuple[int, int],
        monitor: StepMonitor | None,
        limit: RateLimit | None,
        rounds: RoundRecords,
        timeline: Timeline,
        channel: SteeringChannel,
        leasing: Leasing,
        steps: StepClock,
        on_transition: Callable[[Transition, torch.optim.Optimizer], None] | None,
        saver: Saver | None = None,
        resumed: Standstill | None = None,
        late: bool = False,
    ) -> None:
        self._replica = replica
        self._group = group
        self._exchanges = exchanges
        self._stores = stores
        self._monitor = monitor
        self._held = HeldRate(replica, limit, timeline)
        self._rounds = rounds
        self._timeline = timeline
        self._channel = channel
        self._leasing = leasing
        self._steps = steps
        self._on_transition = on_transition
        self._saver = saver
        self._resumed = resumed
        self._policy = first
        self._shares: tuple[float, ...] = () if resumed is None else resumed.shares
        self._review, self._holds = first_review
        self._awaits_news = False
        """The last review has not been answered."""
        self._kept: deque[StateCopy] = deque(maxlen=2)
        self._own = OwnParts(replica, kept=self._kept, exchanges=exchanges, monitor=monitor, held=self._held)
        self._snapshots: list[SharedState] = []
        """Of stages that are over."""
        self._clock = self._began = steps.finished
        """The second is where the stage began."""
        self._rack: Rack | None = None
        """This worker's, if racks share the store now."""
        self._batches: StagedBatches | None = None
        """Of the latest loop over the data."""
        self._collective: CollectiveExchange | None = None
        self._store: StageExchange | None = None
        if resumed is not None:
            resumed.begin_rounds(self._rounds)
            self._exchanges.passed(resumed.samples)
            self._own.go_on_from(resumed.own)
        self._late = late
        self._current: Exchange = NoGroup() if late else self._begin(first, turn=None)
        """Of the last two the one that is at work."""
        if resumed is not None and resumed.keep and not self.on_store:
            self._kept.append(StateCopy(replica))

    def _begin(self, policy: Policy, *, turn: Turn | None) -> Exchange:
        """The exchange of ``policy``, in force at this worker's clock."""
        self._rack = self._exchanges.rack(together=policy.synchronous) if policy.racks_share_store else None
        self._collective = self._store = None
        self._began = self._clock
        if policy.exchange == "collective":
            self._collective = self._exchanges.build(policy)
            self._collective.count_as(self._exchanges.share(policy, self._shares))
            return self._collective
        assert self._stores is not None, f"{policy.spec} without a store"
        self._store = self._stores.begin(
            policy,
            clock=self._clock,
            leads=self._leads(turn),
            enter=lambda: self._channel.enter_store(self._standing(turn)),
        )
        return self._store

    def _standing(self, turn: Turn | None) -> Standing:
        """What this worker says on its way to the store, from which ``turn`` it has come if that was one too."""
        return standing(self._batches, clock=self._clock, turn=turn, resumed=self._resumed, rounds=self._rounds)

    def batch_source(self, figures: PlanFigures, *, plan: int) -> BatchSource:
        """Rounds or leased blocks, as the exchange in force needs it."""
        self._batches = StagedBatches(
            figures,
            plan=plan,
            rounds=self._rounds,
            lease=lambda: self._leasing.batches(figures, plan=plan, exchange=self, rack=self._rack),
            stages=self,
        )
        return self._batches

    def share_metric(self, find: Callable[[], Found], *, number: int | None) -> Found:
        """Rank 0's, on all ranks of a collective; on the store see `Leasing.share_metric`."""
        share = self._leasing.share_metric
        return share(find, number=number, rack=self._rack) if self.on_store else tell_metric(find(), self._group)

    @property
    def on_store(self) -> bool:
        """Whether the store is what updates go through now."""
        return self._store is not None

    @property
    def in_rack(self) -> bool:
        """Whether this worker is one of a rack that shares the store now."""
        return self._rack is not None

    @property
    def halted(self) -> bool:
        """Whether the stage on the store ends, as far as this worker knows."""
        return self._store is not None and self._store.halted

    def halt(self) -> None:
        """The stage on the store ends."""
        if self._store is not None:
            self._store.halt()

    @property
    def ready_s(self) -> float | None:
        """When this step's own gradient was complete, if it is being exchanged since then; else None."""
        return self._current.ready_s

    def step(self, progress: Progress) -> None:
        """Exchange as the policy in force says; report, and do as the answer says, when it is time."""
        self._clock = progress.clock
        share = self._held.share_at(progress.clock)
        with self._replica.scaled_rate(share):
            self._current.step(progress)
        if self._monitor is not None:
            self._monitor.step(progress, rate=share * self._held.rate)
        if progress.clock >= self._review:
            self._review, self._awaits_news = NEVER, True
            self._channel.review(self._seen(progress.clock, rate=share * self._held.rate))
        if self.on_store:
            self._hear_news()
        elif progress.clock == self._holds:
            begun_s = self._timeline.now_s()
            steer = self._channel.steer()
            self._timeline.wait(begun_s, self._timeline.now_s(), clock=progress.clock)
            assert steer.clock == progress.clock, f"an answer for clock {steer.clock} at clock {progress.clock}"
            self._follow(steer)

    def _seen(self, clock: int, *, rate: float) -> Reviewed:
        if self._monitor is None:
            return Reviewed(worker=self._group.worker, clock=clock, samples=(), compute_s=(), blocked_s=())
        replica = self._replica
        return self._monitor.take(
            clock,
            learning_rate=rate,
            momentum=replica.momentum,
            normalises=replica.normalises,
            shares_moments=replica.can_share_moments,
            writes=replica.changes.seen,
            parameters=list(replica.parameters.values()),
        )

    def _hear_news(self) -> None:
        """Go on on the store as the answer to the last review says, if it has come."""
        if not self._awaits_news or (news := self._channel.news(self._rack)) is None:
            return
        self._review, self._awaits_news = news.next_review, False
        if news.keep:
            self._kept.append(StateCopy(self._replica, optimizer_state=False))

    def _follow(self, steer: Steering) -> None:
        """Go on from a collective."""
        self._exchanges.compare(self.stand())
        self._review, self._holds, self._awaits_news = steer.next_review, steer.next_clock, False
        self._take_shares(steer)
        restores = steer.restore and bool(self._kept)
        if not restores and steer.keep:
            self._held.good()
        if parse_policy(steer.policy) != self._policy or restores or steer.save:
            self._change(steer, turn=None)
        if steer.keep and not self.on_store:
            self._kept.append(StateCopy(self._replica))

    def _take_shares(self, steer: Steering) -> None:
        if steer.shares != self._shares:
            self._rounds.change(steer.shares)
            self._shares = steer.shares
            if self._collective is not None:
                self._collective.count_as(self._exchanges.share(self._policy, self._shares))

    def depart(self, plan: int, *, release: Callable[[], None]) -> Turn:
        """Stand still at the end of a stage on the store until it is known how to go on, and begin that.

        Args:
            plan: Which loop of the session the worker is in.
            release: Called when all updates are handed in: gives back what is leased.
        """
        self.flush()
        release()
        turn = self._channel.leave_store(Standing(clock=self._clock, plan=plan), self._rack)
        steer = turn.steer
        if steer is None:
            assert self._store is not None, "only a stage on the store is left so"
            if turn.to_the_end:
                self._store.halt()
            else:
                self._store.resume()
            return turn
        self._rounds.go_on_from(steer.clock, global_samples=turn.samples, plan=plan, remainder=turn.remainder)
        self._hear_news()
        self._awaits_news = False
        self._exchanges.passed(turn.samples)
        self._clock = steer.clock
        self._review, self._holds = steer.next_review, steer.next_clock
        self._change(steer, turn=turn)
        self._take_shares(steer)
        self._steps.go_on_from(steer.clock)
        return turn

    def _change(self, steer: Steering, *, turn: Turn | None) -> None:
        before, self._policy = self._policy, parse_policy(steer.policy)
        restored = steer.restore and bool(self._kept)
        changes = restored or self._policy != before
        if changes:
            _log.info(
                "%s in place of %s%s", steer.policy, before.spec, ", from the last good state" if restored else ""
            )
        if self._store is not None:
            self._store.take_back()
        if self._collective is not None:
            self._collective.settle()
        if self._leads(turn):
            self._snapshots += self._current.snapshots()
        self._current.close()
        self._current, self._collective, self._store, self._rack = NoGroup(), None, None, None
        if restored:
            self._held.returned()
            self._kept[0].restore()
            while len(self._kept) > 1:
                self._kept.pop()
        if turn is None or not turn.regroup:
            if restored or own_states_meet(before, self._policy):
                self._average_state(steer.clock, parameters=restored)
            if changes and (self._policy.exchange == "collective" or self._policy.racks_share_store):
                self._exchanges.agree_on_scale()
            if steer.save and self._saver is not None:
                self._saver.save(self._standstill(steer, turn), books=self._channel.books)
            self._current = self._begin(self._policy, turn=turn)
        if self._monitor is not None:
            self._monitor.forget()
        if not changes:
            return
        self._timeline.event("steer", at_s=self._timeline.now_s(), clock=steer.clock, policy=steer.policy)
        self._tell_user(before, clock=steer.clock, restored=restored)

    def _leads(self, turn: Turn | None) -> bool:
        """Whether this is the worker whose state stands for that of all."""
        return self._group.rank == 0 if turn is None else self._group.worker == turn.leader

    def _standstill(self, steer: Steering, turn: Turn | None) -> Standstill:
        """What is saved of this moment."""
        own = self._policy.update == "delta"
        moment = Standstill.of(steer, samples=self._rounds.global_samples, own=self._own.state(), own_optimizer=own)
        return moment if self._batches is None else replace(moment, **self._batches.position(turn))

    def _average_state(self, clock: int, *, parameters: bool) -> None:
        begun_s = self._timeline.now_s()
        if not average_state(self._replica, self._group, parameters=parameters):
            self._timeline.meter.totals.fallbacks.append(
                f"at step {clock} the optimizer's state was dropped: not all workers had one"
            )
        self._timeline.blocked(begun_s, self._timeline.now_s(), clock=clock)

    def stand(self) -> Stand | None:
        """Which steps the replica holds; all make the first ones of a stage from equal replicas."""
        stand = None if self._collective is None else self._collective.stand()
        return None if stand is None else Stand(settled=max(stand.settled, self._began), counted=stand.counted)

    def units(self) -> list[int]:
        """Whose replicas are equal after every step."""
        return [0] * self._group.size if self._collective is None else self._collective.units()

    @property
    def meets(self) -> bool:
        """Whether the workers meet in every step or every few."""
        return not self.on_store

    def settle(self) -> None:
        """Bring what is under way or held back to its end, so that all replicas are equal."""
        if self._collective is not None:
            self._collective.settle()

    def memory(self) -> dict[str, Any]:
        """What this worker's parts remember, and what the loop over the data deals out."""
        return {"own": self._own.memory(), "figures": self._batches and to_values(self._batches.figures)}

    def regrouped(self, steer: Steering | None, *, memory: dict[str, Any] | None) -> None:
        """Drop what was under way, and go on in the new group as is said; replicas are equal."""
        assert steer is not None, "a policy that changes says how all go on"
        self._snapshots += self._current.snapshots()
        self._current.close()
        self._current, self._collective = NoGroup(), None  # if they are cut off again before the next is built
        self._exchanges.regrouped(self._rounds.global_samples)
        if self._batches is not None:
            self._batches.regrouped()
        if memory is not None:
            if memory["own"] is not None:
                self._own.go_on_from(memory["own"] if self._late else {"exchanges": memory["own"]["exchanges"]})
            if self._late and memory["figures"] is not None:
                self._resumed = Standstill.joined(steer, self._rounds, figures=memory["figures"])
        self._late = self._awaits_news = False
        self._exchanges.agree_on_scale()
        before, self._policy, self._clock = self._policy, parse_policy(steer.policy), steer.clock
        self._review, self._holds, self._shares = steer.next_review, steer.next_clock, steer.shares
        self._kept.clear()
        self._average_state(steer.clock, parameters=True)  # wherever in a change some of them were cut off
        self._current = self._begin(self._policy, turn=None)
        if self._monitor is not None:
            self._monitor.forget()
        if before != self._policy:
            self._tell_user(before, clock=steer.clock, restored=False)

    def _tell_user(self, before: Policy, *, clock: int, restored: bool) -> None:
        if self._on_transition is not None:
            transition = Transition(clock=clock, before=before, after=self._policy, restored=restored)
            self._on_transition(transition, self._replica.optimizer)

    def accumulating(self) -> AbstractContextManager[None]:
        """Backward passes in this context only add to the gradient."""
        return self._current.accumulating()

    def admitted_at(self, clock: int) -> None:
        """A rest on the store is over; on a collective nobody rests."""
        self._clock = clock
        self._current.admitted_at(clock)

    def flush(self) -> None:
        """Hand in to the store what is held back."""
        if self._store is not None:
            self._store.flush()

    def shared(self) -> State | None:
        """The shared parameters now, on rank 0 (on the store: on the worker that evaluates)."""
        return self._current.shared()

    def finish(self) -> None:
        """Contribute what is still held back."""
        self._current.finish()
        if self._monitor is not None and (clipped := self._monitor.clipped) is not None:
            self._timeline.meter.totals.fallbacks.append(clipped)

    def snapshots(self) -> list[SharedState]:
        """The snapshots taken since the last call, on the worker that evaluates."""
        taken, self._snapshots = self._snapshots, []
        return taken + self._current.snapshots()

    def close(self) -> None:
        """Let go of the model."""
        self._current.close()
        self._kept.clear()
