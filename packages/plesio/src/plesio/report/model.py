"""A comparison as data: everything that a page or a table shows is a finished number in a field here.

`plesio.report.summarise` computes it from runs. Statistics are over the *finished* runs of a policy, one per seed;
failed and interrupted runs are named, never averaged in. Shares of time and the staleness are pooled over all workers
and seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from plesio.core.results import Environment, RunResult, Staleness
from plesio.report.curves import Curve
from plesio.report.goodput import MeasuredGoodput
from plesio.report.metric import Metric
from plesio.report.statistics import Difference, Ratio, Spread

T = TypeVar("T")

MEMORY_PARTS = (
    "before",
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "other",
    "shared",
    "kept free",
    "evaluation",
    "rest",
)
"""Parts of a worker's memory; they add up to its peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMeans:
    """Uses of one worker's training time: seconds per run, mean over seeds."""

    worker: int
    compute_s: float
    wait_s: float
    communicate_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTimes:
    """Seconds of training until the target was first reached.

    Attributes:
        median_s: Median over the seeds that reached it; None if none did.
        reached: The seeds that reached it, with their times; None if none did.
        num_runs: Finished runs that tried.
    """

    median_s: float | None
    reached: Spread | None
    num_runs: int

    @property
    def num_reached(self) -> int:
        return 0 if self.reached is None else self.reached.num_seeds

    @property
    def share_reached(self) -> float:
        return self.num_reached / self.num_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A policy held against the baseline.

    Attributes:
        speed: Samples per second over the baseline's.
        bytes_sent: Bytes over the baseline's.
        metric: Final metric minus the baseline's.
        to_target: The baseline's time to target over this one's; None unless every run of both reached it.
    """

    speed: Ratio | None
    bytes_sent: Ratio | None
    metric: Difference | None
    to_target: Ratio | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySummary:
    """One policy over its finished runs; figures are None where no finished run has them.

    Attributes:
        seeds: Seeds of the finished runs.
        unfinished: (seed, status, error) of the others.
        time_s: Training time: virtual seconds in the virtual world, wall seconds elsewhere.
        samples_per_s: Samples of all workers per second of training.
        metric_mean: The policy's curve of the metric over training seconds; ``metric_curves`` has one per seed.
        loss_mean: Training loss over clocks, mean over seeds, smoothed.
        final_metric: May have fewer seeds than ``seeds``: a run that diverged has no finite metric.
        to_target: None where no target was set, or no run was evaluated.
        num_evaluated: Finished runs that were evaluated at all.
        identical: Whether several seeds ended with the same parameters, to the bit.
        bytes_by_link: Mean per run, by link class.
        wait_share: wait / (compute + wait + communicate).
        lost_workers: (seed, worker).
        refused_updates: Updates refused, summed over runs, by reason and worker.
        fallbacks: (seed, what was given up and why).
        memory: Bytes of a worker's memory by what they were, mean over workers and seeds; `MEMORY_PARTS` in their
            order, and empty where nothing was measured.
        cpu: Processor cores that a worker's process used, mean over workers and seeds.
        stage_staleness: Of a grid, that of each stage's gradients, all groups and seeds together.
        goodput: The division of what all workers could have computed, all seeds together.
        contrast: None for the baseline itself, and where one of the two has no finished run.
    """

    policy: str
    seeds: tuple[int, ...]
    unfinished: tuple[tuple[int, str, str | None], ...]
    time_s: Spread | None
    samples_per_s: Spread | None
    final_metric: Spread | None
    to_target: TargetTimes | None
    num_evaluated: int
    identical: bool
    bytes_sent: Spread | None
    bytes_by_link: dict[str, float]
    wait_share: float | None
    communicate_share: float | None
    workers: tuple[WorkerMeans, ...]
    staleness: Staleness
    max_lead: int
    lost_workers: tuple[tuple[int, int], ...]
    refused_updates: dict[str, dict[int, int]]
    fallbacks: tuple[tuple[int, str], ...]
    metric_curves: tuple[Curve, ...]
    metric_mean: Curve
    loss_mean: Curve
    memory: dict[str, float] = field(default_factory=dict)
    cpu: float | None = None
    stage_staleness: tuple[Staleness, ...] = ()
    goodput: MeasuredGoodput | None = None
    contrast: Contrast | None = None

    @property
    def state_bytes(self) -> float | None:
        """Bytes of a worker's parameters, gradients and optimizer state; None where they were not measured."""
        return sum(self.memory[part] for part in ("parameters", "gradients", "optimizer")) if self.memory else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Policies that trained one task with the same number of workers.

    Attributes:
        seeds: Every seed that any policy was run with.
        environments: Where the runs took place, without repetition.
    """

    task: str
    world: str
    num_workers: int
    metric: Metric
    target: float | None
    baseline: str
    seeds: tuple[int, ...]
    policies: tuple[PolicySummary, ...]
    environments: tuple[Environment, ...]
    runs: tuple[RunResult, ...]

    @property
    def baseline_summary(self) -> PolicySummary:
        return next(summary for summary in self.policies if summary.policy == self.baseline)

    def unfinished(self, where: str = "") -> list[str]:
        """Write a line for each run that did not finish, with ``where`` behind its policy."""
        return [
            f"{summary.policy}{where}, seed {seed}, {status}{f': {error}' if error else '.'}"
            for summary in self.policies
            for seed, status, error in summary.unfinished
        ]

    def by_policy(self, figure: Callable[[PolicySummary], T | None]) -> dict[str, T]:
        """Return a figure of all policies that have it."""
        found = ((summary.policy, figure(summary)) for summary in self.policies)
        return {policy: value for policy, value in found if value is not None}

    def find(self, policy: str) -> PolicySummary | None:
        return next((summary for summary in self.policies if summary.policy == policy), None)
