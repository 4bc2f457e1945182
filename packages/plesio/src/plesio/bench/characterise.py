"""`plesio characterise`: one comparison for each combination of factors, in a folder of its own.

Whatever reads a comparison reads each of them. Combinations of one world, model and number of workers come one after
the other, and within each runs are in the order of `plesio.bench.compare`.
"""

from pathlib import Path

from plesio.bench.characterise_recipe import Plan
from plesio.bench.compare import run_comparison
from plesio.bench.progress import PartOfAll, ProgressSink
from plesio.bench.testbed_pool import check_for_testbed
from plesio.bench.trainer import recipe_task
from plesio.bench.virtual_pool import VirtualPool
from plesio.core.arguments import checked
from plesio.core.combination import Combination
from plesio.core.results import RunResult
from plesio.tasks.check import check_task

__all__ = ["check_plan", "run_plan"]


def check_plan(plan: Plan) -> None:
    """Make sure that every comparison can begin.

    Raises:
        ConfigError: One cannot: nobody says how long steps take in the virtual world, say.
        TaskError: A task cannot be trained.
    """
    checked: set[str] = set()
    for combination, recipe in plan.recipes.items():
        match combination.world:
            case "virtual":
                VirtualPool(recipe)
            case "testbed":
                check_for_testbed(recipe)
        if combination.model not in checked:
            check_task(recipe_task(recipe))
            checked.add(combination.model)


@checked
def run_plan(plan: Plan, *, out: Path, resume: bool, progress: ProgressSink) -> dict[Combination, list[RunResult]]:
    """Do the runs of a plan, those of each combination in ``out / combination.slug``.

    Args:
        plan: What is to be run.
        out: Folder.
        resume: Keep the finished runs that are there.
        progress: Hears of all runs as if they were one comparison.

    Raises:
        ConfigError: A task cannot be trained.
        DataError: ``out`` has runs with other settings, or results that cannot be read.
    """
    done: dict[Combination, list[RunResult]] = {}
    before = 0
    for combination, recipe in plan.recipes.items():
        folder = out / combination.slug
        folder.mkdir(parents=True, exist_ok=True)
        done[combination] = run_comparison(
            recipe,
            out=folder,
            resume=resume,
            progress=PartOfAll(progress, where=f"· {combination.text}", before=before, total=plan.num_runs),
            world=combination.world,
        )
        before += len(recipe.run.policies) * len(recipe.run.seeds)
    return done
