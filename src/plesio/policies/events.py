"""What a policy hears and what it answers: the whole interface between a policy and the world that runs it.

A *machine* (see `plesio.policies.policy`) is handed one event at a time and returns actions. Both are frozen values, so
a recorded log of events replays to the same actions anywhere (`plesio.policies.replay`).

Clocks count finished optimizer steps. A worker that has credit up to clock ``c`` may finish step ``c`` without asking;
its *lead* is taken when it begins a step: its clock minus the slowest live worker's clock.

What a world owes a machine: a worker joins before anything else of it, and once until it left; nothing of it follows
after it left (late messages are the world's to refuse); its clock grows from one arrival to the next and never passes
its credit. Machines assert this.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Action",
    "Admit",
    "Apply",
    "Arrived",
    "Event",
    "Grant",
    "Joined",
    "LeaveReason",
    "Left",
    "Refuse",
    "RefuseReason",
]


class LeaveReason(StrEnum):
    """Why a worker is no longer there."""

    CLOSED = "closed"
    """It ended its session."""
    RESTING = "resting"
    """It has no samples to train on for now; it joins again when it is given some."""
    LOST = "lost"
    """Its lease ran out: it crashed, was killed, or cannot be reached."""


class RefuseReason(StrEnum):
    """Why an update does not reach the parameters."""

    NOT_FINITE = "not_finite"
    """The update holds NaN or infinity."""
    TOO_STALE = "too_stale"
    """The weighting discards updates of this staleness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A worker asks to take part. It may run once it is admitted, which can be later than at once."""

    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A worker is gone; what it had pushed before still counts.

    One that rested leaves a second time, with another reason, when it is gone for good.
    """

    worker: int
    reason: LeaveReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A worker's update is complete at the exchange.

    Attributes:
        worker: Who sent it.
        clock: The worker's clock after the last step that the update covers.
        num_steps: Steps that the update covers (1 unless the policy accumulates).
        base_version: Version of the shared parameters that the first of these steps began from. Rounds that wait for
            everyone do not look at it.
        finite: False when the worker found NaN or infinity in it and sent no values.
    """

    worker: int
    clock: int
    num_steps: int = 1
    base_version: int = 0
    finite: bool = True


Event = Joined | Left | Arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """The worker takes part from ``clock`` on: where the slowest live worker was last heard, or the last one stood.

    It then begins from the current version of the shared parameters.
    """

    worker: int
    clock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The worker may run until its clock is ``clock``. Credit only ever grows."""

    worker: int
    clock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """The mean of these updates, times ``weight``, becomes ``version`` of the shared parameters.

    Attributes:
        updates: (worker, clock) of each update, in the order of arrival.
        weight: Multiplies the step: the learning rate of a gradient (the mean over the steps it covers), or the delta
            itself (their sum).
        version: The version that results: one more than the last.
        staleness: τ of each update, in the order of ``updates``.
    """

    updates: tuple[tuple[int, int], ...]
    weight: float
    version: int
    staleness: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """The update is dropped and the worker is told why."""

    worker: int
    clock: int
    reason: RefuseReason


Action = Admit | Grant | Apply | Refuse
