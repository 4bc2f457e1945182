"""The result schema: what every run yields, in every world, also when it crashed.

A *run* is one training under one policy and one seed. `results.json` holds a list of them under a schema version; the
fields below are the schema, with times in seconds and sizes in bytes. Derived numbers (speed-ups, p values) are
never stored: a report computes them from these.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from plesio.core.errors import DataError
from plesio.core.files import reason_of, write_whole
from plesio.core.records import from_values, to_json

SCHEMA_VERSION = 1


Goal = Literal["max", "min"]
"""``max`` if more of a metric is better, ``min`` if less is."""

RunStatus = Literal["running", "finished", "interrupted", "failed"]
"""``running`` is in no file: of figures up to now."""

Found = float | dict[str, float] | None
"""Result of an evaluation: one number, several by name, or None on a worker that does not evaluate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The metric of the shared parameters after ``samples`` samples, ``at_s`` seconds of training.

    Attributes:
        metrics: All metrics by name, where there were several; ``metric`` is one of them.
        goals: Their goals, that of ``metric`` first, where they are not those of the run's `RunInfo`.
    """

    samples: int
    at_s: float
    metric: float
    metrics: dict[str, float] | UnsetType = UNSET
    goals: dict[str, Goal] | UnsetType = UNSET

    @property
    def found(self) -> Found:
        """The function's result: one number, or several by name."""
        return dict(self.metrics) if self.metrics else self.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPoint:
    """Mean training loss over the workers around one clock (thinned to a few hundred points a run)."""

    clock: int
    at_s: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Staleness τ of the applied updates, in versions.

    Attributes:
        counts: ``counts[τ]`` updates had staleness τ; the other fields are of this histogram.
    """

    mean: float
    p50: int
    p95: int
    max: int
    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> "Staleness":
        """Summarise a histogram {τ: updates}.

        >>> Staleness.of({0: 3, 2: 1})
        Staleness(mean=0.5, p50=0, p95=2, max=2, counts=(3, 0, 1))
        """
        total = sum(counts.values())
        if total == 0:
            return cls(mean=0.0, p50=0, p95=0, max=0)
        top = max(counts)
        dense = tuple(counts.get(tau, 0) for tau in range(top + 1))

        def quantile(share: float) -> int:
            seen = 0
            for tau, number in enumerate(dense):
                seen += number
                if seen >= share * total:
                    return tau
            return top

        mean = sum(tau * number for tau, number in enumerate(dense)) / total
        return cls(mean=mean, p50=quantile(0.5), p95=quantile(0.95), max=top, counts=dense)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySplit:
    """A worker's memory in the step that took most. With `rest_bytes` the parts add up to ``peak_bytes``.

    Attributes:
        device: ``cpu`` is the worker's process; ``cuda`` is what torch has reserved on the GPU.
        peak_bytes: Most memory at any time after the session was joined.
        before_bytes: Memory that was there before and is not the model's: interpreter, libraries, data.
        parameters_bytes: Parameters and buffers; of sharded ones this worker's part.
        gradients_bytes: When the gradient of a step was complete; of sparse ones indices and values.
        optimizer_bytes: The tensors in the optimizer's state.
        activations_bytes: Most that forward and backward took besides; None where it was not measured.
        other_bytes: Allocated after the session was joined and none of these: batches, outputs, what the exchange
            keeps. None where it was not measured.
        reused_bytes: Gradients that came where activations had been, which are counted in both.
        cached_bytes: Memory that the allocator had taken from the system and kept free; None where it was not measured.
        shared_bytes: Memory of other processes: the store of this host, processes of loaders.
        evaluation_bytes: How much more evaluating, saving and ending took than the steps.
    """

    device: str
    peak_bytes: int
    before_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int | None
    other_bytes: int | None
    cached_bytes: int | None
    reused_bytes: int = 0
    shared_bytes: int = 0
    evaluation_bytes: int = 0

    @property
    def rest_bytes(self) -> int:
        """Memory outside all parts: code that was loaded later, stacks of threads."""
        of_model = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        measured = (self.activations_bytes or 0) + (self.other_bytes or 0) + (self.cached_bytes or 0)
        outside = self.before_bytes + self.shared_bytes + self.evaluation_bytes
        return self.peak_bytes - outside - of_model - measured + self.reused_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A quantity over time: its mean, and what it was at most for 95 % of the time."""

    mean: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """The resources that one worker used, from its first step to its last, evaluation included.

    Attributes:
        cpu: Processor seconds of its process a second: 1 is one core.
        host_cpu: Share of all cores of its machine that were busy, whoever used them.
        memory_bytes: Resident memory of its process.
        sent_bytes_per_s: Over all network interfaces of its host, loopback included.
        received_bytes_per_s: The same in the other direction.
        gpu: Share of the time that its GPU computed; None without a GPU, or without NVIDIA's pynvml.
        gpu_memory_bytes: Memory that torch had allocated on its GPU; None without.
    """

    cpu: Level
    host_cpu: Level
    memory_bytes: Level
    sent_bytes_per_s: Level
    received_bytes_per_s: Level
    gpu: Level | None = None
    gpu_memory_bytes: Level | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """A worker's training time by its uses in seconds, its counts, and the resources that it used.

    Attributes:
        compute_s: Forward, backward and optimizer, pacing included.
        wait_s: Blocked because the policy or another worker was not ready.
        communicate_s: Sending and receiving that nothing hid.
        peak_memory_bytes: Largest resident memory of its process after it joined; in the virtual world what the
            calibration says.
        lost_s: Part of ``compute_s`` that came to nothing: steps that were refused, or did not count after a loss.
        checkpoint_s: Part of ``compute_s`` in which it copied what a checkpoint has.
        restart_s: Seconds between the checkpoints from which the run went on and its going on; no part of the others.
        memory: None in the virtual world, where all workers share one process, and where no step was measured. A
            resumed run has that of its last part.
        utilisation: None in the virtual world, and of a run that was over too soon.
        staleness: Staleness of the gradients of its own stage, in a grid; None where workers have no updates of their
            own.
    """

    worker: int
    compute_s: float
    wait_s: float
    communicate_s: float
    steps: int
    samples: int
    peak_memory_bytes: int
    lost_s: float = 0.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    memory: MemorySplit | None = None
    utilisation: Utilisation | None = None
    staleness: Staleness | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment of a run."""

    plesio: str
    python: str
    torch: str
    numpy: str
    platform: str
    cpu: str
    num_cpus: int
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run.

    Attributes:
        policy: Its spec, as ``--policies`` takes it.
        seed: Seed of the initial parameters, the order of the data and the step times.
        num_workers: Workers that the run began with.
        status: ``finished``; ``interrupted`` (Ctrl-C); ``failed`` (figures up to then; ``error`` says why); or
            ``running`` (figures up to now, which no file has).
        wall_s: Training time: from the first step to the last worker's last, without evaluation.
        virtual_s: The same in virtual time; None outside the virtual world.
        steps: Optimizer steps, summed over workers.
        samples: Summed over workers; those of dropped ``late`` gradients count once others have trained on them.
        samples_per_s: Samples per second of training.
        metric_name: The metric; ``accuracy`` is a share of 1.
        metric_goal: As the latest evaluation says, or else the task.
        final_metric: Metric of the final shared parameters; None if it is not finite or was never taken.
        target: The metric to reach, where the recipe names one.
        time_to_target_s: Training time at the first evaluation that reached ``target``; None if none did.
        bytes_sent_total: Payload and framing, sent by all workers and servers.
        bytes_sent_cross_rack: The part of it that crossed racks.
        bytes_sent: The total by link class (``ipc``, ``tcp``, ``collective``).
        staleness: Of the applied updates.
        max_lead: The largest lead of any worker: its clock minus the slowest live worker's.
        racks: Number of each worker's rack, by rank; equal numbers are one rack. Empty for a worker on its own.
        decisions: The policy's decisions that changed how the run went on, each with inputs and reason; under
            ``latest`` those of the latest review that left it in force.
        lost_workers: Workers that vanished.
        refused_updates: Updates that never reached the parameters, by worker and reason: ``not_finite``; ``overflow``
            of a scaled loss; ``too_stale``; ``late``.
        refused_peers: Connections and messages turned away (strangers, other jobs), by reason.
        fallbacks: Features that were given up and why, one line each.
        parameters_sha256: SHA-256 of the final shared parameters, in name order: equal hashes are equal models.
        evaluations: At fixed sample counts.
        losses: A few hundred points.
    """

    policy: str
    task: str
    world: Literal["process", "virtual", "testbed"]
    seed: int
    num_workers: int
    status: RunStatus
    steps: int
    samples: int
    wall_s: float
    virtual_s: float | None = None
    samples_per_s: float = 0.0
    metric_name: str = "metric"
    metric_goal: Goal = "max"
    final_metric: float | None = None
    target: float | None = None
    time_to_target_s: float | None = None
    bytes_sent_total: int = 0
    bytes_sent_cross_rack: int = 0
    bytes_sent: dict[str, int] = field(default_factory=dict)
    workers: tuple[WorkerTimes, ...] = ()
    staleness: Staleness = field(default_factory=lambda: Staleness.of({}))
    max_lead: int = 0
    racks: tuple[int, ...] = ()
    decisions: tuple[dict[str, Any], ...] = ()
    lost_workers: tuple[int, ...] = ()
    refused_updates: dict[str, dict[str, int]] = field(default_factory=dict)
    refused_peers: dict[str, int] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()
    error: str | None = None
    parameters_sha256: str | None = None
    evaluations: tuple[Evaluation, ...] = ()
    losses: tuple[LossPoint, ...] = ()
    environment: Environment | None = None

    @property
    def training_s(self) -> float:
        """Training time in the seconds of its own world."""
        return self.wall_s if self.virtual_s is None else self.virtual_s

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON values (NaN and infinities become None: JSON has none)."""
        values: dict[str, Any] = to_json(self, not_finite=lambda _: None)
        for worker in values["workers"]:
            # left out where they were not measured, or there were none
            for name in ("lost_s", "checkpoint_s", "restart_s", "memory", "utilisation", "staleness"):
                if not worker[name]:
                    del worker[name]
        return values

    @classmethod
    def from_json(cls, data: Any) -> "RunResult":
        """Return the run that `to_json` wrote; files that are older lack some fields.

        Raises:
            DataError: A field is missing, unknown or of another type; the message says where.
        """
        if isinstance(data, dict):
            # what was not finite is null, where there is always a number
            data = data | {name: _numbers(data[name]) for name in ("evaluations", "losses") if name in data}
        try:
            run: RunResult = from_values(data, cls)
        except DataError as error:
            raise DataError(f"not a run of schema version {SCHEMA_VERSION}: {error}") from error
        return run


def _numbers(value: Any) -> Any:
    """Put NaN for null, in lists and tables too."""
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return math.nan if value is None else value


def write_results(path: Path, runs: Iterable[RunResult]) -> None:
    """Write runs to ``path`` so that a reader sees the old file or the new one, never half of one."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, "runs": [run.to_json() for run in runs]}, indent=1)
    write_whole(path, text + "\n")


def read_results(path: Path) -> list[RunResult]:
    """Read the runs in a file written by `write_results`.

    Raises `DataError` if it is missing, is not JSON, has another schema version, or holds something that is no run.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} does not exist; `plesio compare RECIPE --out DIR` writes DIR/results.json") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}") from error
    except ValueError as error:
        raise DataError(f"{path} is not a results file: {error}") from error
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        found = data.get("schema_version") if isinstance(data, dict) else None
        raise DataError(f"{path} has schema version {found}; this Plesio reads {SCHEMA_VERSION}")
    if not isinstance(data.get("runs"), list):
        raise DataError(f'{path} is garbled: it has no list of runs under "runs"')
    try:
        return [RunResult.from_json(run) for run in data["runs"]]
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
