"""The estimate beside what others measured.

Of sources A and C every other model is fitted on, beginning with the first of each, and the others are held out. Then
each model is left out in turn, with all its rows in both sources, and predicted with constants fitted on the rest. On
H100 one constant is fitted on the one row of source D that needs no pipeline, and its others and source E's are held
out.

The baseline of times is a constant utilisation: the mean MFU of the fitted rows. That of memory is 16 bytes a
parameter, and ``34 s b h`` bytes a layer, divided by the devices (by the stages, and by tensor parallelism).
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from plesio.core.predictions import Prediction
from plesio.planning.estimate.calibrate import fit_constants, predicted_s
from plesio.planning.estimate.constants import CONSTANTS, Constants
from plesio.planning.estimate.memory import Memory, memory_of_stage
from plesio.planning.estimate.published import PUBLISHED_MEMORY, PUBLISHED_STEPS, PublishedMemory, PublishedStep

__all__ = ["FITTED_STEPS", "FITTED_STEPS_H100", "validate_estimator"]

_GIB = 2**30


def _every_other_model(source: str) -> list[PublishedStep]:
    steps = [step for step in PUBLISHED_STEPS if step.source == source]
    models = list(dict.fromkeys(step.model.name for step in steps))[::2]
    return [step for step in steps if step.model.name in models]


FITTED_STEPS: Sequence[PublishedStep] = (*_every_other_model("A"), *_every_other_model("C"))
"""Half of sources A and C, from which the constants come."""
FITTED_STEPS_H100: Sequence[PublishedStep] = tuple(
    step for step in PUBLISHED_STEPS if step.source == "D" and step.layout.pp == 1
)
"""The row of source D from which the H100's constant comes."""


def validate_estimator(constants: Constants = CONSTANTS) -> list[Prediction]:
    """Every published row: predicted, reported, and by the baseline.

    Quantities come in the order: step times of A and C (fitted, held out, each model left out), of D and E (fitted,
    held out), memory (parameters with their state, activations, activations with selective recomputation).

    Args:
        constants: Constants of all rows but those of a model that is left out.
    """
    a100 = [step for step in PUBLISHED_STEPS if step.source in ("A", "C")]
    h100 = [step for step in PUBLISHED_STEPS if step.source in ("D", "E")]
    predictions = []
    for what, steps, fitted in (("step time", a100, FITTED_STEPS), ("H100 step time", h100, FITTED_STEPS_H100)):
        mfu = _mean_mfu(fitted)
        for title, chosen in (
            (f"{what}, fitted (s)", [step for step in steps if step in fitted]),
            (f"{what}, held out (s)", [step for step in steps if step not in fitted]),
        ):
            predictions += [_time(title, step, constants, mfu=mfu) for step in chosen]
        if what == "step time":
            predictions += _leave_one_model_out(a100, constants)
    for row in PUBLISHED_MEMORY:
        predictions += _memory(row)
    order = list(dict.fromkeys(prediction.quantity for prediction in predictions))
    return sorted(predictions, key=lambda prediction: order.index(prediction.quantity))


def _leave_one_model_out(steps: Sequence[PublishedStep], constants: Constants) -> Iterator[Prediction]:
    for name in dict.fromkeys(step.model.name for step in steps):
        others = [step for step in steps if step.model.name != name]
        fitted = fit_constants(others, begin=constants)
        for step in steps:
            if step.model.name == name:
                yield _time("step time, model left out (s)", step, fitted, mfu=_mean_mfu(others))


def _mean_mfu(steps: Sequence[PublishedStep]) -> float:
    return statistics.fmean(_ideal_s(step) / step.step_s for step in steps)


def _ideal_s(step: PublishedStep) -> float:
    peak = step.machine.accelerator.peak(step.layout.precision) * step.machine.num_devices
    return step.global_batch * step.model.model_flops / peak


def _time(quantity: str, step: PublishedStep, constants: Constants, *, mfu: float) -> Prediction:
    return Prediction(
        setting=_setting(step),
        quantity=quantity,
        scale="relative",
        predicted=predicted_s(step, constants),
        measured=step.step_s,
        baseline=_ideal_s(step) / mfu,
    )


def _setting(step: PublishedStep) -> dict[str, str]:
    layout = step.layout
    degrees = " ".join(
        f"{name} {value}"
        for name, value in (("tp", layout.tp), ("pp", layout.pp), ("vpp", layout.vpp), ("dp", layout.dp))
        if value > 1
    )
    return {
        "source": step.source,
        "model": step.model.name,
        "devices": step.machine.name,
        "layout": f"{degrees}; {layout.recomputation}",
    }


def _memory(row: PublishedMemory) -> Iterator[Prediction]:
    """What figure 1 shows: state of a stage's layers (18 bytes a parameter, no embedding), activations of the first."""
    step = row.step
    model, pp, tp = step.model, step.layout.pp, step.layout.tp
    plain = replace(step, layout=replace(step.layout, recomputation="none"))
    selective = replace(step, layout=replace(step.layout, recomputation="selective", sequence_parallel=True))
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
