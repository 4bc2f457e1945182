"""How long steps take, as a recipe says it."""

from abc import ABC, abstractmethod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from plesio.bench.recipe_section import Rank, RecipePath, RecipeSection, Seconds, as_finding
from plesio.cost.step_time import (
    Constant,
    EmpiricalTrace,
    Gamma,
    LogNormal,
    Pareto,
    Slowdowns,
    Stalls,
    StepTime,
)


class _Distribution(RecipeSection, ABC):
    """How long a step takes a worker of speed 1."""

    @abstractmethod
    def distribution(self) -> StepTime:
        """Return the distribution that the table describes."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        with as_finding():
            self.distribution()
        return self


class ConstantSection(_Distribution):
    """``{ kind = "constant", mean = "20 ms" }``."""

    kind: Literal["constant"]
    mean: Seconds

    def distribution(self) -> StepTime:
        return Constant(mean_s=self.mean)


class LogNormalSection(_Distribution):
    """``{ kind = "lognormal", mean = "20 ms", cv = 0.3 }``."""

    kind: Literal["lognormal"]
    mean: Seconds
    cv: float

    def distribution(self) -> StepTime:
        return LogNormal(mean_s=self.mean, cv=self.cv)


class GammaSection(_Distribution):
    """``{ kind = "gamma", mean = "20 ms", cv = 0.3 }``."""

    kind: Literal["gamma"]
    mean: Seconds
    cv: float

    def distribution(self) -> StepTime:
        return Gamma(mean_s=self.mean, cv=self.cv)


class ParetoSection(_Distribution):
    """``{ kind = "pareto", min = "15 ms", shape = 2.5 }``."""

    kind: Literal["pareto"]
    min: Seconds
    shape: float

    def distribution(self) -> StepTime:
        return Pareto(min_s=self.min, shape=self.shape)


class TraceSection(_Distribution):
    """``{ kind = "trace", path = "steps.txt" }``; see `EmpiricalTrace.read` for the file."""

    kind: Literal["trace"]
    path: RecipePath

    def distribution(self) -> StepTime:
        return EmpiricalTrace.read(self.path)


StepTimeSection = Annotated[
    ConstantSection | LogNormalSection | GammaSection | ParetoSection | TraceSection, Field(discriminator="kind")
]


class StallsSection(RecipeSection):
    """``stalls = { probability = 0.02, factor = 10.0 }``: any step of any worker may stall."""

    probability: float
    factor: float

    @model_validator(mode="after")
    def _possible(self) -> Self:
        with as_finding():
            self.on(Constant(mean_s=1.0))
        return self

    def on(self, steps: StepTime) -> StepTime:
        return Stalls(steps=steps, probability=self.probability, factor=self.factor)


class SlowdownsSection(RecipeSection):
    """``[workers.slowdowns]``: whiles in which all workers of a rack are slow.

    Attributes:
        factor: How many times as long a step takes then.
        every: Mean from the end of one slowdown to the beginning of the next.
        lasting: Mean length of a slowdown.
        racks: The ranks in each rack; a worker in none is never slow. None is the cluster's racks.
    """

    factor: float
    every: Seconds
    lasting: Seconds
    racks: (
        Annotated[
            tuple[Annotated[tuple[Rank, ...], Field(strict=False, min_length=1)], ...],
            Field(strict=False, min_length=1),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        with as_finding():
            self.slowdowns()
        ranks = [rank for rack in self.racks or () for rank in rack]
        for rank in ranks:
            if ranks.count(rank) > 1:
                raise ValueError(f"rank {rank} is in the racks {ranks.count(rank)} times; write it once")
        return self

    def slowdowns(self) -> Slowdowns:
        return Slowdowns(factor=self.factor, every_s=self.every, lasting_s=self.lasting)
