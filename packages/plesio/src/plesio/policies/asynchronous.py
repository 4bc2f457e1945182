"""The machine of SSP with a bound above zero, and of ASP: every update is applied as it arrives.

Theory of operation. The machine learns a worker's clock only when an update of it arrives; the *floor* is the smallest
known clock among the live workers. Everyone may run until clock floor + s + 1: a step that begins at clock k needs k <=
floor + s.

    floor                              floor + s     floor + s + 1
      | slowest worker's last arrival      | last step that may begin
      |------------- runs on credit -------|-------------| credit

Invariants:

- The floor never falls: workers are admitted at the floor, and a worker's clock only grows. So credit never shrinks.
- A worker's true clock is at least the last reported one, so the true lead is at most s when a step begins.
- The slowest worker sends at the next multiple of the period p, at most p clocks above the floor, and p <= s + 1, so it
  always has the credit to get there: no schedule stops everyone.
- A worker that leaves no longer holds the floor.

*Behind the training* (a delay of d steps). A worker asks for the parameters after its exchange at clock c and merges
them after step c + d. The answer is held until the worker has credit for step c + d + 1, so what it reads is as new as
if it had asked at clock c + d. The slowest worker, with its last report at the floor, needs credit floor + d + 1 for
that: hence d <= s. One exchange is under way at a time: hence d <= p.

Without a bound, credit is the constant `UNLIMITED`, given once, and the floor only says where a newcomer starts.

How an update counts. Its staleness is τ = (version now) - (version it was computed from), and its step is multiplied by

    weighting(τ) · num_steps · m / N      for a gradient, which is the mean over its num_steps steps
    weighting(τ) · m / N                  for a delta, which is the sum over them already

where N counts the workers that share the samples and m those whose work the update is (1, or a rack's), so that N
workers which have made one step each have together moved the parameters by the weight of one synchronous step: the
learning rate a user writes is that of the synchronous step, whatever the policy. A gradient also carries its share of a
round, and its age in rounds: momentum and its like are per synchronous step too (`plesio.runtime.server.interleaved`).
At its end a worker pushes what compression has kept back of its gradients, as an update of no steps. That counts as one
step with their sum.
A worker that rests, because there are no samples left for it, still counts: else the last workers of every epoch would
make large steps with stale gradients, and undo what all had learned.

*Undivided* rates leave the N out, as parameter servers often do (Dean et al. 2012): every gradient is applied by the
stock optimizer as if it were all of a synchronous step, so N workers move the parameters N times as far as one, and
momentum goes on at every update. It is there to be compared with: it costs accuracy (`docs/evidence.md`).
"""

import math
from typing import Literal

from plesio.core.errors import PolicySpecError
from plesio.core.units import counted
from plesio.policies.events import (
    UNLIMITED,
    Action,
    Admit,
    Apply,
    Arrived,
    Event,
    Grant,
    Joined,
    LeaveReason,
    Left,
    Refuse,
    RefuseReason,
)
from plesio.policies.policy import UpdateKind
from plesio.policies.weighting import Weighting

RateKind = Literal["divided", "undivided"]
"""Treatment of the synchronous step's learning rate: divided by N among the workers' updates, or not."""


def check_delay(name: str, *, delay: int, period: int, bound: float) -> None:
    """Raise `PolicySpecError` unless an exchange can be hidden behind so many steps."""
    if delay > period:
        raise PolicySpecError(
            f"{name}: delay {delay} is above period {period}, so two exchanges would be in flight; write a delay of "
            f"{period} or less"
        )
    if delay > bound:
        remedy = f"write a delay of {bound} or less" if bound else "leave delay out"
        raise PolicySpecError(
            f"{name}: an exchange that takes {counted(delay, 'step')} brings parameters that are older than bound "
            f"{bound} allows; {remedy}, or write a bound of {delay} or more"
        )


class AsynchronousMachine:
    """Applies each update on arrival and keeps everyone within ``bound`` steps of the slowest.

    Args:
        bound: s, the largest lead in steps; ``math.inf`` for none.
        update: Kind of an update; it decides how the steps that it covers count.
        rate: ``divided`` if the workers share the rate of a synchronous step, ``undivided`` if each has all of it.
    """

    def __init__(
        self, *, bound: float, update: UpdateKind, weighting: Weighting, rate: RateKind = "divided", clock: int = 0
    ) -> None:
        assert bound > 0, "a bound of 0 is a barrier"
        self._bound = bound
        self._update: UpdateKind = update
        self._weighting = weighting
        self._divides = rate == "divided"
        self._clocks: dict[int, int] = {}
        """The last reported clock of each live worker."""
        self._resting: set[int] = set()
        self._num_workers: dict[int, int] = {}
        """For each live or resting worker, the number of workers whose work its updates contain."""
        self._counted: dict[int, float] = {}
        """For each worker, what a step of its last update counted."""
        self._floor = clock
        self._version = 0

    def handle(self, event: Event) -> tuple[Action, ...]:
        match event:
            case Joined():
                return self._join(event)
            case Left():
                return self._leave(event)
            case Arrived():
                return (self._judge(event), *self._raise_floor())
            case _:
                raise AssertionError(f"{event} is for policies that change")

    def _join(self, event: Joined) -> tuple[Action, ...]:
        worker = event.worker
        assert worker not in self._clocks, f"worker {worker} has joined already"
        self._resting.discard(worker)
        self._num_workers[worker] = event.num_workers
        self._clocks[worker] = self._floor
        return (Admit(worker=worker, clock=self._floor), Grant(worker=worker, clock=self._credit))

    def _leave(self, event: Left) -> tuple[Action, ...]:
        worker = event.worker
        if worker in self._resting:
            self._resting.remove(worker)
            del self._num_workers[worker]
            return ()
        assert worker in self._clocks, f"worker {worker} has not joined"
        if event.reason is LeaveReason.RESTING:
            self._resting.add(worker)
        else:
            del self._num_workers[worker]
        del self._clocks[worker]
        return self._raise_floor()

    def _judge(self, event: Arrived) -> Action:
        worker, clock = event.worker, event.clock
        assert worker in self._clocks, f"worker {worker} has not joined"
        ran = clock - self._clocks[worker]
        assert min(1, ran) <= event.num_steps <= ran, (
            f"an update of {event.num_steps} steps from worker {worker}, which ran {ran}"
        )
        assert clock <= self._credit, f"worker {worker} ran to clock {clock} on credit {self._credit}"
        tau = self._version - event.base_version
        assert tau >= 0, f"worker {worker} began from version {event.base_version}, the last is {self._version}"
        self._clocks[worker] = clock
        # a refused update has still moved its worker's clock
        if not event.finite:
            return Refuse(worker=worker, clock=clock, reason=RefuseReason.NOT_FINITE)
        if self._weighting.discards(tau):
            return Refuse(worker=worker, clock=clock, reason=RefuseReason.TOO_STALE)
        self._version += 1
        # the share of a synchronous step that this update stands for
        whose = self._num_workers[worker] / (sum(self._num_workers.values()) if self._divides else 1)
        if event.num_steps:
            self._counted[worker] = whose
        else:  # what was kept back counts as a step more, as much as the updates that it is left of
            whose = self._counted.get(worker, whose)
        share = max(1, event.num_steps) * whose
        gradient = self._update == "gradient"
        parts = gradient and self._divides
        return Apply(
            updates=((worker, clock),),
            weight=self._weighting(tau) * (share if gradient else whose),
            version=self._version,
            staleness=(tau,),
            share=share if parts else 1.0,
            age=tau * share if parts else 0.0,
        )

    @property
    def _credit(self) -> int:
        return UNLIMITED if math.isinf(self._bound) else self._floor + int(self._bound) + 1

    def _raise_floor(self) -> tuple[Action, ...]:
        """Follow the slowest live worker; return the credit that this gives the others."""
        before = self._floor
        # without live workers the floor stays, and the next one to join goes on from there
        self._floor = min(self._clocks.values(), default=before)
        if self._floor == before or math.isinf(self._bound):
            return ()
        credit = self._credit
        return tuple(Grant(worker=worker, clock=credit) for worker in sorted(self._clocks))

    def validate(self) -> None:
        assert not self._resting & self._clocks.keys(), (self._resting, self._clocks)
        assert self._num_workers.keys() == self._resting | self._clocks.keys(), (self._num_workers, self._clocks)
        assert self._floor == min(self._clocks.values(), default=self._floor), (self._floor, self._clocks)
        assert max(self._clocks.values(), default=self._floor) <= self._credit, (self._credit, self._clocks)
