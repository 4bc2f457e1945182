"""The fastest way to lay a model out over a machine, by trying all.

The space: tensor parallelism inside a host (beyond it the slow network would carry every layer's exchanges; Narayanan
et al. 2021, section 3.2), context parallelism down to 1,024 tokens a device, every number of stages and of their parts,
experts over replicas, replicas from what devices remain, micro-batches of powers of two up to 16 sequences, every stage
of ZeRO (the third also among 1 to 16 hosts, as HSDP), every recomputation (but for the selective one where attention is
fused, which does the same). Sequence parallelism is used wherever there is tensor parallelism, as it costs nothing.
Each is checked and fitted into memory, of which a part is kept free for what an allocator cannot use, and what remains
is timed; failures and states add to all of them alike, so the layout with the least time for a sequence has the fastest
run. The batch is part of the search where nobody gave one: each layout takes the faster of the two multiples that it
needs next to the batch that is wanted. Unless the program's settings are given, the lean program takes the place of the
usual one where that does not fit, as for a single layout (`plesio_planning.estimate.capacity`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SOFTWARE, Layout, LayoutRecomputation, Software, lean
from plesio_planning.estimate.memory import Memory, estimate_memory
from plesio_planning.estimate.model import Convolutional, Model
from plesio_planning.estimate.step import Step, estimate_step

__all__ = [
    "RESERVE",
    "FoundLayout",
    "Search",
    "layouts_of",
    "of_sequences",
    "or_shorter_sequences",
    "search_layouts",
    "working_layouts",
]

RESERVE = 0.05
"""Share of the memory that a search leaves free: an assumption."""

_LARGEST_MICRO_BATCH = 16
_SHORTEST_CONTEXT = 1024
_DOUBLINGS = 12
_SHARD_DOUBLINGS = 4
_NOT_SEARCHED = ("etp", "schedule", "shard", "recomputed_layers", "offload")
"""All layouts have these where they are given, or the default."""
_PROGRESS_EVERY = 256
_NEAR = math.sqrt(2)
"""Largest factor between the batch that is wanted and one near it: what is no larger has a multiple as near."""
_FAR = 2.0
"""The same for a layout that has no multiple so near, as those of 409 replicas."""
_SAME = 1e-9
"""Relative difference of two steps that take as long."""
_LONG_SEQUENCE = 8192
"""Longer ones are what a model can read in the end, not what most of its training used (Grattafiori et al. 2024,
section 3.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayout:
    """A layout that works."""

    layout: Layout
    step: Step
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The outcome for all layouts.

    Attributes:
        candidates: Layouts that work, the fastest first, and among equally fast ones that of the least memory; at least
            one.
        num_not_divisible: Layouts whose degrees do not divide what they share, or that no program offers.
        num_too_large: The ones that a device's memory cannot hold.
    """

    candidates: tuple[FoundLayout, ...]
    num_tried: int
    num_not_divisible: int
    num_too_large: int

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
        """Return the fastest for each tensor and pipeline parallelism that works, by (tp, pp)."""
        found: dict[tuple[int, int], FoundLayout] = {}
        for candidate in self.candidates:
            found.setdefault((candidate.layout.tp, candidate.layout.pp), candidate)
        return found


def layouts_of(
    model: Model,
    machine: Machine,
    *,
    global_batch: int,
    near: bool = False,
    fixed: Mapping[str, Any] | None = None,
) -> Iterator[Layout]:
    """Return all layouts of the space, among them such that `plesio_planning.estimate.layout.check_layout` refuses."""
    fixed = fixed or {}
    largest_batch = int(_FAR * global_batch) if near else global_batch
    software = fixed.get("software", SOFTWARE["current"])

    def some(name: str, values: Iterator[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
        return (fixed[name],) if name in fixed else tuple(values)

    devices = machine.num_devices
    sizes = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
    if not isinstance(model, Convolutional):
        sizes = {
            "tp": min(machine.devices_per_host, model.num_heads),
            "pp": model.num_layers,
            "cp": max(model.sequence_length // _SHORTEST_CONTEXT, 1),
            "ep": model.num_experts,
        }
    zeros, recomputations = some("zero", (0, 1, 2, 3)), some("recomputation", _recomputations(model, software))
    # degrees that multiply to the number of devices, data parallelism being the rest
    for tp, pp, cp in product(
        some("tp", _divisors(devices, sizes["tp"])),
        some("pp", _divisors(devices, sizes["pp"])),
        some("cp", _divisors(devices, sizes["cp"])),
    ):
        dp = devices // (tp * pp * cp)
        if not dp or dp * tp * pp * cp != devices or fixed.get("dp", dp) != dp:
            continue
        # stages are interleaved only where there is a pipeline
        layers = 1 if pp == 1 or isinstance(model, Convolutional) else -(-model.num_layers // pp)
        for vpp, ep, micro_batch, zero, recomputation in product(
            some("vpp", _divisors(layers, layers)),
            some("ep", _divisors(dp * cp, sizes["ep"])),
            some("micro_batch", _micro_batches(largest_batch // dp)),
            zeros,
            recomputations,
        ):
            whole = Layout(
                tp=tp,
                pp=pp,
                vpp=vpp,
                dp=dp,
                ep=ep,
                cp=cp,
                zero=zero,
                sequence_parallel=tp > 1 and fixed.get("sequence_parallel", True),
                recomputation=recomputation,
                micro_batch=micro_batch,
                **{name: fixed[name] for name in _NOT_SEARCHED if name in fixed},
                precision=fixed.get("precision", "bf16"),
                software=software,
            )
            yield whole
            if zero == 3 and pp == 1 and "shard" not in fixed:
                yield from (replace(whole, shard=shard) for shard in _shards(whole, machine))


def _recomputations(model: Model, software: Software) -> tuple[LayoutRecomputation, ...]:
    if isinstance(model, Convolutional):
        return ("none",)
    return ("none", "partial", "full") if software.fused_attention else ("none", "selective", "full")


def _shards(layout: Layout, machine: Machine) -> Iterator[int]:
    """Yield the replicas of few whole hosts, if those are not all."""
    a_host = machine.devices_per_host // layout.tp
    shards = (a_host << power for power in range(_SHARD_DOUBLINGS + 1)) if a_host else ()
    return (shard for shard in shards if shard < layout.dp * layout.cp and layout.dp * layout.cp % shard == 0)


def _near_batches(layout: Layout, wanted: int) -> Sequence[int]:
    """Return the multiples next to the batch that is wanted, as far as they are near; itself if none is."""
    unit = layout.batch_unit
    below = wanted // unit * unit
    next_to = sorted({below, below if below == wanted else below + unit})
    for factor in (_NEAR, _FAR):
        if batches := [batch for batch in next_to if wanted / factor <= batch <= factor * wanted]:
            return batches
    return [wanted]


def _fits(memory: Memory) -> bool:
    return memory.total_bytes <= (1 - RESERVE) * memory.capacity_bytes


def _divisors(number: int, most: int) -> Iterator[int]:
    return (value for value in range(1, min(number, most) + 1) if number % value == 0)


def _micro_batches(most: int) -> Iterator[int]:
    micro_batch = 1
    while micro_batch <= min(most, _LARGEST_MICRO_BATCH):
        yield micro_batch
        micro_batch *= 2


def search_layouts(
    model: Model,
    machine: Machine,
    *,
    global_batch: int,
    near: bool = False,
    may_be_lean: bool = False,
    fixed: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Search:
    """Try all layouts of the space.

    >>> from plesio_planning.estimate.hardware import parse_machine
    >>> from plesio_planning.estimate.named_models import find_model
    >>> found = search_layouts(find_model("llama-2-7b"), parse_machine("8xh100"), global_batch=64)
    >>> found.best.memory.fits, found.num_tried == len(found.candidates) + found.num_not_divisible + found.num_too_large
    (True, True)

    Args:
        model: Model to train.
        machine: Machine to run on.
        global_batch: Sequences (or images) of a step, the same for all.
        near: Whether each layout may take the faster of the two batches next to it that it divides instead, at most 1.4
            times as large or as small, or 2 times if it divides none of these. Where every layout needs more at a time,
            the same is tried with twice the batch, and so on.
        may_be_lean: Whether a layout that does not fit may keep less of a parameter instead
            (`plesio_planning.estimate.layout.lean`).
        fixed: Attributes of `Layout` that are not searched, with their values.
        on_progress: Called now and then with the layouts tried, and all of them.

    Raises:
        ConfigError: None works. One line that says what would.
    """
    fixed = fixed or {}
    machine.accelerator.peak(fixed.get("precision", "bf16"))  # refuses one that the accelerator lacks
    if global_batch < 1:
        raise ArgumentError(f"`global_batch` is {global_batch}; write 1 or more")
    space = tuple(layouts_of(model, machine, global_batch=global_batch, near=near, fixed=fixed))
    while near and not space and global_batch < machine.num_devices:
        global_batch *= 2
        space = tuple(layouts_of(model, machine, global_batch=global_batch, near=near, fixed=fixed))
    outcomes = _Outcomes(fixed=frozenset(fixed) - {"precision", "software"}, near=near, may_be_lean=may_be_lean)
    for done, layout in enumerate(space):
        if done % _PROGRESS_EVERY == 0:
            on_progress(done, len(space))
        outcomes.add(model, layout, machine, global_batch=global_batch)
    on_progress(len(space), len(space))
    if not outcomes.candidates:
        kept = ", ".join(
            f"`{name} = {fixed[name]}`" for name in ("tp", "pp", "cp", "dp", "ep") if fixed.get(name, 1) > 1
        )
        # memory was the only obstacle: say how many devices would do
        if outcomes.num_too_large:
            larger = _larger_machine(model, machine, global_batch=global_batch, may_be_lean=may_be_lean, fixed=fixed)
            raise ArgumentError(
                f"no layout of {model.name}{kept and ' with '}{kept} fits into the memory of {machine.name}"
                f"{of_sequences(model)}; "
                f"{larger}{or_shorter_sequences(model)}"
            )
        # otherwise the fixed degrees are to blame, or a batch of less than a sequence for every replica
        raise outcomes.refusal or ArgumentError(
            f"{kept} cannot be had from {machine.num_devices} devices; write divisors of them, or fix less"
            if kept
            else f"`global_batch` is {global_batch}, less than {machine.num_devices} devices can share; write more"
        )
    return Search(
        candidates=outcomes.in_order(),
        num_tried=len(space),
        num_not_divisible=outcomes.num_not_divisible,
        num_too_large=outcomes.num_too_large,
    )


@dataclass(slots=True)
class _Outcomes:
    """The outcome for the layouts so far; a refusal that is about a fixed setting goes before others."""

    fixed: frozenset[str] = frozenset()
    near: bool = False
    may_be_lean: bool = False
    candidates: list[FoundLayout] = field(default_factory=list)
    num_not_divisible: int = 0
    num_too_large: int = 0
    refusal: ConfigError | None = None

    def add(self, model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> None:
        batches = _near_batches(layout, global_batch) if self.near else [global_batch]
        try:
            tried = [self._in_memory(model, layout, machine, global_batch=batch) for batch in batches]
        except ConfigError as error:
            self.num_not_divisible += 1
            if self.refusal is None or self.fixed & set(getattr(error, "parameters", ())):
                self.refusal = error
            return
        found = [
            FoundLayout(layout=one, step=estimate_step(model, one, machine, global_batch=batch), memory=memory)
            for batch, (one, memory) in zip(batches, tried, strict=True)
            if _fits(memory)
        ]
        if found:
            self.candidates.append(min(found, key=lambda one: one.step.sample_s))
        else:
            self.num_too_large += 1

    def _in_memory(self, model: Model, layout: Layout, machine: Machine, *, global_batch: int) -> tuple[Layout, Memory]:
        memory = estimate_memory(model, layout, machine, global_batch=global_batch)
        if self.may_be_lean and not memory.fits:
            layout = lean(layout)
            memory = estimate_memory(model, layout, machine, global_batch=global_batch)
        return layout, memory

    def in_order(self) -> tuple[FoundLayout, ...]:
        """Return the fastest first; times that differ by rounding count as equal, and the least memory is first."""
        return tuple(
            sorted(self.candidates, key=lambda one: (float(f"{one.step.sample_s:.9e}"), one.memory.total_bytes))
        )


def working_layouts(
    model: Model,
    layouts: Iterable[Layout],
    machine: Machine,
    *,
    global_batch: int,
    near: bool = False,
    may_be_lean: bool = False,
) -> tuple[FoundLayout, ...]:
    """Return the layouts that are possible and fit, the fastest first."""
    outcomes = _Outcomes(near=near, may_be_lean=may_be_lean)
    for layout in layouts:
        outcomes.add(model, layout, machine, global_batch=global_batch)
    return outcomes.in_order()


def of_sequences(model: Model) -> str:
    """Write half a sentence: how long sequences are."""
    return "" if isinstance(model, Convolutional) else f" with sequences of {model.sequence_length:,} tokens"


def or_shorter_sequences(model: Model) -> str:
    """Write half a sentence: what makes long sequences short; nothing where they are not long."""
    long = not isinstance(model, Convolutional) and model.sequence_length > _LONG_SEQUENCE
    return ", or a shorter `sequence_length`" if long else ""


def _larger_machine(
    model: Model,
    machine: Machine,
    *,
    global_batch: int,
    may_be_lean: bool,
    fixed: Mapping[str, Any],
) -> str:
    """Write half a sentence: the next machine, each twice the one before, on which something fits."""
    smallest = {"micro_batch": 1, "recomputation": "full", **fixed}
    for _ in range(_DOUBLINGS):
        machine = replace(machine, num_devices=2 * machine.num_devices)
        for layout in layouts_of(model, machine, global_batch=global_batch, fixed=smallest):
            least = lean(layout) if may_be_lean else layout
            try:
                memory = estimate_memory(model, least, machine, global_batch=global_batch)
            except ConfigError:
                continue
            if _fits(memory):
                return f"write {machine.name}, or devices with more memory"
    return "write devices with more memory, or a smaller model"
