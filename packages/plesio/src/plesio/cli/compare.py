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
from plesio.cli.options import Arguments, Calibration, Json, NamedFolder, Overwrite, RecipeOrScript, Resume, Slow
from plesio.cli.output_files import check_output_file, folder_of, prepared_folder, write_json
from plesio.cli.script_recipe import run_options, script_recipe, worker_options, workers_table
from plesio.cli.step_times import STEP_TIME
from plesio.cli.terminal import console, do_runs, exit_code_of, show
from plesio.cli.testbed import prepare_for_hosts
from plesio.core.errors import ConfigError

if TYPE_CHECKING:
    from plesio.bench.recipe import Recipe
    from plesio.cost.calibration import Calibration as Calibrated
    from plesio.cost.cluster import Cluster

EXAMPLES = """\b
Examples:
  plesio compare recipes/demo.toml --out runs/demo
  plesio compare recipes/demo.toml --out runs/two --policies bsp,ssp:8 --seeds 0,1
  plesio compare recipes/demo.toml --out runs/demo --resume
  plesio compare recipes/demo.toml --out runs/demo --checkpoint runs/checkpoints --every "1 min"
  plesio compare recipes/demo.toml --out runs/virtual --world virtual --cluster 4x1gbe
  plesio compare recipes/demo.toml --out runs/virtual --world virtual --calibration calibration.json
  plesio compare recipes/demo.toml --out runs/testbed --world testbed --cluster 4x1gbe
  plesio compare train.py --policies bsp,adaptive --workers 4 --seeds 0,1
  plesio compare train.py --policies bsp,ssp:4 --workers 4 --seeds 0,1 -- --lr 0.1 --seed {seed}
  plesio compare train.py --workers 4 --checkpoint runs/checkpoints --every "1 min"
  plesio compare train.py --world virtual --workers 16 --cluster 16x1gbe --step-time "50 ms"
\b
A script calls plesio.join; what follows -- is its own, and {seed} in it the run's seed.
Ctrl-C stops all workers and keeps the runs that are finished; --resume goes on, with
checkpoints also in the midst of a run."""

OUTPUT_NAMES = ("results.json", "setting.json", "report.html", "runs")
"""Output of a comparison in its folder, and all that ``--overwrite`` removes from it."""


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

The recipe says what is trained, by how many workers, under which policies. A script is run as by `plesio run`, once for
each of --policies and --seeds, and what it gives session.evaluate is the metric. Prints a table with a sentence for
each policy, and writes results.json, the traces and report.html.
"""


def compare() -> Any:
    """Train under several policies and seeds; show what they cost."""
    from plesio.bench.recipe_checkpoint import CheckpointSection
    from plesio.cli.recipe_options import RECIPES, checkpoint_options

    inputs = (*run_options(), *worker_options(), *checkpoint_options(CheckpointSection, instead=RECIPES))
    more = {
        "what": (RecipeOrScript, inspect.Parameter.empty),
        "args": (Arguments, None),
        "out": (NamedFolder, None),
        "resume": (Resume, False),
        "overwrite": (Overwrite, False),
        "json_file": (Json, None),
        "world": (World, WorldChoice.PROCESS),
        "slow": (Slow, None),
        "calibration": (Calibration, None),
    }
    return command_of("plesio compare", inputs, _compare, summary=SUMMARY, more=more, examples=EXAMPLES)


def _compare(
    given: Mapping[str, Any],
    *,
    what: Path,
    args: list[str] | None,
    out: Path | None,
    resume: bool,
    overwrite: bool,
    json_file: Path | None,
    world: WorldChoice,
    slow: list[str] | None,
    calibration: Path | None,
) -> int:
    check_output_file("--json", json_file, overwrite=overwrite or resume)

    from plesio.cost import calibration as calibrations

    virtual = world is WorldChoice.VIRTUAL
    if calibration is not None and not virtual:
        raise ConfigError(f"--calibration {calibration} describes the virtual world; add --world virtual")
    if "cluster" in given and world is WorldChoice.PROCESS:
        raise ConfigError(
            f"--cluster {given['cluster']}: real workers are on this machine; add --world virtual, or --world testbed "
            "to have its hosts made here"
        )
    measured = None if calibration is None else calibrations.Calibration.read(calibration)
    step_time = STEP_TIME if virtual and measured is None else None
    loaded = load(what, given, arguments=args or [], slow=slow, step_time=step_time, command="plesio compare")
    if loaded.checkpoint is not None and not resume:  # what is in its folder is of runs that are to be done anew
        loaded = loaded.model_copy(update={"checkpoint": loaded.checkpoint.model_copy(update={"resume": "no"})})
    # whatever is wrong is said before anything is removed
    _check(loaded, what, world=world, calibration=measured)
    out = folder_of(out, what, anew=not (resume or overwrite))
    with prepared_folder(out, resume=resume, overwrite=overwrite, names=OUTPUT_NAMES):
        from plesio.bench.compare import run_comparison
        from plesio.bench.recipe import FLAGS

        runs = do_runs(
            partial(run_comparison, loaded, out=out, resume=resume, world=world.value, calibration=measured),
            ["plesio", "compare", str(what), "--out", str(out)],
            options={
                **{FLAGS.get(name, f"--{name}"): value for name, value in given.items()},
                "--slow": slow,
                "--world": None if world is WorldChoice.PROCESS else world.value,
                "--calibration": calibration,
                "--json": json_file,
            },
            arguments=args or (),
        )
    print_results(out, cluster=loaded.workers.cluster if virtual else None, json_file=json_file)
    return exit_code_of(runs)


def _check(recipe: "Recipe", what: Path, *, world: WorldChoice, calibration: "Calibrated | None") -> None:
    """Make sure that the runs can begin in this world."""
    from plesio.bench.trainer import recipe_task

    if world is WorldChoice.PROCESS and recipe.workers.any_faults:
        raise ConfigError(
            f"{what} loses workers or has them join, which the virtual world does (--world virtual), and in part the "
            "testbed (--world testbed)"
        )
    if not recipe.task.is_script:
        recipe_task(recipe)
    if world is WorldChoice.VIRTUAL:
        from plesio.bench.script_pool import VirtualScriptPool
        from plesio.bench.virtual_pool import VirtualPool

        (VirtualScriptPool if recipe.task.is_script else VirtualPool)(recipe, calibration=calibration)
    if world is WorldChoice.TESTBED:
        prepare_for_hosts()
        from plesio.bench.testbed_pool import check_for_testbed

        check_for_testbed(recipe)


def load(
    what: Path,
    given: Mapping[str, Any],
    *,
    policies: Sequence[str] | None = None,
    arguments: Sequence[str] = (),
    slow: Sequence[str] | None = None,
    step_time: str | None = None,
    command: str,
) -> "Recipe":
    """Load the recipe, or make a script's, with the values of options (``given``) for its keys.

    ``policies`` replace those among the options; ``step_time`` is of a script's step where none is given; errors name
    the ``command``.

    Raises:
        ConfigError: The file or an option cannot be used.
    """
    from plesio.bench.recipe import load_recipe, names_script
    from plesio.cli.recipe_options import checkpoint_table

    if policies is None and "policies" in given:
        policies = split_policies(given["policies"])
    seeds = split_seeds(given["seeds"]) if "seeds" in given else None
    checkpoint = checkpoint_table(given)
    if names_script(str(what)):
        if checkpoint and "folder" not in checkpoint:
            raise ConfigError(f"--{next(iter(checkpoint))} is about checkpoints; add --checkpoint DIR")
        return script_recipe(
            what,
            arguments,
            given,
            policies=policies,
            seeds=seeds,
            slow=slow,
            step_time=step_time,
            checkpoint=checkpoint,
            where=command,
        )
    if arguments:
        raise ConfigError(f"{' '.join(arguments)}: only a script has arguments of its own; {what} is a recipe")
    if slow:
        raise ConfigError(f"--slow {slow[0]} is for a script; a recipe has [[workers.unequal]]")
    loaded = load_recipe(what, policies=policies, seeds=seeds, workers=workers_table(given), checkpoint=checkpoint)
    warn_of_code(what, task=loaded.task.name)
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
