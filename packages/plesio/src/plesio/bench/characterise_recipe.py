"""Recipes of `plesio lab characterise`: a base point, models, and parts that say what is crossed with what.

A part crosses the levels of the factors that it lists, and has the base point's level of all others: the product of all
factors would take days. `docs/characterise.md` explains the format to its users.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from plesio.bench.plan import ComparisonPlan, PlannedComparison
from plesio.bench.recipe import Recipe, make_recipe, read_toml, validated
from plesio.bench.recipe_section import RecipeSection, as_finding
from plesio.core.arguments import checked
from plesio.core.combination import FACTORS, Combination, Part
from plesio.core.errors import ConfigError, nearest
from plesio.core.units import parse_bandwidth
from plesio.cost.cluster import Cluster, parse_cluster
from plesio.policies.grid import canonical_spec
from plesio.runtime.coordinator.ledger import World

_Levels = Field(default=(), strict=False)
_Count = Annotated[int, Field(ge=1)]
_Speed = Annotated[float, Field(gt=0)]
_NETWORK = ("link", "topology")


class _Levelled(RecipeSection):
    """Levels of the factors.

    Attributes:
        policies: Policies, as `plesio list policies` lists them.
        model: Names of ``[models]``.
        workers: How many workers.
        batch: Samples in a worker's step.
        link: Bandwidths of the hosts' network interfaces.
        imbalance: Speeds of the last worker; 1 is all alike.
        topology: Clusters.
    """

    policies: tuple[str, ...] = _Levels
    model: tuple[str, ...] = _Levels
    workers: tuple[_Count, ...] = _Levels
    batch: tuple[_Count, ...] = _Levels
    link: tuple[str, ...] = _Levels
    imbalance: tuple[_Speed, ...] = _Levels
    topology: tuple[str, ...] = _Levels

    @field_validator("policies", mode="after")
    @classmethod
    def _canonical(cls, policies: tuple[str, ...]) -> tuple[str, ...]:
        with as_finding():
            return tuple(dict.fromkeys(canonical_spec(text) for text in policies))

    @field_validator("link", mode="after")
    @classmethod
    def _bandwidths(cls, links: tuple[str, ...]) -> tuple[str, ...]:
        with as_finding():
            for link in links:
                parse_bandwidth(link)
        return links


class PartSection(_Levelled):
    """``[[parts]]``: factors that are crossed.

    Attributes:
        name: Its name.
        world: World of its runs.
    """

    name: str
    world: Literal["process", "virtual", "testbed"] = "process"


class QuickSection(_Levelled):
    """``[quick]``: what ``--quick`` leaves of every part; a part of which nothing is left is not done.

    Attributes:
        epochs: Length of a run instead of the recipe's.
        seeds: Seeds instead of the recipe's.
    """

    epochs: float | None = Field(default=None, gt=0)
    seeds: tuple[int, ...] = _Levels


class CharacteriseRecipe(RecipeSection):
    """A base point, and what is varied round it.

    Attributes:
        run: ``[run]`` of a recipe, without policies.
        workers: ``[workers]`` of a recipe: the base point.
        models: ``[task]`` of a recipe, by the model's name, with a ``step_time`` where the base point's is not meant.
            The first is the base point's.
        parts: Parts, with the factors that each crosses.
        quick: The part of it that ``--quick`` runs.
    """

    run: dict[str, Any]
    workers: dict[str, Any]
    models: dict[str, dict[str, Any]] = Field(min_length=1)
    parts: Annotated[tuple[PartSection, ...], Field(strict=False, min_length=1)]
    quick: QuickSection | None = None

    @field_validator("parts", mode="after")
    @classmethod
    def _policies_are_there(cls, parts: tuple[PartSection, ...]) -> tuple[PartSection, ...]:
        for part in parts:
            if not part.policies:
                raise ValueError(f'part "{part.name}" has no policies; write policies = ["bsp", ...]')
        return parts


def load_characterise_recipe(path: Path) -> CharacteriseRecipe:
    """Read the recipe in a TOML file.

    Raises:
        ConfigError: The file is missing or is no TOML, or a key or value in it cannot be used. Two lines at most.
    """
    return validated(CharacteriseRecipe, read_toml(path), folder=path.parent, where=str(path))


@checked
def plan_of(
    recipe: CharacteriseRecipe,
    path: Path,
    *,
    quick: bool = False,
    world: World | None = None,
    seeds: Sequence[int] | None = None,
) -> ComparisonPlan:
    """Plan the comparisons of a recipe; a combination that is in several parts is one.

    Args:
        recipe: Factors and their levels.
        path: Its file, which paths in it are relative to.
        quick: Whether to do only what ``[quick]`` leaves.
        world: Takes the place of every part's.
        seeds: Take the place of the recipe's.

    Raises:
        ConfigError: A combination cannot be, or nothing is left.
    """
    run, sections = dict(recipe.run), recipe.parts
    if quick:
        if recipe.quick is None:
            raise ConfigError(f"{path} does not say what --quick leaves of it; write a table [quick]")
        run, sections = _quick(recipe, recipe.quick)
        if not sections:
            raise ConfigError(f"{path}: [quick] leaves nothing of any part")
    if seeds is not None:
        run["seeds"] = list(seeds)
    if world is not None:
        sections = tuple(section.model_copy(update={"world": world}) for section in sections)
    parts = tuple(_part(section, recipe, path=path) for section in sections)
    # parts share combinations: each is run once, under the policies of all parts that it is in
    policies: dict[Combination, dict[str, None]] = {}
    for part in parts:
        for combination in part.combinations:
            policies.setdefault(combination, {}).update(dict.fromkeys(part.policies))
    comparisons = {
        combination: PlannedComparison(
            slug=combination.slug,
            where=f"· {combination.text}",
            recipe=_comparison(recipe, combination, run | {"policies": list(specs)}, path=path),
        )
        for combination, specs in policies.items()
    }
    return ComparisonPlan(parts=parts, comparisons=comparisons)


def _quick(recipe: CharacteriseRecipe, quick: QuickSection) -> tuple[dict[str, Any], tuple[PartSection, ...]]:
    run = dict(recipe.run)
    if quick.epochs is not None:
        run.pop("samples", None)
        run["epochs"] = quick.epochs
    if quick.seeds:
        run["seeds"] = list(quick.seeds)
    left = []
    for part in recipe.parts:
        update: dict[str, tuple[Any, ...]] = {}
        for name in ("policies", *FACTORS):
            levels, kept = getattr(part, name), getattr(quick, name)
            if levels and kept:
                update[name] = tuple(level for level in levels if level in kept)
        if all(update.values()):
            left.append(part.model_copy(update=update))
    return run, tuple(left)


def _part(section: PartSection, recipe: CharacteriseRecipe, *, path: Path) -> Part:
    where = str(path)
    network = [name for name in _NETWORK if getattr(section, name)]
    if network and section.world == "process":
        raise ConfigError(
            f'{where}: part "{section.name}" varies {network[0]}, and processes of one machine have no network; '
            'write world = "virtual" or "testbed"'
        )
    for model in section.model:
        if model not in recipe.models:
            raise ConfigError(
                f'{where}: part "{section.name}": there is no [models.{model}]; {nearest(model, recipe.models)}'
            )
    base = Combination(
        world=section.world, model=next(iter(recipe.models)), workers=_base_count(recipe.workers, where=where)
    )
    levels = {name: tuple(dict.fromkeys(getattr(section, name))) for name in FACTORS if getattr(section, name)}
    combinations = [
        _without_what_is_base(replace(base, **dict(zip(levels, chosen, strict=True))), recipe, path=path)
        for chosen in itertools.product(*levels.values())
    ]
    crossed = {name: values for name, values in levels.items() if len(values) > 1}
    return Part(name=section.name, policies=section.policies, levels=crossed, combinations=combinations)


def _without_what_is_base(combination: Combination, recipe: CharacteriseRecipe, *, path: Path) -> Combination:
    """Leave out levels that are the base point's: the same comparison is not made twice."""
    if combination.batch == recipe.models[combination.model].get("batch_size"):
        combination = replace(combination, batch=None)
    base = recipe.workers.get("cluster")
    if combination.topology == base:
        combination = replace(combination, topology=None)
    if combination.link is not None:
        cluster = _cluster(replace(combination, link=None), base, folder=path.parent, where=str(path))
        if parse_bandwidth(combination.link) == cluster.nic.bytes_per_s:
            combination = replace(combination, link=None)
    return combination


def _base_count(workers: Mapping[str, Any], *, where: str) -> int:
    count = workers.get("count")
    if not isinstance(count, int) or isinstance(count, bool):
        raise ConfigError(f"{where}: workers.count is {count!r}; write how many workers the base point has")
    return count


def _comparison(recipe: CharacteriseRecipe, combination: Combination, run: Mapping[str, Any], *, path: Path) -> Recipe:
    task = dict(recipe.models[combination.model])
    workers = dict(recipe.workers) | {"count": combination.workers}
    if "step_time" in task:
        workers["step_time"] = task.pop("step_time")
    if combination.batch is not None:
        task["batch_size"] = combination.batch
    if combination.imbalance != 1.0:
        slow = {"rank": combination.workers - 1, "speed": combination.imbalance}
        workers["unequal"] = [*workers.get("unequal", ()), slow]
    where = f"{path} ({combination.text})"
    if combination.world == "process":
        workers.pop("cluster", None)
    elif combination.topology is not None or combination.link is not None:
        workers["cluster"] = _cluster(combination, workers.get("cluster"), folder=path.parent, where=where)
    return make_recipe({"task": task, "run": run, "workers": workers}, folder=path.parent, where=where)


def _cluster(combination: Combination, base: object, *, folder: Path, where: str) -> Cluster:
    name = combination.topology or base
    if not isinstance(name, str):
        raise ConfigError(f'{where}: a link needs a cluster that it is in; write cluster = "4x1gbe" under [workers]')
    try:
        cluster = parse_cluster(str(folder / name) if name.endswith(".toml") else name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if combination.link is None:
        return cluster
    return cluster.with_bandwidth(parse_bandwidth(combination.link))
