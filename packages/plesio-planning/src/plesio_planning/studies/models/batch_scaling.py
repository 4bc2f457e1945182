"""How many steps a larger batch saves, up to which batch, and what step length goes with it.

The *noise scale* is the batch at which a gradient is as much noise as signal, ``tr(HΣ)/GᵀHG`` on a bowl with the
Hessian H. With the best step length the loss falls by ``1/(1 + B_noise/B)`` of what it would fall without noise
(McCandlish et al. 2018, equations 2.6 to 2.9). If that is little in a step, ``dr/dt = -r/(1 + B_noise(r)/B)``
integrates to

    steps = S_min (1 + B_crit/B),       B_crit = the mean of B_noise over the steps of a run without noise

(their equation 2.11). B_crit is found by this line through descents that are really done (`studies.noisy_descent`), and
by the noise scale. A rule sets the step length as the batch grows: *linear* (Goyal et al. 2017), *square-root*
(Krizhevsky 2014) or *none*. *Warm-up* helps where the curvature is larger at first, as the walls of the bowl make it.

``docs/planning/studies/batch-scaling.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Axis, Chart, LineChart, Table
from plesio.core.errors import ArgumentError
from plesio.core.inputs import Written
from plesio.core.units import counted
from plesio.core.within import Within
from plesio_planning.studies.batch_starts import FEWEST_SIZES, Problem, Starts, line_of
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.interval import interval_of
from plesio_planning.studies.noisy_descent import descend_greedily, estimate_noise_scale
from plesio_planning.studies.step_length_rules import LENGTHS, Rule, RulePoint, largest_batch
from plesio_planning.studies.study import Answer

Numbers = NDArray[np.float64]

_DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """One batch size, with a share of the best step length in each step.

    Attributes:
        batch: B.
        steps: Steps to the target, the mean of some runs.
        steps_error: 1.96 standard errors of it.
        fitted: Steps by the fitted line.
    """

    batch: float
    steps: float
    steps_error: float
    fitted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScaling(Answer):
    """How steps fall with the batch.

    Attributes:
        batch: The batch that was asked for.
        least_steps: S_min of the fit.
        critical_batch: B_crit of the fit.
        mean_noise_scale: Mean of ``tr(HΣ)/GᵀHG`` over the steps of a run without noise.
        mean_simple_scale: Mean of ``tr Σ/‖G‖²`` over the same.
        first_noise_scale: ``tr Σ/‖G‖²`` at the start.
        estimated_noise_scale: The same, from the lengths of gradients of two batch sizes.
        estimated_error: 1.96 standard errors of it.
        points: Measured steps.
        rules: Steps with each rule, on the bowl with walls.
        base_batch: Batch at which the rules start.
        problems: Problems that differ in their start; the first is the one that all else is about.
    """

    unit: ClassVar[str] = "steps"
    batch: float
    least_steps: float
    critical_batch: float
    mean_noise_scale: float
    mean_simple_scale: float
    first_noise_scale: float
    estimated_noise_scale: float
    estimated_error: float
    points: tuple[BatchPoint, ...]
    rules: tuple[RulePoint, ...]
    base_batch: float
    problems: tuple[Problem, ...]

    @property
    def finding(self) -> str:
        """The critical batch, measured and by the noise scale; how far linear scaling goes."""
        return (
            f"Steps are {self.least_steps:.3g} (1 + {self.critical_batch:.3g}/B): at B = {self.critical_batch:.3g} "
            "there are twice as many as there must be, with more hardly fewer; the noise scale says "
            f"{self.mean_noise_scale:.3g}. {self._spread()} The step length may grow in proportion to the batch up to "
            f"{self._reach()}."
        )

    def _spread(self) -> str:
        """Write a sentence about the spread among other starts on the same bowl."""
        if len(self.problems) == 1:
            return "Other starts have others."
        found = [one.critical_batch for one in self.problems]
        ratios = interval_of([one.critical_batch / one.mean_noise_scale for one in self.problems])
        return (
            f"From {counted(len(self.problems), 'start')} it is {interval_of(found):.0f} (mean and 95 % interval), "
            f"{min(found):.0f} to {max(found):.0f}, and {ratios:.2f} times what the noise scale says."
        )

    def _reach(self) -> str:
        """Write half a sentence: how far linear scaling goes, by warm-up, from all starts."""
        words = []
        for warmup in self._warmups():
            limits = sorted(one.linear_limits[warmup] for one in self.problems)
            limit = f"{limits[0]:,.0f}" if limits[0] == limits[-1] else f"{limits[0]:,.0f} to {limits[-1]:,.0f}"
            words.append(f"{limit} {f'with {warmup} of' if warmup else 'without'} warm-up")
        return " and ".join(words)

    @property
    def total(self) -> float:
        """Steps with the batch that was asked for, by the fit."""
        return sum(self.parts.values())

    @property
    def parts(self) -> Mapping[str, float]:
        """Steps without noise, and those that noise costs."""
        return {
            "without noise": self.least_steps,
            "because of noise": self.least_steps * self.critical_batch / self.batch,
        }

    def largest(self, rule: Rule, *, warmup_steps: int) -> float:
        """Return the largest batch up to which every one of the rule's runs is at the target; 0 if none is."""
        return largest_batch(self._of(rule, warmup_steps))

    def _of(self, rule: str, warmup_steps: int) -> list[RulePoint]:
        return [one for one in self.rules if one.rule == rule and one.warmup_steps == warmup_steps]

    def _columns(self, rule: str, warmup_steps: int) -> tuple[list[float], list[float], list[float]]:
        """Return batches, steps and lengths of the steps."""
        points = self._of(rule, warmup_steps)
        return [one.batch for one in points], [one.steps for one in points], [one.length for one in points]

    def _warmups(self) -> list[int]:
        return list(dict.fromkeys(one.warmup_steps for one in self.rules))

    def tables(self) -> Sequence[Table]:
        """List steps by batch, noise scales, and rules."""
        scales = [
            ("critical batch, from the measured steps", f"{self.critical_batch:.4g}"),
            ("mean of tr(HΣ)/GᵀHG over a run without noise", f"{self.mean_noise_scale:.4g}"),
            ("mean of tr Σ/‖G‖² over the same", f"{self.mean_simple_scale:.4g}"),
            ("tr Σ/‖G‖² at the start, known", f"{self.first_noise_scale:.4g}"),
            (
                "the same, from gradients of two batch sizes",
                f"{self.estimated_noise_scale:.4g} ± {self.estimated_error:.2g}",
            ),
        ]
        return [
            Table(
                title="Steps to the target:",
                headers=("batch", "steps", "±", "fitted"),
                rows=[
                    (f"{one.batch:,.0f}", f"{one.steps:.4g}", f"{one.steps_error:.2g}", f"{one.fitted:.4g}")
                    for one in self.points
                ],
            ),
            Table(title="Noise scales:", headers=("what", "samples"), rows=scales),
            self._rules_table(),
            self._problems_table(),
        ]

    def _problems_table(self) -> Table:
        rows = [
            (
                str(number),
                f"{one.critical_batch:.0f}",
                f"{one.mean_noise_scale:.0f}",
                f"{one.critical_batch / one.mean_noise_scale:.2f}",
                *(f"{limit:,.0f}" for limit in one.linear_limits.values()),
            )
            for number, one in enumerate(self.problems)
        ]
        limits = [f"linear up to, warm-up {warmup}" for warmup in self._warmups()]
        headers = ("start", "critical batch", "noise scale", "ratio", *limits)
        return Table(title="By start:", headers=headers, rows=rows)

    def _rules_table(self) -> Table:
        ways = [(rule, warmup) for rule in (*get_args(Rule), "best") for warmup in self._warmups()]
        headers = ["batch", *(f"{rule}, warm-up {warmup}" for rule, warmup in ways)]
        columns = [self._of(rule, warmup) for rule, warmup in ways]
        rows = [
            (
                f"{points[0].batch:,.0f}",
                *(f"{one.steps:.4g} ({one.length:.2g})" if math.isfinite(one.steps) else "–" for one in points),
            )
            for points in zip(*columns, strict=True)
        ]
        return Table(title="Steps by rule, in brackets the step length over 1/L:", headers=headers, rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Draw steps by batch, steps by rule, and step lengths."""
        return [self._steps_chart(), self._rules_chart(), self._lengths_chart()]

    def _steps_chart(self) -> LineChart:
        batches = [one.batch for one in self.points]
        by_noise_scale = [self.least_steps * (1 + self.mean_noise_scale / batch) for batch in batches]
        return LineChart(
            slug="steps",
            title=f"Measured critical batch {self.critical_batch:.3g}, noise scale {self.mean_noise_scale:.3g}",
            caption="Steps to the target by batch; in every step a share of the best step length.",
            x=Axis(title="batch (samples)", log=True),
            y=Axis(title="steps", log=True),
            series=lines_of(
                batches,
                {"fitted": [one.fitted for one in self.points]},
                dashed={"by the noise scale": by_noise_scale},
                points={"measured": [one.steps for one in self.points]},
            ),
            marks={"critical batch": self.critical_batch},
        )

    def _rules_chart(self) -> LineChart:
        series = []
        for rule in (*get_args(Rule), "best"):
            for warmup in self._warmups() if rule in ("linear", "best") else (0,):
                batches, steps, _ = self._columns(rule, warmup)
                if warmup == 0:
                    series += lines_of(batches, {rule: steps})
                else:
                    series += lines_of(batches, dashed={f"{rule}, warm-up {warmup}": steps})
        limit = self.largest("linear", warmup_steps=0)
        return LineChart(
            slug="rules",
            title=f"Linear scaling works up to a batch of {limit:,.0f} without warm-up",
            caption="Steps to the target by rule; a line ends where the target is no longer reached.",
            x=Axis(title="batch (samples)", log=True),
            y=Axis(title="steps", log=True),
            series=series,
        )

    def _lengths_chart(self) -> LineChart:
        series = []
        for warmup in self._warmups():
            batches, _, lengths = self._columns("best", warmup)
            series += lines_of(batches, points={f"best, warm-up {warmup}": lengths}, hollow=True)
        for rule in get_args(Rule):
            batches, _, lengths = self._columns(rule, self._warmups()[0])
            series += lines_of(batches, dashed={rule: lengths})
        return LineChart(
            slug="lengths",
            title="The best step length grows with the batch, and then no more",
            caption=f"Step length over 1/L by batch: the best of {len(LENGTHS)}, and what rules make of the first.",
            x=Axis(title="batch (samples)", log=True),
            y=Axis(title="step length (1/L)", log=True),
            series=series,
        )


_BATCHES = tuple(2**power for power in range(2, 13))
"""4 to 4096."""


def batch_scaling(
    *,
    global_batch: Annotated[int, Within(1, 10**9), Written(option="batch")] = 256,
    noise_scale: Annotated[float, Within(1e-6, 1e9)] = 16.0,
    num_dimensions: Annotated[int, Within(2, 1000)] = 100,
    condition_number: Annotated[float, Within(1, 1e4)] = 100.0,
    target: Annotated[float, Within(1e-4, 1, without="high")] = 0.1,
    batches: Annotated[tuple[int, ...], Within(1, 10**9, fewest=3, most=30)] = _BATCHES,
    walls: Annotated[float, Within(0, 1e6)] = 1.0,
    rules_target: Annotated[float, Within(1e-4, 1, without="high")] = 0.02,
    warmup_steps: Annotated[int, Within(1, 1000)] = 10,
    max_steps: Annotated[int, Within(1, 5000)] = 2000,
    num_trials: Annotated[int, Within(1, 50)] = 6,
    seed: int = 0,
) -> BatchScaling:
    """Measure steps by batch size, the critical batch, and scaling rules with and without warm-up.

    >>> answer = batch_scaling(batches=(8, 64, 512, 4096))
    >>> 0.7 < answer.critical_batch / answer.mean_noise_scale < 1.4
    True

    Args:
        global_batch: Samples of a step that the answer is for.
        noise_scale: tr Σ / ‖G‖² at the start.
        num_dimensions: Dimensions of the bowl.
        condition_number: Largest eigenvalue over smallest.
        target: The loss to reach, over the first.
        batches: Sizes that are measured; the rules start from the smallest.
        walls: How much more curvature there is at first where rules are tried, 0 for a quadratic.
        rules_target: The loss to reach there.
        warmup_steps: Steps over which a step length grows, in the runs with warm-up.
        max_steps: Steps after which a descent is given up.
        num_trials: Starts on the same bowl, each with measurements of its own.
        seed: Seed of start and noise.

    Raises:
        ConfigError: A number out of range, or batches with which the target cannot be reached.
    """
    sizes = sorted(set(batches))
    if len(sizes) < FEWEST_SIZES:
        raise ArgumentError(f"`batches` has {counted(len(sizes), 'different size')}; write 3 or more")
    starts = Starts(
        noise_scale=noise_scale,
        num_dimensions=num_dimensions,
        condition_number=condition_number,
        sizes=sizes,
        walls=walls,
        target=target,
        rules_target=rules_target,
        warmup_steps=warmup_steps,
        most=max_steps,
    )
    rng = np.random.default_rng(seed)
    bowl = starts.bowl(rng)
    measured = starts.all_steps(bowl, rng=rng)
    _, mean_noise_scale, mean_simple_scale = descend_greedily(
        bowl, batch=math.inf, target=target, num_runs=1, most=max_steps, rng=rng
    )
    least_steps, slope = line_of(measured)
    estimated, error = estimate_noise_scale(bowl, small=sizes[0], large=sizes[-1], num_draws=_DRAWS, rng=rng)
    rules = tuple(point for runs in starts.rule_runs(bowl, rng=rng) for point in runs.all_rules(sizes))
    first = Problem(
        critical_batch=slope / least_steps, mean_noise_scale=mean_noise_scale, linear_limits=_linear_limits(rules)
    )
    return BatchScaling(
        batch=global_batch,
        least_steps=least_steps,
        critical_batch=first.critical_batch,
        mean_noise_scale=mean_noise_scale,
        mean_simple_scale=mean_simple_scale,
        first_noise_scale=float(bowl.noise_scale(bowl.start[None])[0]),
        estimated_noise_scale=estimated,
        estimated_error=error,
        points=tuple(_point(size, steps, fitted=least_steps + slope / size) for size, steps in measured.items()),
        rules=rules,
        base_batch=sizes[0],
        problems=(first, *starts.others([(seed, number) for number in range(1, num_trials)])),
    )


def _linear_limits(rules: Sequence[RulePoint]) -> dict[int, float]:
    """Return the largest batch at which linear scaling still gets to the target, by steps of warm-up."""
    by_warmup: dict[int, list[RulePoint]] = {}
    for point in rules:
        if point.rule == "linear":
            by_warmup.setdefault(point.warmup_steps, []).append(point)
    return {warmup: largest_batch(points) for warmup, points in by_warmup.items()}


def _point(batch: float, steps: Numbers, *, fitted: float) -> BatchPoint:
    error = 1.96 * float(steps.std()) / math.sqrt(len(steps))
    return BatchPoint(batch=batch, steps=float(steps.mean()), steps_error=error, fitted=fitted)
