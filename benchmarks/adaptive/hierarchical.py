"""Exchanging seldom only between racks: what crosses them, how long training takes, and what is learned.

- Training: hierarchical.toml, the digits on 16 virtual workers in two racks that are far from each other, under hier
  and under adaptive with and without racks. Time and bytes between racks relative to flat BSP of the same seed; final
  accuracy, its difference to BSP's by seed, and a paired t test of that difference.
- Ways between racks: the same averaging by the racks' first ranks alone (*leaders*), which then broadcast in the rack,
  and by all ranks, a slice each (*rails*), which then gather in the rack; modelled, with the bytes the same.

    python benchmarks/adaptive/hierarchical.py [--seeds 8] [--first-seed 0] [--quick]

Prints tables and writes benchmarks/results/hierarchical.json. Runs are kept in runs/hierarchical/ and not done twice.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plesio.bench.recipe import load_recipe
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster, parse_cluster
from plesio.cost.placement import all_reduce_on, broadcast_on
from plesio.runtime.worker.exchange.racks import Racks

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "evidence"))
from figures import difference

from kept_runs import keep_runs
from record import Spread, print_table, print_verdict, save

HERE = Path(__file__).parent
KEPT = HERE.parents[1] / "runs" / "hierarchical"
MOST_BYTES, MOST_POINTS = 0.27, 0.3
"""The criterion: bytes between racks relative to BSP's, and how far the accuracy may be below it."""
SIZES = {"digits, 154 kB": 154e3, "100 MB": 100e6}


def train(*, seeds: Sequence[int]) -> dict[str, list[RunResult]]:
    """Finished runs by policy, in the order of their seeds."""
    recipe = load_recipe(HERE / "hierarchical.toml", seeds=seeds)
    runs = keep_runs(recipe, out=KEPT)
    assert all(run.status == "finished" for each in runs.values() for run in each), "printed above"
    return runs


def figures(runs: Sequence[RunResult], bsp: Sequence[RunResult]) -> dict[str, Any]:
    """Return the figures of a policy, seed by seed against BSP's."""
    accuracies, strict = ([100 * (run.final_metric or 0.0) for run in each] for each in (runs, bsp))
    change = difference(accuracies, strict)
    return {
        "virtual_s": Spread([run.wall_s for run in runs]),
        "time": Spread([run.wall_s / other.wall_s for run, other in zip(runs, bsp, strict=True)]),
        "cross_rack_bytes": statistics.fmean(run.bytes_sent_cross_rack for run in runs),
        "bytes": Spread(
            [run.bytes_sent_cross_rack / other.bytes_sent_cross_rack for run, other in zip(runs, bsp, strict=True)]
        ),
        "accuracy": accuracies,
        "mean": statistics.fmean(accuracies),
        "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        "difference": change.mean,
        "half_width": change.half_width,
        "p": change.p,
    }


def ways(cluster: Cluster, num_bytes: float) -> dict[str, float]:
    """Seconds of an averaging between racks, and of spreading it, by way."""
    racks = Racks.of([cluster.rack_of(rank) for rank in range(cluster.num_slots)])
    inside, rails = racks.members, racks.rails
    leaders = [ranks[0] for ranks in inside]
    return {
        "leaders": all_reduce_on(cluster, leaders, num_bytes),
        "broadcast": broadcast_on(cluster, inside[0], num_bytes, beside=inside[1:]),
        "rails": all_reduce_on(cluster, rails[0], num_bytes / len(rails), beside=rails[1:]),
        "gather": all_reduce_on(cluster, inside[0], num_bytes, beside=inside[1:]) / 2,
    }


def show_training(results: dict[str, dict[str, Any]], *, num_seeds: int) -> None:
    rows = [
        [
            spec,
            f"{row['virtual_s']['median']:.2f}",
            f"{row['time']['median']:.2f}",
            f"{row['bytes']['median']:.3f}",
            f"{row['mean']:.2f} ± {row['deviation']:.2f} %",
            f"{row['difference']:+.2f} ± {row['half_width']:.2f}",
            f"{row['p']:.2f}",
        ]
        for spec, row in results.items()
    ]
    columns = ["", "virtual s", "time / bsp", "cross-rack / bsp", "accuracy", "points to bsp (95 %)", "p"]
    print_table(f"digits, 16 workers in 2 racks, {num_seeds} seeds", columns=columns, rows=rows)


def show_ways(results: dict[str, dict[str, dict[str, float]]]) -> None:
    rows = [
        [
            f"{name}, {size}",
            f"{1e3 * row['leaders']:.2f} + {1e3 * row['broadcast']:.2f}",
            f"{1e3 * row['rails']:.2f} + {1e3 * row['gather']:.2f}",
            f"{(row['leaders'] + row['broadcast']) / (row['rails'] + row['gather']):.2f}",
        ]
        for name, sizes in results.items()
        for size, row in sizes.items()
    ]
    columns = ["", "leaders + broadcast, ms", "rails + gather, ms", "ratio"]
    print_table("an averaging between racks, and then in them", columns=columns, rows=rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="trainings of each policy")
    parser.add_argument("--first-seed", type=int, default=0, help="100 and more to try something")
    parser.add_argument("--quick", action="store_true", help="does it work?")
    arguments = parser.parse_args()
    num_seeds = 1 if arguments.quick else arguments.seeds
    runs = train(seeds=range(arguments.first_seed, arguments.first_seed + num_seeds))
    training = {spec: figures(each, runs["bsp"]) for spec, each in runs.items()}
    show_training(training, num_seeds=num_seeds)
    clusters = {"far": parse_cluster(str(HERE / "two-racks-far.toml")), "2-racks": parse_cluster("2-racks")}
    modelled = {
        name: {size: ways(cluster, num_bytes) for size, num_bytes in SIZES.items()}
        for name, cluster in clusters.items()
    }
    show_ways(modelled)
    met = {
        name: all(
            row["bytes"]["median"] <= MOST_BYTES and row["difference"] >= -MOST_POINTS
            for spec, row in training.items()
            if spec.startswith(name)
        )
        for name in ("hier", "adaptive")
    }
    for name, each in met.items():
        print_verdict(
            f"across racks at most {MOST_BYTES:.0%} of bsp's bytes, accuracy at most {MOST_POINTS} points below: "
            f"each {name}",
            met=each,
        )
    if not arguments.quick:
        settings = {"seeds": num_seeds, "first_seed": arguments.first_seed}
        save("hierarchical", settings=settings, results={"training": training, "ways": modelled}, met=all(met.values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
