"""Compare policies on four hosts with thin links: a perceptron under momentum, and transformers under AdamW.

    python benchmarks/evidence/four_hosts.py transformer --mbit 100 --policies bsp,adaptive
    python benchmarks/evidence/four_hosts.py million --mbit 10 --policies adaptive,local_sgd:16 --world virtual

`million` has a million parameters, and two seeds of `bsp` end 1.5 % apart; `transformer` has a third of them, and one
seed of three stands still. `small`, at 2 and 20 Mbit/s, is a quicker one for development (docs/log.md, section 102).

The testbed needs root, and a machine with nothing else to do. Runs are kept in runs/evidence/four_hosts, and what is
there is not done again. To measure another version of Plesio, run this file with its sources on PYTHONPATH, and name
them by `--label`.
"""

import argparse
import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from settings import flat_cluster, recipe_of
from torch import nn

from plesio.bench.compare import run_comparison
from plesio.cli.compare import split_policies
from plesio.cli.progress_display import progress_display
from plesio.tasks.digits import Centred, digits
from plesio.tasks.task import Task

OUT = Path(__file__).parents[2] / "runs" / "evidence" / "four_hosts"
MEMORY_BYTES = 16 * 2**30
TASKS = {
    "perceptron": ({"name": "four_hosts.py:perceptron"}, {"epochs": 48}, "16 ms"),
    "transformer": (
        {
            "name": "stdlib_lm",
            "batch_size": 8,
            "options": {"width": 96, "depth": 3, "context": 64, "corpus_bytes": 300_000},
        },
        {"samples": 18_000, "evaluate_every": 3_000},
        "60 ms",
    ),
    "million": (
        {
            "name": "stdlib_lm",
            "batch_size": 4,
            "options": {"width": 128, "depth": 5, "context": 64, "corpus_bytes": 300_000, "learning_rate": 1e-3},
        },
        {"samples": 8_000, "evaluate_every": 1_000},
        "100 ms",
    ),
    "small": (
        {
            "name": "stdlib_lm",
            "batch_size": 4,
            "options": {"width": 48, "depth": 2, "context": 32, "corpus_bytes": 300_000, "learning_rate": 3e-3},
        },
        {"samples": 12_800, "evaluate_every": 1_600},
        "60 ms",
    ),
}
"""The ``[task]`` of each, its ``[run]``, and the time of a step."""


def perceptron() -> Task:
    """Make the task: `digits` by two layers of 256, under momentum."""
    return replace(digits(), name="perceptron", build=functools.partial(_build, learning_rate=0.01), chain=None)


def _build(seed: int, *, learning_rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    del seed  # torch is seeded
    hidden = (nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    model = nn.Sequential(Centred(), nn.Flatten(), *hidden, nn.Linear(256, 10))
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--mbit", type=float, default=100, metavar="N", help="Mbit/s of each host's link (100)")
    parser.add_argument("--policies", default="bsp,adaptive", help="(bsp,adaptive)")
    parser.add_argument("--seeds", default="0", help="(0)")
    parser.add_argument("--world", choices=["testbed", "virtual"], default="testbed", help="(testbed)")
    parser.add_argument("--label", default="main", help="folder of these runs (main)")
    arguments = parser.parse_args()
    task, run, step_time = TASKS[arguments.task]
    recipe = recipe_of(
        task,
        run,
        num_workers=4,
        cluster=replace(flat_cluster(4, mbit_per_s=arguments.mbit), memory_bytes=MEMORY_BYTES),
        policies=split_policies(arguments.policies),
        seeds=[int(seed) for seed in arguments.seeds.split(",")],
        step_time={"kind": "constant", "mean": step_time},
    )
    out = OUT / arguments.label / f"{arguments.task}-{arguments.mbit:g}-{arguments.world}"
    out.mkdir(parents=True, exist_ok=True)
    with progress_display() as progress:
        results = run_comparison(
            recipe, out=out, resume=(out / "results.json").exists(), progress=progress, world=arguments.world
        )
    goals = {result.seed: result.evaluations[-1].metric for result in results if result.policy == "bsp"}
    for result in results:
        points = [(point.at_s, point.metric) for point in result.evaluations]
        goal = goals.get(result.seed)
        reached = None if goal is None else first_s(points, goal=goal)
        told = "" if goal is None else "; that of bsp never" if reached is None else f"; that of bsp at {reached:.1f} s"
        end = f"{result.status} in {result.wall_s:.1f} s with {points[-1][1]:.4g}"
        print(f"{result.policy}, seed {result.seed}: {end}{told}")


def first_s(points: Sequence[tuple[float, float]], *, goal: float) -> float | None:
    """Return the seconds after which the metric is first as good as ``goal``, on lines between points; None if never.

    Args:
        points: Seconds and metric of each evaluation. The metric is taken to grow or to fall as from first to last.
        goal: A value of the metric.
    """
    sign = 1.0 if points[-1][1] > points[0][1] else -1.0
    for (before_s, before), (at_s, metric) in pairwise(points):
        if sign * (metric - goal) >= 0:
            return before_s + (at_s - before_s) * (goal - before) / (metric - before)
    return None


if __name__ == "__main__":
    main()
