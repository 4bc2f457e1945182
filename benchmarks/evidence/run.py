"""Do the runs of docs/evidence.md, and print its tables.

    python benchmarks/evidence/run.py main                          # adaptive against bsp: bytes, quality, spread
    python benchmarks/evidence/run.py main --only digits --seeds 10
    python benchmarks/evidence/run.py main --only stdlib_lm --seeds 2 --policy bsp,compress=powersgd:4
    python benchmarks/evidence/run.py scenarios --seeds 3           # against statics that are swept, in 12 scenarios
    python benchmarks/evidence/run.py scenarios --only digits       # of one task, or digits-slow-equal alone
    python benchmarks/evidence/run.py check                         # that timing a trained policy is training it
    python benchmarks/evidence/run.py straggler
    python benchmarks/evidence/run.py ablation
    python benchmarks/evidence/run.py sensitivity                   # to task, optimizer and bound
    python benchmarks/evidence/run.py processes --seeds 3           # four real processes on shaped links; idle machine

Runs are kept in runs/evidence/; what is there is not done again, so a table can be come back to.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from figures import Comparison, compare
from processes import CASES, run_on_hosts
from scenarios import NAMES, Scenario, check_timed, run_scenarios, show_scenarios
from sensitivity import run_sensitivity
from settings import SEEDS, TASKS, make

from plesio.bench.recipe import Recipe
from plesio.core.results import RunResult

sys.path.insert(0, str(Path(__file__).parents[1]))
from kept_runs import keep_runs

ROOT = Path(__file__).parents[2]
OUT = ROOT / "runs" / "evidence"
RESULTS = ROOT / "benchmarks" / "results" / "evidence.json"
ABLATION = {
    "all": "adaptive",
    "no gradient": "adaptive,gradient=off",
    "no noise": "adaptive,noise=off",
    "no phase": "adaptive,phase=off",
    "no feedback": "adaptive,feedback=off",
    "no progress": "adaptive,progress=off",
    "no guard": "adaptive,guard=off",
    "gradient alone": "adaptive,noise=off,phase=off,feedback=off,progress=off,guard=off",
    "phase alone": "adaptive,gradient=off,noise=off,feedback=off,progress=off,guard=off",
    "feedback alone": "adaptive,gradient=off,noise=off,phase=off,progress=off,guard=off",
    "system side alone": "adaptive,gradient=off,noise=off,phase=off,feedback=off,progress=off,guard=off",
}
"""By what is on; the system side always is."""
Runs = Mapping[str, Sequence[RunResult]]


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


def main_table(*, num_seeds: int, only: str | None, policy: str) -> dict[str, Comparison]:
    """Adaptive, or another policy, against BSP on slow links."""
    rows = {}
    for task in TASKS if only is None else [only]:
        recipe = make(task, network="slow", stragglers="equal", policies=["bsp", policy], seeds=SEEDS[:num_seeds])
        runs = do(f"{task}-slow-equal", recipe)
        rows |= {f"{task}, {policy}": compare(each, runs["bsp"]) for policy, each in runs.items()}
    show("", rows)
    return rows


def scenario_tables(*, num_seeds: int, only: str | None) -> list[Scenario]:
    """Adaptive's time to target against every static policy's, scenario by scenario."""
    found = run_scenarios([name for name in NAMES if name.startswith(only or "")], num_seeds=num_seeds, do=do)
    show_scenarios(found)
    return found


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
        short=True,
    )
    runs = do("ablation", recipe)
    names = {spec: name for name, spec in ABLATION.items()}
    rows = {names.get(policy, policy): compare(each, runs["bsp"]) for policy, each in runs.items()}
    show("ablation: digits, slow links, transient stragglers", rows)
    return rows


def processes_table(*, num_seeds: int) -> dict[str, Comparison]:
    """Four real processes."""
    rows = {}
    for name, case in CASES.items():
        runs = run_on_hosts(case, policies=["bsp", "adaptive"], seeds=SEEDS[:num_seeds])
        found = {policy: compare(each, runs["bsp"]) for policy, each in runs.items()}
        show(f"four real processes, {name}", found)
        rows |= {f"{name}, {policy}": row for policy, row in found.items()}
    return rows


def sensitivity_table(*, num_seeds: int) -> dict[str, Comparison]:
    """Tasks and optimizers, with fixed bounds and adaptive."""
    rows = {}
    for name, runs in run_sensitivity(num_seeds=num_seeds, do=do):
        found = {policy: compare(each, runs["bsp"]) for policy, each in runs.items()}
        show(name, found)
        rows |= {f"{name}, {policy}": row for policy, row in found.items()}
    return rows


def show(title: str, rows: Mapping[str, Comparison]) -> None:
    """Print a Markdown table."""
    print(f"\n{title}\n")
    print("| | final metric | against bsp (95 %) | p | bytes / bsp | time / bsp | time to target |")
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for name, row in rows.items():
        print(
            f"| `{name}` | {row.metric:.2f} ± {row.deviation:.2f} | {row.metric_change.text()} "
            f"| {row.metric_change.p:.2f} | {row.bytes:.3f} | {row.time:.3f} | {row.to_target_s:.2f} s |"
        )


def keep(name: str, rows: Mapping[str, Comparison] | Sequence[Scenario], *, num_seeds: int) -> None:
    """Write the rows beside those of earlier calls."""
    data = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    data[name] = {"seeds": list(SEEDS[:num_seeds]), "rows": _as_json(rows)}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(data, indent=1) + "\n")


def _as_json(rows: Mapping[str, Comparison] | Sequence[Scenario]) -> object:
    if not isinstance(rows, Mapping):
        return {
            it.name: {policy: [_finite(one_s) for one_s in each] for policy, each in it.to_target_s.items()}
            for it in rows
        }
    return {
        key: {
            "metric": row.metric,
            "deviation": row.deviation,
            "metric_change": [row.metric_change.mean, row.metric_change.half_width, row.metric_change.p],
            "bytes": row.bytes,
            "time": row.time,
            "to_target_s": _finite(row.to_target_s),
        }
        for key, row in rows.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def main() -> None:
    """Do what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "table",
        choices=[
            "main",
            "scenarios",
            "check",
            "straggler",
            "ablation",
            "sensitivity",
            "processes",
        ],
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1, at most 10 (5)")
    parser.add_argument("--only", metavar="NAME", help="one scenario, or one task")
    parser.add_argument("--policy", default="adaptive", help="main: what is held against bsp (adaptive)")
    arguments = parser.parse_args()
    known = {"main": list(TASKS), "scenarios": [*TASKS, *NAMES]}.get(arguments.table, [])
    if arguments.only is not None and arguments.only not in known:
        parser.error(f"--only {arguments.only} is not in {arguments.table}; known: {', '.join(known) or 'none'}")
    least = 1 if arguments.table == "scenarios" else 2
    if not least <= arguments.seeds <= len(SEEDS):
        parser.error(f"--seeds {arguments.seeds}: write {least} to {len(SEEDS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    num_seeds = arguments.seeds
    if arguments.table == "check":
        check_timed("digits-slow-transient", "local_sgd:8,delay=4", seed=SEEDS[0], do=do)
        check_timed("stdlib_lm-fast-persistent", "bsp,compress=qsgd:8", seed=SEEDS[0], do=do)
        return
    tables: dict[str, Callable[[], dict[str, Comparison] | list[Scenario]]] = {
        "main": lambda: main_table(num_seeds=num_seeds, only=arguments.only, policy=arguments.policy),
        "scenarios": lambda: scenario_tables(num_seeds=num_seeds, only=arguments.only),
        "straggler": lambda: straggler_table(num_seeds=num_seeds),
        "ablation": lambda: ablation_table(num_seeds=num_seeds),
        "sensitivity": lambda: sensitivity_table(num_seeds=num_seeds),
        "processes": lambda: processes_table(num_seeds=num_seeds),
    }
    rows = tables[arguments.table]()
    name = arguments.table if arguments.only is None else f"{arguments.table} {arguments.only}"
    keep(name, rows, num_seeds=num_seeds)


if __name__ == "__main__":
    main()
