"""`plesio compare`: one task under several policies and seeds, and what each cost and won."""

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plesio.cli.function_options import command_of
from plesio.cli.options import Calibration, Json, Overwrite, RecipeFile, Resume, RunFolder
from plesio.cli.output_files import check_output_file, prepare_folder, write_json
from plesio.cli.terminal import console, do_runs, exit_code_of, show
from plesio.cli.testbed import prepare_for_hosts
from plesio.core.errors import ConfigError

if TYPE_CHECKING:
    from plesio.bench.recipe import Recipe
    from plesio.cost.cluster import Cluster

__all__ = [
    "EXAMPLES",
    "OUTPUT_NAMES",
    "WorldChoice",
    "compare",
    "load",
    "print_results",
    "split_policies",
    "split_seeds",
    "warn_of_code",
]

EXAMPLES = """\b
Examples:
  plesio compare recipes/demo.toml --out runs/demo
  plesio compare recipes/demo.toml --out runs/two --policies bsp,ssp:8 --seeds 0,1
  plesio compare recipes/demo.toml --out runs/demo --resume
  plesio compare recipes/demo.toml --out runs/demo --checkpoint runs/checkpoints --every "1 min"
  plesio compare recipes/demo.toml --out runs/virtual --world virtual --cluster 4x1gbe
  plesio compare recipes/demo.toml --out runs/virtual --world virtual --calibration calibration.json
  plesio compare recipes/demo.toml --out runs/testbed --world testbed --cluster 4x1gbe
\b
Ctrl-C stops all workers and keeps the runs that are finished; --resume goes on, with
checkpoints also in the midst of a run."""

OUTPUT_NAMES = ("results.json", "setting.json", "report.html", "runs")
"""The output of a comparison in its folder, and all that ``--overwrite`` removes from it."""


class WorldChoice(StrEnum):
    """The workers' world."""

    PROCESS = "process"
    VIRTUAL = "virtual"
    TESTBED = "testbed"


World = Annotated[
    WorldChoice,
    typer.Option(
        "--world",
        help="process: real workers. testbed: the same, on hosts of the cluster made here. virtual: in virtual time.",
    ),
]
SUMMARY = """Train under several policies and seeds; show what they cost.

The recipe says what is trained, by how many workers, under which policies. Prints a table with a sentence for each
policy, and writes results.json, the traces and report.html.
"""


def compare() -> Any:
    """Train under several policies and seeds; show what they cost."""
    from plesio.bench.recipe import RunSection
    from plesio.bench.recipe_checkpoint import CheckpointSection
    from plesio.bench.recipe_workers import WorkersSection
    from plesio.cli.recipe_options import RECIPES, checkpoint_options, key_option

    inputs = (
        key_option(RunSection, "policies", metavar="POLICY,...", instead=RECIPES),
        key_option(RunSection, "seeds", metavar="SEED,...", instead=RECIPES),
        key_option(WorkersSection, "cluster", metavar="NAME|FILE", instead=RECIPES),
        *checkpoint_options(CheckpointSection, instead=RECIPES),
    )
    more = {
        "recipe": (RecipeFile, inspect.Parameter.empty),
        "out": (RunFolder, inspect.Parameter.empty),
        "resume": (Resume, False),
        "overwrite": (Overwrite, False),
        "json_file": (Json, None),
        "world": (World, WorldChoice.PROCESS),
        "calibration": (Calibration, None),
    }
    return command_of("plesio compare", inputs, _compare, summary=SUMMARY, more=more, examples=EXAMPLES)


def _compare(
    given: Mapping[str, str],
    *,
    recipe: Path,
    out: Path,
    resume: bool,
    overwrite: bool,
    json_file: Path | None,
    world: WorldChoice,
    calibration: Path | None,
) -> int:
    check_output_file("--json", json_file, overwrite=overwrite or resume)
    loaded = load(recipe, given)
    if loaded.checkpoint is not None and not resume:  # what is in its folder is of runs that are to be done anew
        loaded = loaded.model_copy(update={"checkpoint": loaded.checkpoint.model_copy(update={"resume": "no"})})
    if "cluster" in given and world is WorldChoice.PROCESS:
        raise ConfigError(
            f"--cluster {given['cluster']}: real workers are on this machine; add --world virtual, or --world testbed "
            "to have its hosts made here"
        )
    if calibration is not None and world is not WorldChoice.VIRTUAL:
        raise ConfigError(f"--calibration {calibration} describes the virtual world; add --world virtual")
    if world is WorldChoice.PROCESS and loaded.workers.any_faults:
        raise ConfigError(
            f"{recipe} loses workers or has them join, which the virtual world does (--world virtual), and in part the "
            "testbed (--world testbed)"
        )

    from plesio.cost import calibration as calibrations

    measured = None if calibration is None else calibrations.Calibration.read(calibration)
    # whatever is wrong is said before anything is removed
    from plesio.bench.trainer import recipe_task

    recipe_task(loaded)
    if world is WorldChoice.VIRTUAL:
        from plesio.bench.virtual_pool import VirtualPool

        VirtualPool(loaded, calibration=measured)
    if world is WorldChoice.TESTBED:
        prepare_for_hosts()
        from plesio.bench.testbed_pool import check_for_testbed

        check_for_testbed(loaded)
    prepare_folder(out, resume=resume, overwrite=overwrite, names=OUTPUT_NAMES)

    from plesio.bench.compare import run_comparison

    runs = do_runs(
        partial(run_comparison, loaded, out=out, resume=resume, world=world.value, calibration=measured),
        ["plesio", "compare", str(recipe), "--out", str(out)],
        options={
            **{f"--{'checkpoint' if name == 'folder' else name}": value for name, value in given.items()},
            "--world": None if world is WorldChoice.PROCESS else world.value,
            "--calibration": calibration,
            "--json": json_file,
        },
    )
    print_results(out, cluster=loaded.workers.cluster if world is WorldChoice.VIRTUAL else None, json_file=json_file)
    return exit_code_of(runs)


def load(recipe: Path, given: Mapping[str, str], *, policies: Sequence[str] | None = None) -> "Recipe":
    """Load the recipe, with the values of options for its keys, and with other ``policies``.

    Raises:
        ConfigError: The file or an option cannot be used.
    """
    from plesio.bench.recipe import load_recipe
    from plesio.cli.recipe_options import checkpoint_table
    from plesio.cost.cluster import parse_cluster

    if policies is None and "policies" in given:
        policies = split_policies(given["policies"])
    loaded = load_recipe(
        recipe,
        policies=policies,
        seeds=split_seeds(given["seeds"]) if "seeds" in given else None,
        cluster=parse_cluster(given["cluster"]) if "cluster" in given else None,
        checkpoint=checkpoint_table(given),
    )
    warn_of_code(recipe, task=loaded.task.name)
    return loaded


def warn_of_code(recipe: Path, *, task: str) -> None:
    """Say so if a recipe's task is code of its own: whoever runs a recipe of somebody else's should know."""
    if ":" in task:
        print(f'plesio: {recipe} names code, which runs with your rights: "{task}"', file=sys.stderr)


def print_results(out: Path, *, cluster: "Cluster | None" = None, json_file: Path | None = None) -> None:
    """Write the report, print its table, sentences and advice, say where it is, and what prices assume of a cluster.

    ``json_file`` gets the numbers.
    """
    from plesio.report.build import build_report, read_comparison, read_operations
    from plesio.report.table import comparison_values, render_comparison

    page, comparison = build_report(out), read_comparison(out)
    shown = render_comparison(comparison, operations=read_operations(out, comparison))
    show(shown)
    if cluster is not None and cluster.assumes:
        console(plain=True).print(f"\n{cluster.assumes}")
    typer.echo(f"\n{page}")
    write_json(json_file, comparison_values(comparison))


def split_policies(text: str) -> list[str]:
    """Split specs at commas or spaces; a part with ``=`` belongs to the policy before it.

    >>> split_policies("bsp,asp,weight=inverse,local_sgd:8")
    ['bsp', 'asp,weight=inverse', 'local_sgd:8']
    """
    specs: list[str] = []
    for part in filter(None, re.split(r"[,\s]+", text)):
        if "=" in part and specs:
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return specs


def split_seeds(text: str) -> list[int]:
    """Split whole numbers at commas or spaces.

    Raises:
        ConfigError: Something in between is none.
    """
    try:
        return [int(part) for part in filter(None, re.split(r"[,\s]+", text))]
    except ValueError:
        raise ConfigError(f'--seeds "{text}": write whole numbers with commas between them, as in 0,1,2') from None
