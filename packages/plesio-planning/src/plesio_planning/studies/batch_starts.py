"""Starts on a noisy bowl from which a target is reached: the steps each batch takes, and the critical batch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plesio.core.errors import ArgumentError
from plesio.core.units import counted
from plesio_planning.studies.noisy_descent import Bowl, descend_greedily
from plesio_planning.studies.step_length_rules import RuleRuns, largest_batch

_GREEDY_RUNS = 16
FEWEST_SIZES = 3
"""Different batches, for a line."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One start on the bowl, of several.

    Attributes:
        critical_batch: B_crit, from its own measured steps.
        mean_noise_scale: Mean of ``tr(HΣ)/GᵀHG`` over the steps of a run without noise.
        linear_limits: The largest batch at which linear scaling still gets to the target, by steps of warm-up.
    """

    critical_batch: float
    mean_noise_scale: float
    linear_limits: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """The facts that starts have in common.

    Attributes:
        noise_scale: tr Σ / ‖G‖² at a start.
        condition_number: Largest eigenvalue over smallest.
        sizes: Batches that are measured, rising; rules start from the smallest.
        walls: How much more curvature there is at first where rules are tried.
        target: The loss to reach, over the first.
        rules_target: The loss to reach where rules are tried.
        warmup_steps: Steps over which a step length grows, in the runs with warm-up.
        most: Steps after which a descent is given up.
    """

    noise_scale: float
    num_dimensions: int
    condition_number: float
    sizes: Sequence[int]
    walls: float
    target: float
    rules_target: float
    warmup_steps: int
    most: int

    def bowl(self, rng: np.random.Generator) -> Bowl:
        """Make a start."""
        return Bowl.with_noise_scale(
            self.noise_scale, dimension=self.num_dimensions, condition=self.condition_number, rng=rng
        )

    def steps(self, bowl: Bowl, batch: int, *, rng: np.random.Generator) -> Numbers:
        """Count the steps of each run to the target; infinite for those that do not get there."""
        steps, _, _ = descend_greedily(
            bowl, batch=batch, target=self.target, num_runs=_GREEDY_RUNS, most=self.most, rng=rng
        )
        return steps

    def all_steps(self, bowl: Bowl, *, rng: np.random.Generator) -> dict[float, Numbers]:
        """Count the same by batch; all runs must get there."""
        measured = {}
        for size in self.sizes:
            measured[float(size)] = steps = self.steps(bowl, size, rng=rng)
            if not np.isfinite(steps).all():
                raise self._not_reached(size)
        return measured

    def rule_runs(self, bowl: Bowl, *, rng: np.random.Generator) -> Iterator[RuleRuns]:
        """Yield the trials of rules from a start: between the walls, without and with warm-up."""
        walled = replace(bowl, walls=self.walls)
        for warmup in (0, self.warmup_steps):
            yield RuleRuns(bowl=walled, warmup_steps=warmup, target=self.rules_target, most=self.most, rng=rng)

    def others(self, seeds: Sequence[tuple[int, int]]) -> Iterator[Problem]:
        """Yield the findings from further starts."""
        for seed in seeds:
            rng = np.random.default_rng(seed)
            yield self._problem(self.bowl(rng), rng=rng)

    def _problem(self, bowl: Bowl, *, rng: np.random.Generator) -> Problem:
        """Leave sizes out of a start's line with which it is not there in time."""
        measured = {}
        for size in self.sizes:
            steps = self.steps(bowl, size, rng=rng)
            if np.isfinite(steps).all():
                measured[float(size)] = steps
        if len(measured) < FEWEST_SIZES:
            raise self._not_reached(self.sizes[0])
        _, scale, _ = descend_greedily(bowl, batch=math.inf, target=self.target, num_runs=1, most=self.most, rng=rng)
        least_steps, slope = line_of(measured)
        limits = {}
        for runs in self.rule_runs(bowl, rng=rng):
            base = runs.best([self.sizes[0]])[0].length
            limits[runs.warmup_steps] = largest_batch(runs.by_rule("linear", self.sizes, base=base))
        return Problem(critical_batch=slope / least_steps, mean_noise_scale=scale, linear_limits=limits)

    def _not_reached(self, batch: int) -> ArgumentError:
        return ArgumentError(
            f"with `batches` of {batch} the `target` of {self.target:g} is not reached in "
            f"{counted(self.most, 'step')}; write larger `batches`, a smaller `condition_number`, `num_dimensions` or "
            "`noise_scale`, a larger `target` or `max_steps`"
        )


def line_of(measured: Mapping[float, Numbers]) -> tuple[float, float]:
    """Return the steps at an infinite batch, and how they rise with 1/B: least squares of relative errors."""
    from plesio.cost.fit import fit_line  # scipy: half a second

    fit = fit_line([1 / size for size in measured], [float(steps.mean()) for steps in measured.values()])
    return fit.intercept, fit.slope
