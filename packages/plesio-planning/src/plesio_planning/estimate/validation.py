"""The estimate beside what others measured.

Constants are fitted on the steps of sources whose use is that, and on no others; those that are kept apart are
predicted. The cross-validation
(`estimate.cross_validation`) says how far off the estimate is on runs that it has not seen: each family of
models is left out in turn, and each program that ran them.

The baseline of times is a constant utilisation. That of memory is 16 bytes a parameter, and ``34 s b h`` bytes a layer,
divided by the devices (by the stages, and by tensor parallelism).
"""

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from plesio.core.predictions import Prediction
from plesio_planning.estimate.calibrate import EXPERTS, predicted_s
from plesio_planning.estimate.constants import CONSTANTS
from plesio_planning.estimate.cross_validation import HeldOut, Z, constant_utilisation, cross_validate, normal_error
from plesio_planning.estimate.layout import SoftwareName
from plesio_planning.estimate.memory import Memory, memory_of_stage
from plesio_planning.estimate.published import (
    PUBLISHED_MEMORY,
    PUBLISHED_STEPS,
    SOURCES,
    PublishedMemory,
    PublishedStep,
)

_GIB = 2**30

FITTED_STEPS: Sequence[PublishedStep] = tuple(step for step in PUBLISHED_STEPS if SOURCES[step.source].use == "fitted")
"""Steps from which the constants come."""
EXPERT_STEPS: Sequence[PublishedStep] = tuple(step for step in PUBLISHED_STEPS if SOURCES[step.source].use == "experts")
"""Steps from which the constants of experts come."""
NEVER_FITTED_STEPS: Sequence[PublishedStep] = tuple(
    step for step in PUBLISHED_STEPS if SOURCES[step.source].use == "apart"
)
"""Llama 3 405B on as many as 16384 devices, MT-NLG, and the other halves of BLOOM's trials and a README's rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The estimate beside everything that was published.

    Attributes:
        families: Every step of `FITTED_STEPS`, predicted without its model's family.
        programs: The same steps, predicted without the program that ran them.
        experts: Every step of `EXPERT_STEPS`, whose constants of experts come from the other families.
    """

    families: tuple[HeldOut, ...]
    programs: tuple[HeldOut, ...]
    experts: tuple[HeldOut, ...]

    @property
    def predictions(self) -> list[Prediction]:
        """Every row: predicted, reported, and by the baseline.

        Quantities come in the order: step times (in the fit, family left out, program left out, of experts, never in a
        fit), memory (parameters with their state, activations, activations with selective recomputation).
        """
        predictions = [_fitted("step time, in the fit (s)", step) for step in FITTED_STEPS]
        predictions += [_left_out("step time, family left out (s)", row) for row in self.families]
        predictions += [_left_out("step time, program left out (s)", row) for row in self.programs]
        predictions += [_left_out("step time of experts, family left out (s)", row) for row in self.experts]
        predictions += [_fitted("step time, never in a fit (s)", step) for step in NEVER_FITTED_STEPS]
        memory = [one for row in PUBLISHED_MEMORY for one in _memory(row)]
        order = list(dict.fromkeys(prediction.quantity for prediction in memory))
        return [*predictions, *sorted(memory, key=lambda prediction: order.index(prediction.quantity))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramError:
    """How far a program's published steps are off, none of them by constants that have seen it.

    Attributes:
        error: Relative standard deviation whose interval at `CONFIDENCE` is Student's.
        num_covered: Steps within it.
    """

    name: str
    num_steps: int
    error: float
    num_covered: int

    @property
    def reach(self) -> float:
        """The logarithm of predicted over reported at either end of the interval."""
        return Z * self.error


def program_errors(validation: Validation) -> tuple[ProgramError, ...]:
    """Return the errors of each program, the widest first, and of one that is none of them."""
    errors: dict[SoftwareName, list[float]] = {}
    for row in validation.families:
        errors.setdefault(SOURCES[row.step.source].software, []).append(math.log1p(row.error))
    for step in PUBLISHED_STEPS:
        if SOURCES[step.source].use in ("chosen", "apart") and step.model.num_experts == 1:
            error = math.log(predicted_s(step, CONSTANTS) / step.step_s)
            errors.setdefault(SOURCES[step.source].software, []).append(error)
    squares = {name: [error**2 for error in own] for name, own in errors.items()}
    found = [_program_error(name, own, own) for name, own in squares.items()]
    means = [statistics.fmean(own) for own in squares.values()]
    others = [square for own in squares.values() for square in own]
    return *sorted(found, key=lambda one: -one.error), _program_error("another", means, others)


def _program_error(name: str, squares: Sequence[float], steps: Sequence[float]) -> ProgramError:
    error = normal_error(squares)
    covered = sum(square <= (Z * error) ** 2 for square in steps)
    return ProgramError(name=name, num_steps=len(steps), error=error, num_covered=covered)


@functools.cache
def validate_estimator() -> Validation:
    """Leave out every family and every program in turn, and predict their steps; always the same, so done once."""
    return Validation(
        families=cross_validate(FITTED_STEPS, by=lambda step: step.family),
        programs=cross_validate(FITTED_STEPS, by=lambda step: step.program),
        experts=cross_validate(EXPERT_STEPS, by=lambda step: step.family, fitted=EXPERTS),
    )


def _fitted(quantity: str, step: PublishedStep) -> Prediction:
    return Prediction(
        setting=_setting(step),
        quantity=quantity,
        scale="relative",
        predicted=predicted_s(step, CONSTANTS),
        measured=step.step_s,
        baseline=constant_utilisation(step, FITTED_STEPS),
    )


def _left_out(quantity: str, row: HeldOut) -> Prediction:
    return Prediction(
        setting=_setting(row.step),
        quantity=quantity,
        scale="relative",
        predicted=row.predicted_s,
        measured=row.step.step_s,
        baseline=row.baseline_s,
    )


def _setting(step: PublishedStep) -> dict[str, str]:
    layout = step.layout
    degrees = " ".join(
        f"{name} {value}"
        for name, value in (
            ("tp", layout.tp),
            ("pp", layout.pp),
            ("vpp", layout.vpp),
            ("cp", layout.cp),
            ("dp", layout.dp),
            ("zero", layout.zero),
        )
        if value > 1
    )
    return {
        "source": step.source,
        "model": step.model.name,
        "sequence": str(step.model.sequence_length),
        "devices": step.machine.name,
        "layout": f"{degrees}; {layout.recomputation}; {layout.precision}",
    }


def _memory(row: PublishedMemory) -> Iterator[Prediction]:
    """Predict figure 1: state of a stage's layers (18 bytes a parameter, no embedding), activations of the first."""
    step = row.step
    model, pp, tp = step.model, step.layout.pp, step.layout.tp
    # the figure shows activations without recomputation, and with the selective one
    plain = replace(step, layout=replace(step.layout, recomputation="none"))
    selective = replace(step, layout=replace(step.layout, recomputation="selective", sequence_parallel=True))
    # a stage in the middle has no embedding, as the figure counts
    inner = _memory_of(step, stage=pp // 2)
    baseline_state = 16 * model.num_layers * model.layer_parameters / (tp * pp)
    layer = 34 * model.sequence_length * step.layout.micro_batch * model.hidden_size
    baseline_activations = layer * model.num_layers / (tp * pp)
    state = inner.parameters_bytes + inner.gradients_bytes + inner.optimizer_bytes
    for quantity, predicted, measured, baseline, of in (
        ("parameters and optimizer, GiB", state, row.state_gib, baseline_state, step),
        ("activations, GiB", _memory_of(plain).activations_bytes, row.activations_gib, baseline_activations, plain),
        (
            "selective activations, GiB",
            _memory_of(selective).activations_bytes,
            row.selective_gib,
            baseline_activations,
            selective,
        ),
    ):
        yield Prediction(
            setting=_setting(of),
            quantity=quantity,
            scale="relative",
            predicted=predicted / _GIB,
            measured=measured,
            baseline=baseline / _GIB,
        )


def _memory_of(step: PublishedStep, *, stage: int = 0) -> Memory:
    num_micro_batches = step.global_batch // (step.layout.dp * step.layout.micro_batch)
    return memory_of_stage(step.model, step.layout, step.machine, stage=stage, num_micro_batches=num_micro_batches)
