"""Comparisons one after another, each in a folder of its own: whatever reads a comparison reads each of them.

`plesio characterise` plans one for each combination of its factors, `plesio sweep` one for each bandwidth. Those of one
world, model and number of workers come one after the other, and within each runs are in the order of
`plesio.bench.compare`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plesio.bench.compare import run_comparison
from plesio.bench.progress import PartOfAll, ProgressSink
from plesio.bench.recipe import Recipe
from plesio.bench.testbed_pool import check_for_testbed
from plesio.bench.trainer import recipe_task
from plesio.bench.virtual_pool import VirtualPool
from plesio.core.arguments import checked
from plesio.core.combination import Combination, Part
from plesio.core.results import RunResult
from plesio.cost.calibration import Calibration
from plesio.tasks.check import check_task

__all__ = ["ComparisonPlan", "PlannedComparison", "check_plan", "run_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedComparison:
    """One of several comparisons.

    Attributes:
        slug: Name of its folder.
        where: Its setting, as it is written after a run's policy: ``at 1 Gbit/s``.
        calibration: Measurements of the machine, for the virtual world; None is a typical one.
    """

    slug: str
    where: str
    recipe: Recipe
    calibration: Calibration | None = None

    @property
    def num_runs(self) -> int:
        """How many there are, those kept from an earlier one included."""
        return len(self.recipe.run.policies) * len(self.recipe.run.seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """A plan of comparisons.

    Attributes:
        parts: Parts, with the factors that each crosses.
        comparisons: The comparison of each combination, whichever parts it is in.
    """

    parts: Sequence[Part]
    comparisons: Mapping[Combination, PlannedComparison]


def check_plan(plan: ComparisonPlan) -> None:
    """Make sure that every comparison can begin.

    Raises:
        ConfigError: In the virtual world no step time is known, or the calibration is of another model; on a testbed a
            recipe has something that only the virtual world can do.
        TaskError: A task cannot be trained.
    """
    models: set[str] = set()
    for combination, one in plan.comparisons.items():
        if combination.world == "virtual":
            VirtualPool(one.recipe, calibration=one.calibration)
        elif combination.world == "testbed":
            check_for_testbed(one.recipe)
        if combination.model not in models:
            check_task(recipe_task(one.recipe))
            models.add(combination.model)


@checked
def run_plan(
    plan: ComparisonPlan, *, out: Path, resume: bool, progress: ProgressSink
) -> dict[Combination, list[RunResult]]:
    """Do the runs of a plan, those of each comparison in ``out / comparison.slug``.

    Args:
        plan: Comparisons to run.
        out: Folder.
        resume: Keep the finished runs that are there. They are timed to the recipe's target from their evaluations, so
            a plan can be resumed with another target.
        progress: Progress of all runs, as if they were one comparison.

    Raises:
        ConfigError: A task cannot be trained.
        DataError: ``out`` has runs with other settings, or results that cannot be read.
    """
    total, before = sum(one.num_runs for one in plan.comparisons.values()), 0
    done = {}
    for combination, one in plan.comparisons.items():
        folder = out / one.slug
        folder.mkdir(parents=True, exist_ok=True)
        done[combination] = run_comparison(
            one.recipe,
            out=folder,
            resume=resume,
            progress=PartOfAll(progress, where=one.where, before=before, total=total),
            world=combination.world,
            calibration=one.calibration,
        )
        before += one.num_runs
    return done
