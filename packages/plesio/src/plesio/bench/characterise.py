"""`plesio characterise`: one comparison for each combination of factors, in a folder of its own.

Combinations of one world, model and number of workers come one after
the other, and within each runs are in the order of `plesio.bench.compare`.
"""

from pathlib import Path

from plesio.bench.characterise_recipe import ComparisonPlan
from plesio.bench.planned import PlannedComparison, run_planned
from plesio.bench.progress import ProgressSink
from plesio.bench.trainer import recipe_task
from plesio.core.arguments import checked
from plesio.core.combination import Combination
from plesio.core.results import RunResult
from plesio.tasks.check import check_task

__all__ = ["check_plan", "run_plan"]


def check_plan(plan: ComparisonPlan) -> None:
    """Make sure that every comparison can begin.

    Raises:
        ConfigError: One cannot: nobody says how long steps take in the virtual world, say.
        TaskError: A task cannot be trained.
    """
    checked: set[str] = set()
    for one, (combination, recipe) in zip(_comparisons(plan), plan.recipes.items(), strict=True):
        one.check()
        if combination.model not in checked:
            check_task(recipe_task(recipe))
            checked.add(combination.model)


@checked
def run_plan(
    plan: ComparisonPlan, *, out: Path, resume: bool, progress: ProgressSink
) -> dict[Combination, list[RunResult]]:
    """Do the runs of a plan, those of each combination in ``out / combination.slug``.

    Args:
        plan: Comparisons to run.
        out: Folder.
        resume: Keep the finished runs that are there.
        progress: Progress of all runs, as if they were one comparison.

    Raises:
        ConfigError: A task cannot be trained.
        DataError: ``out`` has runs with other settings, or results that cannot be read.
    """
    done = run_planned(_comparisons(plan), out=out, resume=resume, progress=progress)
    return dict(zip(plan.recipes, done, strict=True))


def _comparisons(plan: ComparisonPlan) -> list[PlannedComparison]:
    return [
        PlannedComparison(slug=one.slug, where=f"· {one.text}", recipe=recipe, world=one.world)
        for one, recipe in plan.recipes.items()
    ]
