"""Facts that are known before anything is run: the model's sizes, the workers' steps, the cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plesio.core.extras import require
from plesio.cost.cluster import Cluster
from plesio.cost.host_costs import HostCosts

__all__ = ["FLOAT_BYTES", "ModelSizes", "Situation"]

FLOAT_BYTES = 4
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
        return FLOAT_BYTES * sum(int(np.prod(shape)) for shape in self.shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The place of a training and its model.

    Attributes:
        num_workers: On it, by rank.
        batch_size: Samples in a worker's step.
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
    def samples_per_round(self) -> int:
        """When every worker makes a step."""
        return self.num_workers * self.batch_size

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


def paces(compute_s: NDArray[np.float64]) -> Sequence[float]:
    """Return the seconds of each worker's step, on average.

    >>> paces(np.array([[0.1, 0.3], [0.4, 0.4]]))
    [0.2, 0.4]
    """
    return [float(value) for value in compute_s.mean(axis=1)]
