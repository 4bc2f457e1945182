"""The fastest way to lay a model out over a machine, as if all were tried.

Every layout of the space (`plesio_planning.estimate.search_space`) that may be among the fastest is fitted into memory
(`estimate.fitting`), of which a part is kept free for what an allocator cannot use, and timed (`estimate.search_walk`).
Failures and states add to all of them alike, so the layout with the least time for a sequence has the fastest run.

The batch is part of the search where nobody gave one. A layout may have any between half and twice the batch that is
wanted, but each doubling has to save a few per cent of the time: the nearest two that it divides are tried, and those
farthest away, between which a step's time for a sequence goes one way.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Convolutional, Model
from plesio_planning.estimate.search_space import Family
from plesio_planning.estimate.search_walk import FoundLayout, LayoutQuestion, Walk

_DOUBLINGS = 12
_SAME = 1e-9
"""Relative difference of two steps that take as long."""
_TOP = 10
"""Distinct times that a search finds all layouts of, if nobody says."""
_LONG_SEQUENCE = 8192
"""Longer ones are what a model can read in the end, not what most of its training used (Grattafiori et al. 2024,
section 3.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The outcome for all layouts.

    Attributes:
        candidates: Layouts that work and were timed, the fastest first, and among equally fast ones that of the least
            memory; at least one.
        num_not_divisible: Layouts whose degrees do not divide what they share, or that no program offers.
        num_too_large: The ones that a device's memory cannot hold.
        num_slower: The ones that cannot be among the fastest; they were not timed.
        question: The question.
    """

    candidates: tuple[FoundLayout, ...]
    num_tried: int
    num_not_divisible: int
    num_too_large: int
    num_slower: int
    question: LayoutQuestion

    @property
    def best(self) -> FoundLayout:
        """The fastest."""
        return self.candidates[0]

    def distinct(self, most: int) -> tuple[tuple[FoundLayout, int], ...]:
        """Return the fastest, without those that take as long as one before; with each, the number of the latter."""
        found: list[tuple[FoundLayout, int]] = []
        for candidate in self.candidates:
            if found and math.isclose(candidate.step.sample_s, found[-1][0].step.sample_s, rel_tol=_SAME):
                found[-1] = (found[-1][0], found[-1][1] + 1)
            elif len(found) == most:
                break
            else:
                found.append((candidate, 0))
        return tuple(found)

    def best_by_degrees(self) -> Mapping[tuple[int, int], FoundLayout]:
        """Find the fastest for each tensor and pipeline parallelism that works, by (tp, pp)."""
        walk = Walk(replace(self.question, top=None))
        walk.go()
        found: dict[tuple[int, int], FoundLayout] = {}
        for candidate in walk.in_order():
            found.setdefault((candidate.layout.tp, candidate.layout.pp), candidate)
        return found


def search_layouts(
    model: Model,
    machine: Machine,
    *,
    global_batch: int,
    near: bool = False,
    may_be_lean: bool = False,
    fixed: Mapping[str, Any] | None = None,
    top: int = _TOP,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Search:
    """Find the fastest layouts of the space.

    >>> from plesio_planning.estimate.hardware import parse_machine
    >>> from plesio_planning.estimate.named_models import find_model
    >>> found = search_layouts(find_model("llama-2-7b"), parse_machine("8xh100"), global_batch=64)
    >>> left_out = found.num_not_divisible + found.num_too_large + found.num_slower
    >>> found.best.memory.fits, found.num_tried == len(found.candidates) + left_out
    (True, True)

    Args:
        model: Model to train.
        machine: Machine to run on.
        global_batch: Sequences (or images) of a step, the same for all.
        near: Whether each layout may take another batch instead, between half and twice as large, for each doubling of
            which it must save 2.5 % of the time. Where every layout needs more at a time, the same is tried with twice
            the batch, and so on.
        may_be_lean: Whether a layout that does not fit may keep less of a parameter instead
            (`plesio_planning.estimate.layout.lean`).
        fixed: Attributes of `Layout` that are not searched, with their values.
        top: How many of the fastest are found, those that take as long as another one not counted.
        on_progress: Called now and then with the layouts done, and all of them.

    Raises:
        ConfigError: None works. One line that says what would.
    """
    question = LayoutQuestion(
        model=model,
        machine=machine,
        wanted=global_batch,
        near=near,
        may_be_lean=may_be_lean,
        fixed=fixed or {},
        top=top,
    )
    return fastest_layouts(question, on_progress)


def fastest_layouts(
    question: LayoutQuestion, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Search:
    """Answer the question as `search_layouts` does."""
    machine = question.machine
    machine.accelerator.peak(question.fixed.get("precision", "bf16"))  # refuses one that the accelerator lacks
    if question.wanted < 1:
        raise ArgumentError(f"`global_batch` is {question.wanted}; write 1 or more")
    walk = Walk(question)
    while question.near and not walk.num_tried and question.wanted < machine.num_devices:
        question = replace(question, wanted=2 * question.wanted)
        walk = Walk(question)
    walk.go(on_progress)
    if not walk.candidates:
        raise _refusal(walk)
    return Search(
        candidates=walk.in_order(),
        num_tried=walk.num_tried,
        num_not_divisible=walk.num_not_divisible,
        num_too_large=walk.num_too_large,
        num_slower=walk.num_slower,
        question=question,
    )


def fastest_layout(question: LayoutQuestion) -> FoundLayout | None:
    """Return the fastest layout with what is fixed; None if nothing fits.

    Unlike in `search_layouts` the batch is not doubled where every layout needs more.
    """
    walk = Walk(replace(question, top=1))
    walk.go()
    return walk.in_order()[0] if walk.candidates else None


def _refusal(walk: Walk) -> ConfigError:
    """Say why nothing works: memory, what is fixed, or a batch of less than a sequence for every replica."""
    model, machine, fixed = walk.question.model, walk.question.machine, walk.question.fixed
    kept = ", ".join(f"`{name} = {fixed[name]}`" for name in ("tp", "pp", "cp", "dp", "ep") if fixed.get(name, 1) > 1)
    # memory was the only obstacle: say how many devices would do
    if walk.num_too_large:
        return ArgumentError(
            f"no layout of {model.name}{kept and ' with '}{kept} fits into the memory of {machine.name}"
            f"{of_sequences(model)}; {_larger_machine(walk.question)}{or_shorter_sequences(model)}"
        )
    return walk.refusal or ArgumentError(
        f"{kept} cannot be had from {machine.num_devices} devices; write divisors of them, or fix less"
        if kept
        else f"`global_batch` is {walk.question.wanted}, less than {machine.num_devices} devices can share; write more"
    )


def _larger_machine(question: LayoutQuestion) -> str:
    """Write half a sentence: the next machine, each twice the one before, on which something fits."""
    machine, smallest = question.machine, {"micro_batch": 1, "recomputation": "full", **question.fixed}
    for _ in range(_DOUBLINGS):
        machine = replace(machine, num_devices=2 * machine.num_devices)
        larger = Walk(replace(question, machine=machine, fixed=smallest, top=1))
        larger.go()
        if larger.candidates:
            return f"write {machine.name}, or devices with more memory"
    return "write devices with more memory, or a smaller model"


def working_layouts(question: LayoutQuestion, layouts: Sequence[Layout]) -> tuple[FoundLayout, ...]:
    """Return those of the layouts that are possible and fit as they are, the fastest first.

    All are of one program, which counts instead of what the question has fixed.
    """
    if not layouts:
        return ()
    fixed = dict.fromkeys(("recomputation", "recomputed_layers", "offload", "offload_activations"))
    own = {**fixed, "software": layouts[0].software}
    walk = Walk(replace(question, fixed=own, top=len(layouts) + 1), map(Family.of_one, layouts))
    walk.go()
    return walk.in_order()


def of_sequences(model: Model) -> str:
    """Write half a sentence: how long sequences are."""
    return "" if isinstance(model, Convolutional) else f" with sequences of {model.sequence_length:,} tokens"


def or_shorter_sequences(model: Model) -> str:
    """Write half a sentence: what makes long sequences short; nothing where they are not long."""
    long = not isinstance(model, Convolutional) and model.sequence_length > _LONG_SEQUENCE
    return ", or a shorter `sequence_length`" if long else ""
