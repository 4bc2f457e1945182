"""Comparisons one after another, each in a folder of its own: whatever reads a comparison reads each of them.

`plesio lab characterise` plans one for each combination of its factors (`plesio.bench.characterise_recipe`), and
`plesio sweep` one for each bandwidth of the cluster's network. A bandwidth is named by its text with a unit
("1 Gbit/s") everywhere; `plesio.core.units.parse_bandwidth` gives its value.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from plesio.bench.compare import run_comparison
from plesio.bench.progress import PartOfAll, ProgressSink
from plesio.bench.recipe import Recipe
from plesio.bench.script_pool import VirtualScriptPool
from plesio.bench.testbed_pool import check_for_testbed
from plesio.bench.trainer import recipe_task, target_of
from plesio.bench.virtual_pool import VirtualPool
from plesio.core.arguments import checked
from plesio.core.combination import Combination, Part
from plesio.core.errors import ConfigError
from plesio.core.results import RunResult
from plesio.core.units import parse_bandwidth
from plesio.cost.calibration import Calibration
from plesio.cost.cluster import Cluster
from plesio.tasks.check import check_task

_log = logging.getLogger(__name__)


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
        script = one.recipe.task.is_script
        if combination.world == "virtual":
            (VirtualScriptPool if script else VirtualPool)(one.recipe, calibration=one.calibration)
        elif combination.world == "testbed":
            check_for_testbed(one.recipe)
        if combination.model not in models and not script:
            check_task(recipe_task(one.recipe))
            models.add(combination.model)


@checked
def run_plan(
    plan: ComparisonPlan,
    *,
    out: Path,
    resume: bool,
    progress: ProgressSink,
    on_remark: Callable[[str], None] = _log.warning,
) -> dict[Combination, list[RunResult]]:
    """Do the runs of a plan, those of each comparison in ``out / comparison.slug``.

    Args:
        plan: Comparisons to run.
        out: Folder.
        resume: Keep the finished runs that are there. They are timed to the recipe's target from their evaluations, so
            a plan can be resumed with another target.
        progress: Progress of all runs, as if they were one comparison.
        on_remark: Takes a line about a script (`plesio.bench.compare`).

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
            on_remark=on_remark,
        )
        before += one.num_runs
    return done


@checked
def plan_sweep(
    recipe: Recipe,
    *,
    bandwidths: Sequence[str],
    resume: bool = False,
    world: Literal["virtual", "testbed"] = "virtual",
    calibration: Calibration | None = None,
) -> ComparisonPlan:
    """Plan the recipe's runs at each bandwidth; the comparison at "1 Gbit/s" is in the folder ``1-Gbit-s``.

    Args:
        recipe: Policies and task to compare; its cluster's interfaces are given each bandwidth.
        bandwidths: Bandwidths with units, all different.
        resume: Go on from the checkpoints of the runs that are not finished.
        world: The virtual one, or a testbed.
        calibration: Measurements of the machine, for the virtual world; None is a typical one.

    Raises:
        ConfigError: There is no network to give a bandwidth to, or no target to time.
    """
    cluster = _network(recipe)
    base = Combination(world=world, model=recipe.task.name, workers=recipe.workers.count)
    at_each = [replace(base, link=bandwidth) for bandwidth in bandwidths]
    comparisons = {}
    for combination, bandwidth in zip(at_each, bandwidths, strict=True):
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", bandwidth)
        at_it = _with_cluster(recipe, cluster.with_bandwidth(parse_bandwidth(bandwidth)), part=slug, resume=resume)
        comparisons[combination] = PlannedComparison(
            slug=slug, where=f"at {bandwidth}", recipe=at_it, calibration=calibration
        )
    part = Part(name="sweep", policies=recipe.run.policies, levels={"link": bandwidths}, combinations=at_each)
    return ComparisonPlan(parts=[part], comparisons=comparisons)


def _with_cluster(recipe: Recipe, cluster: Cluster, *, part: str, resume: bool) -> Recipe:
    """Return the recipe on another cluster, with checkpoints in a folder of its own."""
    update: dict[str, Any] = {"workers": recipe.workers.model_copy(update={"cluster": cluster})}
    if recipe.checkpoint is not None:
        apart = {"folder": recipe.checkpoint.folder / part, **({} if resume else {"resume": "no"})}
        update["checkpoint"] = recipe.checkpoint.model_copy(update=apart)
    return recipe.model_copy(update=update)


def _network(recipe: Recipe) -> Cluster:
    """Return the cluster whose bandwidth is swept; the recipe also has a target to time."""
    cluster, count = recipe.workers.cluster, recipe.workers.count
    name = next((f"{hosts}x1gbe" for hosts in (4, 16) if count <= hosts), "64x1gbe")
    if cluster is None:
        raise ConfigError(
            f"one host has no network whose bandwidth could be changed; add --cluster {name} "
            f'(or cluster = "{name}" under [workers] of the recipe)'
        )
    if cluster.host_of(count - 1) == 0:
        raise ConfigError(
            f"the {count} workers fill one host of cluster {cluster.name}, and nothing crosses a network; "
            f"use more workers, or a cluster of smaller hosts, as in --cluster {name}"
        )
    if target_of(recipe) is None and recipe.task.is_script:
        raise ConfigError(
            f"{recipe.task.script} has no target to time; add --target X, a value of what its session.evaluate gives"
        )
    if target_of(recipe) is None:
        task = recipe_task(recipe)
        better = "more" if task.metric_goal == "max" else "less"
        raise ConfigError(
            f"task {task.name} has no target to time; add --target X, a value of {task.metric_name} ({better} is "
            "better), or write target = X under [run] of the recipe"
        )
    return cluster


def describe_network(cluster: Cluster) -> str:
    """Describe the network whose bandwidth is swept, and the links that are scaled with it.

    >>> from plesio.cost.cluster import parse_cluster
    >>> describe_network(parse_cluster("2-racks"))
    'cluster 2-racks, uplinks scaled with the interfaces (oversubscribed 4 to 1)'
    """
    if cluster.racks == 1 or cluster.uplink is None:
        return f"cluster {cluster.name}"
    ratio = cluster.hosts_per_rack * cluster.nic.bytes_per_s / cluster.uplink.bytes_per_s
    return f"cluster {cluster.name}, uplinks scaled with the interfaces (oversubscribed {ratio:.3g} to 1)"
