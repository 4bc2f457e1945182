"""Messages to server 0 from workers, other servers and observers. Times are in seconds, sizes in bytes."""

from typing import Annotated, Any, ClassVar, Self

import msgspec

from plesio.core.errors import DataError
from plesio.core.records import Record
from plesio.core.results import Environment, Evaluation
from plesio.policies import Arrived, Event, Reviewed
from plesio.policies.log_writer import LIMIT_BYTES
from plesio.protocol.figures import Report, RunInfo, Status
from plesio.protocol.message import Message
from plesio.protocol.plans import PlanFigures, Remainder
from plesio.protocol.positions import Position

MAX_MEMBERS = 4096
"""Workers, and servers, that a run can have."""

Finished = tuple[int, int, int]
"""Samples that are done: the plan, the block in it, and how many of the block's next samples."""


MAX_PAGES = 1024
"""Most pages of a run's state of server 0, each of about a MiB."""


class Saving(Record, frozen=True, kw_only=True):
    """How often a run is saved, and where it goes on if it is resumed.

    Attributes:
        every_s: Seconds of the run between two checkpoints; None where steps count.
        every_steps: Steps of the furthest worker, likewise.
        clock: Clock at which the workers begin.
        elapsed_s: Seconds that the run had taken by then.
        num_pages: `ServerStatePage`s that worker 0 sends; the run begins when they have come.
    """

    every_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    every_steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    clock: Annotated[int, msgspec.Meta(ge=0)] = 0
    elapsed_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    num_pages: Annotated[int, msgspec.Meta(ge=0, le=MAX_PAGES)] = 0

    def due(self, *, past_s: float, num_steps: int) -> bool:
        """Tell whether one is due so long, and so many steps, after the last."""
        late = self.every_s is not None and past_s >= self.every_s
        return late or (self.every_steps is not None and num_steps >= self.every_steps)


class Join(Message, frozen=True, kw_only=True, tag=1):
    """Take part in a run. Answered with `Start` or `Failed`.

    Attributes:
        num_workers: Workers that the run begins with.
        num_servers: Servers that hold parameters; 0 where the exchange is always collective.
        snapshot_every: Samples between two snapshots of the store; None for none.
        folder: Folder for the run's logs and results; None for nowhere.
        layout: Digest of the model's tensors, equal on all workers.
        elastic: Whether workers of a collective go on without one that is lost.
        grows: Whether one can join them while they run.
        optimizer: Class and settings of the worker's optimizer, equal on all workers.
        total_samples: Samples of the whole training, if they are known.
    """

    omits: ClassVar[tuple[str, ...]] = ("saving", "elastic", "grows", "log_bytes", "optimizer", "total_samples")

    policy: str
    info: RunInfo
    num_workers: Annotated[int, msgspec.Meta(ge=1, le=MAX_MEMBERS)]
    num_servers: Annotated[int, msgspec.Meta(ge=0, le=MAX_MEMBERS)]
    snapshot_every: Annotated[int, msgspec.Meta(ge=1)] | None
    folder: str | None
    layout: str
    rack: int
    environment: Environment
    saving: Saving | None = None
    elastic: bool = True
    grows: bool = True
    log_bytes: Annotated[int, msgspec.Meta(ge=0)] = LIMIT_BYTES
    optimizer: tuple[str, ...] = ()
    total_samples: int | None = None


class ServerStatePage(Message, frozen=True, kw_only=True, tag=35):
    """A page of server 0's state in the run that is resumed, in order; worker 0 sends it when it has joined."""

    text: str


class SaveRequest(Message, frozen=True, kw_only=True, tag=33):
    """A checkpoint as soon as there can be one, please."""


class Heartbeat(Message, frozen=True, kw_only=True, tag=4):
    """Alive, and new figures; from a thread of its own. Answered with `Alive` or `Expelled`."""

    report: Report


class LeaseRequest(Message, frozen=True, kw_only=True, tag=8):
    """Samples of this plan, please. Answered with `Lease`.

    Attributes:
        plan: Which loop of the session.
        idle: The worker has nothing left to train on, and waits.
    """

    plan: int
    idle: bool
    figures: PlanFigures


class Finish(Message, frozen=True, kw_only=True, tag=10):
    """The next samples of a block are done, and are in no update."""

    plan: int
    block: int
    num_samples: int


class Release(Message, frozen=True, kw_only=True, tag=11):
    """The worker has left its loop: what it has leased and not finished may go to others."""


class UpdateHead(Record, frozen=True, kw_only=True):
    """Which update: as in `Arrived`."""

    omits: ClassVar[tuple[str, ...]] = ("fragment",)

    worker: int
    clock: int
    num_steps: int = 1
    base_version: int = 0
    fragment: int = 0


class NotFinite(Message, frozen=True, kw_only=True, tag=12):
    """An update that was not finite and was not pushed."""

    event: UpdateHead
    finished: tuple[Finished, ...]

    @property
    def arrived(self) -> Arrived:
        head = self.event
        return Arrived(
            worker=head.worker,
            clock=head.clock,
            num_steps=head.num_steps,
            base_version=head.base_version,
            finite=False,
            fragment=head.fragment,
        )


class Leave(Message, frozen=True, kw_only=True, tag=14):
    """The worker's training is over. Answered with `MayLeave`; for the worker that evaluates, when all have left.

    Attributes:
        samples: Samples of all workers that have been trained on in collectives, by this one's count.
    """

    samples: int = 0


class Evaluations(Message, frozen=True, kw_only=True, tag=16):
    """New points of the metric, and the digest of the final parameters when they are there.

    Attributes:
        number: Number of the evaluation that the last point is of, where all workers are told it; no points: it has
            failed.
    """

    omits: ClassVar[tuple[str, ...]] = ("number",)

    evaluations: tuple[Evaluation, ...]
    parameters_sha256: str | None
    number: int | None = None


class EvaluationRequest(Message, frozen=True, kw_only=True, tag=47):
    """The result of this evaluation, please, which each worker counts for itself. Answered with `KnownEvaluation`."""

    number: int


class ResultRequest(Message, frozen=True, kw_only=True, tag=17):
    """From anyone: the run's figures, please. Answered with `Result`.

    Attributes:
        report: A worker's own up to now.
    """

    omits: ClassVar[tuple[str, ...]] = ("report",)

    report: Report | None = None


class ProgressRequest(Message, frozen=True, kw_only=True, tag=18):
    """From anyone: figures for a display, please. Answered with `Progress`."""


class Goodbye(Message, frozen=True, kw_only=True, tag=19):
    """The worker's session is closed. Answered with `RunEnded` when the run is over."""

    status: Status
    error: str | None
    report: Report


class Review(Message, frozen=True, kw_only=True, tag=24):
    """A worker's measurements since its last review, a `Reviewed`.

    Answered with `Steering`, to all, when all have reported.
    """

    event: Event

    @classmethod
    def of_body(cls, body: dict[str, Any]) -> Self:
        """Make the message with these fields; its event is a `Reviewed`."""
        review = super().of_body(body)
        if not isinstance(review.event, Reviewed):
            raise DataError(f"its event is a {type(review.event).__name__}")
        return review


class StageStop(Message, frozen=True, kw_only=True, tag=26):
    """A worker has stopped between two exchanges. Answered with `Entered` or `StageEnd` when it may go on.

    Attributes:
        clock: Steps that it has finished.
        plan: Which loop of its session it is in; None if it has not been in any.
        remainder: Rest of the plan, where the samples were dealt in rounds.
        samples: Samples of all workers that have been trained on, then too.
    """

    clock: int
    plan: int | None = None
    figures: PlanFigures | None = None
    remainder: Remainder | None = None
    samples: int = 0


class PositionReport(Message, frozen=True, kw_only=True, tag=40):
    """This worker has stopped, and is ready to form a group. Answered with `Regroup`, when all of them have said so.

    Attributes:
        position: Its position; None if it has no state to give: it joins.
        meeting: Address where the others would meet, if it comes to lead.
        agreed: It has stopped where all have agreed to; if not, its collective could not go on.
    """

    omits: ClassVar[tuple[str, ...]] = ("agreed",)

    position: Position | None
    meeting: str
    agreed: bool = False


class Holding(Message, frozen=True, kw_only=True, tag=46):
    """The answer to `Hold`.

    Attributes:
        generation: That of the `Hold`.
        begun: The last step that this worker has begun, or may have.
    """

    generation: int
    begun: int


class Regrouped(Message, frozen=True, kw_only=True, tag=41):
    """From the first of a new group: it is there.

    Attributes:
        samples: Samples of all workers that have been trained on.
        own: Number of these that are members'.
        dropped: Samples that a lost worker had not handed in and that will not be trained on any more.
    """

    samples: int
    own: int
    dropped: int


class PartArrived(Message, frozen=True, kw_only=True, tag=20):
    """From another server: its part of an update is in.

    Attributes:
        num_samples: Samples of the worker's own in it.
        finished: The leased ones among them.
        rates: The worker's learning rates by parameter group, if its options have changed.
    """

    omits: ClassVar[tuple[str, ...]] = ("rates",)

    event: Arrived
    num_samples: int
    finished: tuple[Finished, ...]
    server: int
    rates: tuple[float, ...] | None = None


class Ended(Message, frozen=True, kw_only=True, tag=22):
    """From another server: it has ended the run.

    Attributes:
        sent: Bytes that it has sent in it, by class of link.
        refused: Messages and connections that it has turned away, by reason.
    """

    sent: dict[str, int]
    refused: dict[str, int]


class Serves(Message, frozen=True, kw_only=True, tag=23):
    """From another server, once: it is there."""


class Distrusted(Message, frozen=True, kw_only=True, tag=36):
    """From another server: it could not act on what this worker has sent, and the worker waits for it in vain."""

    worker: int


FromWorker = (
    Heartbeat
    | LeaseRequest
    | Finish
    | Release
    | NotFinite
    | Leave
    | Evaluations
    | EvaluationRequest
    | Review
    | StageStop
    | ServerStatePage
    | SaveRequest
    | PositionReport
    | Regrouped
    | Holding
    | Goodbye
)
"""Messages from a worker while it takes part."""
ToServer = FromWorker | Join | ResultRequest | ProgressRequest | PartArrived | Ended | Serves | Distrusted
