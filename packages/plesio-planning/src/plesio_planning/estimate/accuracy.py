"""How sure an estimated step is, and what a reader should know before comparing it with a real one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SOFTWARE, Layout
from plesio_planning.estimate.model import Convolutional, Model
from plesio_planning.estimate.published import PUBLISHED_STEPS, SOURCES
from plesio_planning.estimate.step import estimate_step

__all__ = ["STEP_ERROR", "UNTESTED_ERROR", "step_error", "step_notes"]

STEP_ERROR = 0.054
"""Relative standard deviation whose 90 % interval covers as many of the published steps, each predicted without its
model's family (`plesio_planning.estimate.cross_validation`)."""
UNTESTED_ERROR = 0.1
"""The same of what no constant was fitted on, for each such thing: that of a constant before it is fitted."""
_LEAST_DIFFERENCE = 0.02
"""Share of a step from which on another program's time is worth a note."""


def step_error(model: Model, layout: Layout, machine: Machine) -> float:
    """Return the relative standard deviation of an estimated step's time."""
    return math.hypot(STEP_ERROR, *(UNTESTED_ERROR for _ in _untested(model, layout, machine)))


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
    alike = [step for step in PUBLISHED_STEPS if step.machine.accelerator.architecture == architecture]
    if not alike:
        yield machine.accelerator.name
    elif fp8 and not any(step.layout.precision == "fp8" for step in alike):
        yield f"FP8 on {machine.accelerator.name}"
    if isinstance(model, Convolutional):
        yield "convolutions"
        return
    if not any(SOURCES[step.source].fitted and step.layout.software == layout.software for step in PUBLISHED_STEPS):
        yield "this software"
    if model.num_experts > max(step.model.num_experts for step in PUBLISHED_STEPS):
        yield "experts"


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
