"""Figures of a run that travel: what a run is called, what a worker reports, how far the run is."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import UNSET, UnsetType

from plesio.core.arguments import check_fields
from plesio.core.results import Goal, MemorySplit, Utilisation
from plesio.core.within import SEED

Status = Literal["finished", "interrupted", "failed"]
Alike = Literal["rates", "order", "subset", "stream"]
"""Learning rates after so many evaluations; of a loop over the data, digests of its order, subset or first batches."""
MOST_LOOKS = 64
"""Limit of the looks at a stream, which come after its first 1, 2, 4 ... batches; each loop numbers them from here."""
Within = Literal["forward", "step", "evaluation", "metric", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The names of a run in its results.

    Attributes:
        target: Metric to reach, for `time_to_target_s`.
    """

    task: str = "train"
    seed: Annotated[int, SEED] = 0
    metric_name: str = "metric"
    metric_goal: Goal = "max"
    target: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "RunInfo: ")


@dataclass(slots=True, kw_only=True)
class Report:
    """One worker's figures: totals so far, and the lists' news since the last report.

    Attributes:
        clock: Steps that the worker has finished, late joiners' head start included.
        elapsed_s: Seconds of training.
        recent_step_s: Median seconds of its latest steps, without the first of all; 0 before the second.
        bytes_sent: By class of link.
        losses: (clock, seconds of training, loss) of each step.
        blocked: (clock, seconds) of each collective.
        refused: Updates that were refused, by reason.
        fallbacks: Features that were given up and why, one line each.
        own_losses: The first losses of steps on batches that are not dealt out.
        alike: Values that must be equal on all workers, where that is news: its kind, its number in the program, and
            values; else not in the message's text.
        replica: When its training is over and replicas are to be equal, a number for each parameter, of its bits.
        memory: Its memory at the peak so far. If it is unknown, the message's text does not have it.
        utilisation: Resources that it has used so far; likewise.
        within: Joint activity with the others now, or the metric's function in it; likewise where it does nothing so.
        lost_s: Seconds of its computing that came to nothing. Of none, the message's text does not have it; likewise
        checkpoint_s: those in which it copied what a checkpoint has, and
        restart_s: seconds between the checkpoints from which the run went on and its going on.
    """

    clock: int = 0
    steps: int = 0
    samples: int = 0
    elapsed_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    communicate_s: float = 0.0
    recent_step_s: float = 0.0
    peak_memory_bytes: int = 0
    bytes_sent: dict[str, int] = field(default_factory=dict)
    losses: list[tuple[int, float, float]] = field(default_factory=list)
    blocked: list[tuple[int, float]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)
    own_losses: list[float] = field(default_factory=list)
    alike: list[tuple[Alike, int, list[float]]] | UnsetType = UNSET
    replica: dict[str, int] | UnsetType = UNSET
    memory: MemorySplit | UnsetType = UNSET
    utilisation: Utilisation | UnsetType = UNSET
    within: Within | UnsetType = UNSET
    lost_s: float | UnsetType = UNSET
    checkpoint_s: float | UnsetType = UNSET
    restart_s: float | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigure:
    """A worker at present.

    Attributes:
        lead: Steps that it is ahead of the slowest; 0 where all meet, since clocks that were reported differ by age.
        step_s: Median seconds of its latest steps; 0 before the second.
        silent_s: Seconds since its last message.
    """

    worker: int
    clock: int
    lead: int
    live: bool
    step_s: float
    silent_s: float
    within: Within | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The figures of the run, over all workers; ``loss`` is NaN before the first.

    Attributes:
        in_force: The static policy that the workers go by now.
        total_samples: Samples of the whole training, if they are known.
        checkpoint: Clock of the latest checkpoint that was begun, and the seconds since; None where there is none.
    """

    policy: str
    steps: int
    samples: int
    elapsed_s: float
    loss: float
    staleness: float
    in_force: str = ""
    workers: tuple[WorkerFigure, ...] = ()
    total_samples: int | None = None
    checkpoint: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The shared parameters at a fixed number of samples, ``at_s`` seconds after the run began."""

    number: int
    samples: int
    at_s: float
