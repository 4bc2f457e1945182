"""`plesio lab characterise`: strategies, models, workers, links and more, one comparison for each combination."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plesio.cli.compare import WorldChoice, split_seeds, warn_of_code
from plesio.cli.options import Json, Overwrite, RecipeFile, Resume, RunFolder
from plesio.cli.output_files import check_output_file, prepared_folder, write_json
from plesio.cli.terminal import do_runs, exit_code_of, show
from plesio.cli.testbed import prepare_for_hosts

if TYPE_CHECKING:
    from plesio.bench.plan import ComparisonPlan
    from plesio.core.combination import Combination
    from plesio.core.results import RunResult

EXAMPLES = """\b
Examples:
  plesio lab characterise recipes/characterise.toml --out runs/quick --quick
  plesio lab characterise recipes/characterise.toml --out runs/characterise
  plesio lab characterise recipes/characterise.toml --out runs/characterise --resume
  plesio lab characterise recipes/characterise.toml --out runs/more --seeds 0,1,2,3,4
  plesio lab characterise recipes/characterise.toml --out runs/virtual --world virtual
\b
Ctrl-C keeps the runs that are finished; --resume goes on."""

Quick = Annotated[
    bool, typer.Option("--quick", help="Only what the recipe's [quick] leaves: minutes, not half an hour.")
]
World = Annotated[
    WorldChoice | None,
    typer.Option("--world", help="Instead of the worlds that the recipe's parts name.", show_default=False),
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", metavar="SEED,...", help="Instead of the recipe's.", show_default=False)
]


def characterise(
    recipe: RecipeFile,
    out: RunFolder,
    quick: Quick = False,
    world: World = None,
    seeds: Seeds = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json_file: Json = None,
) -> int:
    """Measure strategies over models, workers and networks.

    The recipe says which models, workers, batches, links, imbalances and topologies are crossed. Does one comparison
    for each combination, in a folder of its own, and writes report.html: the tables and figures of source 004 with ours
    beside theirs, speed-up and efficiency, time against accuracy, and which differences the seeds show.
    docs/characterise.md explains recipe and page.
    """
    check_output_file("--json", json_file, overwrite=overwrite or resume)

    from plesio.bench.characterise_recipe import load_characterise_recipe, plan_of
    from plesio.bench.plan import check_plan, run_plan
    from plesio.report.characterisation import OUTPUT_NAMES

    loaded = load_characterise_recipe(recipe)
    for model in loaded.models.values():
        warn_of_code(recipe, task=str(model.get("name", "")))
    plan = plan_of(
        loaded,
        recipe,
        quick=quick,
        world=None if world is None else world.value,
        seeds=None if seeds is None else split_seeds(seeds),
    )
    if any(combination.world == "testbed" for combination in plan.comparisons):
        prepare_for_hosts()
    check_plan(plan)  # whatever is wrong is said before anything is removed
    with prepared_folder(out, resume=resume, overwrite=overwrite, names=[*OUTPUT_NAMES, *_folders(out)]):
        done = do_runs(
            partial(run_plan, plan, out=out, resume=resume),
            ["plesio", "lab", "characterise", str(recipe), "--out", str(out)],
            options={
                "--quick": quick,
                "--world": None if world is None else world.value,
                "--seeds": seeds,
                "--json": json_file,
            },
        )
    _show(plan, done, out=out, json_file=json_file)
    return exit_code_of(run for runs in done.values() for run in runs)


def _folders(out: Path) -> list[str]:
    """Return the comparisons that an earlier characterisation left in ``out``."""
    return [path.parent.name for path in out.glob("*-worker*/setting.json")]


def _show(
    plan: "ComparisonPlan", done: "dict[Combination, list[RunResult]]", *, out: Path, json_file: Path | None
) -> None:
    from plesio.report.characterisation import (
        characterisation_values,
        render_characterisation,
        summarise_characterisation,
        write_characterisation,
    )

    found = summarise_characterisation(plan.parts, done)
    page = write_characterisation(found, out)
    show(render_characterisation(found))
    typer.echo(f"\n{page}")
    write_json(json_file, characterisation_values(found))
