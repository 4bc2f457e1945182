"""A script in place of a recipe: what its options say, as the recipe that a file with them would be."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plesio.cli.step_times import STEP_TIME, slow_table, step_time_table

if TYPE_CHECKING:
    from plesio.bench.recipe import Recipe
    from plesio.core.inputs import Input

POLICIES = ("bsp", "adaptive")
"""The policies that a script is compared under, unless others are given."""


def run_options(also: str = "") -> "tuple[Input, ...]":
    """Make the options for policies, of which the command may have others (``also``), and seeds."""
    from plesio.bench.recipe import RunSection
    from plesio.cli.recipe_options import RECIPES, key_option

    policies = f"{RECIPES}; {','.join(POLICIES)} for a script{also}"
    return (
        key_option(RunSection, "policies", metavar="POLICY,...", instead=policies),
        key_option(RunSection, "seeds", metavar="SEED,...", instead=f"{RECIPES}; 0 for a script"),
    )


def worker_options() -> "tuple[Input, ...]":
    """Make the options for the workers of a recipe or a script."""
    from plesio.bench.recipe_workers import WorkersSection
    from plesio.cli.recipe_options import RECIPES, key_option

    times = f"{RECIPES}; for a script as they are, in virtual time as calibrated or {STEP_TIME}"
    return (
        key_option(WorkersSection, "count", option="workers", short="n", instead=f"{RECIPES}; 4 for a script"),
        key_option(WorkersSection, "cluster", metavar="NAME|FILE", instead=RECIPES),
        key_option(WorkersSection, "step_time", metavar="TIME|KIND:TIME,...", instead=times),
    )


def workers_table(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of ``[workers]`` that options give."""
    from plesio.cost.cluster import parse_cluster

    table: dict[str, Any] = {key: given[key] for key in ("count",) if key in given}
    if "cluster" in given:
        table["cluster"] = parse_cluster(given["cluster"])
    if "step_time" in given:
        table["step_time"] = step_time_table(given["step_time"])
    return table


def script_recipe(
    script: Path,
    arguments: Sequence[str],
    given: Mapping[str, Any],
    *,
    policies: Sequence[str] | None,
    seeds: Sequence[int] | None,
    slow: Sequence[str] | None,
    step_time: str | None,
    checkpoint: Mapping[str, Any] | None = None,
    where: str,
) -> "Recipe":
    """Make the recipe of a script from options by the keys of a recipe; without policies it has `POLICIES`.

    ``step_time`` is that of a step where none is given; errors name the command, ``where``.

    Raises:
        ConfigError: There is no such script, or an option cannot be used.
    """
    from plesio.bench.recipe import FLAGS, make_recipe
    from plesio.bench.script_run import compiled
    from plesio.policies.grid import GridSetting, is_grid

    compiled(script)
    chosen = list(POLICIES if policies is None else policies)
    grids = [GridSetting.parse(policy).num_workers for policy in chosen if is_grid(policy)]
    count = given.get("count", grids[0] if grids else 4)
    unequal = [slow_table(text, num_workers=count) for text in slow or ()]
    workers = {"count": count, **workers_table(given), **({"unequal": unequal} if unequal else {})}
    if step_time is not None:
        workers.setdefault("step_time", step_time_table(step_time))
    run = {"policies": chosen, "target": given.get("target"), **({} if seeds is None else {"seeds": list(seeds)})}
    table: dict[str, Any] = {
        "task": {"name": str(script), "arguments": list(arguments)},
        "run": run,
        "workers": workers,
        **({"checkpoint": checkpoint} if checkpoint else {}),
    }
    keys = [(name, key) for name in ("run", "workers", "checkpoint") for key in table.get(name, ())]
    flags: dict[tuple[str, ...], str] = {place: FLAGS.get(place[1], f"--{place[1]}") for place in keys}
    return make_recipe(table, folder=Path.cwd(), where=where, flags=flags)
