"""How a collective goes on when one of its workers is lost: the others stand, and form a new group.

    going on --lost, or a worker says that it was cut off--> gathering --all stand--> going on, in the next generation

Everyone is told at once that the group is no more, which wakes those that wait in it. Each says where it stands; when
all have, they are told who is there, where each stands, and where they meet. What follows from that for the parameters
and the samples, they work out alike (`plesio.protocol.positions`). Should one more be lost on the way, or should they
fail to meet, that is the next generation.

Invariant: while workers gather, those that stand are live, and one that is awaited does not stand.
"""

from typing import Protocol

from plesio.core.trace import TraceWriter
from plesio.protocol.effects import Effect, Tell
from plesio.protocol.positions import common_clock
from plesio.protocol.to_server import Cut, Regrouped
from plesio.protocol.to_worker import Expelled, Lost, Regroup, Regrouping, Steering
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.coordinator.members import Members
from plesio.runtime.coordinator.stage import Stage

__all__ = ["Regroupings"]

MOST_IN_VAIN = 5
"""Generations in a row without anybody lost and without a step made: then they cannot meet at all."""


class Resume(Protocol):
    """The answer of a policy that changes to where its workers go on; None of one that does not."""

    def __call__(self, clock: int) -> Steering | None:
        """What they are told."""
        ...


class Regroupings:
    """The generations of one run's collective.

    Args:
        members: Who takes part.
        stage: The one that the run is in.
        elastic: Whether workers go on without one that is lost.
        ledger: Told who goes on, and from which samples.
        trace: Told that too.
        resume: Told from which clock all go on.
    """

    def __init__(
        self, members: Members, stage: Stage, *, elastic: bool, ledger: Ledger, trace: TraceWriter, resume: Resume
    ) -> None:
        self._members = members
        self._stage = stage
        self._elastic = elastic
        self._ledger = ledger
        self._trace = trace
        self._resume = resume
        self.stale = False
        """Somebody was lost on the store since the workers last formed a group."""
        self._generation = 0
        """Of the group, or of the one that is being formed."""
        self._gathering = False
        self._stand: dict[int, Cut] = {}
        self._clock = -1
        self._in_vain = 0

    @property
    def possible(self) -> bool:
        """Whether the loss of a worker does not end the collectives of the others."""
        return self._elastic and self._members.admitted

    @property
    def _group(self) -> list[int]:
        """The workers that meet in collectives, or will again: all but those whose training is over for good."""
        return [one for one in self._members.live if not (self._members[one].answered or self._members[one].doomed)]

    def lost(self, worker: int, *, now_s: float) -> list[Effect]:
        """Where the others met it in collectives they form a new group; on the store they do when they come back."""
        self._stand.pop(worker, None)
        self._in_vain = 0
        if not self.possible or self._members[worker].answered:
            return []
        if self._stage.exchange == "store":
            self.stale = True
            return self._go_on(now_s=now_s)
        return [*self._stop(), *self._go_on(now_s=now_s)]

    def hear(self, worker: int, message: Cut | Regrouped, *, now_s: float) -> list[Effect]:
        """A worker says where it stands, or that it is in the new group."""
        if isinstance(message, Cut):
            return self.cut_off(worker, message, now_s=now_s)
        return self.regrouped(message)

    def cut_off(self, worker: int, cut: Cut, *, now_s: float) -> list[Effect]:
        """A worker's collective cannot go on: the others are stopped, and when all stand they form a new group."""
        if not self._members.is_live(worker):
            return [Tell(worker=worker, message=Expelled())]
        self._members[worker].heard_s = now_s
        effects = self._stop()
        self._stand[worker] = cut
        return effects + self._go_on(now_s=now_s)

    def regrouped(self, regrouped: Regrouped) -> list[Effect]:
        """The new group is there."""
        self._ledger.regrouped(self._group, samples=regrouped.samples, own=regrouped.own, dropped=regrouped.dropped)
        return []

    def _stop(self) -> list[Effect]:
        """The group is no more: all of it are to say where they stand."""
        if self._gathering:
            return []
        self._gathering = True
        self._generation += 1
        self._stand.clear()
        return [Tell(worker=worker, message=Regrouping(generation=self._generation)) for worker in self._group]

    def _go_on(self, *, now_s: float) -> list[Effect]:
        """If all stand, they are told of the new group, or that there can be none."""
        members = tuple(self._group)
        if not self._gathering or not members or not self._stand.keys() >= set(members):
            return []
        positions = tuple(self._stand[worker].position for worker in members)
        clock = common_clock(positions)
        self._in_vain = self._in_vain + 1 if clock == self._clock else 0
        self._clock = clock
        self._gathering = self.stale = False
        if self._in_vain > MOST_IN_VAIN:
            text = "the workers cannot reach each other, though none of them is lost"
            return [Tell(worker=worker, message=Lost(workers=(), fatal=True, error=text)) for worker in members]
        for member in members:
            self._members[member].clock = clock
            self._members[member].leaving = False  # who has trained all it could says so again
        self._ledger.racks = dict.fromkeys(members, members)
        self._trace.event("regroup", at_s=now_s, clock=clock, workers=list(members))
        group = Regroup(
            generation=self._generation,
            members=members,
            positions=positions,
            meeting=self._stand[members[0]].meeting,
            steer=self._resume(clock),
        )
        return [Tell(worker=worker, message=group) for worker in members]

    def validate(self) -> None:
        """Raise AssertionError when the invariant of the module's head does not hold."""
        if self._gathering:
            group = set(self._group)
            assert self._stand.keys() <= set(self._members.live), (self._stand, group)
            assert not group or group - self._stand.keys(), "all stand, and nobody is told how to go on"
