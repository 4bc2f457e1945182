"""`plesio sweep`: the same comparison at several bandwidths of the cluster's network, in virtual time or on a testbed.

A bandwidth is named by its text with a unit ("1 Gbit/s") everywhere; `plesio.core.units.parse_bandwidth` gives its
value.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plesio.bench.planned import PlannedComparison, run_planned
from plesio.bench.progress import ProgressSink
from plesio.bench.recipe import Recipe
from plesio.bench.trainer import recipe_task
from plesio.core.arguments import checked
from plesio.core.errors import ConfigError
from plesio.core.results import RunResult
from plesio.core.units import parse_bandwidth
from plesio.cost.calibration import Calibration
from plesio.cost.cluster import Cluster
from plesio.runtime.coordinator.ledger import World

__all__ = ["check_sweep", "describe_network", "run_sweep"]


@checked
def run_sweep(
    recipe: Recipe,
    *,
    bandwidths: Sequence[str],
    out: Path,
    resume: bool,
    progress: ProgressSink,
    world: World = "virtual",
    calibration: Calibration | None = None,
) -> dict[str, list[RunResult]]:
    """Do the recipe's runs at each bandwidth, in a folder for each in ``out``; returns them by bandwidth.

    Args:
        recipe: Policies and task to compare; its cluster's interfaces are given each bandwidth.
        bandwidths: Bandwidths with units, all different.
        out: Folder; the comparison at "1 Gbit/s" is in ``out/1-Gbit-s``.
        resume: Keep the finished runs. They are timed to the recipe's target from their evaluations, so a sweep can be
            resumed with another target.
        progress: Progress of all runs, as if they were one comparison.
        world: The virtual one, or a testbed.
        calibration: Measurements of the machine, for the virtual world; None is a typical one.

    Raises:
        ConfigError: There is no network or no target, or the task cannot be trained.
        DataError: ``out`` has runs with other settings, or results that cannot be read.
    """
    check_sweep(recipe, world=world, calibration=calibration)
    cluster = recipe.workers.cluster
    assert cluster is not None, "checked"
    comparisons = []
    for bandwidth in bandwidths:
        there, slug = cluster.with_bandwidth(parse_bandwidth(bandwidth)), _slug(bandwidth)
        at_it = _with_cluster(recipe, there, part=slug, resume=resume)
        comparisons.append(
            PlannedComparison(slug=slug, where=f"at {bandwidth}", recipe=at_it, world=world, calibration=calibration)
        )
    return dict(zip(bandwidths, run_planned(comparisons, out=out, resume=resume, progress=progress), strict=True))


def _with_cluster(recipe: Recipe, cluster: Cluster, *, part: str, resume: bool) -> Recipe:
    """Return the recipe on another cluster, with checkpoints in a folder of its own."""
    update: dict[str, Any] = {"workers": recipe.workers.model_copy(update={"cluster": cluster})}
    if recipe.checkpoint is not None:
        apart = {"folder": recipe.checkpoint.folder / part, **({} if resume else {"resume": "no"})}
        update["checkpoint"] = recipe.checkpoint.model_copy(update=apart)
    return recipe.model_copy(update=update)


def check_sweep(recipe: Recipe, *, world: World = "virtual", calibration: Calibration | None = None) -> None:
    """Make sure that there is a network to give a bandwidth to, and a target to time, and that runs can begin.

    Raises:
        ConfigError: There is none, or the task cannot be trained; in the virtual world also that nobody says how long
            steps take, or the calibration is of another model, and on a testbed what only the virtual world can do.
    """
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
    task = recipe_task(recipe)
    if task.target is None:
        better = "more" if task.metric_goal == "max" else "less"
        raise ConfigError(
            f"task {task.name} has no target to time; add --target X, a value of {task.metric_name} ({better} is "
            "better), or write target = X under [run] of the recipe"
        )
    PlannedComparison(slug="", where="", recipe=recipe, world=world, calibration=calibration).check()


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


def _slug(bandwidth: str) -> str:
    """Write a bandwidth as a folder name.

    >>> _slug("2.5 Gbit/s")
    '2.5-Gbit-s'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", bandwidth)
