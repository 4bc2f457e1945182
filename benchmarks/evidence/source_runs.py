"""The common parts of `source`: the cluster, the runs, and means with errors."""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from settings import STEP_TIME, STRAGGLERS

from plesio.bench.recipe import Recipe, make_recipe
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link

sys.path.insert(0, str(Path(__file__).parents[1]))
from kept_runs import keep_runs

__all__ = ["HERE", "Runs", "do", "final_metrics", "flat_cluster", "make", "mean_and_error", "plus_minus"]

HERE = Path(__file__).parent
Runs = Mapping[str, Sequence[RunResult]]


def flat_cluster(num_hosts: int, *, mbit_per_s: float, latency_s: float = 50e-6) -> Cluster:
    """Hosts with one worker each on one switch."""
    return Cluster(
        name=f"{num_hosts} hosts, {mbit_per_s:g} Mbit/s",
        hosts=num_hosts,
        workers_per_host=1,
        cores_per_host=1,
        nic=Link(latency_s=latency_s, bytes_per_s=mbit_per_s * 1e6 / 8),
    )


def make(
    task: Mapping[str, Any],
    run: Mapping[str, Any],
    *,
    num_workers: int,
    mbit_per_s: float,
    policies: Sequence[str],
    seeds: Sequence[int],
    stragglers: str = "equal",
) -> Recipe:
    """Make the recipe of some runs: steps of 16 ms with a variation of 20 %, and the stragglers of `settings`."""
    unequal = {"unequal": [{"rank": num_workers - 1, "speed": 0.333}]}
    return make_recipe(
        {
            "task": dict(task),
            "run": {**run, "policies": list(policies), "seeds": list(seeds)},
            "workers": {
                "count": num_workers,
                "cluster": flat_cluster(num_workers, mbit_per_s=mbit_per_s),
                "step_time": STEP_TIME,
                **(unequal if stragglers == "persistent" else STRAGGLERS[stragglers]),
            },
        },
        folder=HERE,
        where=f"{task['name']}, {stragglers}",
    )


def do(recipe: Recipe, *, out: Path) -> dict[str, list[RunResult]]:
    """Do the runs by policy in the order of seeds; those that ``out`` has are not done again.

    Raises:
        SystemExit: A run broke, which is not the same as diverging.
        DataError: ``out`` has runs of another setting.
    """
    wanted = keep_runs(recipe, out=out)
    for policy, each in wanted.items():
        for run in each:
            if run.status == "interrupted" or (run.status == "failed" and not run.steps):
                raise SystemExit(f"{out}: {policy} seed {run.seed}: {run.error}")
    return wanted


def final_metrics(runs: Sequence[RunResult]) -> list[float]:
    """Accuracies in percent, anything else as it is; NaN where a run ended in numbers that are not finite."""
    scale = 100.0 if runs[0].metric_goal == "max" else 1.0
    return [math.nan if run.final_metric is None else scale * run.final_metric for run in runs]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; NaN where a value is, and the error of one value is NaN."""
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def plus_minus(values: Sequence[float], form: str = ".2f") -> str:
    """``mean ± standard error``; of values that are not all finite, how many are."""
    num_finite = sum(map(math.isfinite, values))
    if num_finite < len(values):
        return f"{num_finite} of {len(values)}"
    mean, error = mean_and_error(values)
    return f"{mean:{form}} ± {error:{form.lstrip('+')}}"
