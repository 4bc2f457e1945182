"""How far the estimate is off on runs that its constants have never seen.

Published steps are left out by groups: all of a model's family (every GPT, of whatever software, size and hardware), or
all of a program. Constants are fitted on the rest, and the steps left out are predicted with them. Beside the estimate
stands a *constant utilisation*: the mean MFU of the other groups' steps on the same architecture and at the same
precision (of all others if there are none).

An interval of the estimate comes from the same errors. Steps of a group err alike, so that a new group is one more of
few: its interval is Student's, with as many degrees of freedom as there are other groups, around their mean square.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from plesio_planning.estimate.calibrate import FITTED, Fitted, fit_constants, predicted_s
from plesio_planning.estimate.constants import CONSTANTS
from plesio_planning.estimate.published import PublishedStep

CONFIDENCE = 0.9
"""Confidence of the intervals whose coverage is counted."""
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
"""Standard deviations to either end of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A published step, predicted with constants of other groups.

    Attributes:
        baseline_s: Seconds at a constant utilisation.
    """

    step: PublishedStep
    group: str
    predicted_s: float
    baseline_s: float

    @property
    def error(self) -> float:
        """Error of the estimate, as a share of the reported time."""
        return self.predicted_s / self.step.step_s - 1

    @property
    def baseline_error(self) -> float:
        """The same of the constant utilisation."""
        return self.baseline_s / self.step.step_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutGroup:
    """The errors of a group that was left out, as shares without their signs.

    Attributes:
        bias: Mean of the errors with their signs.
        baseline_error: Mean error of a constant utilisation.
        num_covered: Steps within the interval that the other groups' errors give.
    """

    name: str
    num_steps: int
    bias: float
    mean_error: float
    worst_error: float
    baseline_error: float
    num_covered: int


def cross_validate(
    steps: Sequence[PublishedStep], *, by: Callable[[PublishedStep], str], fitted: Sequence[Fitted] = FITTED
) -> tuple[HeldOut, ...]:
    """Predict every step with constants fitted on the groups to which it does not belong; ``by`` says its group."""
    found = []
    for group in dict.fromkeys(map(by, steps)):
        others = [step for step in steps if by(step) != group]
        constants = fit_constants(others, begin=CONSTANTS, fitted=fitted)
        for step in steps:
            if by(step) == group:
                found.append(
                    HeldOut(
                        step=step,
                        group=group,
                        predicted_s=predicted_s(step, constants),
                        baseline_s=constant_utilisation(step, others),
                    )
                )
    return tuple(found)


def constant_utilisation(step: PublishedStep, others: Sequence[PublishedStep]) -> float:
    """Seconds of a step at the mean MFU of those others that share its architecture and precision, else of all."""

    def kind(one: PublishedStep) -> tuple[str, bool]:
        return one.machine.accelerator.architecture, one.layout.precision == "fp8"

    alike = [other for other in others if kind(other) == kind(step)] or others
    return _ideal_s(step) / statistics.fmean(_ideal_s(other) / other.step_s for other in alike)


def _ideal_s(step: PublishedStep) -> float:
    peak = step.machine.accelerator.peak(step.layout.precision) * step.machine.num_devices
    return step.global_batch * step.model.model_flops / peak


def normal_error(squares: Sequence[float]) -> float:
    """Return the relative standard deviation σ whose interval ``T e^(±zσ)`` is Student's after so many squared errors.

    That is at `CONFIDENCE`. Few errors widen it: by 1.43 after three, by 1.01 after 72.
    """
    from scipy.special import stdtrit

    student = float(stdtrit(len(squares), (1 + CONFIDENCE) / 2))
    return math.sqrt(statistics.fmean(squares)) * student / Z


def reach(rows: Sequence[HeldOut]) -> float:
    """Return the logarithm of predicted over reported that a new group's steps exceed, to either side, one in ten."""
    squares: dict[str, list[float]] = {}
    for row in rows:
        squares.setdefault(row.group, []).append(math.log1p(row.error) ** 2)
    return Z * normal_error([statistics.fmean(group) for group in squares.values()])


def groups_of(rows: Sequence[HeldOut]) -> tuple[LeftOutGroup, ...]:
    """Return the errors of each group, the worst first."""
    by_name: Mapping[str, list[HeldOut]] = {row.group: [] for row in rows}
    for row in rows:
        by_name[row.group].append(row)
    groups = []
    for name, own in by_name.items():
        errors = [abs(row.error) for row in own]
        others = [row for row in rows if row.group != name]
        within = reach(others) if others else 0.0
        groups.append(
            LeftOutGroup(
                name=name,
                num_steps=len(own),
                bias=statistics.fmean(row.error for row in own),
                mean_error=statistics.fmean(errors),
                worst_error=max(errors),
                baseline_error=statistics.fmean(abs(row.baseline_error) for row in own),
                num_covered=sum(abs(math.log1p(row.error)) <= within for row in own),
            )
        )
    return tuple(sorted(groups, key=lambda group: -group.mean_error))
