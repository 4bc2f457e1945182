"""How sure an estimated step is, and what a reader should know before comparing it with a real one."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SOFTWARE, Layout, Software, SoftwareName
from plesio_planning.estimate.model import Convolutional, Model, Transformer
from plesio_planning.estimate.published import PUBLISHED_STEPS, SOURCES
from plesio_planning.estimate.step import estimate_step

STEP_ERRORS: Mapping[SoftwareName, float] = {
    "deepspeed-2021": 0.166,
    "current": 0.082,
    "megatron-deepspeed-2022": 0.078,
    "fsdp-2023": 0.072,
    "megatron-2022": 0.041,
    "megatron-core": 0.034,
    "megatron-2021": 0.026,
}
"""Relative standard deviations of a program's published steps, none of them predicted with constants that have seen its
model's family (`plesio_planning.estimate.validation.program_errors`)."""
OTHER_ERROR = 0.078
"""The same of a program of which no step was published."""
UNTESTED_ERROR = 0.1
"""The same of what no constant was fitted on, for each such thing: that of a constant before it is fitted."""
_TESTED = [step for step in PUBLISHED_STEPS if step.model.num_experts == 1]
"""Steps from which the errors of programs come."""
_SOFTWARE = "this software"
_LEAST_DIFFERENCE = 0.02
"""Share of a step from which on another program's time is worth a note."""


def step_error(model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> float:
    """Return the relative standard deviation of an estimated step's time.

    It begins with that of the program's published steps. Beside each thing that no constant was fitted on, a step is
    the more uncertain the less it is like one of them.
    """
    untested = [what for what in _untested(model, layout, machine) if what != _SOFTWARE]
    far = _distance(model, layout, machine, global_batch=global_batch) * UNTESTED_ERROR
    return math.hypot(_program_error(layout.software), far, *(UNTESTED_ERROR for _ in untested))


@functools.cache
def _program_error(software: Software) -> float:
    return next((error for name, error in STEP_ERRORS.items() if software == SOFTWARE[name]), OTHER_ERROR)


def _distance(model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> float:
    """Return how far the nearest published step of the software is: 0 is the same, 1 a doubling of something, or more.

    Of these the one that differs the most counts: width, sequence length, tensor parallelism, devices, and tokens of a
    device in a step. Where no step ran with the software, its errors are those of any.
    """
    if isinstance(model, Convolutional):
        return 0.0
    mine = _sizes(model, layout, machine, global_batch)
    distances = [
        max(abs(math.log2(one / other)) for one, other in zip(mine, theirs, strict=True))
        for theirs in _published_sizes(layout.software)
    ]
    return min(*distances, 1.0) if distances else 0.0


@functools.cache
def _published_sizes(software: Software) -> Sequence[tuple[float, ...]]:
    steps = [step for step in _TESTED if step.layout.software == software]
    return [_sizes(step.model, step.layout, step.machine, step.global_batch) for step in steps]


def _sizes(model: Transformer, layout: Layout, machine: Machine, global_batch: int) -> tuple[float, ...]:
    tokens = global_batch * model.sequence_length / machine.num_devices
    return model.hidden_size, model.sequence_length, layout.tp, machine.num_devices, tokens


def step_notes(model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> Sequence[str]:
    """Return the sentences that warn of what the estimate takes for granted: none of them is an error.

    That no published step was like it, that published steps of this model ran with other software, and that the
    software cannot run on this machine.
    """
    untested = list(_untested(model, layout, machine))
    notes = (
        [f"No constant was fitted on runs with {' or '.join(untested)}; the interval is wider for it."]
        if untested
        else []
    )
    if isinstance(model, Convolutional):
        return notes
    if machine.accelerator.architecture == "volta" and layout.software.fused_attention:
        notes.append("FlashAttention needs Ampere or newer; write `--software megatron-2021` for a run on V100.")
    return [*notes, *_other_software(model, layout, machine, global_batch=global_batch)]


def _untested(model: Model, layout: Layout, machine: Machine) -> Iterator[str]:
    architecture, fp8 = machine.accelerator.architecture, layout.precision == "fp8"
    alike = [step for step in _TESTED if step.machine.accelerator.architecture == architecture]
    if not alike:
        yield machine.accelerator.name
    elif fp8 and not any(step.layout.precision == "fp8" for step in alike):
        yield f"FP8 on {machine.accelerator.name}"
    if isinstance(model, Convolutional):
        yield "convolutions"
        return
    if not _published_sizes(layout.software):
        yield _SOFTWARE
    if model.num_experts > 1:
        yield f"experts but for {sum(SOURCES[step.source].use == 'experts' for step in PUBLISHED_STEPS)} steps"


def _other_software(model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> Iterator[str]:
    """Yield a sentence for each other program of which a step of this model on such a machine was published."""
    steps = [
        step
        for step in PUBLISHED_STEPS
        if step.model.name == model.name
        and step.machine.accelerator.architecture == machine.accelerator.architecture
        and (step.layout.zero == 3) == (layout.zero == 3)
    ]
    if any(step.layout.software == layout.software for step in steps):
        return
    mine = estimate_step(model, layout, machine, global_batch=global_batch).total_s
    for source in dict.fromkeys(step.source for step in steps):
        name = SOURCES[source].software
        theirs = replace(layout, software=SOFTWARE[name])
        if layout.cp > 1 and not theirs.software.fused_attention:
            continue
        more = estimate_step(model, theirs, machine, global_batch=global_batch).total_s / mine - 1
        if abs(more) > _LEAST_DIFFERENCE:
            yield (
                f"Published steps of {model.name} on {machine.accelerator.name} ran with {SOURCES[source].title}, with "
                f"which this one would take {100 * abs(more):.0f} % {'longer' if more > 0 else 'less'}; to compare "
                f"with them write `--software {name}`."
            )
