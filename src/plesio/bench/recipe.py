"""Recipes: a comparison as a TOML file. `docs/recipes.md` explains the format to its users.

Reading a recipe checks all that can be known without training: keys, ranges, policies, the task's name, the step-time
traces. It imports no torch, so a mistake is reported at once.
"""

import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from plesio.bench.recipe_errors import explain
from plesio.core.clock import Clock
from plesio.core.errors import ConfigError, DataError, nearest
from plesio.core.units import parse_seconds
from plesio.policies import Policy, parse_policy
from plesio.runtime.pacing import Constant, EmpiricalTrace, Gamma, LogNormal, Pacer, Pareto, Stalls, StepTime
from plesio.tasks import TASK_NAMES

__all__ = ["Recipe", "RunSection", "TaskSection", "UnequalWorker", "WorkersSection", "load_recipe", "make_recipe"]


def _seconds(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'{value} has no unit; write it as in "20 ms"')
    if not isinstance(value, str):
        return value
    try:
        return parse_seconds(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _folder(info: ValidationInfo) -> Path:
    """The recipe's folder: paths in a recipe are relative to it."""
    assert info.context is not None, "load_recipe gives the folder"
    folder: Path = info.context["folder"]
    return folder


def _resolve(value: object, info: ValidationInfo) -> object:
    return _folder(info) / value if isinstance(value, str) else value


def _canonical_spec(text: str) -> str:
    try:
        return parse_policy(text).spec
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _no_repeats(values: tuple[Any, ...]) -> tuple[Any, ...]:
    repeated = [value for value, times in Counter(values).items() if times > 1]
    if repeated:
        raise ValueError(f"{repeated[0]} is there {values.count(repeated[0])} times; write it once")
    return values


Seconds = Annotated[float, BeforeValidator(_seconds)]
PolicySpec = Annotated[str, AfterValidator(_canonical_spec)]
Seed = Annotated[int, Field(ge=0)]
# TOML has arrays, no tuples: without strict=False they would be refused.
_LISTED = Field(strict=False, min_length=1)


class _Section(BaseModel):
    """A table of the recipe: immutable, no conversions (``"4"`` is no number), no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: object) -> object:
        for key in data if isinstance(data, Mapping) else ():
            if key not in cls.model_fields:
                raise ValueError(f'unknown key "{key}"; {nearest(str(key), cls.model_fields)}')
        return data


class _StepTimeSection(_Section, ABC):
    """How long a step takes a worker of speed 1."""

    @abstractmethod
    def distribution(self) -> StepTime:
        """The distribution that the table describes."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            self.distribution()
        except (ConfigError, DataError) as error:
            raise ValueError(str(error)) from None
        return self


class ConstantSection(_StepTimeSection):
    """``{ kind = "constant", mean = "20 ms" }``."""

    kind: Literal["constant"]
    mean: Seconds

    def distribution(self) -> StepTime:
        """Every step takes the mean."""
        return Constant(mean_s=self.mean)


class LogNormalSection(_StepTimeSection):
    """``{ kind = "lognormal", mean = "20 ms", cv = 0.3 }``."""

    kind: Literal["lognormal"]
    mean: Seconds
    cv: float

    def distribution(self) -> StepTime:
        """Steps vary around the mean."""
        return LogNormal(mean_s=self.mean, cv=self.cv)


class GammaSection(_StepTimeSection):
    """``{ kind = "gamma", mean = "20 ms", cv = 0.3 }``."""

    kind: Literal["gamma"]
    mean: Seconds
    cv: float

    def distribution(self) -> StepTime:
        """Steps vary around the mean."""
        return Gamma(mean_s=self.mean, cv=self.cv)


class ParetoSection(_StepTimeSection):
    """``{ kind = "pareto", min = "15 ms", shape = 2.5 }``."""

    kind: Literal["pareto"]
    min: Seconds
    shape: float

    def distribution(self) -> StepTime:
        """Few steps take much longer than the others."""
        return Pareto(min_s=self.min, shape=self.shape)


class TraceSection(_StepTimeSection):
    """``{ kind = "trace", path = "steps.txt" }``; see `EmpiricalTrace.read` for the file."""

    kind: Literal["trace"]
    path: Annotated[Path, BeforeValidator(_resolve)]

    def distribution(self) -> StepTime:
        """Durations that were measured somewhere."""
        return EmpiricalTrace.read(self.path)


StepTimeSection = Annotated[
    ConstantSection | LogNormalSection | GammaSection | ParetoSection | TraceSection, Field(discriminator="kind")
]


class TaskSection(_Section):
    """``[task]``: what is trained.

    Attributes:
        name: A name of the catalogue, ``module:attribute`` or ``file.py:attribute``.
        batch_size: Samples in a worker's step; None leaves the task's own.
        options: Arguments of the task, ``[task.options]``.
    """

    name: str
    batch_size: int | None = Field(default=None, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name", mode="after")
    @classmethod
    def _findable(cls, name: str, info: ValidationInfo) -> str:
        place, colon, attribute = name.rpartition(":")
        if not colon and name not in TASK_NAMES:
            hint = 'your own is written "module:attribute" or "file.py:attribute"'
            raise ValueError(f'there is no task "{name}"; {nearest(name, TASK_NAMES)} ({hint})')
        return f"{_folder(info) / place}:{attribute}" if place.endswith(".py") else name


class RunSection(_Section):
    """``[run]``: which runs, and how long each is.

    Attributes:
        policies: Specs of the policies, in their shortest form; each is a run per seed.
        seeds: Seeds of the runs.
        epochs: Length of a run in passes over the data, all workers together. Either this or ``samples``.
        samples: Length of a run in samples, over all workers.
        evaluate_every: Samples between two evaluations; None is one epoch.
        target: Metric whose first reaching is timed; None is the task's own.
        servers: Servers of the store exchange; None is one per host.
    """

    policies: Annotated[tuple[PolicySpec, ...], _LISTED, AfterValidator(_no_repeats)]
    seeds: Annotated[tuple[Seed, ...], _LISTED, AfterValidator(_no_repeats)] = (0,)
    epochs: float | None = Field(default=None, gt=0)
    samples: int | None = Field(default=None, ge=1)
    evaluate_every: int | None = Field(default=None, ge=1)
    target: float | None = None
    servers: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.epochs is None) == (self.samples is None):
            given = "neither is" if self.epochs is None else "both are"
            raise ValueError(f'a run\'s length is "epochs" or "samples"; {given} given: write one of them')
        return self


class StallsSection(_Section):
    """``stalls = { probability = 0.02, factor = 10.0 }``: any step of any worker may stall."""

    probability: float
    factor: float

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            self.on(Constant(mean_s=1.0))
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def on(self, steps: StepTime) -> StepTime:
        """Steps of which some stall."""
        return Stalls(steps=steps, probability=self.probability, factor=self.factor)


class UnequalWorker(_Section):
    """``[[workers.unequal]]``: a worker that is not like the others.

    Attributes:
        rank: Which worker.
        speed: Relative to the others: 0.5 takes twice as long for a step.
        step_time: Its own distribution; None is that of ``[workers]``.
    """

    rank: int = Field(ge=0)
    speed: float = Field(default=1.0, gt=0)
    step_time: StepTimeSection | None = None


class WorkersSection(_Section):
    """``[workers]``: how many, and how fast.

    Attributes:
        count: Worker processes.
        step_time: What each step takes; None is as fast as the machine goes.
        stalls: Steps that take longer now and then, on all workers.
        unequal: Workers that differ.
    """

    count: int = Field(ge=1)
    step_time: StepTimeSection | None = None
    stalls: StallsSection | None = None
    unequal: tuple[UnequalWorker, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _unequal_workers_exist(self) -> Self:
        if self.stalls is not None and self.step_time is None:
            raise ValueError('stalls lengthen step times, and there are none; write "step_time" under [workers]')
        seen: set[int] = set()
        for worker in self.unequal:
            if worker.rank >= self.count:
                raise ValueError(f"there is no rank {worker.rank} among {self.count} workers (0 is the first)")
            if worker.rank in seen:
                raise ValueError(f"rank {worker.rank} has two [[workers.unequal]] tables; write one")
            if worker.step_time is None and self.step_time is None:
                raise ValueError(f'rank {worker.rank} has a speed but no step time; write "step_time" under [workers]')
            seen.add(worker.rank)
        return self

    def step_time_of(self, worker: int) -> "StepTimeSection | None":
        """The step times of a worker, its own or everybody's."""
        own = self._own(worker)
        return own.step_time if own is not None and own.step_time is not None else self.step_time

    def _own(self, worker: int) -> "UnequalWorker | None":
        return next((unequal for unequal in self.unequal if unequal.rank == worker), None)

    def pacer(self, worker: int, *, seed: int, clock: Clock) -> Pacer | None:
        """What paces a worker's steps in the run of ``seed``; None lets it go as fast as the machine does."""
        step_time = self.step_time_of(worker)
        if step_time is None:
            return None
        own = self._own(worker)
        speed = 1.0 if own is None else own.speed
        steps = step_time.distribution()
        if self.stalls is not None:
            steps = self.stalls.on(steps)
        return Pacer(step_time=steps, speed=speed, seed=seed, worker=worker, clock=clock)


class Recipe(_Section):
    """A comparison: one task, some workers, and a run for each policy and seed."""

    task: TaskSection
    run: RunSection
    workers: WorkersSection

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies, ready to use."""
        return tuple(parse_policy(spec) for spec in self.run.policies)

    def budget_samples(self, samples_per_epoch: int) -> int:
        """Samples of a run, over all workers, when an epoch has ``samples_per_epoch``."""
        if self.run.samples is not None:
            return self.run.samples
        assert self.run.epochs is not None, "checked when the recipe was read"
        return max(1, round(self.run.epochs * samples_per_epoch))


def load_recipe(path: Path, *, policies: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> Recipe:
    """The recipe in a TOML file.

    Args:
        path: The file; paths in it are relative to its folder.
        policies: Specs that take the place of the file's (``--policies``).
        seeds: Seeds that take the place of the file's (``--seeds``).

    Raises:
        ConfigError: The file is missing or is no TOML, or a key or value in it cannot be used. Two lines at most.
    """
    data = _read_toml(path)
    flags: dict[tuple[str, ...], str] = {}
    for key, values in (("policies", policies), ("seeds", seeds)):
        if values is not None and isinstance(data.setdefault("run", {}), dict):
            data["run"][key] = list(values)
            flags["run", key] = f"--{key}"
    return make_recipe(data, folder=path.parent, where=str(path), flags=flags)


def make_recipe(
    data: Mapping[str, Any], *, folder: Path, where: str, flags: Mapping[tuple[str, ...], str] | None = None
) -> Recipe:
    """The recipe that a TOML file with these values would be.

    Args:
        data: Tables and values.
        folder: What paths in it are relative to.
        where: What to call it in errors.
        flags: Command line options that values came from, by their place in ``data``.

    Raises:
        ConfigError: A key or value cannot be used.
    """
    try:
        return Recipe.model_validate(data, context={"folder": folder.resolve()})
    except ValidationError as error:
        raise ConfigError(explain(error, where=where, flags=flags or {})) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no recipe {path}; recipes/demo.toml is one to start from") from None
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
