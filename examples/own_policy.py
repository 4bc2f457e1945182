"""A policy of one's own: nobody gets more than `bound` steps ahead of the *median* worker.

    python examples/own_policy.py

SSP keeps everyone near the slowest worker, so one that is always slow sets the pace of all. Near the median, a slow
minority holds up nobody, and a fast one cannot run away.

A policy is a frozen value that starts a machine; the machine takes events and answers with actions, and knows neither
clock nor network. So `plesio.testing.play` can play it through any schedule, with workers that are lost and that join,
before anything is trained, and holds it to the laws of machines. Servers read a policy from its text: to train under
it, it also needs an entry in `plesio/policies/spec.py` (CONTRIBUTING.md says how).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median_low

from plesio.policies import (
    SSP,
    Action,
    Admit,
    Apply,
    Arrived,
    Event,
    Grant,
    Joined,
    LeaveReason,
    Left,
    PolicyMachine,
    Refuse,
    RefuseReason,
)
from plesio.testing import play

NUM_STEPS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMedian:
    """A user's policy: a value, equal to another with the same fields."""

    bound: int = 4

    def start(self) -> PolicyMachine:
        """Start a fresh machine that has seen no event."""
        return NearMedianMachine(bound=self.bound)


class NearMedianMachine:
    """Applies each update as it arrives; credit reaches `bound` steps beyond the median worker's next one."""

    def __init__(self, *, bound: int) -> None:
        self._bound = bound
        self._clocks: dict[int, int] = {}
        self._members: set[int] = set()
        """Workers that train or rest."""
        self._credit = bound + 1
        self._version = 0

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Take one event; return what the world must do, in this order."""
        match event:
            case Joined(worker=worker):
                clock = min(self._clocks.values(), default=0)
                self._clocks[worker] = clock
                self._members.add(worker)
                return (Admit(worker=worker, clock=clock), Grant(worker=worker, clock=self._credit))
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
                update = Apply(
                    updates=((worker, clock),),
                    weight=event.num_steps / len(self._members),  # as many steps as members are one synchronous step
                    version=self._version,
                    staleness=(staleness,),
                )
                return (update, *self._grant())
        raise AssertionError(f"{event} is for policies that change while they run")

    def _grant(self) -> tuple[Action, ...]:
        """More credit for all if the median worker has moved on; credit never shrinks."""
        if not self._clocks:
            return ()
        credit = median_low(self._clocks.values()) + self._bound + 1
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
    for policy in (SSP(bound=4, period=1), NearMedian(bound=4)):
        draw_s = partial(random.Random(0).lognormvariate, 0.0, 0.4)
        step_s = [partial(at_speed, draw_s, speed) for speed in speeds]
        played = play(policy.start(), step_s=step_s, num_steps=NUM_STEPS)
        name = f"{type(policy).__name__} bound={policy.bound}"
        print(f"{name:<24} {played.steps_per_s:>8.2f} {played.waited_share:>8.0%}  {list(played.steps)}")


if __name__ == "__main__":
    main()
