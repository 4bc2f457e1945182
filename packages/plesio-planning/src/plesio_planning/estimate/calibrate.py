"""Fitting the constants of real devices to published steps.

Every constant begins with a figure that somebody published, or an assumption, and a spread that says how far it may be
from it. The fit is the most probable set of constants: it minimises

    Σ ρ(log(predicted / reported) / e) / n  +  Σ ρ(log(constant / begin) / spread)

over all steps and constants, with an error e that a good estimate has, and n steps of the same model and source, so
that a model with many rows weighs no more than one with a single row. The logarithm lets an error of a tenth weigh the
same in a step of one second and of a hundred, and ρ (soft L1) lets a step that something slowed down weigh less. A
constant that no step depends on stays where it begins, so any set of steps can be fitted.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from plesio.core.errors import ConfigError
from plesio_planning.estimate.constants import CONSTANTS, Constants
from plesio_planning.estimate.published import PublishedStep
from plesio_planning.estimate.step import estimate_step

_ERROR = 0.05
"""e: the relative error of a good estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A constant that is fitted, and what is known of it before.

    Attributes:
        name: Name of the attribute of `Constants`.
        architecture: Whose value, if the constant has one by architecture; else empty.
        begin: A figure from elsewhere.
        spread: Relative standard deviation of that figure.
    """

    name: str
    architecture: str = ""
    begin: float
    spread: float

    def of(self, constants: Constants) -> float:
        """Return its value."""
        value = getattr(constants, self.name)
        return float(value[self.architecture] if self.architecture else value)


FITTED: Sequence[Fitted] = (
    # Dao 2023: matrix products reach 260 of 312 TFLOP/s
    Fitted(name="matrix_efficiency", architecture="ampere", begin=0.83, spread=0.1),
    # assumptions: cuBLAS at its best, about 670 and 1230 TFLOP/s
    Fitted(name="matrix_efficiency", architecture="hopper", begin=0.68, spread=0.1),
    Fitted(name="fp8_efficiency", architecture="hopper", begin=0.62, spread=0.1),
    Fitted(name="exposed_traffic", begin=0.5, spread=0.5),  # assumption: anything from none to all
    Fitted(name="memory_efficiency", begin=0.75, spread=0.2),  # assumption: copies reach 0.8 to 0.9
    Fitted(name="flash_1_efficiency", begin=0.33, spread=0.2),  # Dao 2023: 25 to 40 % of an A100's peak
    Fitted(name="eager_traffic", begin=1.2, spread=0.3),  # assumption
    Fitted(name="contention", begin=0.3, spread=0.5),  # assumption: NCCL's share of the multiprocessors
)
"""Constants that `fit_constants` finds."""


EXPERTS: Sequence[Fitted] = (
    Fitted(name="expert_kernel_s", begin=10e-6, spread=1.0),  # assumption: an operation that a host starts
    # assumptions: that, and casts of an input, a gradient and a weight: on Hopper three operations each (the tensor's
    # largest value, its scale, and the cast), on Blackwell, which scales by blocks, one
    Fitted(name="fp8_expert_kernel_s", architecture="hopper", begin=100e-6, spread=1.0),
    Fitted(name="fp8_expert_kernel_s", architecture="blackwell", begin=40e-6, spread=1.0),
)
"""Constants of products that are of experts, which are fitted on mixtures of experts with all others as they are."""


def predicted_s(step: PublishedStep, constants: Constants) -> float:
    """Return the seconds that the estimate gives a published step."""
    return estimate_step(
        step.model, step.layout, step.machine, global_batch=step.global_batch, constants=constants
    ).total_s


def fit_constants(
    steps: Sequence[PublishedStep], *, begin: Constants = CONSTANTS, fitted: Sequence[Fitted] = FITTED
) -> Constants:
    """Fit the constants that are most probable after these steps; all others are those of ``begin``.

    Raises:
        ConfigError: No steps.
    """
    from scipy.optimize import least_squares

    if not steps:
        raise ConfigError("no steps to fit constants to; give one or more")
    alike = Counter((step.source, step.model.name) for step in steps)
    weights = [1 / (_ERROR * math.sqrt(alike[step.source, step.model.name])) for step in steps]

    def residuals(deviations: Sequence[float]) -> list[float]:
        constants = moved(begin, deviations, fitted)
        errors = (
            weight * math.log(predicted_s(step, constants) / step.step_s)
            for step, weight in zip(steps, weights, strict=True)
        )
        return [*deviations, *errors]

    found = least_squares(residuals, [0.0] * len(fitted), loss="soft_l1", diff_step=1e-3, x_scale=1.0)
    return moved(begin, list(found.x), fitted)


def moved(begin: Constants, deviations: Sequence[float], fitted: Sequence[Fitted]) -> Constants:
    """Move each constant so many spreads from where it begins."""
    values = {
        (one.name, one.architecture): one.begin * math.exp(one.spread * float(deviation))
        for one, deviation in zip(fitted, deviations, strict=True)
    }
    common = {name: value for (name, architecture), value in values.items() if not architecture}
    by_architecture: dict[str, dict[str, float]] = {}
    for (name, architecture), value in values.items():
        if architecture:
            by_architecture.setdefault(name, dict(getattr(begin, name)))[architecture] = value
    return replace(begin, **common, **by_architecture)  # type: ignore[arg-type]
