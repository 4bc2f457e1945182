"""Recipes: a comparison as a TOML file. `docs/recipes.md` explains the format to its users.

Reading a recipe checks all that can be known without training: keys, ranges, policies, the task's name, the step-time
traces. It imports no torch, so a mistake is reported at once.
"""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from plesio.bench.recipe_checkpoint import CheckpointSection
from plesio.bench.recipe_errors import explain
from plesio.bench.recipe_section import RecipeSection, as_finding, recipe_folder
from plesio.bench.recipe_workers import WorkersSection
from plesio.core.arguments import checked
from plesio.core.errors import ConfigError, nearest
from plesio.policies import Adaptive, Policy, parse_policy
from plesio.policies.grid import GridSetting, canonical_spec, is_grid
from plesio.tasks import TASK_NAMES


def _canonical_spec(text: str) -> str:
    with as_finding():
        return canonical_spec(text)


def _adaptive(table: Mapping[str, Any]) -> Adaptive:
    """Make the policy with these numbers and switches; a switch is true or false, or a text."""
    defaults = {one.name: one.default for one in fields(Adaptive)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in defaults:
            raise ConfigError(f'adaptive: unknown key "{key}"; {nearest(key, defaults)}')
        is_switch = isinstance(defaults[key], bool)
        if is_switch and not isinstance(value, bool) and value not in ("on", "off"):
            raise ConfigError(f'adaptive: {key} is {value!r}; write "on" or "off"')
        values[key] = value in (True, "on") if is_switch else value
    return Adaptive(**values)


def _no_repeats(values: tuple[Any, ...]) -> tuple[Any, ...]:
    repeated = [value for value, times in Counter(values).items() if times > 1]
    if repeated:
        raise ValueError(f"{repeated[0]} is there {values.count(repeated[0])} times; write it once")
    return values


def names_script(name: str) -> bool:
    """Tell whether a script is named, and not a task in a file.

    >>> names_script("train.py"), names_script("train.py:task"), names_script("digits")
    (True, False, False)
    """
    return name.endswith(".py") and ":" not in name


FLAGS: Mapping[str, str] = {
    "folder": "--checkpoint",
    "count": "--workers",
    "step_time": "--step-time",
    "unequal": "--slow",
}
"""Options that are not called as the key that they replace."""
PolicySpec = Annotated[str, AfterValidator(_canonical_spec)]
Seed = Annotated[int, Field(ge=0)]
# TOML has arrays, no tuples: without strict=False they would be refused.
_LENGTH = 'a run\'s length is "epochs" or "samples"'
_LISTED = Field(strict=False, min_length=1)
S = TypeVar("S", bound=RecipeSection)


class TaskSection(RecipeSection):
    """``[task]``: what is trained.

    Attributes:
        name: A name of the catalogue, ``module:attribute`` or ``file.py:attribute``; ``file.py`` alone is a script.
        batch_size: Samples in a worker's step; without it, the task's own number.
        options: Arguments of the task.
        arguments: Arguments of the script; ``{seed}`` in them is the run's seed.
    """

    name: str
    batch_size: int | None = Field(default=None, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)
    arguments: tuple[str, ...] = Field(default=(), strict=False)

    @property
    def is_script(self) -> bool:
        """True if a script of the user's is run, and no task trained."""
        return names_script(self.name)

    @property
    def script(self) -> Path:
        """The script."""
        assert self.is_script, "asked before"
        return Path(self.name)

    @field_validator("name", mode="after")
    @classmethod
    def _findable(cls, name: str, info: ValidationInfo) -> str:
        if names_script(name):
            return str(recipe_folder(info) / name)
        place, colon, attribute = name.rpartition(":")
        if not colon and name not in TASK_NAMES:
            hint = 'your own is written "module:attribute" or "file.py:attribute"'
            raise ValueError(f'there is no task "{name}"; {nearest(name, TASK_NAMES)} ({hint})')
        return f"{recipe_folder(info) / place}:{attribute}" if place.endswith(".py") else name


class RunSection(RecipeSection):
    """``[run]``: which runs, and how long each is.

    Attributes:
        policies: Policies or grids, as `plesio list policies` lists them; each is run with every seed.
        seeds: Seeds of the runs.
        epochs: Length of a run in passes over the data, all workers together.
        samples: Length of a run in samples, over all workers; a run has either this or ``epochs``.
        evaluate_every: Samples between two evaluations; None is one epoch.
        target: Metric whose first reaching is timed; without it, the task's own.
        servers: Servers of the store exchange; None is one per host.
        elastic: Whether workers of a collective go on without one that is lost.
        replicas: 2 has the server twice, on two hosts where there are two; not in the virtual world, which loses none.
    """

    policies: Annotated[tuple[PolicySpec, ...], _LISTED, AfterValidator(_no_repeats)]
    seeds: Annotated[tuple[Seed, ...], _LISTED, AfterValidator(_no_repeats)] = (0,)
    epochs: float | None = Field(default=None, gt=0)
    samples: int | None = Field(default=None, ge=1)
    evaluate_every: int | None = Field(default=None, ge=1)
    target: float | None = None
    servers: int | None = Field(default=None, ge=1)
    elastic: bool = True
    replicas: int = Field(default=1, ge=1, le=2)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.samples is not None:
            raise ValueError(f"{_LENGTH}; both are given: write one of them")
        if self.replicas > 1 and (self.servers or 1) > 1:
            raise ValueError("with replicas = 2 there is one server and its backup; leave servers out")
        return self


class Recipe(RecipeSection):
    """A comparison: one task, some workers, and a run for each policy and seed.

    Attributes:
        adaptive: Numbers and switches that the policy "adaptive" among the run's policies stands for.
    """

    task: TaskSection
    run: RunSection
    workers: WorkersSection
    checkpoint: CheckpointSection | None = None
    adaptive: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _adaptive_table(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("adaptive"), Mapping):
            return data
        with as_finding():
            spec = _adaptive(data["adaptive"]).spec
        run = data.get("run")
        if not isinstance(run, Mapping) or not isinstance(run.get("policies"), list):
            return data
        policies = [spec if text == "adaptive" else text for text in run["policies"]]
        return {**data, "run": {**run, "policies": policies}}

    @model_validator(mode="after")
    def _script_or_task(self) -> Self:
        """Refuse what only a task has for a script, and what only a script has for a task."""
        if not self.task.is_script:
            if self.run.epochs is None and self.run.samples is None:
                raise ValueError(f"run: {_LENGTH}; neither is given: write one of them")
            if self.task.arguments:
                raise ValueError(f"task: only a script has arguments; {self.task.name} is a task, with options")
            return self
        script, defaults = self.task.script.name, RunSection(policies=self.run.policies)
        for key in ("epochs", "samples", "evaluate_every", "servers", "elastic", "replicas"):
            if getattr(self.run, key) != getattr(defaults, key):
                raise ValueError(f"run: {key} is for a task; the script {script} says it itself")
        if self.task.batch_size is not None or self.task.options:
            raise ValueError(f"task: batch_size and options are for a task; write arguments for the script {script}")
        return self

    @model_validator(mode="after")
    def _grids_have_their_workers(self) -> Self:
        for grid in self.grids:
            if grid.num_workers != self.workers.count:
                raise ValueError(
                    f"{grid.spec} has {grid.num_workers} workers, and there are {self.workers.count}; "
                    "make count under [workers] and groups x stages equal"
                )
            with as_finding():
                self.workers.check_joins_of(grid)
        return self

    @model_validator(mode="after")
    def _joins_are_possible(self) -> Self:
        """Refuse joins of racks that share the store, and of a collective that cannot regroup."""
        first = min(self.workers.faults, key=lambda fault: fault.order_s, default=None)
        if first is not None and first.kind == "join":
            for policy in self.policies:
                if policy.racks_share_store:
                    raise ValueError(f"no worker can join under {policy.spec}, whose racks share the store")
                if policy.has_collectives and not self.run.elastic:
                    raise ValueError(f"no worker can join under {policy.spec} with elastic = false")
        return self

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The consistency policies, ready to use."""
        return tuple(parse_policy(spec) for spec in self.run.policies if not is_grid(spec))

    @property
    def grids(self) -> tuple[GridSetting, ...]:
        """The grids among the run's policies."""
        return tuple(GridSetting.parse(spec) for spec in self.run.policies if is_grid(spec))

    def budget_samples(self, samples_per_epoch: int) -> int:
        """Return a run's samples, over all workers, when an epoch has ``samples_per_epoch``."""
        if self.run.samples is not None:
            return self.run.samples
        assert self.run.epochs is not None, "checked when the recipe was read"
        return max(1, round(self.run.epochs * samples_per_epoch))


@checked
def load_recipe(
    path: Path,
    *,
    policies: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    workers: Mapping[str, Any] | None = None,
    checkpoint: Mapping[str, Any] | None = None,
) -> Recipe:
    """Read the recipe in a TOML file.

    Args:
        path: The file; paths in it are relative to its folder.
        policies: Specs that take the place of the file's (``--policies``).
        seeds: Seeds that take the place of the file's (``--seeds``).
        workers: Keys of ``[workers]`` that take the place of the file's (``--cluster``, ``--workers`` ...).
        checkpoint: Keys of ``[checkpoint]`` that take the place of the file's; a folder is relative to the working
            directory (``--checkpoint``, ``--every``, ``--keep``).

    Raises:
        ConfigError: The file is missing or is no TOML, or a key or value in it cannot be used. Two lines at most.
    """
    data = read_toml(path)
    flags: dict[tuple[str, ...], str] = {}
    for table, key, value in (
        ("run", "policies", None if policies is None else list(policies)),
        ("run", "seeds", None if seeds is None else list(seeds)),
        *(("workers", key, value) for key, value in (workers or {}).items()),
        *(("checkpoint", key, value) for key, value in (checkpoint or {}).items()),
    ):
        if value is not None and isinstance(data.setdefault(table, {}), dict):
            data[table][key] = value
            flags[table, key] = FLAGS.get(key, f"--{key}")
    return make_recipe(data, folder=path.parent, where=str(path), flags=flags)


@checked
def make_recipe(
    data: Mapping[str, Any], *, folder: Path, where: str, flags: Mapping[tuple[str, ...], str] | None = None
) -> Recipe:
    """Make the recipe that a TOML file with these values would be.

    Args:
        data: Tables and values.
        folder: Folder that paths in it are relative to.
        where: Its name in errors.
        flags: Command line options that values came from, by their place in ``data``.

    Raises:
        ConfigError: A key or value cannot be used.
    """
    return validated(Recipe, data, folder=folder, where=where, flags=flags)


class _TaskOnly(RecipeSection):
    task: TaskSection


class _WorkersOnly(RecipeSection):
    workers: WorkersSection


def make_task_section(name: str, *, batch_size: int | None = None) -> TaskSection:
    """Make the ``[task]`` of a recipe with this name and batch size; a file is relative to the working directory.

    Raises:
        ConfigError: There is no such task, or no such batch size.
    """
    data = {"task": {"name": name, "batch_size": batch_size}}
    return validated(_TaskOnly, data, folder=Path.cwd(), where="").task


def make_workers(data: Mapping[str, Any], *, folder: Path, where: str) -> WorkersSection:
    """Make the workers of a recipe whose ``[workers]`` has these values; arguments and errors are `make_recipe`'s."""
    return validated(_WorkersOnly, {"workers": data}, folder=folder, where=where).workers


def validated(
    model: type[S],
    data: Mapping[str, Any],
    *,
    folder: Path,
    where: str,
    flags: Mapping[tuple[str, ...], str] | None = None,
) -> S:
    try:
        return model.model_validate(data, context={"folder": folder.resolve()})
    except ValidationError as error:
        raise ConfigError(explain(error, where=where, flags=flags or {})) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a recipe's file.

    Raises:
        ConfigError: It is missing, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no recipe {path}; recipes/demo.toml is one to start from") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; write the name of a recipe (.toml) or of a script (.py)") from None
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
