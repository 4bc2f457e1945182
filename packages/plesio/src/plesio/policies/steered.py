"""The machine of every policy that changes while it runs: one static policy after another, on either exchange.

A `Director` makes the next decision; this machine makes the change at a moment when all workers stand still together.

    collective --Steer--> all stop at its clock --Ready of all--> store        (Admit, Grant from the inner machine)
    store --Halt--> each stops at its next exchange --Ready of all--> Steer --> collective, or another store stage

On a collective all workers have the same clock, so a change is named ahead: reviews are answered by a `Steer` that
holds from a later clock (`policies.review_clocks`). On the store clocks differ. There a change begins with a `Halt`,
which no worker can miss, since it comes with the answer to its next pull; when all stand still, `Steer` names the
furthest worker's clock, and all go on from that one. So no worker waits longer than for the others' steps under way. If
every exchange waits for all, the `Halt` comes as a round completes, before the credit of the next: otherwise it would
reach a slow worker before a step that a fast one has made, and that round would be a mean of some.

Invariants:

- While a stage on the store is at work, the static policy's own machine decides on every update; its clocks begin where
  the stage does, and its versions at 0.
- A worker that stands still has left the inner machine (it rests), so no worker waits for it.
- If racks share the store, the inner machine has one member a rack, the rack's speaker, which stands still for all of
  it; all workers review.
- Once a worker is lost in a stage on the store, or has left it, no change to a collective is begun, and one that is
  under way is called off (`Stay`); unless the others form a new group (`LeaveReason.REPLACED`).
- If workers of a collective form a new group they are steered anew (`Resumed`), and a review that was open is off.
- A `Pause` is answered by the next `Steer` at which all stand: on a collective that of a review, on the store the end
  of the stage, which is stopped for it and begun anew. So a checkpoint is taken where a change could be made.
- One review at a time is open. It is answered when every live worker that has samples has reported to it, once.
- On a collective a worker has unlimited credit: the collectives of the stage hold it back.
"""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

from plesio.policies.events import (
    UNLIMITED,
    Action,
    Admit,
    Arrived,
    Elapsed,
    Event,
    Grant,
    Halt,
    Joined,
    LeaveReason,
    Left,
    Pause,
    Ready,
    Resumed,
    Reviewed,
    Stay,
    Steer,
)
from plesio.policies.policy import NEVER, Decision, Director, Policy, PolicyMachine

LEAD = 2
"""Steps between a review and the clock at which its answer is wanted: a message's way, there and back."""


class SteeredPolicy(Policy):
    """A policy that changes while it runs, as its `director` says."""

    __slots__ = ()

    adapts: ClassVar[bool] = True

    @property
    def first_review(self) -> tuple[int, int]:
        return self.director().next_review(0)

    def start(self, *, clock: int = 0) -> PolicyMachine:
        return SteeredMachine(self.director(clock=clock), clock=clock, first_if_slow=self.first_if_slow)


class SteeredMachine:
    """Runs the policies that a director names."""

    def __init__(self, director: Director, *, clock: int = 0, first_if_slow: Policy | None = None) -> None:
        self._began, self._first_if_slow = clock, first_if_slow
        self._director = director
        self._policy = first = director.first
        self._inner: PolicyMachine | None = None
        """Machine of the stage on the store that is at work."""
        self._entering = first.exchange == "store"
        """True if the policy in force is on the store, and not all workers have got there."""
        self._coming: Decision | None = None
        """Decision after the stage on the store; its workers are being stopped."""
        self._halting = False
        """True if they will be stopped when the open round completes."""
        self._live: set[int] = set()
        self._resting: set[int] = set()
        self._short = False
        """True if a worker of the beginning has left."""
        self._ready: dict[int, int] = {}
        """Clock of each worker that stands still."""
        self._speakers: dict[int, int] = {}
        """Representative of each worker that another represents in this stage."""
        self._stopped = False
        """True if a worker of the collective is gone: the others are stopped, and have not reported a clock to go on
        from."""
        self._pausing = False
        """True if all are to stand still, and have not yet."""
        self._pause_for = ""
        self._review, self._holds = director.next_review(clock)
        self._reviews: dict[int, Reviewed] = {}

    def handle(self, event: Event) -> tuple[Action, ...]:
        match event:
            case Joined():
                return self._join(event)
            case Left():
                return self._leave(event)
            case Arrived():
                return self._arrive(event)
            case Reviewed():
                return self._take(event)
            case Ready(worker=worker, clock=clock, speaker=speaker):
                assert worker in self._live, f"worker {worker} has not joined"
                self._ready[worker] = clock
                if speaker is not None:
                    self._speakers[worker] = speaker
                return self._go_on()
            case Resumed(clock=clock):
                return self._resume(clock)
            case Elapsed():
                return () if self._inner is None else self._with_halt(self._inner.handle(event))
            case Pause(reason=reason):
                self._pausing, self._pause_for = True, reason
                return self._stop_to_pause()

    def _stop_to_pause(self) -> tuple[Action, ...]:
        """End the stage on the store that is at work, if all are to stand still and it does not end anyway."""
        if not self._pausing or self._inner is None or self._coming is not None:
            return ()
        return self._stop(Decision(policy=self._policy, reason=self._pause_for))

    def _join(self, event: Joined) -> tuple[Action, ...]:
        worker = event.worker
        if self._inner is not None:
            self._live.add(worker)
            self._resting.discard(worker)
            return self._inner.handle(event)
        assert worker not in self._live, f"worker {worker} has joined already"
        self._live.add(worker)
        return (Admit(worker=worker, clock=self._began), Grant(worker=worker, clock=UNLIMITED))

    def _leave(self, event: Left) -> tuple[Action, ...]:
        worker = event.worker
        actions = () if self._inner is None or worker in self._speakers else self._inner.handle(event)
        if event.reason is LeaveReason.RESTING:
            assert self._inner is not None, f"worker {worker} rests in a collective"
            self._resting.add(worker)
            return self._with_halt(actions) + self._answer()
        self._live.discard(worker)
        self._resting.discard(worker)
        actions = self._with_halt(actions)
        self._reviews.pop(worker, None)
        self._ready.pop(worker, None)
        if self._inner is not None and event.reason is not LeaveReason.REPLACED:
            actions += self._go_short(event)
        if self._inner is None and event.reason is LeaveReason.REPLACED:
            self._stopped = True
            return ()  # the others are stopped, and say from where they go on
        return actions + self._answer() + self._go_on()

    def _resume(self, clock: int) -> tuple[Action, ...]:
        """Let all go on together under the policy in force; on the way to the store they set out for it anew."""
        assert self._inner is None, "the workers of a store do without a group"
        self._stopped = False
        self._reviews.clear()
        self._ready.clear()
        decision = Decision(policy=self._policy, reason="the workers go on in a new group")
        return (self._steer(decision, clock=clock, stopped=False),)

    def _go_short(self, event: Left) -> tuple[Action, ...]:
        """Continue the stage without the worker, and call off the collective that was to follow."""
        first, self._short = not self._short, True
        called_off = self._coming is not None and self._coming.policy.exchange == "collective"
        reasons = []
        if called_off:
            assert self._coming is not None
            if self._coming.alarm:
                reasons.append(f"{self._coming.reason}; that was called off, for worker {event.worker} was gone")
            self._coming, self._halting = None, False
            self._ready.clear()
        lost = event.reason is LeaveReason.LOST
        if not called_off and not (lost and first):
            return ()
        if lost:
            reasons.append(
                f"worker {event.worker} was lost under {self._policy.spec}: the others go on, "
                "and not to a collective exchange any more"
            )
        if self._coming is not None:  # the others stop without it
            self._coming = replace(self._coming, reason="; ".join(filter(None, (self._coming.reason, *reasons))))
            return ()
        return (Stay(reason="; ".join(reasons)), *self._stop_to_pause())

    def _arrive(self, event: Arrived) -> tuple[Action, ...]:
        assert self._inner is not None, "no update arrives anywhere: the exchange is collective"
        actions = self._inner.handle(event)
        decision = None if self._coming is not None else self._director.over(event.clock)
        stop = () if decision is None else self._stop(decision)
        return self._with_halt(actions) + stop

    def _stop(self, decision: Decision) -> tuple[Action, ...]:
        """Stop all at their next exchange; where every step waits for everyone, all at the same one."""
        if self._short and decision.policy.exchange == "collective":
            return ()
        self._coming = decision
        self._halting = self._policy.synchronous and bool(self._at_work)
        return () if self._halting else (Halt(),)

    def _with_halt(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        """Prepend the delayed halt to the inner machine's actions, if these end the round that it waits for."""
        if not self._halting or (self._at_work and not any(isinstance(action, Grant) for action in actions)):
            return actions
        self._halting = False
        return (Halt(), *actions)

    @property
    def _at_work(self) -> set[int]:
        """The workers that make steps on the store, or represent a rack that does."""
        return self._live - self._resting - self._speakers.keys()

    def _take(self, event: Reviewed) -> tuple[Action, ...]:
        assert event.worker in self._live, f"worker {event.worker} has not joined"
        if self._inner is None:
            late = f"worker {event.worker} reports at clock {event.clock}, the review is at {self._review}"
            assert event.clock == self._review, late
        elif event.clock < self._review:
            return ()  # the others were answered while it rested; that answer tells it of the review to come
        self._reviews[event.worker] = event
        return self._answer()

    def _answer(self) -> tuple[Action, ...]:
        awaited = {one for one in self._live if self._speakers.get(one, one) not in self._resting}
        if not awaited or not awaited <= self._reviews.keys() or self._coming is not None:
            return ()
        reviews = dict(sorted(self._reviews.items()))
        self._reviews.clear()
        if self._inner is not None and self._short:
            return ()
        if self._first_if_slow is not None and any(review.began_slow for review in reviews.values()):
            self._policy = self._first_if_slow
        decision = self._director.review(reviews)
        if self._inner is None:
            return (self._steer(decision, clock=self._holds, stopped=True),)
        if decision.policy != self._policy or decision.restore:
            return self._stop(decision)
        return (self._steer(decision, clock=max(review.clock for review in reviews.values()), stopped=False),)

    def _steer(self, decision: Decision, *, clock: int, stopped: bool) -> Steer:
        before, self._policy = self._policy, decision.policy
        saves = stopped and self._pausing
        if saves:
            self._pausing = False
        self._review, self._holds = self._director.next_review(clock)
        self._entering = self._inner is None and decision.policy.exchange == "store"
        return Steer(
            clock=clock,
            before=before.spec,
            policy=decision.policy.spec,
            shares=decision.shares,
            next_review=self._review,
            next_clock=self._holds,
            keep=decision.keep,
            restore=decision.restore,
            relearn=decision.relearn,
            alarm=decision.alarm,
            save=saves,
            reason=decision.reason,
            inputs=decision.inputs,
        )

    def _go_on(self) -> tuple[Action, ...]:
        awaited = self._live if self._entering else self._live - self._speakers.keys()
        if not awaited or self._ready.keys() != awaited:
            return ()
        clock = max(self._ready.values())
        if self._entering:
            return self._enter(clock)
        if self._coming is None:
            return ()
        decision, self._coming = self._coming, None
        if self._policy.synchronous:  # the round that they stand in was handed in early, and is complete
            clock = -(-clock // self._policy.period) * self._policy.period
        self._inner = None
        self._ready.clear()
        self._resting.clear()
        self._reviews.clear()
        self._speakers.clear()
        return (self._steer(decision, clock=clock, stopped=True),)

    def _enter(self, clock: int) -> tuple[Action, ...]:
        """Let in those that have come to ``clock`` on the way to the store, for themselves or for a rack."""
        self._inner, self._entering = self._policy.start(clock=clock), False
        num_workers = Counter(self._speakers.get(worker, worker) for worker in sorted(self._ready))
        self._ready.clear()
        joined = [Joined(worker=worker, num_workers=number) for worker, number in num_workers.items()]
        admitted = [action for event in joined for action in self._inner.handle(event)]
        return (*admitted, *self._stop_to_pause())

    def validate(self) -> None:
        assert self._resting <= self._live, (self._resting, self._live)
        assert self._ready.keys() <= self._live, (self._ready, self._live)
        assert (self._inner is not None or self._entering) == (self._policy.exchange == "store"), self._policy
        assert not self._speakers or self._policy.exchange == "store", self._speakers
        assert self._coming is None or self._inner is not None, "only a stage on the store is stopped"
        assert not self._halting or self._coming is not None
        assert not (self._short and self._coming is not None and self._coming.policy.exchange == "collective")
        if self._inner is not None:
            self._inner.validate()
        else:
            assert self._review < self._holds or self._holds == NEVER, (self._review, self._holds)
            answered = not self._reviews.keys() < self._live
            assert self._stopped or not (self._live and answered), "a review is open that all have answered"
