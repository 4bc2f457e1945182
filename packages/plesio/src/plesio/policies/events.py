"""Events that a policy receives and actions with which it answers: the whole interface between a policy and its world.

A *machine* (see `plesio.policies.policy`) is handed one event at a time and returns actions. Both are frozen values, so
a recorded log of events replays to the same actions anywhere (`plesio.policies.replay`).

Clocks count finished optimizer steps. A worker that has credit up to clock ``c`` may finish step ``c`` without asking;
its *lead* is taken when it begins a step: its clock minus the slowest live worker's clock.

A world's duties to a machine: a worker joins before anything else of it, and once until it left; nothing of it follows
after it left (late messages are the world's to refuse); its clock grows from one arrival to the next and never passes
its credit. Machines assert this.
"""

from enum import StrEnum
from typing import ClassVar

from plesio.core.records import Record

UNLIMITED = 2**62
"""Credit that no run uses up; fits a signed 64-bit integer with room to add to it."""


class _Tagged(Record, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """An event or action; its text begins with its name."""


class LeaveReason(StrEnum):
    """Reason for a worker's departure."""

    CLOSED = "closed"
    """It ended its session."""
    RESTING = "resting"
    """It has no samples to train on for now; it joins again when it is given some."""
    LOST = "lost"
    """Its lease ran out: it crashed, was killed, or cannot be reached. No collective can be made without it."""
    REPLACED = "replaced"
    """The same, and the others form a new group for their collectives."""


class RefuseReason(StrEnum):
    """Reason for which an update does not reach the parameters."""

    NOT_FINITE = "not_finite"
    """The update holds NaN or infinity."""
    TOO_STALE = "too_stale"
    """The weighting discards updates of this staleness."""
    LATE = "late"
    """Its step is over: it was left to the backup workers. Others are given its samples."""


class Joined(_Tagged, frozen=True, kw_only=True):
    """A worker asks to take part. It may run once it is admitted, which can be later than at once.

    Attributes:
        worker: The worker.
        num_workers: Number of workers whose work its updates contain: those of its rack, if racks exchange.
    """

    omits: ClassVar[tuple[str, ...]] = ("num_workers",)

    worker: int
    num_workers: int = 1


class Left(_Tagged, frozen=True, kw_only=True):
    """A worker is gone; what it had pushed before still counts.

    One that rested leaves a second time, with another reason, when it is gone for good.
    """

    worker: int
    reason: LeaveReason


class Arrived(_Tagged, frozen=True, kw_only=True):
    """A worker's update is complete at the exchange.

    Attributes:
        worker: Sender.
        clock: The worker's clock after the last step that the update covers.
        num_steps: Steps that the update covers (1 unless the policy accumulates); 0 of what compression kept back of
            earlier ones, at the clock of the last.
        base_version: Version of the shared parameters that the first of these steps began from. Rounds that wait for
            everyone do not look at it.
        finite: False when the worker found NaN or infinity in it and sent no values.
        step_s: Seconds of one of these steps, by which a policy may have slow workers make fewer; 0, and left out of
            logs, if it does not look at them.
        fragment: Number of the fragment that it updates, where the parameters are exchanged in turn.
    """

    omits: ClassVar[tuple[str, ...]] = ("step_s", "fragment")

    worker: int
    clock: int
    num_steps: int = 1
    base_version: int = 0
    finite: bool = True
    step_s: float = 0.0
    fragment: int = 0


class Reviewed(_Tagged, frozen=True, kw_only=True):
    """A worker's measurements since its last review; only under a policy that adapts.

    Attributes:
        worker: Sender.
        clock: The worker's clock: the one that the last `Steer` named.
        samples: Samples of each step since then.
        compute_s: Seconds that each of these steps computed.
        blocked_s: Seconds that each of them stood still in an exchange.
        loss: Mean over the steps that had a finite one; infinite if none had, NaN if there is none.
        losses: Loss of each step, where their mean is far above that of the last review; empty, and left out of logs,
            elsewhere.
        learning_rate: Rate of the first parameter group.
        momentum: Momentum of the optimizer: the largest of its parameter groups, or Adam's beta1.
        normalises: True if the optimizer divides by the gradients' size, as Adam does, or may do so.
        accumulates: True if the optimizer never forgets a gradient, as Adagrad does not; left out of logs otherwise.
        shares_moments: True if local steps can keep the moments of the mean gradient (`LocalSGD.moments`); left out of
            logs if they cannot.
        num_refused: Steps whose gradient or loss was not finite; an overflow of a scaled loss is none of them.
        num_clipped: Steps whose gradient was extraordinary, and scaled down.
        gradients: The gradient's squared norm, and then its sketch, for each sampled step in order.
        exchanges: For each exchange that ran behind or between the steps: the clock of the step after which the worker
            began it, and the seconds from there until it was complete.
        progress: Share of all samples that are done; below 0 if their number is unknown. On the store it is the share
            if all had trained on as many as this worker.
        can_push: True if the store's servers could step for this worker: they are there, and run its optimizer.
        rack: Number of the worker's rack; left out of logs if it is 0, as in those of before racks.
        position: Sketch of the worker's parameters; empty, and left out of logs, if no guard asks for it.
        summed_rate: The learning rates of the first parameter group, over all steps since the last review.
        sparse_bytes: For sparse gradients: bytes of the parameters whose gradients are dense, of those whose gradients
            are sparse, and of the rows that a step has touched; empty, and left out of logs, elsewhere.
        low_rank_share: Bytes of the dense gradients in low rank (`adaptive.system.setting.Sent`), as a share
            of those in full; left out of logs if it is 1, as in those of before low rank.
        writes: True if the script writes into parameters by itself, so that each of their moves must count once; left
            out of logs if it does not.
        began_slow: True until the first answer if the workers began under the policy for slow links
            (`Policy.first_if_slow`); left out of logs otherwise.
    """

    omits: ClassVar[tuple[str, ...]] = (
        "rack",
        "losses",
        "can_push",
        "position",
        "summed_rate",
        "sparse_bytes",
        "low_rank_share",
        "shares_moments",
        "accumulates",
        "writes",
        "began_slow",
    )

    worker: int
    clock: int
    samples: tuple[int, ...]
    compute_s: tuple[float, ...]
    blocked_s: tuple[float, ...]
    loss: float = float("nan")
    losses: tuple[float, ...] = ()
    learning_rate: float = 0.0
    momentum: float = 0.0
    normalises: bool = False
    accumulates: bool = False
    shares_moments: bool = False
    num_refused: int = 0
    num_clipped: int = 0
    gradients: tuple[tuple[float, ...], ...] = ()
    exchanges: tuple[tuple[float, ...], ...] = ()
    progress: float = -1.0
    rack: int = 0
    can_push: bool = True
    position: tuple[float, ...] = ()
    summed_rate: float = 0.0
    sparse_bytes: tuple[float, ...] = ()
    low_rank_share: float = 1.0
    writes: bool = False
    began_slow: bool = False


class Ready(_Tagged, frozen=True, kw_only=True):
    """A worker stands still between two exchanges; only under a policy that changes while it runs.

    On the way to the store it is equal to all others, and the store has their state. On the way from it, everything
    that it has pushed is applied.

    Attributes:
        worker: The worker.
        clock: Steps that it has finished.
        speaker: Worker that represents it in the stage that begins, if racks share the store; None if it represents
            itself.
    """

    omits: ClassVar[tuple[str, ...]] = ("speaker",)

    worker: int
    clock: int
    speaker: int | None = None


class Pause(_Tagged, frozen=True, kw_only=True):
    """All are to stand still together, as soon as they can, and to go on as they were; only under a changing policy.

    At that moment nothing is on its way and all replicas are equal: it is when a checkpoint is taken (`Steer.save`),
    and when workers that have come to a stage on the store are taken in.

    Attributes:
        reason: Purpose, in a sentence.
    """

    omits: ClassVar[tuple[str, ...]] = ("reason",)

    reason: str = "a checkpoint is taken"


class Resumed(_Tagged, frozen=True, kw_only=True):
    """The workers of a collective go on in a new group; only under a policy that changes while it runs.

    Attributes:
        clock: Clock from which all go on. Some may have been a step behind.
    """

    clock: int


class Elapsed(_Tagged, frozen=True, kw_only=True):
    """The time that an `Await` asked for is over."""

    number: int


Event = Joined | Left | Arrived | Reviewed | Ready | Pause | Resumed | Elapsed


class Admit(_Tagged, frozen=True, kw_only=True):
    """The worker takes part from ``clock`` on: the last reported clock of the slowest live worker, or of the last one.

    It then begins from the current version of the shared parameters.
    """

    worker: int
    clock: int


class Grant(_Tagged, frozen=True, kw_only=True):
    """The worker may run until its clock is ``clock``. Credit only ever grows."""

    worker: int
    clock: int


class Apply(_Tagged, frozen=True, kw_only=True):
    """The mean of these updates, times ``weight``, becomes ``version`` of the shared parameters.

    In the mean an update counts by the workers whose work it is (`Joined.num_workers`).

    Attributes:
        updates: (worker, clock) of each update, in the order of arrival.
        weight: Multiplies the step: the learning rate of a gradient (the mean over the steps it covers), or the delta
            itself (their sum).
        version: The version that results: one more than the last.
        staleness: τ of each update, in the order of ``updates``.
        share: Share of a round, one step of every worker, that gradients are: steps times workers whose work they are,
            over all workers. An optimizer's memory moves on by so much of a synchronous step.
        age: Rounds that were applied between the pull of the parameters that a gradient began from and its own
            application.
        by_samples: True if an update counts in the mean by the samples that it is made of.
        fragment: Number of the fragment that they update, which has rounds of its own.
        by_directions: True if the mean is that of their lengths in the mean of their directions.
        corrected: True if those with a staleness lose some of what points along the outer momentum.
    """

    omits: ClassVar[tuple[str, ...]] = ("share", "age", "by_samples", "fragment", "by_directions", "corrected")

    updates: tuple[tuple[int, int], ...]
    weight: float
    version: int
    staleness: tuple[int, ...]
    share: float = 1.0
    age: float = 0.0
    by_samples: bool = False
    fragment: int = 0
    by_directions: bool = False
    corrected: bool = False


class Refuse(_Tagged, frozen=True, kw_only=True):
    """The update is dropped, and the worker gets the reason."""

    worker: int
    clock: int
    reason: RefuseReason


class Steer(_Tagged, frozen=True, kw_only=True):
    """The policy's decision for all workers after the step that ends at ``clock``: the answer to a review.

    Attributes:
        clock: Until it has finished this step, no worker does anything differently.
        before: Spec of the policy up to there.
        policy: Spec of the policy under which the workers go on.
        shares: Shares of each round's samples, by rank; they add up to 1. Empty for equal shares.
        next_review: Clock of the next review.
        next_clock: Clock at which its answer holds.
        keep: True if the workers keep a copy of their state as it is then.
        restore: True if the workers go back to the state that they kept, the older one if they kept two.
        relearn: True if the workers' data have changed, so that each learns anew which gradients are extraordinary.
        alarm: True if training diverged; the other attributes are the response.
        save: True if the workers save their state as it is then: the answer to a `Pause`.
        reason: One sentence.
        inputs: The figures behind the decision, by name.
    """

    omits: ClassVar[tuple[str, ...]] = ("relearn", "alarm", "save")

    clock: int
    before: str
    policy: str
    shares: tuple[float, ...] = ()
    next_review: int
    next_clock: int
    keep: bool = False
    restore: bool = False
    relearn: bool = False
    alarm: bool = False
    save: bool = False
    reason: str = ""
    inputs: tuple[tuple[str, float], ...] = ()


class Halt(_Tagged, frozen=True, kw_only=True):
    """The stage on the store ends: every worker stops at its next exchange, whatever its credit, and gets `Ready`."""


class Stay(_Tagged, frozen=True, kw_only=True):
    """The workers go on as they were, those that `Halt` stopped too: there is no way to a collective any more.

    Attributes:
        reason: One sentence, or empty.
    """

    reason: str = ""


class Await(_Tagged, frozen=True, kw_only=True):
    """Asks for `Elapsed` with this number after some time.

    Attributes:
        for_s: Seconds.
        steps: Number of steps behind which the time is to be hidden; 0 if it is given in seconds.
    """

    omits: ClassVar[tuple[str, ...]] = ("for_s", "steps")

    number: int
    for_s: float = 0.0
    steps: int = 0


Action = Admit | Grant | Apply | Refuse | Steer | Halt | Stay | Await
