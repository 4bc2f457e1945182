"""The layouts that a device's memory holds in place of one that it does not.

A layout that does not fit may keep less of a parameter (`plesio_planning.estimate.layout.lean`). If it does not fit
even so, layers are computed again, as many as it takes, and the optimizer's state, the activations, or both are in the
host's memory. Each of these takes time and helps nothing else, so none is tried where the layout fits without it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SOFTWARE, Layout, LayoutRecomputation, lean, varied
from plesio_planning.estimate.memory import Memory, fullest_memory
from plesio_planning.estimate.model import Convolutional, Model

RESERVE = 0.05
"""Share of the memory that a search leaves free: an assumption."""

_KNOWN = 1000
"""Layouts whose memory is kept, as each batch asks for it again."""
_OFFLOADS = ((False, True), (True, False), (True, True))
"""The optimizer's state, and activations, that are in the host."""


class Fitting:
    """Finds layouts that fit.

    Args:
        model: Model to train.
        machine: Machine to run on.
        may_be_lean: Whether a program may keep less of a parameter.
        fixed: Attributes of a layout that stay as they are, with their values.
    """

    def __init__(self, model: Model, machine: Machine, *, may_be_lean: bool, fixed: Mapping[str, Any]) -> None:
        self._model, self._machine, self._may_be_lean = model, machine, may_be_lean
        self._software = fixed.get("software", SOFTWARE["current"])
        self._known: dict[tuple[Layout, int], Memory] = {}
        whole = isinstance(model, Convolutional)
        self._offloads = [
            (optimizer, activations)
            for optimizer, activations in _OFFLOADS
            if not (whole or (optimizer and "offload" in fixed) or (activations and "offload_activations" in fixed))
        ]
        self.counts_layers = not {"recomputation", "recomputed_layers"} & fixed.keys()

    def least(self, layout: Layout) -> Layout:
        """Return the layout with the program that keeps the least."""
        return lean(layout) if self._may_be_lean else layout

    def of_itself(self, layout: Layout, *, num_micro_batches: int) -> tuple[Layout, Memory] | None:
        """Return the layout with its memory, or the lean one with that; None if neither fits."""
        memory = self._memory(layout, num_micro_batches)
        if self._may_be_lean and not memory.fits:
            layout = lean(layout)
            memory = self._memory(layout, num_micro_batches)
        return (layout, memory) if fits(memory) else None

    def offloaded(self, layout: Layout) -> Iterator[Layout]:
        """Yield a layout that does not fit, itself and with what may be in the host."""
        least = self.least(layout)
        yield least
        for optimizer, activations in self._offloads:
            yield varied(
                least,
                offload=layout.offload or optimizer,
                offload_activations=layout.offload_activations or activations,
            )

    def can_fit(self, layout: Layout, recomputations: Sequence[LayoutRecomputation], *, num_micro_batches: int) -> bool:
        """Return whether anything helps."""
        *_, most = self.offloaded(layout)
        ways = (most if how == most.recomputation else varied(most, recomputation=how) for how in recomputations[::-1])
        return any(fits(self._memory(one, num_micro_batches)) for one in ways)

    def _memory(self, layout: Layout, num_micro_batches: int) -> Memory:
        # more micro-batches than any stage holds change nothing
        key = layout, min(num_micro_batches, 2 * layout.pp + 1)
        if (known := self._known.get(key)) is None:
            if len(self._known) > _KNOWN:
                self._known.clear()
            known = self._known[key] = fullest_memory(self._model, layout, self._machine, num_micro_batches=key[1])
        return known

    def with_fewest(
        self, layout: Layout, *, num_micro_batches: int, most: float, least: float = 0.0
    ) -> tuple[Layout, Memory] | None:
        """Return the layout with the fewest layers computed again with which it fits, a share of ``least`` to ``most``.

        Memory falls with their number, the less the more there are (each stage's in a line, and the fullest counts), so
        a line between two numbers names enough, from which fewer are tried.
        """

        def memory_of(number: int | None) -> Memory:
            one = layout if number is None else varied(layout, recomputed_layers=number)
            return self._memory(one, num_micro_batches)

        layers = 1
        if layout.recomputation != "none" and self.counts_layers:
            layers = -(-self._model.num_layers // layout.pp)
        number, fewest = math.floor(most * layers), max(math.ceil(least * layers), 1)
        if number < fewest or not fits(memory := memory_of(None if number == layers else number)):
            return None
        if number > fewest:
            one = memory_of(1)
            excess, saved = one.total_bytes - (1 - RESERVE) * one.capacity_bytes, one.total_bytes - memory.total_bytes
            enough = 1 + math.ceil(max(excess, 0.0) * (number - 1) / saved) if saved > 0 else number
            enough = max(enough, fewest)
            if enough < number and fits(known := memory_of(enough)):
                number, memory = enough, known
        while number > fewest and fits(known := memory_of(number - 1)):
            number, memory = number - 1, known
        found = layout if number == layers else varied(layout, recomputed_layers=number)
        if found.software != self._software:
            # as for a layout that is given, the lean program is for what does not fit otherwise
            usual = varied(found, software=self._software)
            needed = self._memory(usual, num_micro_batches)
            if needed.fits:
                return (usual, needed) if fits(needed) else None
        return found, memory


def fits(memory: Memory) -> bool:
    """Return whether a share of the device stays free."""
    return memory.fits and memory.total_bytes <= (1 - RESERVE) * memory.capacity_bytes
