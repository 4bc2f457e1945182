"""`plesio sweep`: the same comparison at several bandwidths of the cluster's network, in virtual time or on a testbed.

A bandwidth is named by its text with a unit ("1 Gbit/s") everywhere; `plesio.core.units.parse_bandwidth` gives its
value.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from plesio.bench.plan import ComparisonPlan, PlannedComparison
from plesio.bench.recipe import Recipe
from plesio.bench.trainer import recipe_task
from plesio.core.arguments import checked
from plesio.core.combination import Combination, Part
from plesio.core.errors import ConfigError
from plesio.core.units import parse_bandwidth
from plesio.cost.calibration import Calibration
from plesio.cost.cluster import Cluster

__all__ = ["describe_network", "plan_sweep"]


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
    task = recipe_task(recipe)
    if task.target is None:
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
