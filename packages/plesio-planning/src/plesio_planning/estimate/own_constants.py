"""Constants that are fitted to steps of the user's own, and what these change.

A published fit (`plesio_planning.estimate.calibrate`) says what devices reach in others' hands. A few of its constants
differ from one cluster and program to the next: what products, memory and the network reach, what an exchange costs the
computing beside it, and how long a host takes to start an operation. Each begins at its published value with a spread;
the steps then move them to the most probable set, that which minimises

    Σ (log(predicted / measured) / e)²  +  Σ (log(constant / begin) / spread)²

with e, the error of a good estimate of a layout whose constants are known. The inverse of the Hessian there is the
covariance of the logarithms, from which the intervals come, and what is left uncertain of a step: so one measured step
says little about the network unless the step waits for it, and the interval shows that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from plesio.core.charts import Table
from plesio.core.errors import ConfigError
from plesio.core.units import counted, format_percent, format_seconds
from plesio_planning.estimate.calibrate import Fitted, moved
from plesio_planning.estimate.constants import Constants
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Model
from plesio_planning.estimate.step import estimate_step
from plesio_planning.estimate.training import Conditions, Training, estimate_training

_ERROR = 0.03
"""e: an assumption, below the 4 % by which layouts of others are missed."""
_FREE: Mapping[str, float] = {"memory_efficiency": 0.2, "network_efficiency": 0.4, "contention": 0.6, "launch_s": 0.5}
"""Constants beside those of products, and how far they may be from the published ones: assumptions."""
_PRODUCT_SPREAD = 0.2
_TOLD = 0.9
"""Share of its spread that is left of a constant which the steps tell something about, at most."""
_FAR = 2.0
"""Spreads from the published value that need a reason."""
_ASIDE = 0.01
"""Spreads to the side at which a slope is taken."""
_MISSED = 0.3
"""Relative error after the fit from which the steps are not of the run that the file says."""
_SLOWER = 10.0
"""Time of a step over that of the published constants from which it is in another unit, or of another run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """A constant before and after.

    Attributes:
        low: Lower end of its 90 % interval.
        high: The upper end.
        left: Share of its spread that is left: 1 where the steps say nothing about it.
        moved: Spreads between the two values.
    """

    name: str
    before: float
    after: float
    low: float
    high: float
    left: float
    moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnConstants:
    """Constants of one's own steps.

    Attributes:
        fitted: The constants that were free.
        measured_s: Seconds of each step.
        before_s: Seconds that the published constants give it.
        after_s: Seconds that these give it.
        names: A name for each step.
        deviations: Spreads that each constant was moved.
        covariance: That of these deviations.
    """

    constants: Constants
    fitted: tuple[FittedConstant, ...]
    names: tuple[str, ...]
    measured_s: tuple[float, ...]
    before_s: tuple[float, ...]
    after_s: tuple[float, ...]
    free: tuple[Fitted, ...]
    deviations: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def tells_of(self, asked: Training) -> bool:
        """Return whether a step had the run's products: of its architecture, in its precision."""
        return _products(asked) in [(one.name, one.architecture) for one in self.free]

    def step_error(self, asked: Training) -> float:
        """Return the relative standard deviation of a run's step with these constants.

        That of products on other accelerators, or in another precision, is what it was: no step told of them.
        """
        if not self.tells_of(asked):
            return asked.step_error
        at = _log_step(asked, self.constants)
        slopes = []
        for place in range(len(self.free)):
            aside = [value + _ASIDE * (place == other) for other, value in enumerate(self.deviations)]
            slopes.append((_log_step(asked, moved(self.constants, aside, self.free)) - at) / _ASIDE)
        pairs = zip(slopes, self.covariance, strict=True)
        fitted = sum(one * other * value for one, row in pairs for other, value in zip(slopes, row, strict=True))
        return math.sqrt(_ERROR**2 + fitted)

    def finding(self, before: Training, after: Training) -> str:
        """Say what the steps told, and how the run changes."""
        told = [one for one in self.fitted if one.left <= _TOLD]
        words = ", ".join(
            f"{one.name} {_digits(one.after)} ({_digits(one.low)} to {_digits(one.high)})" for one in told
        )
        far = [one.name for one in self.fitted if abs(one.moved) > _FAR]
        worst_before, worst_after = (
            max(abs(one / measured - 1) for one, measured in zip(steps, self.measured_s, strict=True))
            for steps in (self.before_s, self.after_s)
        )
        caution = (
            f" {' and '.join(far)} would be far from what others reach: another `--software`, a slower link or a "
            "waiting host may explain the steps better."
            if far
            else ""
        )
        known = (
            f"is known to {format_percent(after.step_error)} instead of {format_percent(before.step_error)}"
            if self.tells_of(after)
            else f"is as uncertain as before ({format_percent(after.step_error)}): no step had its products on "
            f"{after.machine.accelerator.name}"
        )
        return (
            f"Calibrated to {counted(len(self.measured_s), 'measured step')}, which the published constants miss by up "
            f"to {format_percent(worst_before)} and these by {format_percent(worst_after)}: "
            f"{words or 'they say little about any constant'}. The run takes {after.days:.3g} days instead of "
            f"{before.days:.3g}, and its step {known}.{caution}"
        )

    @property
    def tables(self) -> Sequence[Table]:
        """The constants, and the steps."""
        constants = [
            (one.name, _digits(one.before), _digits(one.after), f"{_digits(one.low)} to {_digits(one.high)}")
            for one in self.fitted
        ]
        steps = [
            (
                name,
                format_seconds(measured),
                *(f"{format_seconds(one)} ({100 * (one / measured - 1):+.1f} %)" for one in ours),
            )
            for name, measured, *ours in zip(self.names, self.measured_s, self.before_s, self.after_s, strict=True)
        ]
        return [
            Table(
                title="Constants, published and by your steps:",
                headers=("constant", "published", "yours", "90 % interval"),
                rows=constants,
            ),
            Table(title="Your steps:", headers=("step", "measured", "published constants", "yours"), rows=steps),
        ]


def _digits(value: float) -> str:
    return f"{value:.3g}"


def calibrate_to(steps: Sequence[tuple[Training, float]]) -> OwnConstants:
    """Fit the free constants to measured steps.

    Args:
        steps: Runs as estimated, with the seconds that a step of each took.

    Raises:
        ConfigError: No constants that can be explain the steps. One line.

    >>> from plesio_planning.estimate.estimate import estimate
    >>> run = estimate(model="llama-3-8b", cluster="64xh100", tokens=1e12, tp=2, zero=1).training
    >>> found = calibrate_to([(run, 1.2 * run.step.total_s)])
    >>> found.constants.matrix_efficiency["hopper"] < run.constants.matrix_efficiency["hopper"]
    True
    >>> found.step_error(run) < run.step_error
    True
    """
    import numpy as np
    from scipy.optimize import least_squares

    own = [training for training, _ in steps]
    free, begin = _free_constants(own), own[0].constants

    def residuals(deviations: Sequence[float]) -> Any:
        constants = moved(begin, deviations, free)
        errors = [(_log_step(training, constants) - math.log(measured)) / _ERROR for training, measured in steps]
        return np.concatenate([deviations, errors])

    # a link may be all that its data sheet says, but no more
    most = [
        math.log(1 / one.begin) / one.spread if one.name == "network_efficiency" and one.begin < 1 else math.inf
        for one in free
    ]
    found = least_squares(residuals, np.zeros(len(free)), diff_step=1e-3, x_scale=1.0, bounds=(-math.inf, most))
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    deviations = [float(value) for value in found.x]
    constants = moved(begin, deviations, free)
    after_s = tuple(_step_s(training, constants) for training in own)
    before_s = tuple(_step_s(training, begin) for training in own)
    measured_s = tuple(measured for _, measured in steps)
    _check_possible(constants, free, before_s, after_s, measured_s)
    return OwnConstants(
        constants=constants,
        fitted=tuple(
            _fitted(one, deviation, math.sqrt(covariance[place, place]))
            for place, (one, deviation) in enumerate(zip(free, deviations, strict=True))
        ),
        names=tuple(f"{number}: {training.machine.name}" for number, training in enumerate(own, start=1)),
        measured_s=measured_s,
        before_s=before_s,
        after_s=after_s,
        free=tuple(free),
        deviations=tuple(deviations),
        covariance=tuple(tuple(map(float, row)) for row in covariance),
    )


def _check_possible(
    constants: Constants,
    free: Sequence[Fitted],
    before_s: Sequence[float],
    after_s: Sequence[float],
    measured_s: Sequence[float],
) -> None:
    """Make sure that no share of a peak is above 1, and that the steps are explained."""
    check = "check the unit of the steps, their batch, and their machine"
    for one in free:
        value = getattr(constants, one.name)
        share = value[one.architecture] if one.architecture else value
        if one.name.endswith("_efficiency") and share > 1:
            raise ConfigError(f"the steps are too short: {one.name} would be {share:.3g}, above the peak; {check}")
    for number, (before, after, measured) in enumerate(zip(before_s, after_s, measured_s, strict=True), start=1):
        if measured > _SLOWER * before:
            raise ConfigError(
                f"step {number} took {format_seconds(measured)}, {measured / before:.3g} times as long as published "
                f"constants say; {check}"
            )
        if abs(after / measured - 1) > _MISSED:
            raise ConfigError(
                f"step {number} took {format_seconds(measured)}, and constants fitted to it say "
                f"{format_seconds(after)}; {check}"
            )


def _free_constants(trainings: Sequence[Training]) -> list[Fitted]:
    """Return the free constants: those of the products that take part, by architecture, and the others."""
    constants = trainings[0].constants
    products = dict.fromkeys(map(_products, trainings))
    found = [
        Fitted(
            name=name, architecture=architecture, begin=getattr(constants, name)[architecture], spread=_PRODUCT_SPREAD
        )
        for name, architecture in products
    ]
    return [
        *found,
        *(Fitted(name=name, begin=getattr(constants, name), spread=spread) for name, spread in _FREE.items()),
    ]


def _products(training: Training) -> tuple[str, str]:
    """Return the constant of a run's products, and the architecture whose value it is."""
    name = "fp8_efficiency" if training.layout.precision == "fp8" else "matrix_efficiency"
    return name, training.machine.accelerator.architecture


def _fitted(one: Fitted, deviation: float, left: float) -> FittedConstant:
    after = one.begin * math.exp(one.spread * deviation)
    factor = math.exp(NormalDist().inv_cdf(0.95) * one.spread * left)
    most = 1.0 if one.name.endswith("_efficiency") else math.inf
    name = f"{one.name} of {one.architecture}" if one.architecture else one.name
    return FittedConstant(
        name=name,
        before=one.begin,
        after=after,
        low=after / factor,
        high=min(after * factor, most),
        left=left,
        moved=deviation,
    )


def _log_step(training: Training, constants: Constants) -> float:
    return math.log(_step_s(training, constants))


def _step_s(training: Training, constants: Constants) -> float:
    return estimate_step(
        training.model, training.layout, training.machine, global_batch=training.step.num_samples, constants=constants
    ).total_s


def calibrated(training: Training, calibration: OwnConstants) -> Training:
    """Return the run with these constants, and its step as certain as they leave it unless that was given."""
    conditions = training.conditions
    if conditions.step_error is None:
        conditions = replace(conditions, step_error=calibration.step_error(training))
    return training.again(conditions=conditions, constants=calibration.constants)


def estimate_own(
    model: Model,
    layout: Layout,
    machine: Machine,
    *,
    global_batch: int,
    tokens: float,
    conditions: Conditions | None,
    calibration: OwnConstants | None,
) -> Training:
    """Estimate a run as `estimate_training` does, with the constants of one's own steps if there are any."""
    training = estimate_training(
        model, layout, machine, global_batch=global_batch, tokens=tokens, conditions=conditions
    )
    return training if calibration is None else calibrated(training, calibration)
