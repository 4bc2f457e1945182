"""Throughput with one worker of four that is three times slower: `asp` against `bsp`, and two others beside them.

Four processes train the `digits` task; each computes the real gradient and paces the step to 20 ms (60 ms on the slow
worker). All policies run in turn in the same processes, on the same number of samples, in an order that rotates from
round to round; a ratio is a policy's samples per second by those of `bsp` in the same round. Without communication
`asp` could reach (3 + 1/3) / (4/3) = 2.5.

A step whose gradient took longer than its 20 ms is an overrun: the numbers then describe this machine, not the recipe.

    python benchmarks/bench_straggler.py [--rounds 7] [--milliseconds 20] [--quick]

Prints a table and writes benchmarks/results/straggler.json.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import plesio
from plesio.cost.step_time import Constant
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.pacing import Pacer
from plesio.tasks.digits import digits
from plesio.testing import LocalJob
from record import Spread, print_table, print_verdict, save

GOAL = 2.3
NUM_WORKERS = 4
SLOW_WORKER, SLOW_SPEED = 3, 1 / 3
POLICIES = ("bsp", "asp", "ssp:4,period=3", "local_sgd:8")


def run_once(policy: str, *, num_samples: int, step_s: float, job: plesio.Job) -> dict[str, float]:
    """Train under ``policy``; the run's figures, complete on rank 0."""
    task = digits()
    model, optimizer = task.build(0)
    rank = job.place.rank
    speed = SLOW_SPEED if rank == SLOW_WORKER else 1.0
    pacer = Pacer(step_time=Constant(mean_s=step_s), speed=speed, seed=0, worker=rank)
    loader = DataLoader(task.train_set(), batch_size=task.batch_size, shuffle=True)
    with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer, job=job)) as session:
        for batch in session.shard(loader, samples=num_samples):
            loss = task.loss(model, batch)
            loss.backward()
            session.step(loss)
    overruns = torch.tensor([pacer.overruns.num_overruns, pacer.overruns.steps], dtype=torch.float64)
    dist.all_reduce(overruns)
    run = session.report()
    wait_s = sum(worker.wait_s for worker in run.workers)
    return {
        "samples_per_s": run.samples_per_s,
        "wait_share": wait_s / (run.num_workers * run.wall_s),
        "bytes_per_sample": run.bytes_sent_total / run.samples,
        "staleness": run.staleness.mean,
        "overrun_share": float(overruns[0] / overruns[1]),
    }


def work(*, num_rounds: int, num_samples: int, step_s: float) -> list[dict[str, dict[str, float]]]:
    """Measure as one worker; return every round's figures, complete on rank 0."""
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    assert place is not None
    with plesio.Job(place) as job:
        job.group("cpu")
        for policy in POLICIES:
            run_once(policy, num_samples=num_samples // 4, step_s=step_s, job=job)  # starts servers, fills caches
        rounds = []
        for number in range(num_rounds):
            turn = number % len(POLICIES)
            order = POLICIES[turn:] + POLICIES[:turn]
            rounds.append(
                {policy: run_once(policy, num_samples=num_samples, step_s=step_s, job=job) for policy in order}
            )
    return rounds


def summarise(rounds: list[dict[str, dict[str, float]]], *, policy: str) -> dict[str, Any]:
    """Median and spread of a policy's figures, and of its ratio to `bsp`."""
    figures: dict[str, Any] = {name: Spread([one[policy][name] for one in rounds]) for name in rounds[0][policy]}
    ratios = [one[policy]["samples_per_s"] / one["bsp"]["samples_per_s"] for one in rounds]
    return {**figures, "ratio_to_bsp": Spread(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=9_600, help="of every run, over all workers")
    parser.add_argument("--milliseconds", type=float, default=20.0, help="a step of a worker that is not slow")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 1280 samples: does it work?")
    arguments = parser.parse_args()
    num_rounds, num_samples = (2, 1280) if arguments.quick else (arguments.rounds, arguments.samples)
    step_s = arguments.milliseconds / 1e3
    options = {"num_rounds": num_rounds, "num_samples": num_samples, "step_s": step_s}
    with LocalJob(NUM_WORKERS) as job:
        endings = job.run(Path(__file__), "work", timeout_s=3600, **options)
    assert endings[0].error is None, endings[0].trace
    rounds = endings[0].value
    results = {policy: summarise(rounds, policy=policy) for policy in POLICIES}
    rows = [
        [
            policy,
            row["samples_per_s"].text(".0f"),
            row["ratio_to_bsp"].text(".2f"),
            f"{row['wait_share']['median']:.0%}",
            f"{row['bytes_per_sample']['median'] / 1e3:.1f} kB",
            f"{row['staleness']['median']:.1f}",
            f"{row['overrun_share']['median']:.1%}",
        ]
        for policy, row in results.items()
    ]
    columns = ["policy", "samples/s", "ratio to bsp", "waiting", "sent a sample", "staleness", "overruns"]
    title = f"one worker of four 3x slower, {num_rounds} rounds of {num_samples} samples"
    print_table(title, columns=columns, rows=rows)
    met = results["asp"]["ratio_to_bsp"]["median"] >= GOAL
    print_verdict(f"asp has at least {GOAL} times the throughput of bsp", met=met)
    settings = {"rounds": num_rounds, "samples": num_samples, "step_s": step_s, "slow_speed": SLOW_SPEED}
    save("straggler", settings=settings, results=results, met=met)


if __name__ == "__main__":
    main()
