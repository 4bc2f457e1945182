"""The check that a layout fits into the devices' memory, and the search for one that does.

Programs do not all keep the same. The usual 18 bytes a parameter (`plesio_planning.estimate.memory`) are 14 in one that
keeps gradients in BF16 and of master weights only what BF16 leaves of them. Unless the program's settings are given,
the lean one is estimated where the usual one does not fit (`that_fits`), with a note; a layout that does not fit even
so is refused.
"""

from collections.abc import Iterator
from typing import Any

from plesio.core.errors import ArgumentError
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import Layout, lean
from plesio_planning.estimate.memory import HOST_BYTES, Memory, estimate_memory
from plesio_planning.estimate.model import Convolutional, Model
from plesio_planning.estimate.search import fastest_layout, of_sequences, or_shorter_sequences
from plesio_planning.estimate.search_walk import FoundLayout, LayoutQuestion

_GIB = 2**30
_WORTH_NEW_DEGREES = 1.1
"""Other degrees are advised if a step is so many times as fast with them."""
_FIELDS = (
    *("tp", "pp", "vpp", "dp", "cp", "ep", "zero", "shard", "sequence_parallel", "micro_batch"),
    *("recomputation", "recomputed_layers"),
)


def check_memory(model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> Memory:
    """Make sure that it fits, and return the memory of the device that needs the most.

    Raises:
        ConfigError: It does not fit, or cannot be laid out so. One line, with what makes it fit: a program that keeps
            less, or the fastest layout that fits, of the same degrees, or of others if those are faster by a tenth.
    """
    memory = estimate_memory(model, layout, machine, global_batch=global_batch)
    if memory.fits:
        return memory
    needed, where, capacity_bytes = memory.total_bytes, "on each", memory.capacity_bytes
    if needed <= capacity_bytes:
        needed, where, capacity_bytes = memory.host_bytes, "in its host for each", HOST_BYTES
    needs = (
        f"{model.name}{of_sequences(model)} needs {needed / _GIB:.4g} GiB {where} {machine.accelerator.name}, which "
        f"has {capacity_bytes / _GIB:.4g} GiB"
    )
    # a leaner program is the smaller change, so it is advised first
    leaner = estimate_memory(model, lean(layout), machine, global_batch=global_batch)
    if leaner.fits:
        raise ArgumentError(
            f"{needs}; write `gradients = bf16` and `master_weight_remainders`, with which it needs "
            f"{leaner.total_bytes / _GIB:.4g} GiB"
        )
    best = None
    # then other layouts, those that keep the most of this one first
    for fixed in _fixed(model, layout):
        fixed = {**fixed, "precision": layout.precision, "software": layout.software}
        found = fastest_layout(LayoutQuestion(model=model, machine=machine, wanted=global_batch, fixed=fixed))
        if found is not None and (best is None or _step_s(best) > _WORTH_NEW_DEGREES * _step_s(found)):
            best = found
    if best is None:
        raise ArgumentError(f"{needs}; take more devices, or a device with more memory{or_shorter_sequences(model)}")
    # only what differs is named
    values = {name: getattr(best.layout, name) for name in _FIELDS}
    changes = {name: value for name, value in values.items() if value != getattr(layout, name)}
    given = ", ".join(f"`{name} = {value}`" for name, value in changes.items() if value is not None)
    left_out = ", ".join(f"`{name}`" for name, value in changes.items() if value is None)
    helps = [f"write {given}"] * bool(given) + [f"leave {left_out} out"] * bool(left_out)
    raise ArgumentError(f"{needs}; {' and '.join(helps)}{or_shorter_sequences(model)}")


def that_fits(model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> Layout:
    """Return the layout itself, or the lean one if only that fits.

    Raises:
        ConfigError: The model cannot be laid out so.
    """
    if estimate_memory(model, layout, machine, global_batch=global_batch).fits:
        return layout
    leaner = lean(layout)
    return leaner if estimate_memory(model, leaner, machine, global_batch=global_batch).fits else layout


def _step_s(candidate: FoundLayout) -> float:
    return candidate.step.total_s


def _fixed(model: Model, layout: Layout) -> Iterator[dict[str, Any]]:
    """Yield the settings of the layout to keep: its degrees, and then only those that are rarely changed."""
    kept = {} if layout.micro_batch > 1 else {"micro_batch": 1}
    if isinstance(model, Convolutional):
        yield kept
        return
    names = ("cp", "ep", "etp", "schedule", "offload", "offload_activations")
    few = {name: getattr(layout, name) for name in names}
    yield {**kept, **few, "tp": layout.tp, "pp": layout.pp, "vpp": layout.vpp}
    yield {**kept, **few, "vpp": 1, **({} if layout.schedule == "1f1b" else {"pp": layout.pp})}
