"""The JSON values beside the tensors of bulk messages: a push, a pull and their answers.

The message's head has the rest: worker, clock, version and the number of the request (`transport.Header`).
"""

from typing import Any, ClassVar

from plesio.core.records import Record
from plesio.policies import UpdateKind
from plesio.protocol.figures import Snapshot
from plesio.protocol.message import Message
from plesio.protocol.to_server import Finished

Table = list[list[list[Any]]]
"""An optimizer's state; see `plesio.runtime.parameters.optimizer_state`."""
BlockRow = tuple[int, int, int, int, int]
"""A part of a tensor, as `plesio.runtime.parameters.blocks` describes it."""
SliceRow = tuple[str, str, str, int, int, int, int]
"""A slice of a tensor: name, kind, dtype, parameter group, start, stop, offset (`plesio.runtime.parameters.layout`)."""


class OptimizerSpec(Record, frozen=True, kw_only=True):
    """The stock optimizer's class and the options of each parameter group, as JSON values."""

    names: tuple[str, ...]
    groups: tuple[dict[str, Any], ...]


class IslandPart(Record, frozen=True, kw_only=True):
    """The part of one rank of an island, which pushes and pulls together with the others as one worker.

    Attributes:
        number: The rank's.
        count: Ranks of the island.
        sent: Of each of the server's slices, the part of its tensor that this rank sends; no element is sent twice.
        received: The same of what it receives.
    """

    number: int
    count: int
    sent: tuple[BlockRow, ...]
    received: tuple[BlockRow, ...]


class Initial(Message, frozen=True, kw_only=True, tag=1):
    """Worker to server: the slices' initial values. Answered with `Initialised`.

    Attributes:
        part: The sender's, where the worker is an island.
        optimizer: For gradients.
        state: The optimizer's, whose tensors follow the parameters'.
        again: In place of those that the server has, if no update has been applied to them.
    """

    omits: ClassVar[tuple[str, ...]] = ("part", "state", "again")

    part: IslandPart | None = None
    slices: tuple[SliceRow, ...]
    update: UpdateKind
    optimizer: OptimizerSpec | None
    state: Table | None = None
    again: bool = False


class Push(Message, frozen=True, kw_only=True, tag=2):
    """Worker to server: an update.

    Attributes:
        num_steps: Steps that it covers; 0 has what was kept back of earlier ones.
        num_samples: Samples of the worker's own in it.
        present: Indices of the slices in the payload; None for all.
        finished: Leased samples that it is made of.
        groups: Options of the optimizer's parameter groups, if they have changed.
        step_s: Seconds of one of these steps.
        compressed: The compression whose payload of the parameters' slices comes first; the other slices follow.
        fragment: Number of the fragment that it updates.
    """

    omits: ClassVar[tuple[str, ...]] = ("groups", "step_s", "compressed", "fragment")

    num_steps: int
    num_samples: int
    present: tuple[int, ...] | None
    finished: tuple[Finished, ...]
    groups: tuple[dict[str, Any], ...] | None = None
    step_s: float = 0.0
    compressed: str | None = None
    fragment: int = 0


class Pull(Message, frozen=True, kw_only=True, tag=3):
    """Worker to server: the parameters, please. Answered with `Pulled` when the worker has credit for its next step.

    Attributes:
        after: Clock of the worker's last update, which must have been decided on.
        known: Version that it has; None for none.
        present: Indices of the slices that it asks for, if they are not all.
        compressed: The compression in which it would have how they have changed, if it has a version.
        part: The sender's, in the first request of a worker that is an island.
    """

    omits: ClassVar[tuple[str, ...]] = ("present", "compressed", "part")

    after: int
    known: int | None
    present: tuple[int, ...] | None = None
    compressed: str | None = None
    part: IslandPart | None = None


class Pulled(Message, frozen=True, kw_only=True, tag=4):
    """Server to worker: the answer to `Pull`.

    Attributes:
        present: Indices of the slices in the payload; None for all.
        credit: The clock up to which the worker may run.
        held_s: Seconds that the answer was held back for others.
        halted: The worker stops here, whatever its credit.
        samples: Samples of all workers that are in the parameters.
        compressed: The payload has how the slices have changed, in the compression that was asked for.
    """

    omits: ClassVar[tuple[str, ...]] = ("halted", "samples", "compressed")

    present: tuple[int, ...] | None
    credit: int
    held_s: float
    halted: bool = False
    samples: int = 0
    compressed: bool = False


class SharedRequest(Message, frozen=True, kw_only=True, tag=5):
    """Worker to server: everything, please. Answered with `Shared`, at once.

    Attributes:
        snapshot: The snapshot that was taken then; None for now.
        optimizer: The optimizer's state too.
    """

    omits: ClassVar[tuple[str, ...]] = ("optimizer",)

    snapshot: int | None
    optimizer: bool = False


class Shared(Message, frozen=True, kw_only=True, tag=6):
    """Server to worker: the answer to `SharedRequest`.

    Attributes:
        present: Indices of the slices in the payload; None for all.
        snapshots: Existing snapshots, if the server has their list.
        state: State of the optimizer, whose tensors follow the parameters'; None if it was not asked for.
    """

    omits: ClassVar[tuple[str, ...]] = ("state",)

    present: tuple[int, ...] | None
    snapshots: tuple[Snapshot, ...]
    state: Table | None = None


class Initialised(Message, frozen=True, kw_only=True, tag=7):
    """Server to worker: the initial values are there."""


BulkFromWorker = Initial | Push | Pull | SharedRequest
BulkFromServer = Pulled | Shared | Initialised
