"""Do the runs of docs/evidence.md, and print its tables.

    python benchmarks/evidence/run.py main                          # adaptive against bsp: bytes, quality, spread
    python benchmarks/evidence/run.py main --only digits --seeds 10
    python benchmarks/evidence/run.py scenarios --seeds 5           # against statics that are swept, in 12 scenarios
    python benchmarks/evidence/run.py scenarios --only digits-slow-equal
    python benchmarks/evidence/run.py straggler
    python benchmarks/evidence/run.py ablation

Runs are kept in runs/evidence/; what is there is not done again, so a table can be come back to.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from figures import Comparison, compare
from settings import NETWORKS, SEEDS, STATICS, STRAGGLERS, TASKS, make

from plesio.bench.compare import run_comparison
from plesio.bench.progress import RunLabel, Snapshot
from plesio.bench.recipe import Recipe
from plesio.core.results import RunResult

ROOT = Path(__file__).parents[2]
OUT = ROOT / "runs" / "evidence"
RESULTS = ROOT / "benchmarks" / "results" / "evidence.json"
ABLATION = {
    "all": "adaptive",
    "no gradient": "adaptive,gradient=off",
    "no noise": "adaptive,noise=off",
    "no phase": "adaptive,phase=off",
    "no feedback": "adaptive,feedback=off",
    "no guard": "adaptive,guard=off",
    "gradient alone": "adaptive,noise=off,phase=off,feedback=off,guard=off",
    "phase alone": "adaptive,gradient=off,noise=off,feedback=off,guard=off",
    "feedback alone": "adaptive,gradient=off,noise=off,phase=off,guard=off",
    "system side alone": "adaptive,gradient=off,noise=off,phase=off,feedback=off,guard=off",
}
"""By what is on; the system side always is."""
Runs = Mapping[str, Sequence[RunResult]]


class Lines:
    """Prints a line for each run."""

    def run_kept(self, label: RunLabel) -> None:
        """Nothing is said of it."""

    def run_started(self, label: RunLabel, *, num_samples: int | None) -> None:
        """Begin the run's line."""
        print(f"  {label.number}/{label.num_runs} {label.policy} seed {label.seed}", end="", flush=True)
        self._began_s = time.perf_counter()

    def run_advanced(self, snapshot: Snapshot) -> None:
        """Nothing is said before the end."""

    def run_finished(self, result: RunResult) -> None:
        """End the line."""
        print(f": {time.perf_counter() - self._began_s:.0f} s, {result.metric_name} {result.final_metric:.4g}")

    def run_failed(self, result: RunResult) -> None:
        """End the line with the error."""
        print(f": {result.status}, {result.error}")


def do(name: str, recipe: Recipe) -> dict[str, list[RunResult]]:
    """The runs of a recipe by policy, in the order of its seeds, those of earlier calls included.

    Raises:
        SystemExit: A run failed.
        DataError: The runs that are there are of another version of the recipe.
    """
    out = OUT / name
    out.mkdir(parents=True, exist_ok=True)
    print(name)
    runs = run_comparison(recipe, out=out, resume=True, progress=Lines(), world="virtual")
    by_key = {(run.policy, run.seed): run for run in runs}
    wanted = {policy: [by_key[policy, seed] for seed in recipe.run.seeds] for policy in recipe.run.policies}
    for policy, each in wanted.items():
        for run in each:
            # a static that diverges is a result; adaptive and bsp have to end
            if run.status != "finished" and (policy == "bsp" or policy.startswith("adaptive")):
                raise SystemExit(f"{out}: {policy} seed {run.seed}: {run.error}")
    return {policy: each for policy, each in wanted.items() if all(run.status == "finished" for run in each)}


def main_table(*, num_seeds: int, only: str | None) -> dict[str, Comparison]:
    """Adaptive against BSP on slow links."""
    rows = {}
    for task in TASKS if only is None else [only]:
        recipe = make(task, network="slow", stragglers="equal", policies=["bsp", "adaptive"], seeds=SEEDS[:num_seeds])
        runs = do(f"{task}-slow-equal", recipe)
        rows |= {f"{task}, {policy}": compare(each, runs["bsp"]) for policy, each in runs.items()}
    show("", rows)
    return rows


def scenario_tables(*, num_seeds: int, only: str | None) -> dict[str, Comparison]:
    """Adaptive against every static policy, scenario by scenario."""
    rows, verdicts = {}, []
    for task in TASKS:
        for network in NETWORKS:
            for stragglers in STRAGGLERS:
                name = f"{task}-{network}-{stragglers}"
                if only not in (None, name):
                    continue
                policies = [*STATICS, "adaptive"]
                recipe = make(task, network=network, stragglers=stragglers, policies=policies, seeds=SEEDS[:num_seeds])
                runs = do(name, recipe)
                found = {policy: compare(each, runs["bsp"]) for policy, each in runs.items()}
                show(name, found)
                rows |= {f"{name}, {policy}": row for policy, row in found.items()}
                verdicts.append(verdict(name, found))
    print("\n| scenario | best static | its time to target | adaptive | against the best | against bsp |")
    print("|:--|:--|--:|--:|--:|--:|")
    print("\n".join(verdicts))
    return rows


def verdict(name: str, found: Mapping[str, Comparison]) -> str:
    """A row: adaptive's time to target against the best static's and BSP's."""
    statics = {policy: row.to_target_s for policy, row in found.items() if policy != "adaptive"}
    best = min(statics, key=lambda policy: statics[policy])
    own_s = found["adaptive"].to_target_s
    return (
        f"| {name} | `{best}` | {statics[best]:.2f} s | {own_s:.2f} s | {_ratio(own_s, statics[best])} "
        f"| {_ratio(own_s, statics['bsp'])} |"
    )


def _ratio(one_s: float, other_s: float) -> str:
    return f"{one_s / other_s:.2f}" if math.isfinite(other_s) else "-"


def straggler_table(*, num_seeds: int) -> dict[str, Comparison]:
    """One of four workers three times slower."""
    recipe = make(
        "digits",
        network="fast",
        stragglers="equal",
        policies=["bsp", "adaptive"],
        seeds=SEEDS[:num_seeds],
        num_workers=4,
    )
    unequal = make("digits", network="fast", stragglers="persistent", policies=["bsp"], seeds=[0]).workers.unequal[0]
    slow = unequal.model_copy(update={"rank": 3})
    workers = recipe.workers.model_copy(update={"unequal": (slow,)})
    runs = do("straggler", recipe.model_copy(update={"workers": workers}))
    rows = {policy: compare(each, runs["bsp"]) for policy, each in runs.items()}
    show("one of four workers takes three times as long", rows)
    return rows


def ablation_table(*, num_seeds: int) -> dict[str, Comparison]:
    """Each component alone, all but one, all."""
    recipe = make(
        "digits",
        network="slow",
        stragglers="transient",
        policies=["bsp", *ABLATION.values()],
        seeds=SEEDS[:num_seeds],
    )
    runs = do("digits-slow-transient-ablation", recipe)
    names = {spec: name for name, spec in ABLATION.items()}
    rows = {names.get(policy, policy): compare(each, runs["bsp"]) for policy, each in runs.items()}
    show("ablation: digits, slow links, transient stragglers", rows)
    return rows


def show(title: str, rows: Mapping[str, Comparison]) -> None:
    """A Markdown table."""
    print(f"\n{title}\n")
    print("| | final metric | against bsp (95 %) | p | bytes / bsp | time / bsp | time to target |")
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for name, row in rows.items():
        print(
            f"| `{name}` | {row.metric:.2f} ± {row.deviation:.2f} | {row.metric_change.text()} "
            f"| {row.metric_change.p:.2f} | {row.bytes:.3f} | {row.time:.3f} | {row.to_target_s:.2f} s |"
        )


def keep(name: str, rows: Mapping[str, Comparison], *, num_seeds: int) -> None:
    """Write the rows beside those of earlier calls."""
    data = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    data[name] = {
        "seeds": list(SEEDS[:num_seeds]),
        "rows": {
            key: {
                "metric": row.metric,
                "deviation": row.deviation,
                "metric_change": [row.metric_change.mean, row.metric_change.half_width, row.metric_change.p],
                "bytes": row.bytes,
                "time": row.time,
                "to_target_s": row.to_target_s if math.isfinite(row.to_target_s) else None,
            }
            for key, row in rows.items()
        },
    }
    RESULTS.write_text(json.dumps(data, indent=1) + "\n")


def main() -> None:
    """Do what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["main", "scenarios", "straggler", "ablation"])
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1, at most 10 (5)")
    parser.add_argument("--only", metavar="NAME", help="one scenario, or one task")
    arguments = parser.parse_args()
    scenarios = [
        f"{task}-{network}-{stragglers}" for task in TASKS for network in NETWORKS for stragglers in STRAGGLERS
    ]
    known = {"main": list(TASKS), "scenarios": scenarios}.get(arguments.table, [])
    if arguments.only is not None and arguments.only not in known:
        parser.error(f"--only {arguments.only} is not in {arguments.table}; known: {', '.join(known) or 'none'}")
    if not 2 <= arguments.seeds <= len(SEEDS):
        parser.error(f"--seeds {arguments.seeds}: write 2 to {len(SEEDS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    num_seeds = arguments.seeds
    tables: dict[str, Callable[[], dict[str, Comparison]]] = {
        "main": lambda: main_table(num_seeds=num_seeds, only=arguments.only),
        "scenarios": lambda: scenario_tables(num_seeds=num_seeds, only=arguments.only),
        "straggler": lambda: straggler_table(num_seeds=num_seeds),
        "ablation": lambda: ablation_table(num_seeds=num_seeds),
    }
    rows = tables[arguments.table]()
    name = arguments.table if arguments.only is None else f"{arguments.table} {arguments.only}"
    keep(name, rows, num_seeds=num_seeds)


if __name__ == "__main__":
    main()
