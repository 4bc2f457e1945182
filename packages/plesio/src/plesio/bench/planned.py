"""Comparisons one after another, each in a folder of its own: whatever reads a comparison reads each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plesio.bench.compare import run_comparison
from plesio.bench.progress import PartOfAll, ProgressSink
from plesio.bench.recipe import Recipe
from plesio.bench.testbed_pool import check_for_testbed
from plesio.bench.virtual_pool import VirtualPool
from plesio.core.results import RunResult
from plesio.cost.calibration import Calibration
from plesio.runtime.coordinator.ledger import World

__all__ = ["PlannedComparison", "run_planned"]


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
    world: World
    calibration: Calibration | None = None

    def check(self) -> None:
        """Make sure that it can begin.

        Raises:
            ConfigError: In the virtual world no step time is known, or the calibration is of another model; on a
                testbed the recipe has something that only the virtual world can do.
        """
        if self.world == "virtual":
            VirtualPool(self.recipe, calibration=self.calibration)
        elif self.world == "testbed":
            check_for_testbed(self.recipe)


def run_planned(
    comparisons: Sequence[PlannedComparison], *, out: Path, resume: bool, progress: ProgressSink
) -> list[list[RunResult]]:
    """Do the runs of each comparison in ``out / comparison.slug``; ``progress`` hears of all as if they were of one.

    Raises:
        ConfigError: A task cannot be trained.
        DataError: ``out`` has runs with other settings, or results that cannot be read.
    """
    counts = [len(one.recipe.run.policies) * len(one.recipe.run.seeds) for one in comparisons]
    done = []
    for place, one in enumerate(comparisons):
        folder = out / one.slug
        folder.mkdir(parents=True, exist_ok=True)
        part = PartOfAll(progress, where=one.where, before=sum(counts[:place]), total=sum(counts))
        done.append(
            run_comparison(
                one.recipe, out=folder, resume=resume, progress=part, world=one.world, calibration=one.calibration
            )
        )
    return done
