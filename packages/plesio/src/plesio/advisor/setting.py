"""Facts that are known before anything is run: the model's sizes, the workers' steps, the cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from plesio.advisor.candidates import Candidate, candidates
from plesio.advisor.failures import FailureModel
from plesio.core.arguments import check_fields
from plesio.core.extras import require
from plesio.core.within import AT_LEAST_0
from plesio.cost.cluster import Cluster
from plesio.cost.host_costs import HostCosts
from plesio.policies.compression.stage import FLOAT_BYTES, num_elements

UNEQUAL = 1.25
SLOWER = 1.1
"""Times the fastest worker's median step, from which on one is called slow."""
CHANCE = 0.01
"""That an equal worker is called slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Bytes of a replica, as they were measured.

    Attributes:
        shapes: Shapes of the parameters that are trained.
        optimizer_bytes: Bytes that the optimizer keeps after a step.
        activation_bytes: Most that a step's forward pass keeps for the backward one.
        block_bytes: Parameters of the largest part of the model that a sharded replica gathers at once.

    >>> ModelSizes(shapes=((4, 3), (4,)), optimizer_bytes=0, activation_bytes=0, block_bytes=48).parameter_bytes
    64
    """

    shapes: tuple[tuple[int, ...], ...]
    optimizer_bytes: int
    activation_bytes: int
    block_bytes: int

    @property
    def parameter_bytes(self) -> int:
        """In float32."""
        return FLOAT_BYTES * num_elements(self.shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The place of a training and its model.

    Attributes:
        num_workers: On it, by rank.
        compute_s: ``[num_workers, num_steps]`` seconds of computing, drawn from what the steps' times are.
        costs: Costs of exchanges on the processors.
        scale: How many times as many bytes as the model has are exchanged and kept: 1, but where one asks what if.
    """

    cluster: Cluster
    num_workers: int
    batch_size: int
    compute_s: NDArray[np.float64]
    sizes: ModelSizes
    costs: HostCosts
    scale: float = 1.0

    @property
    def num_bytes(self) -> float:
        """Bytes of the parameters."""
        return self.scale * self.sizes.parameter_bytes

    @property
    def racks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each rack."""
        numbers = [self.cluster.rack_of(rank) for rank in range(self.num_workers)]
        return tuple(
            tuple(rank for rank, number in enumerate(numbers) if number == rack) for rack in dict.fromkeys(numbers)
        )

    @property
    def is_unequal(self) -> bool:
        """True if a step that waits for all takes much longer than one worker's: some are slow, or stall."""
        return float(self.compute_s.max(axis=0).mean()) > UNEQUAL * float(np.median(self.compute_s))

    @property
    def slow_ranks(self) -> tuple[int, ...]:
        """Workers that are slower than the fastest for good: their steps are longer in rank, not by chance alone."""
        require("sim", "Advice")
        from scipy import stats

        medians = np.median(self.compute_s, axis=1)
        fastest = int(medians.argmin())
        return tuple(
            rank
            for rank in np.flatnonzero(medians > SLOWER * medians[fastest]).tolist()
            if stats.mannwhitneyu(self.compute_s[rank], self.compute_s[fastest], alternative="greater").pvalue
            < CHANCE / self.num_workers**2  # the fastest is the least of all, so any pair might have been compared
        )

    @property
    def has_racks(self) -> bool:
        """Several racks, and several workers in some."""
        return 1 < len(self.racks) < self.num_workers

    @property
    def num_hosts(self) -> int:
        """That have workers."""
        return self.cluster.host_of(self.num_workers - 1) + 1

    @property
    def memory_bytes(self) -> int | None:
        """That a worker has; None is not known."""
        return self.cluster.memory_bytes

    def with_slowest(self, factor: float) -> "Situation":
        """Return the situation in which the last worker takes ``factor`` times the others' time, all else the same."""
        others = self.compute_s[:-1].mean() if len(self.compute_s) > 1 else self.compute_s.mean()
        steps = self.compute_s.copy()
        steps[-1] *= factor * others / steps[-1].mean()
        return replace(self, compute_s=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to the advisor.

    Attributes:
        name: Name of the task or the script.
        at: Place of the training, and its model.
        has_store: Whether the store's servers can run the optimizer.
        shares_moments: Whether local steps can leave the optimizer's state as the mean gradient would.
        metric_name: Quantity that is timed: a metric, or ``training loss``.
        metric_goal: Whether more of it is better.
        target: Its value to reach; None is a level of bsp's own curve.
        must_reach: Whether a target that no run reaches is an error: it was asked for in so many words.
        tolerance: Points of the final metric that may be given up.
        failures: How workers fail; None if they do not.
        price_per_hour: Price of a worker's hour; None is not asked for.
        measure_s: Seconds of this machine for runs.
    """

    name: str
    at: Situation
    has_store: bool
    shares_moments: bool
    metric_name: str
    metric_goal: Literal["max", "min"]
    target: float | None
    must_reach: bool
    tolerance: Annotated[float, AT_LEAST_0]
    failures: FailureModel | None
    price_per_hour: Annotated[float, AT_LEAST_0] | None
    measure_s: Annotated[float, AT_LEAST_0]

    def __post_init__(self) -> None:
        check_fields(self, "Question: ")

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the candidates of the question, ``bsp`` first."""
        return candidates(
            has_racks=self.at.has_racks,
            has_store=self.has_store,
            shares_moments=self.shares_moments,
            is_unequal=self.at.is_unequal,
        )

    @property
    def sign(self) -> float:
        """Sign of the metric on curves, where more is better."""
        return 1.0 if self.metric_goal == "max" else -1.0

    def shortfall(self, base: float, other: float) -> float:
        """Return how much worse ``other`` is than ``base``, as values on curves: in points of a share, else in percent.

        A metric between 0 and 1 that is to be maximised is a share.
        """
        if self.is_share(base) and self.is_share(other):
            return 100 * (base - other)
        return 100 * (base - other) / max(abs(base), 1e-12)

    def is_share(self, value: float) -> bool:
        """Return True if the metric is a share, whose points are percent."""
        return self.metric_goal == "max" and 0 <= value <= 1


def paces(compute_s: NDArray[np.float64]) -> Sequence[float]:
    """Return the seconds of each worker's step, on average.

    >>> paces(np.array([[0.1, 0.3], [0.4, 0.4]]))
    [0.2, 0.4]
    """
    return [float(value) for value in compute_s.mean(axis=1)]
