"""The common position of all workers, as one of them has it: a checkpoint is taken of it, and begun from it."""

from dataclasses import dataclass, field
from typing import Any

from plesio.core.records import from_values
from plesio.protocol.plans import PlanFigures, Remainder
from plesio.protocol.to_worker import Steering
from plesio.runtime.worker.rounds import RoundRecords

STAND = ("policy", "next_review", "next_clock", "shares", "keep", "own", "own_optimizer")
"""Fields of a point that a checkpoint has beside its manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuiescentPoint:
    """A moment at which nothing is under way and all replicas are equal.

    Attributes:
        clock: Steps that have been finished, by all or by the furthest.
        policy: Spec of the static policy in force from here on.
        next_clock: Clock at which its answer holds.
        shares: By rank, of each round's samples; empty is equal shares.
        keep: The workers keep a copy of their state as it is here.
        plan: Number of the loop over the data that the workers are in; None in none.
        remainder: The samples that are left of it.
        own: This worker's own part of the exchange's state, as plain values.
        own_optimizer: Whether the optimizer's state is.
        workers: The workers that save; the first one writes what is common to all.
    """

    clock: int
    policy: str
    next_review: int
    next_clock: int
    shares: tuple[float, ...] = ()
    keep: bool = False
    samples: int = 0
    plan: int | None = None
    figures: PlanFigures | None = None
    remainder: Remainder | None = None
    own: dict[str, Any] = field(default_factory=dict)
    own_optimizer: bool = False
    workers: tuple[int, ...] = ()

    @classmethod
    def of(cls, steer: Steering, *, samples: int, own: dict[str, Any], own_optimizer: bool) -> "QuiescentPoint":
        return cls(
            **_decided(steer),
            shares=steer.shares,
            keep=steer.keep,
            samples=samples,
            own=own,
            own_optimizer=own_optimizer,
            workers=steer.savers,
        )

    @classmethod
    def joined(cls, steer: Steering, rounds: RoundRecords, *, figures: dict[str, Any]) -> "QuiescentPoint":
        read: PlanFigures = from_values(figures, PlanFigures)
        plan, remainder = rounds.plan_left
        return cls(
            **_decided(steer),
            samples=rounds.global_samples,
            plan=plan,
            figures=read,
            remainder=read.whole() if remainder is None else remainder,
        )

    def begin_rounds(self, rounds: RoundRecords) -> None:
        rounds.go_on_from(
            self.clock, global_samples=self.samples, plan=self.plan or 0, remainder=self.remainder, shares=self.shares
        )


def _decided(steer: Steering) -> dict[str, Any]:
    return {name: getattr(steer, name) for name in ("clock", "policy", "next_review", "next_clock")}
