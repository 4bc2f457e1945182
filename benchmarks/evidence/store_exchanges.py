"""Exchanges with the store behind the training, and DiLoCo on the store: docs/log.md, sections 85 and 93.

    python benchmarks/evidence/store_exchanges.py thin        # the blocked share of three workers on links of 16 Mbit/s
    python benchmarks/evidence/store_exchanges.py quorum      # the blocked share of 3 to 8 workers with a quorum of 2
    python benchmarks/evidence/store_exchanges.py hidden      # what a delay costs in learning, on two tasks
    python benchmarks/evidence/store_exchanges.py unequal     # rounds of all and quorums, speeds 1, 1, 0.5 and 0.25
    python benchmarks/evidence/store_exchanges.py adam        # Adam as the outer optimizer, the same speeds
    python benchmarks/evidence/store_exchanges.py drill       # eight workers, of which nine are killed and replaced
    python benchmarks/evidence/store_exchanges.py compress    # bytes, time and accuracy of compressed exchanges
    python benchmarks/evidence/store_exchanges.py options     # fragments, rda and heloco, speeds 1, 1, 0.5 and 0.25

All runs are in virtual time. They are kept in runs/store_exchanges/; what is there is not done again.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from plesio.bench.recipe import make_recipe
from plesio.core.results import RunResult

sys.path.insert(0, str(Path(__file__).parents[1]))
from kept_runs import keep_runs
from record import plus_minus, print_table

OUT = Path(__file__).parents[2] / "runs" / "store_exchanges"
DIGITS = {"name": "digits"}
SMALL_LM = {
    "name": "stdlib_lm",
    "batch_size": 8,
    "options": {"width": 32, "depth": 1, "context": 32, "corpus_bytes": 200_000},
}
SPEEDS = (1.0, 1.0, 0.5, 0.25)
ROUNDS = "diloco:8,outer_momentum=0.3"
ON_STORE = f"{ROUNDS},exchange=store"
ADAM = "diloco:8,outer=adam"
KILLS_S = tuple(range(10, 100, 10))

Runs = dict[str, list[RunResult]]


def do(
    name: str,
    *,
    policies: Sequence[str],
    seeds: Sequence[int],
    task: Mapping[str, Any],
    workers: Mapping[str, Any],
    run: Mapping[str, Any],
) -> Runs:
    """Return the runs by policy."""
    recipe = make_recipe(
        {"task": task, "run": {"policies": list(policies), "seeds": list(seeds), **run}, "workers": workers},
        folder=Path.cwd(),
        where=name,
    )
    return keep_runs(recipe, out=OUT / name)


def hosts(num_hosts: int, *, bandwidth: str) -> str:
    return f'hosts = {num_hosts}\n[nic]\nlatency = "50 us"\nbandwidth = "{bandwidth}"\n'


def lognormal(mean: str, cv: float) -> dict[str, Any]:
    return {"kind": "lognormal", "mean": mean, "cv": cv}


def unequal_workers(*, bandwidth: str = "1 Gbit/s") -> dict[str, Any]:
    return {
        "count": len(SPEEDS),
        "cluster": hosts(len(SPEEDS), bandwidth=bandwidth),
        "step_time": lognormal("20 ms", 0.1),
        "unequal": [{"rank": rank, "speed": speed} for rank, speed in enumerate(SPEEDS) if speed < 1],
    }


def blocked(run: RunResult) -> float:
    """Return the share of the workers' time in which they waited or communicated."""
    lost_s = sum(one.wait_s + one.communicate_s for one in run.workers)
    return lost_s / sum(one.wait_s + one.communicate_s + one.compute_s for one in run.workers)


def metrics(runs: Sequence[RunResult], form: str, *, scale: float = 1.0) -> str:
    return ", ".join(f"{scale * (run.final_metric or math.nan):{form}}" for run in runs)


def show_thin() -> None:
    """Print how long three workers are blocked, and their accuracy."""
    hidden = ("asp,delay=1", "ssp:4,delay=1", f"{ON_STORE},delay=2")
    policies = ("asp", "ssp:4", *hidden, f"{ON_STORE},quorum=2,grace=50ms")
    runs = do(
        "thin",
        policies=policies,
        seeds=[0, 1, 2],
        task={**DIGITS, "batch_size": 8},
        workers={"count": 3, "cluster": hosts(3, bandwidth="16 Mbit/s"), "step_time": lognormal("200 ms", 0.1)},
        run={"samples": 1_440},
    )
    rows = [
        [
            policy,
            plus_minus([run.wall_s for run in found], ".1f"),
            f"{max(map(blocked, found)):.1%}",
            metrics(found, ".1f", scale=100),
        ]
        for policy, found in runs.items()
    ]
    print_table("three workers, 16 Mbit/s", columns=["policy", "s", "blocked at most", "accuracy"], rows=rows)


def show_quorum() -> None:
    """Print how long equal workers are blocked, where a quorum of 2 leaves one over and where it does not."""
    policies = (f"{ON_STORE},quorum=2", f"{ON_STORE},quorum=2,grace=20ms", f"{ON_STORE},quorum=2,delay=4")
    rows = []
    for count in (3, 4, 5, 8):
        runs = do(
            f"quorum-{count}",
            policies=policies,
            seeds=[0],
            task={**DIGITS, "batch_size": 8},
            workers={
                "count": count,
                "cluster": hosts(count, bandwidth="1 Gbit/s"),
                "step_time": lognormal("20 ms", 0.1),
            },
            run={"samples": 960 * count},
        )
        rows.append([f"{count}", *(f"{blocked(found[0]):.1%}" for found in runs.values())])
    print_table("blocked", columns=["workers", "quorum=2", "quorum=2,grace=20ms", "quorum=2,delay=4"], rows=rows)


def show_hidden() -> None:
    """Print what a delay costs in learning."""
    common = {
        "policies": ("bsp", "asp", "asp,delay=1", "ssp:4", "ssp:4,delay=1"),
        "seeds": [0, 1, 2],
        "workers": {"count": 4, "cluster": hosts(4, bandwidth="1 Gbit/s"), "step_time": lognormal("20 ms", 0.3)},
    }
    digits = do("hidden-digits", task=DIGITS, run={"epochs": 8}, **common)
    texts = do("hidden-stdlib_lm", task=SMALL_LM, run={"samples": 8_000}, **common)
    rows = [
        [
            policy,
            metrics(found, ".1f", scale=100),
            metrics(texts[policy], ".1f"),
            f"{statistics.fmean(run.staleness.mean for run in found):.1f}",
        ]
        for policy, found in digits.items()
    ]
    print_table("four workers", columns=["policy", "accuracy", "perplexity", "mean staleness, digits"], rows=rows)


def show_unequal() -> None:
    """Print perplexities, losses over those of rounds, and times over theirs."""
    runs = do(
        "unequal",
        policies=(ROUNDS, ON_STORE, f"{ON_STORE},quorum=2", f"{ON_STORE},steps=dynamic"),
        seeds=range(5),
        task=SMALL_LM,
        workers=unequal_workers(),
        run={"samples": 12_000},
    )
    rounds = runs[ROUNDS]
    rows = []
    for policy, found in runs.items():
        over = [
            math.log(run.final_metric or math.nan) / math.log(one.final_metric or math.nan) - 1
            for run, one in zip(found, rounds, strict=True)
        ]
        times = [run.wall_s / one.wall_s for run, one in zip(found, rounds, strict=True)]
        losses = ", ".join(f"{100 * one:+.2f}" for one in over)
        rows.append([policy, metrics(found, ".2f"), losses, plus_minus(times)])
    columns = ["policy", "perplexity", "loss over that of rounds, %", "time over theirs"]
    print_table(f"speeds {SPEEDS}, seeds 0 to 4", columns=columns, rows=rows)


def show_adam() -> None:
    """Print what Adam comes to as the outer optimizer."""
    policies = [ROUNDS, *(f"{ADAM},outer_lr={rate}" for rate in (0.003, 0.01, 0.03))]
    policies.append(f"{ADAM},outer_lr=0.01,exchange=store")
    common = {"policies": policies, "seeds": [0, 1], "workers": unequal_workers()}
    digits = do("adam-digits", task=DIGITS, run={"epochs": 10}, **common)
    texts = do("adam-stdlib_lm", task=SMALL_LM, run={"samples": 12_000}, **common)
    rows = [[one, metrics(found, ".1f", scale=100), metrics(texts[one], ".1f")] for one, found in digits.items()]
    print_table(f"speeds {SPEEDS}, seeds 0 and 1", columns=["policy", "accuracy", "perplexity"], rows=rows)


def show_drill() -> None:
    """Print what kills and joins cost."""
    faults = [
        fault
        for worker, at_s in enumerate(KILLS_S)
        for fault in (
            {"at": f"{at_s} s", "kind": "lose", "worker": worker},
            {"at": f"{at_s + 5} s", "kind": "join"},
        )
    ]
    rows = []
    for name, given in (("undisturbed", []), ("drill", faults)):
        [run] = do(
            f"drill-{name}",
            policies=[ON_STORE],
            seeds=[0],
            task=DIGITS,
            workers={
                "count": 8,
                "cluster": hosts(8, bandwidth="1 Gbit/s"),
                "step_time": lognormal("200 ms", 0.1),
                "faults": given,
            },
            run={"samples": 122_880},
        )[ON_STORE]
        rows.append(
            [
                name,
                f"{run.wall_s:.1f}",
                f"{sum(one.compute_s for one in run.workers) / run.wall_s:.2f}",
                f"{blocked(run):.2%}",
                f"{max(one.wait_s + one.communicate_s for one in run.workers):.1f}",
                metrics([run], ".2f", scale=100),
            ]
        )
    columns = ["run", "s", "workers that compute", "blocked", "most blocked worker, s", "accuracy"]
    print_table("eight workers", columns=columns, rows=rows)


def show_compress() -> None:
    """Print what compression saves and costs, on links of 16 Mbit/s."""
    forms = ("", "qsgd:8", "qsgd:2", "topk:0.015625+chunks+bits:2")
    policies = [
        f"{policy},compress={form}" if form else policy for policy in ("asp", "ssp:4", ON_STORE) for form in forms
    ]
    workers = unequal_workers(bandwidth="16 Mbit/s")
    runs = do("compress", policies=policies, seeds=[0], task=DIGITS, workers=workers, run={"epochs": 12})
    rows = []
    for policy, [run] in runs.items():
        [plain] = runs[policy.partition(",compress")[0]]
        shares = [f"{run.bytes_sent_total / plain.bytes_sent_total:.2f}", f"{run.wall_s / plain.wall_s:.2f}"]
        rows.append([policy, *shares, metrics([run], ".1f", scale=100)])
    columns = ["policy", "bytes", "time", "accuracy"]
    print_table("digits, 16 Mbit/s; bytes and time over those in full", columns=columns, rows=rows)


def show_options() -> None:
    """Print what DiLoCo's options on the store come to."""
    high = "diloco:8,exchange=store"
    policies = (ON_STORE, f"{ON_STORE},fragments=4", f"{ON_STORE},late=heloco", f"{ON_STORE},quorum=2",
                f"{ON_STORE},quorum=2,merge=rda", high, f"{high},late=heloco")  # fmt: skip
    run = {"samples": 6_000}
    runs = do("options", policies=policies, seeds=[0, 1], task=SMALL_LM, workers=unequal_workers(), run=run)
    rows = [
        [one, metrics(found, ".2f"), f"{statistics.fmean(r.wall_s for r in found):.1f}"] for one, found in runs.items()
    ]
    print_table(f"speeds {SPEEDS}, seeds 0 and 1", columns=["policy", "perplexity", "s"], rows=rows)


SHOWS = {
    "thin": show_thin,
    "quorum": show_quorum,
    "hidden": show_hidden,
    "unequal": show_unequal,
    "adam": show_adam,
    "drill": show_drill,
    "compress": show_compress,
    "options": show_options,
}


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*SHOWS])
    torch.set_num_threads(1)
    SHOWS[parser.parse_args().what]()


if __name__ == "__main__":
    main()
