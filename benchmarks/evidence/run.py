"""Do the runs of docs/evidence.md, and print its tables.

    python benchmarks/evidence/run.py main                          # adaptive against bsp: bytes, quality, spread
    python benchmarks/evidence/run.py main --only digits --seeds 10
    python benchmarks/evidence/run.py main --only stdlib_lm --seeds 2 --policy bsp,compress=powersgd:4
    python benchmarks/evidence/run.py straggler
    python benchmarks/evidence/run.py sensitivity                   # to task, optimizer and bound

Runs are kept in runs/evidence/; what is there is not done again, so a table can be come back to.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from figures import compare
from settings import SEEDS, TASKS, make

from plesio.bench.recipe import Recipe
from plesio.core.results import RunResult

sys.path.insert(0, str(Path(__file__).parents[1]))
from kept_runs import keep_runs
from record import print_table

OUT = Path(__file__).parents[2] / "runs" / "evidence"
BOUNDS = (0, 1, 2, 4, 8, 16)
RATES: Mapping[tuple[str, str], float] = {
    ("digits", "momentum"): 0.1,
    ("digits", "adam"): 0.01,
    ("stdlib_lm", "momentum"): 0.3,
    ("stdlib_lm", "adam"): 0.004,
}
"""Rates with which BSP gets to the target first, of three tried on seed 100, by task and optimizer."""


def do(name: str, recipe: Recipe) -> dict[str, list[RunResult]]:
    """Do the runs of a recipe; return them by policy, in the order of its seeds, earlier calls' runs included.

    A static policy under which any seed diverges is left out.

    Raises:
        SystemExit: A run failed.
        DataError: The runs that are there are of another version of the recipe.
    """
    out = OUT / name
    wanted = keep_runs(recipe, out=out)
    for policy, each in wanted.items():
        for run in each:
            # a static that diverges is a result; adaptive and bsp have to end
            if not _trained(run) and (policy == "bsp" or policy.startswith("adaptive")):
                raise SystemExit(f"{out}: {policy} seed {run.seed}: {run.error}")
    return {policy: each for policy, each in wanted.items() if all(map(_trained, each))}


def _trained(run: RunResult) -> bool:
    return run.status == "finished" and run.final_metric is not None


def main_table(*, num_seeds: int, only: str | None, policy: str) -> None:
    """Adaptive, or another policy, against BSP on slow links."""
    for task in TASKS if only is None else [only]:
        recipe = make(task, network="slow", stragglers="equal", policies=["bsp", policy], seeds=SEEDS[:num_seeds])
        show(task, do(f"{task}-slow-equal", recipe))


def straggler_table(*, num_seeds: int) -> None:
    recipe = make(
        "digits",
        network="fast",
        stragglers="persistent",
        policies=["bsp", "adaptive"],
        seeds=SEEDS[:num_seeds],
        num_workers=4,
    )
    show("one of four workers takes three times as long", do("straggler", recipe))


def sensitivity_table(*, num_seeds: int) -> None:
    """Hold fixed bounds against adaptive on slow links, by task and optimizer."""
    # under local_sgd:H a worker sees the others' steps H - 1 steps late at most, so a bound of s is a period of s + 1
    policies = ["bsp", *(f"local_sgd:{bound + 1}" for bound in BOUNDS[1:]), "adaptive"]
    for (task, optimizer), rate in RATES.items():
        recipe = make(task, network="slow", stragglers="equal", policies=policies, seeds=SEEDS[:num_seeds], short=True)
        options = {key: value for key, value in recipe.task.options.items() if key != "learning_rate"}
        options |= {"of": recipe.task.name, "optimizer": optimizer, "learning_rate": rate}
        section = recipe.task.model_copy(update={"name": "optimizers:with_optimizer", "options": options})
        name = f"{task}-{optimizer}"
        show(name, do(f"sensitivity/{name}", recipe.model_copy(update={"task": section})))


def show(title: str, runs: Mapping[str, Sequence[RunResult]]) -> None:
    """Print a row for each policy, against BSP's runs of the same seeds."""
    compared = {policy: compare(each, runs["bsp"]) for policy, each in runs.items()}
    print_table(
        title,
        columns=["", "final metric", "against bsp (95 %)", "p", "bytes / bsp", "time / bsp", "time to target"],
        rows=[
            [
                f"`{policy}`",
                f"{row.metric:.2f} ± {row.deviation:.2f}",
                row.metric_change.text(),
                f"{row.metric_change.p:.2f}",
                f"{row.bytes:.3f}",
                f"{row.time:.3f}",
                f"{row.to_target_s:.2f} s",
            ]
            for policy, row in compared.items()
        ],
    )


TABLES: Mapping[str, Callable[..., None]] = {
    "main": main_table,
    "straggler": straggler_table,
    "sensitivity": sensitivity_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1, 2 to 10 (%(default)s)")
    parser.add_argument("--only", choices=list(TASKS), help="main: one task")
    parser.add_argument("--policy", default="adaptive", help="main: what is held against bsp (adaptive)")
    arguments = parser.parse_args()
    if not 2 <= arguments.seeds <= len(SEEDS):
        parser.error(f"--seeds {arguments.seeds}: write 2 to {len(SEEDS)}")
    if arguments.table != "main" and (arguments.only or arguments.policy != "adaptive"):
        parser.error("--only and --policy go with main")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options = {"only": arguments.only, "policy": arguments.policy} if arguments.table == "main" else {}
    TABLES[arguments.table](num_seeds=arguments.seeds, **options)


if __name__ == "__main__":
    main()
