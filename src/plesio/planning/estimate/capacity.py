"""Whether a layout fits into the devices' memory, and which change would make it fit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio.planning.estimate.hardware import Machine
from plesio.planning.estimate.layout import Layout
from plesio.planning.estimate.memory import Memory, estimate_memory
from plesio.planning.estimate.model import Convolutional, Model

__all__ = ["check_memory", "of_sequences", "or_shorter_sequences"]

_GIB = 2**30
_LONG_SEQUENCE = 8192
"""Longer ones are what a model can read in the end, not what most of its training used (Grattafiori et al. 2024,
section 3.4)."""


def check_memory(model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> Memory:
    """Make sure that it fits, and return the memory of the device that needs the most.

    Raises:
        ConfigError: It does not fit, or cannot be laid out so. One line, with the first of these changes that helps:
            sequence parallelism, ZeRO 1, selective recomputation, a micro-batch of 1, full recomputation, all of these
            (and ZeRO 3 without a pipeline), and then also more tensor parallelism and more stages for fewer replicas.
    """
    memory = estimate_memory(model, layout, machine, global_batch=global_batch)
    if memory.fits:
        return memory
    needs = (
        f"{model.name}{of_sequences(model)} needs {memory.total_bytes / _GIB:.4g} GiB on each "
        f"{machine.accelerator.name}, which has {memory.capacity_bytes / _GIB:.4g} GiB"
    )
    for changes in _changes(model, layout, machine):
        changed = replace(layout, **changes)
        try:
            fits = estimate_memory(model, changed, machine, global_batch=global_batch).fits
        except ConfigError:  # of the changes this one is not possible
            continue
        if fits:
            helps = ", ".join(f"`{name} = {value}`" for name, value in changes.items())
            raise ArgumentError(f"{needs}; write {helps}{or_shorter_sequences(model)}")
    raise ArgumentError(f"{needs}; take more devices, or a device with more memory{or_shorter_sequences(model)}")


def of_sequences(model: Model) -> str:
    """Half a sentence: how long sequences are."""
    return "" if isinstance(model, Convolutional) else f" with sequences of {model.sequence_length:,} tokens"


def or_shorter_sequences(model: Model) -> str:
    """Half a sentence: what makes long sequences short; nothing where they are not long."""
    long = not isinstance(model, Convolutional) and model.sequence_length > _LONG_SEQUENCE
    return ", or a shorter `sequence_length`" if long else ""


def _changes(model: Model, layout: Layout, machine: Machine) -> Iterator[dict[str, Any]]:
    """Changes from the one that costs least time to the one that costs most; none that changes nothing."""
    singles = _single_changes(model, layout)
    yield from singles
    everything: dict[str, Any] = {}
    for change in singles:
        everything |= change
        yield dict(everything)
    if layout.pp == 1 and layout.zero < 3:
        everything["zero"] = 3
        yield dict(everything)
    if isinstance(model, Convolutional):
        return
    # replicas are given up for devices that share one
    without_zero_3 = {**everything, "zero": 1}
    for factor in (2, 4, 8):
        if layout.tp * factor <= machine.devices_per_host and layout.dp % factor == 0:
            yield everything | {"sequence_parallel": True, "tp": layout.tp * factor, "dp": layout.dp // factor}
    devices = layout.dp * layout.tp * layout.pp
    tp = max((tp for tp in (1, 2, 4, 8) if tp <= machine.devices_per_host and devices % tp == 0), default=layout.tp)
    for pp in (2, 4, 8, 16, 32, 64):
        if pp > layout.pp and devices % (tp * pp) == 0:
            whole = {"sequence_parallel": tp > 1, "tp": tp, "pp": pp, "dp": devices // (tp * pp)}
            yield without_zero_3 | whole


def _single_changes(model: Model, layout: Layout) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = []
    if layout.tp > 1 and not layout.sequence_parallel:
        changes.append({"sequence_parallel": True})
    if layout.zero == 0:
        changes.append({"zero": 1})
    elif layout.zero == 1 and layout.pp > 1:
        changes.append({"zero": 2})
    if layout.recomputation == "none" and not layout.software.fused_attention:
        changes.append({"recomputation": "selective"})
    if layout.micro_batch > 1:
        changes.append({"micro_batch": 1})
    if layout.recomputation != "full" and not isinstance(model, Convolutional):
        changes.append({"recomputation": "full"})
    return changes
