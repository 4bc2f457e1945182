"""The exchange of a policy that changes while it runs: one static exchange after another.

On a collective a worker reports to server 0 after the step that the last answer named, goes on, and does what the
answer says after the step from which it holds (`policies.review_clocks`). All ranks make a change there, alike:

1. *settle*: what is under way is merged and all replicas become their mean; no worker's step is lost;
2. where workers that stepped by themselves step together from now on, all of them or those of a rack, the optimizer's
   state becomes the mean over the ranks;
3. the next exchange is built, and callbacks are told. On the way to the store one worker first gives the servers
   its state, the optimizer's with it where they step it, and all report their arrival; then the store admits them.

A stage on the store ends by a halt, which comes with the answer to a pull. The worker goes on to its batches, as others
may be in the next loop over the data already (`plesio.runtime.worker.staged_batches`), and stands still there:

1. it hands in what it has, gives its samples back, and reports that it stands still;
2. when all do, everything that was pushed is applied, so the version that the servers hold is the last one, and all
   take it over, the optimizer's state with it where the servers have stepped it;
3. the clock becomes that of the furthest worker, the next exchange is built, and callbacks are told.

Learning rates stay as they are: under every policy they are those of the synchronous step, of which local SGD takes a
share by itself (`outer_step`). So does momentum: each replica's is that of its own steps, and their mean that of the
mean gradient, which is what BSP would have had; the servers' is that of all updates.

Going back (the guard's alarm) is to a copy of the state (`state_copy`).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from plesio.core.records import to_values
from plesio.policies import Policy, parse_policy
from plesio.protocol.to_server import StageStop
from plesio.protocol.to_worker import StageEnd, Steering
from plesio.runtime.worker.callbacks import Transition
from plesio.runtime.worker.exchange.collective import CollectiveExchanges, StageExchange
from plesio.runtime.worker.exchange.exchange import (
    CollectiveExchange,
    Exchange,
    HeldSteps,
    NoGroup,
    SharedState,
    StepProgress,
)
from plesio.runtime.worker.exchange.group import LiveGroup
from plesio.runtime.worker.exchange.replica import Replica, State
from plesio.runtime.worker.exchange.review_reporter import ReviewReporter, ServerSteering
from plesio.runtime.worker.exchange.state_copy import StateCopy, average_state
from plesio.runtime.worker.exchange.store_client import StoreClient
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.quiescent_point import QuiescentPoint
from plesio.runtime.worker.rack_batches import Rack
from plesio.runtime.worker.registered import Keeper
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worker.sharing import Leasing
from plesio.runtime.worker.staged_batches import StagedSharing, stage_stop
from plesio.runtime.worker.step_times import StepClock

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StageParts:
    """The parts that the stages of one worker are made of.

    Attributes:
        client: Connections to the servers of the store; None where no policy can go there.
        channel: The way to server 0, which decides what follows a stage.
        rounds: This rank's; dealt in the shares that are asked for.
        steps: Moved where all go on together.
        cuts_off: Tells whether an error means that the workers' group is no more, and they are to form another.
    """

    group: LiveGroup
    exchanges: CollectiveExchanges
    client: StoreClient | None
    channel: ServerSteering
    rounds: RoundRecords
    leasing: Leasing
    steps: StepClock
    timeline: WorkerTimeline
    cuts_off: Callable[[BaseException], bool]


@dataclass(frozen=True)
class _Stage:
    """A part of the run under one policy; without an exchange, the moment between two of them."""

    policy: Policy
    began: int
    exchange: Exchange = field(default_factory=NoGroup)
    collective: CollectiveExchange | None = None
    store: StageExchange | None = None
    rack: Rack | None = None


class StagedExchange(Exchange):
    """Runs the policies that the policy's machine asks for, one after another.

    Args:
        resumed: Position of the run when it was saved, if it is resumed; ``first`` and the first review are then those
            from there on.
        late: Whether this worker has yet to join the others.
    """

    def __init__(
        self,
        replica: Replica,
        first: Policy,
        *,
        parts: StageParts,
        reporter: ReviewReporter,
        saver: Keeper | None,
        resumed: QuiescentPoint | None,
        late: bool,
    ) -> None:
        self._replica, self._parts = replica, parts
        self.cutter = partial(parts.exchanges.cutter, first)
        """Returns the cutter of the replica in a group; None where replicas are whole."""
        self._reporter, self._saver, self._resumed, self._late = reporter, saver, resumed, late
        self._shares: tuple[float, ...] = () if resumed is None else resumed.shares
        self._kept: deque[StateCopy] = deque(maxlen=2)
        """States to go back to."""
        self._snapshots: list[SharedState] = []
        self.sharing = StagedSharing(self, leasing=parts.leasing, rounds=parts.rounds, group=parts.group)
        self._clock = parts.steps.finished
        # first the samples and the memory of the run that goes on: the first exchange is built from them
        if resumed is not None:
            resumed.begin_rounds(parts.rounds)
            parts.exchanges.passed(resumed.samples)
            self._remember(resumed.own)
        self._stage = _Stage(first, self._clock)
        if not late:  # else `regrouped` begins, in the group that this worker joins
            self._begin(first, end=None)
        if resumed is not None and resumed.keep and self.meets:
            self._kept.append(StateCopy(replica))

    def _begin(self, policy: Policy, *, end: StageEnd | None) -> None:
        """Begin a stage under ``policy``, in force at this worker's clock."""
        exchanges = self._parts.exchanges
        rack = exchanges.rack(together=policy.synchronous) if policy.racks_share_store else None
        # on the way to the store samples are leased for the rack, before there is an exchange
        self._stage = _Stage(policy, self._clock, rack=rack)
        if policy.exchange == "collective":
            collective = exchanges.build(policy)
            collective.count_as(exchanges.share(policy, self._shares))
            self._stage = replace(self._stage, exchange=collective, collective=collective)
            return
        assert self._parts.client is not None, f"{policy.spec} without a store"
        store = exchanges.build_store(policy, self._parts.client)
        self._enter(store, end=end)
        self._stage = replace(self._stage, exchange=store, store=store)

    def _enter(self, store: StageExchange, *, end: StageEnd | None) -> None:
        """Go to the store with all others, or go on there if they have come from it by ``end``."""
        timeline, clock = self._parts.timeline, self._clock
        begun_s = timeline.now_s()
        if self._leads(end):
            store.offer()
        entered_s = timeline.now_s()
        stop = stage_stop(self.sharing.batches, clock=clock, end=end, resumed=self._resumed, rounds=self._parts.rounds)
        self._parts.channel.enter_store(stop)
        waited_s = timeline.now_s()
        store.begin(clock)
        timeline.communicate(begun_s, entered_s, clock=clock)
        timeline.wait(entered_s, waited_s, clock=clock)
        timeline.communicate(waited_s, timeline.now_s(), clock=clock)

    @property
    def meets(self) -> bool:
        """True if the workers meet in every step or every few; False if updates go through the store now."""
        return self._stage.store is None

    @property
    def rack(self) -> Rack | None:
        return self._stage.rack

    @property
    def halted(self) -> bool:
        """True if the stage on the store ends, by the latest news."""
        return self._stage.store is not None and self._stage.store.halted

    def halt(self) -> None:
        if self._stage.store is not None:
            self._stage.store.halt()

    @property
    def ready_s(self) -> float | None:
        return self._stage.exchange.ready_s

    def step(self, progress: StepProgress) -> None:
        """Exchange by the policy in force; report, and act on the answer, when it is time."""
        self._clock = progress.clock
        self._reporter.step(progress, self._stage.exchange)
        if not self.meets:
            self._hear_news()
        elif (steer := self._reporter.answer(progress.clock)) is not None:
            self._follow(steer)

    def _hear_news(self) -> None:
        """Go on on the store by the answer to the last review, if it has come."""
        news = self._reporter.news(self._stage.rack)
        if news is not None and news.keep:
            self._kept.append(StateCopy(self._replica, optimizer_state=False))

    def _follow(self, steer: Steering) -> None:
        self._parts.exchanges.compare(self.held_steps())
        self._take_shares(steer)
        restores = steer.restore and bool(self._kept)
        if not restores and steer.keep:
            self._reporter.good()
        policy = parse_policy(steer.policy)
        if policy == self._stage.policy and policy.shards:  # a replica stays in parts, and nothing is under way
            self._save(steer, end=None)
        elif policy != self._stage.policy or restores or steer.save:
            self._change(steer, end=None)
        if steer.keep and self.meets:
            self._kept.append(StateCopy(self._replica))

    def _take_shares(self, steer: Steering) -> None:
        if steer.shares != self._shares:
            self._parts.rounds.change(steer.shares)
            self._shares = steer.shares
            if self._stage.collective is not None:
                self._stage.collective.count_as(self._parts.exchanges.share(self._stage.policy, self._shares))

    def depart(self, plan: int, *, release: Callable[[], None]) -> StageEnd:
        """Stand still at the end of a stage on the store until it is known how to go on; ``release`` ends leases."""
        self.flush()
        release()
        end = self._parts.channel.leave_store(StageStop(clock=self._clock, plan=plan))
        steer = end.steer
        if steer is None:
            assert self._stage.store is not None, "only a stage on the store is left so"
            if end.to_the_end:
                self._stage.store.halt()
            else:
                self._stage.store.resume()
            return end
        self._parts.rounds.go_on_from(steer.clock, global_samples=end.samples, plan=plan, remainder=end.remainder)
        with self._unless_cut_off(end):
            self._hear_news()
        self._reporter.go_on(steer)
        self._parts.exchanges.passed(end.samples)
        self._clock = steer.clock
        self._change(steer, end=end)
        self._take_shares(steer)
        self._parts.steps.go_on_from(steer.clock)
        self._parts.timeline.meter.totals.clock = steer.clock
        return end

    def _change(self, steer: Steering, *, end: StageEnd | None) -> None:
        ended, policy = self._stage, parse_policy(steer.policy)
        restored = steer.restore and bool(self._kept)
        changes = restored or policy != ended.policy
        if changes:
            _log.info(
                "%s in place of %s%s", steer.policy, ended.policy.spec, ", from the last good state" if restored else ""
            )
        # replicas become equal, and the ended stage lets go of the model
        if ended.store is not None:
            ended.store.take_back()
        self.settle()
        if self._leads(end):
            self._snapshots += ended.exchange.snapshots()
        ended.exchange.close()
        self._stage = _Stage(policy, self._clock)
        if restored:
            self._reporter.returned()
            self._kept[0].restore()
            while len(self._kept) > 1:  # the later copies are of what has been undone
                self._kept.pop()
        # on the way to a new group that follows; `regrouped` does the same there
        if end is None or not end.regroup:
            with self._unless_cut_off(end):
                self._go_on(steer, before=ended.policy, end=end, restored=restored)
        self._reporter.forget()
        if not changes:
            return
        self._parts.timeline.event("steer", at_s=self._parts.timeline.now_s(), clock=steer.clock, policy=steer.policy)
        self._tell_user(ended.policy, clock=steer.clock, restored=restored)

    @contextmanager
    def _unless_cut_off(self, end: StageEnd | None) -> Iterator[None]:
        """Give up what this worker does with others on its way from the store, if their group is no more.

        It is between two batches: its next step is cut off too, and goes on in the new group.
        """
        try:
            yield
        except RuntimeError as error:
            if end is None or not self._parts.cuts_off(error):
                raise

    def _go_on(self, steer: Steering, *, before: Policy, end: StageEnd | None, restored: bool) -> None:
        """Begin the next stage with all others, from one state, of which a checkpoint is taken if one is due."""
        policy = parse_policy(steer.policy)
        if restored or _own_states_meet(before, policy):
            self._average_state(steer.clock, parameters=restored)
        if (restored or policy != before) and (policy.exchange == "collective" or policy.racks_share_store):
            self._parts.exchanges.agree_on_scale()
        self._save(steer, end=end)
        self._begin(policy, end=end)

    def _save(self, steer: Steering, *, end: StageEnd | None) -> None:
        """Prepare to take a checkpoint here, if one is due."""
        if steer.save and self._saver is not None:
            self._saver.save(self._quiescent_point(steer, end), server_state=self._parts.channel.server_state)

    def _leads(self, end: StageEnd | None) -> bool:
        """Tell whether this is the worker whose state stands for all."""
        return self._parts.group.rank == 0 if end is None else self._parts.group.worker == end.leader

    def _quiescent_point(self, steer: Steering, end: StageEnd | None) -> QuiescentPoint:
        own = {"kept": [copy.state() for copy in self._kept], **self._memory()}
        moment = QuiescentPoint.of(
            steer,
            samples=self._parts.rounds.global_samples,
            own=own,
            own_optimizer=self._stage.policy.update == "delta",
        )
        batches = self.sharing.batches
        return moment if batches is None else replace(moment, **batches.position(end))

    def _average_state(self, clock: int, *, parameters: bool) -> None:
        begun_s = self._parts.timeline.now_s()
        if not average_state(self._replica, self._parts.group.current, parameters=parameters):
            self._parts.timeline.meter.totals.fallbacks.append(
                f"at step {clock} the optimizer's state was dropped: not all workers had one"
            )
        self._parts.timeline.blocked(begun_s, self._parts.timeline.now_s(), clock=clock)

    def held_steps(self) -> HeldSteps | None:
        """Return the steps that the replica holds; all make the first ones of a stage from equal replicas."""
        stage = self._stage
        held = None if stage.collective is None else stage.collective.held_steps()
        return None if held is None else HeldSteps(settled=max(held.settled, stage.began), counted=held.counted)

    def units(self) -> list[int]:
        return (
            [0] * self._parts.group.current.size if self._stage.collective is None else self._stage.collective.units()
        )

    def settle(self) -> None:
        if self._stage.collective is not None:
            self._stage.collective.settle()

    def memory(self) -> dict[str, Any]:
        """Return the memory of this worker's parts, and the figures of the loop over the data."""
        batches = self.sharing.batches
        return {"own": self._memory(), "figures": None if batches is None else to_values(batches.figures)}

    def _memory(self) -> dict[str, Any]:
        return {"exchanges": self._parts.exchanges.own(), **self._reporter.memory()}

    def _remember(self, own: dict[str, Any]) -> None:
        """Take over what another worker's `memory`, or a checkpoint, has; nothing is nothing."""
        if own:
            self._kept.extend(StateCopy.of(self._replica, one) for one in own.get("kept", ()))
            self._parts.exchanges.take_own(own["exchanges"])
            self._reporter.go_on_from(own)

    def regrouped(self, steer: Steering | None, *, memory: dict[str, Any] | None) -> None:
        """Drop what was under way, and go on in the new group as decided; replicas are equal."""
        assert steer is not None, "a policy that changes says how all go on"
        before, policy = self._stage.policy, parse_policy(steer.policy)
        self._snapshots += self._stage.exchange.snapshots()
        self._stage.exchange.close()
        self._stage = _Stage(before, self._clock)  # if they are cut off again before the next is built
        self._parts.exchanges.regrouped(self._parts.rounds.global_samples)
        if self.sharing.batches is not None:
            self.sharing.batches.regrouped()
        if memory is not None:
            if memory["own"] is not None:
                self._remember(memory["own"] if self._late else {"exchanges": memory["own"]["exchanges"]})
            if self._late and memory["figures"] is not None:
                self._resumed = QuiescentPoint.joined(steer, self._parts.rounds, figures=memory["figures"])
        self._late = False
        self._parts.exchanges.agree_on_scale()
        self._reporter.go_on(steer)
        self._clock, self._shares = steer.clock, steer.shares
        self._kept.clear()
        if not self._replica.is_cut:
            self._average_state(steer.clock, parameters=True)  # wherever in a change some of them were cut off
        self._begin(policy, end=None)
        self._reporter.forget()
        if before != policy:
            self._tell_user(before, clock=steer.clock, restored=False)

    def _tell_user(self, before: Policy, *, clock: int, restored: bool) -> None:
        transition = Transition(clock=clock, before=before, after=self._stage.policy, restored=restored)
        self._parts.timeline.meter.callbacks.tell("on_transition", transition)

    def accumulating(self) -> AbstractContextManager[None]:
        return self._stage.exchange.accumulating()

    def admitted_at(self, clock: int) -> None:
        self._clock = clock
        self._stage.exchange.admitted_at(clock)

    def flush(self) -> None:
        if self._stage.store is not None:
            self._stage.store.flush()

    def shared(self) -> State | None:
        return self._stage.exchange.shared()

    def finish(self) -> None:
        self._stage.exchange.finish()
        if (clipped := self._reporter.clipped) is not None:
            self._parts.timeline.meter.totals.fallbacks.append(clipped)

    def snapshots(self) -> list[SharedState]:
        taken, self._snapshots = self._snapshots, []
        return taken + self._stage.exchange.snapshots()

    def close(self) -> None:
        self._stage.exchange.close()
        self._kept.clear()


def _own_states_meet(before: Policy, after: Policy) -> bool:
    """Tell whether workers with an optimizer's state of their own step alike from now on, and so need the same one."""
    if before.update != "delta" or before.exchange == after.exchange == "store":
        return False
    return after.update == "gradient" or (after.inner is not None and before.inner is None)
