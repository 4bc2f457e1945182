"""The runs for docs/evidence.md: tasks, networks, stragglers, and the policies that are swept.

SEEDS were never used to choose a default; what was tried while the defaults were chosen ran on seeds 100 to 109.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plesio.bench.recipe import Recipe, make_recipe
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link

HERE = Path(__file__).parent
SEEDS = tuple(range(10))
NUM_WORKERS = 16
STEP_TIME = {"kind": "lognormal", "mean": "16 ms", "cv": 0.2}

TASKS: Mapping[str, Mapping[str, Any]] = {
    # rates: the best of half octaves for bsp (docs/log.md, section 42)
    "digits": {
        "task": {"name": "digits", "batch_size": 8, "options": {"learning_rate": 0.4}},
        "run": {"epochs": 30, "evaluate_every": 359},
    },
    "stdlib_lm": {
        "task": {
            "name": "stdlib_lm",
            "batch_size": 4,
            "options": {"width": 48, "depth": 1, "context": 64, "corpus_bytes": 1_000_000, "learning_rate": 8e-3},
        },
        "run": {"epochs": 3, "evaluate_every": 1024, "target": 9.0},
    },
}
"""A convolutional network with SGD, and a transformer with AdamW, warm-up and a cosine."""

NETWORKS = {"fast": "fast-links.toml", "slow": "slow-links.toml"}

STRAGGLERS: Mapping[str, Mapping[str, Any]] = {
    "equal": {},
    "transient": {"stalls": {"probability": 0.02, "factor": 8.0}},
    "persistent": {"unequal": [{"rank": 15, "speed": 0.333}]},
}
"""None; any step of any worker may take eight times as long; the last worker takes three times as long for each."""

SHORT: Mapping[str, Mapping[str, Any]] = {
    "digits": {"epochs": 12, "evaluate_every": 359},
    "stdlib_lm": {"epochs": 1, "evaluate_every": 512, "target": 16.0},
}
"""For times to a target in many scenarios: training stops soon after the target, which is lower for the transformer."""

STATICS = (
    "bsp",
    "bsp,compress=qsgd:8",
    "ssp:4,period=3",
    "ssp:15",
    "asp",
    "local_sgd:4",
    "local_sgd:8",
    "local_sgd:8,delay=4",
    "local_sgd:8,compress=qsgd:8",
    "local_sgd:16,delay=8",
    "local_sgd:8,inner_rate=0.25,momentum=0.5",
    "local_sgd:8,delay=4,inner_rate=0.25,momentum=0.5",
)
"""Swept in every scenario."""


def flat_cluster(num_hosts: int, *, mbit_per_s: float) -> Cluster:
    return Cluster(
        name=f"{num_hosts} hosts, {mbit_per_s:g} Mbit/s",
        hosts=num_hosts,
        workers_per_host=1,
        cores_per_host=1,
        nic=Link(latency_s=50e-6, bytes_per_s=mbit_per_s * 1e6 / 8),
    )


def make(
    task: str,
    *,
    network: str,
    stragglers: str,
    policies: Sequence[str],
    seeds: Sequence[int],
    num_workers: int = NUM_WORKERS,
    short: bool = False,
) -> Recipe:
    return recipe_of(
        TASKS[task]["task"],
        SHORT[task] if short else TASKS[task]["run"],
        cluster=NETWORKS[network],
        stragglers=stragglers,
        policies=policies,
        seeds=seeds,
        num_workers=num_workers,
    )


def recipe_of(
    task: Mapping[str, Any],
    run: Mapping[str, Any],
    *,
    num_workers: int,
    cluster: str | Cluster | None,
    policies: Sequence[str],
    seeds: Sequence[int],
    stragglers: str = "equal",
    step_time: Mapping[str, Any] = STEP_TIME,
) -> Recipe:
    """Make a recipe with a ``[task]`` and a ``[run]``; the persistent straggler is the last worker."""
    workers = {"count": num_workers, "step_time": dict(step_time), **STRAGGLERS[stragglers]}
    if "unequal" in workers:
        workers["unequal"] = [{**one, "rank": num_workers - 1} for one in workers["unequal"]]
    return make_recipe(
        {
            "task": dict(task),
            "run": {**run, "policies": list(policies), "seeds": list(seeds)},
            "workers": workers if cluster is None else {**workers, "cluster": cluster},
        },
        folder=HERE,
        where=f"{task['name']}, {stragglers}",
    )
