"""Fitting the constants of real devices to published steps.

Least squares of the logarithm of predicted over reported time, so that an error of a tenth weighs the same in a step of
one second and of a hundred. Three constants are common to all steps on one architecture of accelerators; of another
architecture only the efficiency of its matrix products is fitted, the rest stays.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from plesio.core.errors import ConfigError
from plesio.planning.estimate.constants import CONSTANTS, Constants
from plesio.planning.estimate.published import PublishedStep
from plesio.planning.estimate.step import estimate_step

__all__ = ["FITTED", "fit_constants", "fit_matrix_efficiency", "predicted_s"]

FITTED = ("matrix_efficiency", "exposed_traffic", "memory_efficiency")
"""Constants that `fit_constants` finds."""
_BEGIN = (0.75, 0.5, 0.75)
_BOUNDS = ((0.1, 0.0, 0.1), (1.0, 1.0, 1.0))
"""All three are shares."""


def predicted_s(step: PublishedStep, constants: Constants) -> float:
    """Seconds that the estimate gives a published step."""
    return estimate_step(
        step.model, step.layout, step.machine, global_batch=step.global_batch, constants=constants
    ).total_s


def fit_constants(steps: Sequence[PublishedStep], *, begin: Constants = CONSTANTS) -> Constants:
    """The constants of `FITTED` with which these steps are predicted best; all others are those of ``begin``.

    Args:
        steps: Steps on accelerators of one architecture, at least three.
        begin: The constants that are not fitted.

    Raises:
        ConfigError: Fewer than three steps, or several architectures.
    """
    architecture = _architecture(steps)
    if len(steps) < len(FITTED):
        raise ConfigError(f"{len(steps)} steps for {len(FITTED)} constants; give {len(FITTED)} or more")

    def constants_of(values: Sequence[float]) -> Constants:
        efficiency, exposed_traffic, memory_efficiency = map(float, values)
        return replace(
            begin,
            matrix_efficiency={**begin.matrix_efficiency, architecture: efficiency},
            exposed_traffic=exposed_traffic,
            memory_efficiency=memory_efficiency,
        )

    return constants_of(_least_squares(steps, constants_of, start=_BEGIN, bounds=_BOUNDS))


def fit_matrix_efficiency(steps: Sequence[PublishedStep], *, begin: Constants = CONSTANTS) -> Constants:
    """The efficiency of one more architecture's matrix products, from one step or more; all else as ``begin``.

    Raises:
        ConfigError: No steps, or several architectures.
    """
    architecture = _architecture(steps)

    def constants_of(values: Sequence[float]) -> Constants:
        return replace(begin, matrix_efficiency={**begin.matrix_efficiency, architecture: float(values[0])})

    return constants_of(_least_squares(steps, constants_of, start=_BEGIN[:1], bounds=(_BOUNDS[0][:1], _BOUNDS[1][:1])))


def _architecture(steps: Sequence[PublishedStep]) -> str:
    architectures = sorted({step.machine.accelerator.architecture for step in steps})
    if len(architectures) != 1:
        raise ConfigError(
            f"steps on {', '.join(architectures) or 'no'} accelerators; give steps on one architecture, as in ampere"
        )
    return architectures[0]


def _least_squares(
    steps: Sequence[PublishedStep],
    constants_of: Callable[[Sequence[float]], Constants],
    *,
    start: Sequence[float],
    bounds: tuple[Sequence[float], Sequence[float]],
) -> Sequence[float]:
    from scipy.optimize import least_squares

    def residuals(values: Sequence[float]) -> list[float]:
        constants = constants_of(values)
        return [math.log(predicted_s(step, constants) / step.step_s) for step in steps]

    return list(least_squares(residuals, start, bounds=bounds).x)
