"""A way through all layouts of a search that looks at every one, and times only those that matter.

What matters may be the fastest, or the fastest of every tensor and pipeline parallelism. The others are left out by
bounds that are exact: a step takes at least as long as its slowest stage computes, as its pipeline takes from one end
to the other, and as it would take if nothing had to be given up for memory. Families are taken in the order of the
first bound, so that the fastest come early; those like the answer for a similar machine are first, and last those whose
state does not fit where replicas share nothing.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plesio.core.errors import ConfigError
from plesio_planning.estimate.constants import CONSTANTS, Constants
from plesio_planning.estimate.fitting import Fitting
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import Layout, LayoutRecomputation, Schedule, check_layout, varied
from plesio_planning.estimate.memory import Memory
from plesio_planning.estimate.model import Model
from plesio_planning.estimate.search_space import NEAR, Family, families_of
from plesio_planning.estimate.step import Step, step_of, step_timer

_PROGRESS_EVERY = 256
_WORTH_A_DOUBLING = 0.025
"""Share of the time that a batch must save to be twice as large, or half as large: an assumption."""
_SAME = 1e-9
"""Relative difference of two steps that take as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutQuestion:
    """The question of a search.

    Attributes:
        wanted: Sequences (or images) of a step.
        near: Whether a layout may take another batch.
        may_be_lean: Whether a program may keep less of a parameter where nothing else fits.
        fixed: Attributes of a layout that are not searched, with their values.
        top: How many of the fastest matter; None if the fastest of every tensor and pipeline parallelism does.
        constants: How close devices come to their data sheets.
        like: A layout whose degrees are tried first, as they were the fastest on a similar machine.
    """

    model: Model
    machine: Machine
    wanted: int
    near: bool = False
    may_be_lean: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    top: int | None = 1
    constants: Constants = CONSTANTS
    like: Layout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayout:
    """A layout that works."""

    layout: Layout
    step: Step
    memory: Memory


class Walk:
    """A way through families, else those of the space, and the outcome for all layouts so far."""

    def __init__(self, question: LayoutQuestion, families: Iterable[Family] | None = None) -> None:
        self.question = question
        self.candidates: list[FoundLayout] = []
        self.num_not_divisible = self.num_too_large = self.num_slower = 0
        self.refusal: ConfigError | None = None
        model, machine, fixed = question.model, question.machine, question.fixed
        if families is None:
            families = families_of(model, machine, global_batch=question.wanted, near=question.near, fixed=fixed)
        self._families = tuple(families)
        self.num_tried = sum(map(len, self._families))
        self._timer = step_timer(model, machine, question.constants)
        self._fitting = Fitting(model, machine, may_be_lean=question.may_be_lean, fixed=fixed)
        self._fastest_s: list[float] = []
        self._best_s: dict[tuple[int, int], float] = {}

    def go(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Look at all families, the most promising first."""
        possible = []
        done = 0
        for family in self._families:
            try:
                self._micro_batches(family.plain, self._batches(family.plain)[0])
            except ConfigError as error:
                self._refuse(error, len(family))
                done += len(family)
            else:
                plain = family.plain
                in_host = self._timer.state_bytes(plain) > self.question.machine.accelerator.memory_bytes
                other = self.question.like is None or _degrees(plain) != _degrees(self.question.like)
                possible.append(((other, in_host), self._timer.pace_s(plain) / plain.dp / plain.micro_batch, family))
        possible.sort(key=lambda bounded: bounded[:2])
        for place, (_, least_s, family) in enumerate(possible):
            if place % _PROGRESS_EVERY == 0:
                on_progress(done, self.num_tried)
            done += len(family)
            if least_s > self._limit_s(family.plain):
                self.num_slower += len(family)
            elif self._can_fit(family):
                for pipeline in family.pipelines:
                    self._order(family, pipeline)
            else:
                self.num_too_large += len(family)
        on_progress(self.num_tried, self.num_tried)

    def in_order(self) -> tuple[FoundLayout, ...]:
        """Return the fastest first."""
        return tuple(sorted(self.candidates, key=self._order_of))

    def _micro_batches(self, layout: Layout, batch: int) -> int:
        return check_layout(self.question.model, layout, self.question.machine, global_batch=batch)

    def _can_fit(self, family: Family) -> bool:
        """Return whether something of a family may fit: no order keeps less than the usual one with whole stages."""
        if (family.plain.tp, family.plain.pp) in self._best_s:
            return True
        fewest = self._batches(family.plain)[0] // (family.plain.dp * family.plain.micro_batch)
        return any(
            self._fitting.can_fit(layout, family.recomputations, num_micro_batches=fewest)
            for layout in family.ordered((1, "1f1b"))
        )

    def _order(self, family: Family, pipeline: tuple[int, Schedule]) -> None:
        """Fit and time the layouts of a family with one order of stages, unless this alone makes them too slow."""
        layouts = list(family.ordered(pipeline))
        numbers: dict[int, int] = {}
        refusal = None
        for batch in self._batches(layouts[0]):
            try:
                numbers[batch] = self._micro_batches(layouts[0], batch)
            except ConfigError as error:
                refusal = error
        if not numbers and refusal is not None:
            self._refuse(refusal, len(layouts) * len(family.recomputations))
            return
        fast = {
            batch: number
            for batch, number in numbers.items()
            if self._timer.whole_pipeline_s(layouts[0], number) * self._weight(batch)
            <= batch * self._limit_s(layouts[0])
        }
        if not fast:
            self.num_slower += len(layouts) * len(family.recomputations)
            return
        for layout in layouts:
            try:
                self._micro_batches(layout, next(iter(fast)))
            except ConfigError as error:
                self._refuse(error, len(family.recomputations))
            else:
                self._recomputed(layout, family.recomputations, fast, every=len(fast) == len(numbers))

    def _recomputed(
        self, layout: Layout, recomputations: Sequence[LayoutRecomputation], numbers: Mapping[int, int], *, every: bool
    ) -> None:
        """Add the layout with each recomputation: what fits in its place, with the best of the batches.

        Args:
            layout: With the cheapest recomputation, the first.
            recomputations: All of them.
            numbers: Micro-batches, by batch.
            every: No batch was left out as too slow.
        """
        found: dict[LayoutRecomputation, list[FoundLayout]] = {how: [] for how in recomputations}
        slower = set() if every else set(recomputations)
        for batch, number in numbers.items():
            if not self._share_again(self._fitting.least(layout), batch, number):
                slower |= set(recomputations)
                continue
            itself = self._fitting.of_itself(layout, num_micro_batches=number)
            if itself is not None:
                ways = [(recomputations[0], itself), *self._all_again(layout, recomputations[1:], batch, number)]
            elif self._fitting.can_fit(layout, recomputations, num_micro_batches=number):
                ways = list(self._in_its_place(layout, recomputations, batch, number))
            else:
                continue
            for how, fitting in ways:
                if fitting is None:
                    slower.add(how)
                else:
                    found[how].append(self._found(*fitting, batch, number))
        for how, each in found.items():
            if each:
                self._add(min(each, key=self._order_of))
            elif how in slower:
                self.num_slower += 1
            else:
                self.num_too_large += 1

    def _all_again(
        self, layout: Layout, recomputations: Sequence[LayoutRecomputation], batch: int, number: int
    ) -> Iterator[tuple[LayoutRecomputation, tuple[Layout, Memory] | None]]:
        """Yield a layout that fits without, with each of these in all layers; None for what is too slow."""
        for how in recomputations:
            again = varied(layout, recomputation=how)
            if self._share_again(self._fitting.least(again), batch, number) < 1:
                yield how, None
            elif fitting := self._fitting.of_itself(again, num_micro_batches=number):
                yield how, fitting

    def _in_its_place(
        self, layout: Layout, recomputations: Sequence[LayoutRecomputation], batch: int, number: int
    ) -> Iterator[tuple[LayoutRecomputation, tuple[Layout, Memory] | None]]:
        """Yield what fits where a layout does not: as few layers as it takes again, also with less on the device."""
        cheapest, too_slow = recomputations[0], False
        for one in self._fitting.offloaded(layout):
            # what is too slow with the optimizer in the host is not faster with activations there, too
            if not one.offload_activations:
                too_slow = not self._share_again(one, batch, number)
            if too_slow and (one.offload or not one.offload_activations):
                yield from ((how, None) for how in recomputations)
                continue
            kept_s = self._timer.whole_pipeline_s(one, number)
            for how in recomputations:
                again = one if how == cheapest else varied(one, recomputation=how)
                share = self._share_again(again, batch, number, kept_s=kept_s)
                if share < 1:
                    yield how, None
                # the fewer layers keep all, the less has to travel; between none and all time goes one way
                every = one.offload_activations and share == 1 and self._timer.whole_pipeline_s(again, number) <= kept_s
                if fitting := self._fitting.with_fewest(
                    again, num_micro_batches=number, most=share, least=1.0 if every else 0.0
                ):
                    yield how, fitting

    def _share_again(self, layout: Layout, batch: int, number: int, *, kept_s: float = math.inf) -> float:
        """Return the share of layers that may be computed again for the step not to be too slow; 0 if it is with none.

        The pipeline's time grows in a line with it from that with none, and of gradients' exchanges no less stays
        exposed than with all.
        """
        limit_s = self._limit_s(layout) * batch / self._weight(batch)
        pipeline_s = self._timer.whole_pipeline_s(layout, number)
        limited = layout.recomputation == "none" or not self._fitting.counts_layers
        if limited and pipeline_s > limit_s:
            return 0.0
        limit_s -= sum(self._timer.replicas_s(layout, number).values())
        if pipeline_s <= limit_s:
            return 1.0
        return 0.0 if limited or pipeline_s <= kept_s else max((limit_s - kept_s) / (pipeline_s - kept_s), 0.0)

    def _found(self, layout: Layout, memory: Memory, batch: int, number: int) -> FoundLayout:
        seconds = self._timer.step_s(layout, number)
        step = step_of(self.question.model, layout, self.question.machine, seconds, global_batch=batch)
        return FoundLayout(layout=layout, step=step, memory=memory)

    def _batches(self, layout: Layout) -> Sequence[int]:
        """Return the multiples next to the batch that is wanted, and the largest; itself if there is none."""
        if not self.question.near:
            return [self.question.wanted]
        unit = layout.batch_unit
        wanted = self.question.wanted
        multiples = {wanted // unit, wanted // unit + 1, int(NEAR * wanted) // unit}
        batches = [unit * each for each in sorted(multiples)]
        return [batch for batch in batches if wanted / NEAR <= batch <= NEAR * wanted] or [wanted]

    def _weight(self, batch: int) -> float:
        """Return how many times as long a sequence counts with this batch: what another one has to save."""
        return 1 + _WORTH_A_DOUBLING * abs(math.log2(batch / self.question.wanted)) if self.question.near else 1.0

    def _order_of(self, one: FoundLayout) -> tuple[float, float]:
        """Return what comes first: times that differ by rounding count as equal, and the least memory is first."""
        counted_s = one.step.sample_s * self._weight(one.step.num_samples)
        return float(f"{counted_s:.9e}"), one.memory.total_bytes

    def _limit_s(self, layout: Layout) -> float:
        """Return seconds for a sequence beyond which a layout is neither among the fastest nor that of its degrees."""
        if self.question.top is None:
            limit_s = self._best_s.get((layout.tp, layout.pp), math.inf)
        else:
            limit_s = self._fastest_s[-1] if len(self._fastest_s) == self.question.top else math.inf
        return (1 + _SAME) * limit_s

    def _add(self, found: FoundLayout) -> None:
        self.candidates.append(found)
        counted_s, degrees = self._order_of(found)[0], (found.layout.tp, found.layout.pp)
        self._best_s[degrees] = min(counted_s, self._best_s.get(degrees, math.inf))
        place = bisect.bisect(self._fastest_s, (1 - _SAME) * counted_s)
        if place == len(self._fastest_s) or self._fastest_s[place] > (1 + _SAME) * counted_s:
            self._fastest_s.insert(place, counted_s)
            del self._fastest_s[self.question.top or 0 :]

    def _refuse(self, error: ConfigError, number: int) -> None:
        """Count layouts that cannot be; a refusal that is about a fixed setting goes before others."""
        self.num_not_divisible += number
        fixed = self.question.fixed.keys() - {"precision", "software"}
        if self.refusal is None or fixed & set(getattr(error, "parameters", ())):
            self.refusal = error


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.pp, layout.cp, layout.ep, layout.micro_batch
