"""The machine of the adaptive policy: waits for everybody's review, lets the controller decide, and steers all alike.

Invariants:

- One review at a time is open: its clock and the clock from which its answer holds were named by the answer before.
- It is answered when every live worker has reported, once, to all of them.
- A worker has credit without end: the collectives of the setting in force are what holds it.
"""

from typing import TYPE_CHECKING

from plesio.policies.adaptive.controller import Controller
from plesio.policies.adaptive.review import FIRST_CLOCK, FIRST_REVIEW, next_review
from plesio.policies.asynchronous import UNLIMITED
from plesio.policies.events import Action, Admit, Arrived, Evaluated, Event, Grant, Joined, Left, Reviewed, Steer

if TYPE_CHECKING:
    from plesio.policies.adaptive.adaptive import Adaptive

__all__ = ["AdaptiveMachine"]


class AdaptiveMachine:
    """Answers reviews.

    Args:
        policy: Components and parameters.
    """

    __slots__ = ("_controller", "_every", "_holds", "_live", "_metric", "_review", "_reviews")

    def __init__(self, policy: "Adaptive") -> None:
        self._controller = Controller(policy)
        self._every = policy.review.every
        self._live: set[int] = set()
        self._review, self._holds = FIRST_REVIEW, FIRST_CLOCK
        self._reviews: dict[int, Reviewed] = {}
        self._metric: float | None = None

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Take one event; return what the world must do, in this order."""
        match event:
            case Joined(worker=worker):
                assert worker not in self._live, f"worker {worker} has joined already"
                self._live.add(worker)
                return (Admit(worker=worker, clock=0), Grant(worker=worker, clock=UNLIMITED))
            case Left(worker=worker):
                self._live.discard(worker)
                self._reviews.pop(worker, None)
                return self._answer()
            case Reviewed(worker=worker, clock=clock):
                assert worker in self._live, f"worker {worker} has not joined"
                assert clock == self._review, (
                    f"worker {worker} reports at clock {clock}, the review is at {self._review}"
                )
                self._reviews[worker] = event
                return self._answer()
            case Evaluated(metric=metric):
                self._metric = metric
                return ()
            case Arrived():
                raise AssertionError("no update arrives anywhere: the exchange is collective")

    def _answer(self) -> tuple[Action, ...]:
        if not self._live or self._reviews.keys() != self._live:
            return ()
        before = self._controller.setting
        decision = self._controller.decide(dict(sorted(self._reviews.items())), metric=self._metric)
        holds = self._holds
        self._reviews.clear()
        self._metric = None
        # until an exchange has been measured the next review is as soon as one can have been
        every = self._every if self._controller.knows_transfer else 1
        self._review, self._holds = next_review(holds, setting=decision.setting, every=every)
        return (
            Steer(
                clock=holds,
                before=before.spec,
                policy=decision.setting.spec,
                shares=decision.shares,
                next_review=self._review,
                next_clock=self._holds,
                keep=decision.keep,
                restore=decision.restore,
                reason=decision.reason,
                inputs=decision.inputs,
            ),
        )

    def validate(self) -> None:
        """Raise AssertionError when an invariant of the module's head does not hold."""
        assert self._review < self._holds, (self._review, self._holds)
        assert self._reviews.keys() < self._live or not self._live, "a review is open that all have answered"
