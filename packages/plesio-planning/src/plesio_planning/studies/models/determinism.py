"""Causes of differences between two runs, the places where these begin, and their growth.

Sums of floating-point numbers depend on their order (`studies.reduction_order`), so a training whose gradients are
added up in another order begins to differ at the first step. Each step multiplies the difference by what it does to
nearby parameters: little where training is calm, a factor at the edge of stability. A seed changes everything at once.
`studies.trajectories` finds the first step and tensor of two runs that differ, in all bits or by more than a tolerance.

``docs/planning/studies/determinism.md`` has the model with its sources, its assumptions and its limits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, get_args

import numpy as np

from plesio.core.charts import Axis, Chart, LineChart, Table
from plesio.core.errors import ArgumentError
from plesio.core.inputs import Written
from plesio.core.only_with import OnlyWith
from plesio.core.units import counted, format_percent
from plesio.core.within import AT_LEAST_0, Within
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.reduction_order import (
    SOURCES,
    OrderEffect,
    VariationSource,
    order_effect,
    sums_by_order,
    train,
)
from plesio_planning.studies.study import Answer
from plesio_planning.studies.trajectories import (
    FirstDifference,
    Tier,
    Trajectory,
    difference_at,
    distances,
    read_trajectory,
)

_NUM_RANKS = (2, 3, 4, 8, 16, 32, 64, 128, 256)
_MOST_NUMBERS = 1024 * 100_000
_EXAMPLE = (1e30, -1e30, 1.0)
_DRAWN = (
    "the same again",
    "reverse order",
    "random order",
    "random, in 64 bits",
    "half the ranks",
    "another initial seed",
)
_FLOOR = 1e-9
"""Differences of nothing are drawn here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryPair:
    """Two trajectories.

    Attributes:
        name: Difference between them.
        remedy: Way to make such runs equal; empty where the runs are files.
        strict: The first difference in any bit; None if there is none.
        relaxed: The first beyond the tolerance.
        steps: That either has.
        relative: The largest relative difference of a tensor at each of them; infinite where tensors cannot be
            subtracted.
    """

    name: str
    remedy: str
    strict: FirstDifference | None
    relaxed: FirstDifference | None
    steps: tuple[int, ...]
    relative: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism(Answer):
    """The differences between runs.

    Attributes:
        comparisons: Comparisons of simulated runs by source, or of the two files.
        orders: Orders by number of ranks; the last is what was asked for. Empty where files were compared.
        sums: Sums of three numbers, by their order, as text.
        tolerance: Tolerance of the relaxed tier.
        num_elements: Elements of the tensors that are added up.
    """

    unit: ClassVar[str] = "% of elements"
    comparisons: tuple[TrajectoryPair, ...]
    orders: tuple[OrderEffect, ...]
    sums: Mapping[str, float]
    tolerance: float
    num_elements: int

    @property
    def finding(self) -> str:
        """The place where files first differ; or how much order changes, and the size to which that grows."""
        if not self.orders:
            (only,) = self.comparisons
            if only.strict is None:
                return f"The runs are the same to the bit in all {len(only.steps)} steps."
            relaxed = (
                f"never by more than {self.tolerance:g}"
                if only.relaxed is None
                else f"by more than {self.tolerance:g} from {_where(only.relaxed)} on"
            )
            return f"The runs differ first in {_where(only.strict)}, {_values(only.strict)}; {relaxed}."
        effect = self.orders[-1]
        by_name = {one.name: one for one in self.comparisons}
        order, seed = by_name["reverse order"], by_name["another initial seed"]
        return (
            f"Adding up {effect.num_ranks} ranks backward changes {format_percent(effect.differing)} of the sums, by "
            f"at most {effect.largest:.2g}; a training begins to differ in its first step, by {order.relative[0]:.1g}, "
            f"and after {counted(len(order.steps), 'step')} by {order.relative[-1]:.1g}, another seed by "
            f"{seed.relative[-1]:.1g}."
        )

    @property
    def total(self) -> float:
        """Percent of the elements that differ: of the sums, or of the files' first tensor that does."""
        return sum(self.parts.values())

    @property
    def parts(self) -> Mapping[str, float]:
        """How much they differ."""
        if self.orders:
            differing, last_place = self.orders[-1].differing, self.orders[-1].last_place
        else:
            found = self.comparisons[0].strict
            differing = 0.0 if found is None else found.distance.differing
            last_place = 0.0 if found is None else found.distance.last_place
        return {"by one unit in the last place": 100 * last_place, "by more": 100 * (differing - last_place)}

    def tables(self) -> Sequence[Table]:
        """List where runs differ, and how orders do."""
        tables = [
            table_of(
                f"First differences (tolerance {self.tolerance:g}):",
                self.comparisons,
                {
                    "what differs": lambda one: one.name,
                    "first in any bit": lambda one: "–" if one.strict is None else _where(one.strict),
                    "of its elements": lambda one: (
                        "–" if one.strict is None else format_percent(one.strict.distance.differing)
                    ),
                    "first beyond tolerance": lambda one: "–" if one.relaxed is None else _where(one.relaxed),
                    "last step": lambda one: f"{one.relative[-1]:.1e}",
                    "remedy": lambda one: one.remedy or "–",
                },
            )
        ]
        if not self.orders:
            return tables
        return [
            *tables,
            table_of(
                f"{self.num_elements:,} standard normal numbers a rank, added up forward and backward:",
                self.orders,
                {
                    "ranks": lambda one: str(one.num_ranks),
                    "differ": lambda one: format_percent(one.differing),
                    "by one unit in the last place": lambda one: format_percent(one.last_place),
                    "largest difference": lambda one: f"{one.largest:.2g}",
                    "with 64-bit sums": lambda one: format_percent(one.differing_in_64, digits=4),
                },
            ),
            Table(
                title="Three numbers, from left to right:",
                headers=("order", "sum"),
                rows=[(order, f"{value:g}") for order, value in self.sums.items()],
            ),
        ]

    def charts(self) -> Sequence[Chart]:
        """Draw how runs part, and how orders do."""
        parting = LineChart(
            slug="parting",
            title=self._parting_title(),
            caption=f"Largest relative difference of any tensor by step; none at all is drawn at {_FLOOR:g}.",
            x=Axis(title="step"),
            y=Axis(title="relative difference", log=True),
            series=[
                line
                for one in self.comparisons
                if not self.orders or (one.name in _DRAWN and any(one.relative))
                for line in lines_of(one.steps, {one.name: [max(value, _FLOOR) for value in one.relative]})
            ],
        )
        return [parting, self._orders_chart()] if self.orders else [parting]

    def _parting_title(self) -> str:
        if self.orders:
            return "An order changes the last bits and what grows out of them, a seed everything"
        found = self.comparisons[0].strict
        return "No difference" if found is None else f"The first difference is in {_where(found)}"

    def _orders_chart(self) -> LineChart:
        ranks = [one.num_ranks for one in self.orders]
        return LineChart(
            slug="orders",
            title=f"With {ranks[-1]} ranks {format_percent(self.orders[-1].differing, digits=0)} of the sums depend on "
            "the order",
            caption=f"Share of {self.num_elements:,} sums that differ between forward and backward, by ranks.",
            x=Axis(title="ranks", log=True),
            y=Axis(title="sums that differ (%)"),
            series=lines_of(
                ranks,
                {
                    "at all": [100 * one.differing for one in self.orders],
                    "by more than the last place": [100 * (one.differing - one.last_place) for one in self.orders],
                    "with 64-bit sums": [100 * one.differing_in_64 for one in self.orders],
                },
            ),
        )


def _where(difference: FirstDifference) -> str:
    return f"step {difference.distance.step}, {difference.distance.tensor}"


def _values(difference: FirstDifference) -> str:
    place = f" at {list(difference.place)}" if difference.place else ""
    return f"{difference.first} and {difference.second}{place}"


def determinism(
    *,
    first: str | None = None,
    second: str | None = None,
    tolerance: Annotated[float, AT_LEAST_0] = 1e-5,
    num_tensors: Annotated[int, Within(2, 1024), OnlyWith("first")] = 64,
    num_elements: Annotated[int, Within(1, 10**6), OnlyWith("first")] = 100_000,
    num_workers: Annotated[int, Within(2, 1024), OnlyWith("first")] = 8,
    global_batch: Annotated[int, Within(2, 1024), Written(option="batch"), OnlyWith("first")] = 64,
    learning_rate: Annotated[float, Within(0, 1e6), OnlyWith("first")] = 1.0,
    num_steps: Annotated[int, Within(1, 1000), OnlyWith("first")] = 150,
    seed: Annotated[int, OnlyWith("first")] = 0,
) -> Determinism:
    """Find the first difference of two recorded runs, or of simulated ones by what differs between them.

    >>> answer = determinism(num_elements=10_000, num_steps=20)
    >>> round(answer.total), sorted(set(answer.sums.values()))
    (87, [0.0, 1.0])

    Args:
        first: File of a run: arrays by step (.npz), results.json, or trace-W.jsonl; with it only files are compared.
        second: File of the other.
        tolerance: Tolerance of the relaxed tier: length of a difference over that of the tensor.
        num_tensors: Tensors that are added up forward and backward.
        num_elements: Elements of each tensor.
        num_workers: Workers of the simulated training.
        global_batch: Samples of its steps, of all workers together.
        learning_rate: Learning rate of its steps; the larger, the sooner runs part.
        num_steps: Steps of that training.
        seed: Seed of all that is drawn.

    Raises:
        ConfigError: One file without the other, or a number out of range.
        DataError: A file that cannot be read.
    """
    if (first is None) != (second is None):
        raise ArgumentError("one run has nothing to be compared with; write both `first` and `second`")
    if first is not None and second is not None:
        trajectories = read_trajectory(Path(first)), read_trajectory(Path(second))
        only = _compared("the files", "", *trajectories, tolerance=tolerance)
        return Determinism(comparisons=(only,), orders=(), sums={}, tolerance=tolerance, num_elements=0)
    if global_batch % num_workers:
        below = max(global_batch // num_workers, 1) * num_workers
        raise ArgumentError(
            f"`global_batch` is {global_batch}, no multiple of the {num_workers} of `num_workers`; "
            f"write a `global_batch` of {below}"
        )
    if num_tensors * num_elements > _MOST_NUMBERS:
        raise ArgumentError(
            f"`num_elements` is {num_elements} with `num_tensors` of {num_tensors}, which takes too long; "
            f"write at most {_MOST_NUMBERS // num_tensors} for `num_elements`"
        )
    rng = np.random.default_rng(seed)
    tensors = np.empty((num_tensors, num_elements), np.float32)
    for rank in range(num_tensors):
        tensors[rank] = rng.standard_normal(num_elements)
    counts = [*(count for count in _NUM_RANKS if count < num_tensors), num_tensors]
    run = partial(
        train, num_ranks=num_workers, batch=global_batch, learning_rate=learning_rate, num_steps=num_steps, seed=seed
    )
    return Determinism(
        comparisons=_by_source(run, tolerance=tolerance),
        orders=tuple(order_effect(tensors[:count]) for count in counts),
        sums={" + ".join(f"{one:g}" for one in order): value for order, value in sums_by_order(_EXAMPLE).items()},
        tolerance=tolerance,
        num_elements=num_elements,
    )


def _by_source(run: Callable[[VariationSource], Trajectory], *, tolerance: float) -> tuple[TrajectoryPair, ...]:
    """Compare a run of each source with its reference, which most of them share."""
    usual = run(SOURCES[0])
    return tuple(
        _compared(
            source.name,
            source.remedy,
            usual if source.reference is SOURCES[0] else run(source.reference),
            run(source),
            tolerance=tolerance,
        )
        for source in SOURCES
    )


def _compared(name: str, remedy: str, first: Trajectory, second: Trajectory, *, tolerance: float) -> TrajectoryPair:
    largest: dict[int, float] = {}
    found: dict[Tier, FirstDifference] = {}
    for distance in distances(first, second):
        largest[distance.step] = max(largest.get(distance.step, 0.0), distance.relative)
        for tier in get_args(Tier):
            if tier not in found and not distance.within(tier, tolerance=tolerance):
                found[tier] = difference_at(distance, first, second, tier=tier)
    return TrajectoryPair(
        name=name,
        remedy=remedy,
        strict=found.get("strict"),
        relaxed=found.get("relaxed"),
        steps=tuple(largest),
        relative=tuple(largest.values()),
    )
