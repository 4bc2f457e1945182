"""Messages from server 0 to workers (and to observers, which ask for figures). Times are in seconds."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from plesio.core.results import Evaluation, RunResult
from plesio.policies import RefuseReason, Steer
from plesio.protocol.figures import RunFigures
from plesio.protocol.message import Message
from plesio.protocol.plans import Block, Remainder
from plesio.protocol.positions import Position

_PAGE_CHARACTERS = 2**20


class Start(Message, frozen=True, kw_only=True, tag=2):
    """The run has begun.

    Attributes:
        elapsed_s: Since when the run has been going on.
        workers: Workers that it began with.
    """

    clock: int
    elapsed_s: float
    workers: tuple[int, ...]


class Failed(Message, frozen=True, kw_only=True, tag=3):
    """There is no run to take part in."""

    message: str


class Alive(Message, frozen=True, kw_only=True, tag=5):
    """A sign of life has arrived; silence for longer than ``lease_s`` seconds counts as a loss."""

    urgent: ClassVar[bool] = True

    lease_s: float


class Lost(Message, frozen=True, kw_only=True, tag=6, omit_defaults=True):
    """These workers are gone; ``fatal`` if the one that is told cannot go on without them.

    Attributes:
        error: Error that they ended with, if they reported it.
    """

    urgent: ClassVar[bool] = True

    workers: tuple[int, ...]
    fatal: bool
    error: str | None = None


class Regrouping(Message, frozen=True, kw_only=True, tag=42):
    """The group of before this generation is no more: every worker of it reports its position (`PositionReport`)."""

    urgent: ClassVar[bool] = True

    generation: int


class Hold(Message, frozen=True, kw_only=True, tag=44):
    """A worker waits to join: begin no further step before `Stop` is there. Answered with `Holding`.

    Attributes:
        generation: Generation of the group that is to be formed.
    """

    urgent: ClassVar[bool] = True

    generation: int


class Stop(Message, frozen=True, kw_only=True, tag=45):
    """A stop of all workers for those that wait to join: each sends `PositionReport` when it has made this step.

    Attributes:
        generation: That of the `Hold`.
        clock: The step; one that no worker reaches if all go on as they were.
    """

    generation: int
    clock: int


class Expelled(Message, frozen=True, kw_only=True, tag=7):
    """The worker was counted lost, and still speaks, or the run ends without it.

    Attributes:
        over: The run has ended.
    """

    urgent: ClassVar[bool] = True
    over: bool = False


class Lease(Message, frozen=True, kw_only=True, tag=9):
    """The answer to a `LeaseRequest`.

    Attributes:
        block: Block that the worker may train on; None if there is nothing to be had.
        clock: Clock at which it takes part again, if it has rested.
        halted: There is nothing because the stage on the store ends.
    """

    omits: ClassVar[tuple[str, ...]] = ("clock", "halted")

    plan: int
    block: Block | None
    clock: int | None = None
    halted: bool = False


class UpdateRefused(Message, frozen=True, kw_only=True, tag=13):
    """The update at this clock was dropped.

    Attributes:
        clock: The worker's clock after the update's last step.
        num_returned: Samples of the update that were given back, and are not trained on until others have.
    """

    omits: ClassVar[tuple[str, ...]] = ("num_returned",)

    clock: int
    reason: RefuseReason
    num_returned: int = 0


class MayLeave(Message, frozen=True, kw_only=True, tag=15):
    """The answer to `Leave`; ``evaluates`` if evaluating is this worker's."""

    evaluates: bool


class KnownEvaluation(Message, frozen=True, kw_only=True, tag=48):
    """The answer to an `EvaluationRequest`: what another worker has found; None where this one is to evaluate."""

    evaluation: Evaluation | None


class Steering(Message, frozen=True, kw_only=True, tag=25):
    """How the worker goes on: what it must know of a `Steer`, field for field.

    Attributes:
        savers: The workers that save their state, where they do; the first one writes what is common to all.
    """

    omits: ClassVar[tuple[str, ...]] = ("relearn", "save", "savers")

    clock: int
    before: str
    policy: str
    shares: tuple[float, ...] = ()
    next_review: int
    next_clock: int
    keep: bool = False
    restore: bool = False
    relearn: bool = False
    save: bool = False
    savers: tuple[int, ...] = ()

    @classmethod
    def of(cls, steer: Steer, *, workers: Sequence[int]) -> Self:
        """Make the part that workers act on; ``workers`` are those that train."""
        fields = {name: getattr(steer, name) for name in cls.__struct_fields__ if name != "savers"}
        return cls(**fields, savers=tuple(workers) if steer.save else ())


class ServerState(Message, frozen=True, kw_only=True, tag=34):
    """A page of server 0's state, in order, to the worker that saves it; follows a `Steering` that says so.

    Attributes:
        text: Text of all pages together: JSON, which only a coordinator reads.
        left: Pages that follow.
    """

    text: str
    left: int
    elapsed_s: float

    @staticmethod
    def pages(text: str) -> list[str]:
        """Cut server 0's state into texts of a MiB, by which it goes to a worker and back."""
        return [text[at : at + _PAGE_CHARACTERS] for at in range(0, len(text), _PAGE_CHARACTERS)]


class Entered(Message, frozen=True, kw_only=True, tag=27):
    """All have stopped on the way to the store: go on."""


class StageEnd(Message, frozen=True, kw_only=True, tag=28):
    """An answer to a worker that waits at the end of a stage on the store.

    Attributes:
        steer: How all go on, elsewhere; None if the stage is not over. The rest depends on it.
        to_the_end: It is not over for the rest of the plan only.
        remainder: Rest of the plan; None is all of it.
        samples: Samples of all workers that have been trained on.
        leader: The worker that offers its state, if the next stage is on the store.
        regroup: The workers' group is not what it was: they report their positions before they go on.
    """

    steer: Steering | None
    to_the_end: bool = False
    remainder: Remainder | None = None
    samples: int = 0
    leader: int = 0
    regroup: bool = False

    def left_out(self) -> tuple[str, ...]:
        """Return the fields that are meaningless or implied here."""
        if self.steer is None:
            return ("remainder", "samples", "leader", "regroup")
        return ("to_the_end",) if self.regroup else ("to_the_end", "regroup")


class Regroup(Message, frozen=True, kw_only=True, tag=43):
    """The answer to `PositionReport`: the group to go on in.

    Attributes:
        members: Its workers, in ascending order.
        positions: Their positions, in the same order.
        meeting: Address where they meet, from the first of them.
        steer: How they go on, under a policy that changes.
    """

    omits: ClassVar[tuple[str, ...]] = ("steer",)

    generation: int
    members: tuple[int, ...]
    positions: tuple[Position | None, ...]
    meeting: str
    steer: Steering | None = None


class Result(Message, frozen=True, kw_only=True, tag=29):
    """The run's figures up to now; None if there is no run. Its fields are those of `results.json`."""

    result: RunResult | None

    def body(self) -> dict[str, Any]:
        return {} if self.result is None else self.result.to_json()

    @classmethod
    def of_body(cls, body: dict[str, Any]) -> Self:
        return cls(result=RunResult.from_json(body) if body else None)


class Progress(Message, frozen=True, kw_only=True, tag=30):
    """The progress of the run; None if there is no run."""

    figures: RunFigures | None


class RunEnded(Message, frozen=True, kw_only=True, tag=31):
    """The run is over, and these are its figures. Its fields are those of `results.json`, and ``unwritten``.

    Attributes:
        unwritten: Why they could not be written to the run's folder; None if they were, or there is none.
    """

    result: RunResult
    unwritten: str | None = None

    def body(self) -> dict[str, Any]:
        return self.result.to_json() | ({} if self.unwritten is None else {"unwritten": self.unwritten})

    @classmethod
    def of_body(cls, body: dict[str, Any]) -> Self:
        figures = {name: value for name, value in body.items() if name != "unwritten"}
        return cls(result=RunResult.from_json(figures), unwritten=body.get("unwritten"))


ToWorker = (
    Start
    | Failed
    | Alive
    | Lost
    | Regrouping
    | Regroup
    | Hold
    | Stop
    | Expelled
    | Lease
    | UpdateRefused
    | MayLeave
    | KnownEvaluation
    | Steering
    | ServerState
    | Entered
    | StageEnd
    | Result
    | Progress
    | RunEnded
)
