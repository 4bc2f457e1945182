"""A policy of one's own: nobody gets more than `ahead` steps ahead of the *median* worker.

    python examples/own_policy.py

SSP keeps everyone near the slowest worker, so one that is always slow sets the pace of all. Near the median, a slow
minority holds up nobody, and a fast one cannot run away.

A policy is a frozen value that starts a machine; the machine takes events and answers with actions, and knows neither
clock nor network. So `plesio.testing.play` can play it through any schedule, with workers that are lost and that join,
before anything is trained, and holds it to the laws of machines. `Policy` has the answers of a policy that needs
nothing special; this one replaces those that differ. Servers read a policy from its text: to train under it, it also
needs an entry in `plesio/policies/spec.py` (CONTRIBUTING.md says how).
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import ClassVar

from plesio.policies import (
    SSP,
    Action,
    Admit,
    Apply,
    Arrived,
    Event,
    ExchangeKind,
    Grant,
    Joined,
    LeaveReason,
    Left,
    Policy,
    PolicyMachine,
    Refuse,
    RefuseReason,
    UpdateKind,
)
from plesio.testing import play

NUM_STEPS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMedian(Policy):
    """A user's policy: a value, equal to another with the same fields."""

    name: ClassVar[str] = "near_median"
    exchange: ClassVar[ExchangeKind] = "store"
    update: ClassVar[UpdateKind] = "gradient"
    synchronous: ClassVar[bool] = False
    bound: ClassVar[float] = math.inf
    """Largest lead over the *slowest* worker: the median worker may be any number of steps ahead of that one."""

    ahead: int = 4

    def start(self, *, clock: int = 0) -> PolicyMachine:
        """Start a fresh machine that has seen no event; workers begin at ``clock``."""
        return NearMedianMachine(ahead=self.ahead, clock=clock)


class NearMedianMachine:
    """Applies each update as it arrives; credit reaches `ahead` steps beyond the median worker's next one."""

    def __init__(self, *, ahead: int, clock: int) -> None:
        self._ahead = ahead
        self._clocks: dict[int, int] = {}
        self._members: set[int] = set()
        """Workers that train or rest."""
        self._floor = clock
        """The slowest worker's clock, at which the next one joins; it stays while all rest."""
        self._credit = clock + ahead + 1
        self._version = 0

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Take one event; return what the world must do, in this order."""
        match event:
            case Joined(worker=worker):
                self._clocks[worker] = self._floor
                self._members.add(worker)
                return (Admit(worker=worker, clock=self._floor), Grant(worker=worker, clock=self._credit))
            case Left(worker=worker, reason=reason):
                self._clocks.pop(worker, None)
                if reason is not LeaveReason.RESTING:  # else it joins again when there are samples for it
                    self._members.discard(worker)
                return self._grant()
            case Arrived(worker=worker, clock=clock, finite=False):
                self._clocks[worker] = clock
                return (Refuse(worker=worker, clock=clock, reason=RefuseReason.NOT_FINITE), *self._grant())
            case Arrived(worker=worker, clock=clock):
                self._clocks[worker] = clock
                self._version += 1
                staleness = self._version - 1 - event.base_version
                share = event.num_steps / len(self._members)  # as many steps as members are one synchronous step
                update = Apply(
                    updates=((worker, clock),),
                    weight=share,
                    version=self._version,
                    staleness=(staleness,),
                    share=share,
                    age=staleness * share,
                )
                return (update, *self._grant())
        raise AssertionError(f"{event} is for policies that change while they run")

    def _grant(self) -> tuple[Action, ...]:
        """More credit for all if the median worker has moved on; credit never shrinks."""
        if not self._clocks:
            return ()
        self._floor = min(self._clocks.values())
        credit = median_low(self._clocks.values()) + self._ahead + 1
        if credit <= self._credit:
            return ()
        self._credit = credit
        return tuple(Grant(worker=worker, clock=credit) for worker in sorted(self._clocks))

    def validate(self) -> None:
        """No worker has run beyond its credit, and the median worker can always go on."""
        assert all(clock <= self._credit for clock in self._clocks.values())
        assert not self._clocks or median_low(self._clocks.values()) < self._credit


def at_speed(draw_s: Callable[[], float], speed: float) -> float:
    """Seconds of the next step."""
    return draw_s() / speed


def main() -> None:
    speeds = [1.0, 1.0, 1.0, 0.3]
    print(f"{'policy':<24} {'steps/s':>8} {'waiting':>8}  steps by worker")
    for policy in (SSP(bound=4), NearMedian(ahead=4)):
        draw_s = partial(random.Random(0).lognormvariate, 0.0, 0.4)
        step_s = [partial(at_speed, draw_s, speed) for speed in speeds]
        played = play(policy.start(), step_s=step_s, num_steps=NUM_STEPS)
        print(f"{policy.spec:<24} {played.steps_per_s:>8.2f} {played.waited_share:>8.0%}  {list(played.steps)}")


if __name__ == "__main__":
    main()
