"""Compression, delayed gradients and delayed averaging on a slow link: time, bytes and accuracy beside BSP.

Virtual: digits by 8 workers with batches of 8, steps of 20 ms (log-normal, cv 0.2), a host each, on links on which an
all-reduce of the gradients takes about a step (100 Mbit/s) or five (20 Mbit/s). Codecs cost nothing there
(`benchmarks/adaptive/compression.py` has what they cost); bytes and the numbers trained with are real.

    python benchmarks/adaptive/overlap.py [--seeds 3] [--quick]

Prints tables and writes benchmarks/results/overlap.json.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import plesio
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.step_time import LogNormal
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks import load_task

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import print_table, print_verdict, save

POLICIES = (
    "bsp",
    "bsp,compress=fp16",
    "bsp,compress=topk:0.01",
    "bsp,compress=topk:0.01+no_feedback",
    "bsp,compress=powersgd:2",
    "delayed:1",
    "delayed:2",
    "delayed:1,compress=fp16",
    "local_sgd:8",
    "local_sgd:8,compress=topk:0.01",
    "local_sgd:8,compress=topk:0.01+no_feedback",
    "local_sgd:8,delay=8",
    "local_sgd:8,delay=8,compress=qsgd:8",
)
NUM_WORKERS, BATCH_SIZE, STEP_S = 8, 8, 0.02
LINKS = {"100 Mbit/s": 12.5e6, "20 Mbit/s": 2.5e6}


def cluster_of(bytes_per_s: float) -> Cluster:
    nic = Link(latency_s=100e-6, bytes_per_s=bytes_per_s)
    return Cluster(name="slow", hosts=NUM_WORKERS, workers_per_host=1, cores_per_host=1, nic=nic)


def train(policy: str, *, cluster: Cluster, seed: int, num_epochs: int) -> RunResult:
    task = load_task("digits", batch_size=BATCH_SIZE, num_epochs=num_epochs)
    dataset: Any = task.train_set()

    def work(job: VirtualJob) -> None:
        model, optimizer = task.build(seed)
        pacer = Pacer(step_time=LogNormal(mean_s=STEP_S, cv=0.2), seed=seed, worker=job.place.rank, clock=job.clock)
        options = plesio.JoinOptions(info=RunInfo(seed=seed), pacer=pacer)
        with plesio.join(model, optimizer, policy=policy, options=options) as session:
            loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)
            for batch in session.shard(loader, samples=num_epochs * len(dataset)):
                loss = task.loss(model, batch)
                loss.backward()
                session.step(loss)
            session.finish(lambda: task.metric(model))

    simulation = simulate(work, num_workers=NUM_WORKERS, cluster=cluster, seed=seed)
    simulation.values()
    [run] = simulation.runs
    return run


def measure(bytes_per_s: float, *, num_seeds: int, num_epochs: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for policy in POLICIES:
        runs = [
            train(policy, cluster=cluster_of(bytes_per_s), seed=seed, num_epochs=num_epochs)
            for seed in range(num_seeds)
        ]
        results[policy] = {
            "virtual_s": [run.virtual_s for run in runs],
            "collective_bytes": [run.bytes_sent["collective"] for run in runs],
            "accuracy": [run.final_metric for run in runs],
            "last_loss": [run.losses[-1].loss for run in runs],
            "fallbacks": [list(run.fallbacks) for run in runs],
        }
    return results


def table(link: str, results: dict[str, Any], *, num_seeds: int) -> None:
    def mean(policy: str, name: str) -> float:
        return statistics.fmean(results[policy][name])

    rows = [
        [
            policy,
            f"{mean(policy, 'virtual_s'):.2f}",
            f"{mean('bsp', 'virtual_s') / mean(policy, 'virtual_s'):.2f}",
            f"{mean(policy, 'collective_bytes') / mean('bsp', 'collective_bytes'):.4f}",
            f"{100 * mean(policy, 'accuracy'):.1f}",
            f"{100 * min(results[policy]['accuracy']):.1f}",
            str(sum(map(len, results[policy]["fallbacks"]))),
        ]
        for policy in results
    ]
    columns = ["", "virtual s", "times bsp", "bytes of bsp's", "accuracy, %", "worst seed", "fallbacks"]
    print_table(f"digits, {NUM_WORKERS} workers, {link}, {num_seeds} seeds", columns=columns, rows=rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each policy")
    parser.add_argument("--quick", action="store_true", help="does it work?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    num_seeds, num_epochs = (1, 2) if arguments.quick else (arguments.seeds, 16)
    results = {}
    for link, bytes_per_s in LINKS.items():
        results[link] = measure(bytes_per_s, num_seeds=num_seeds, num_epochs=num_epochs)
        table(link, results[link], num_seeds=num_seeds)
    slow = results["100 Mbit/s"]
    faster = statistics.fmean(slow["bsp"]["virtual_s"]) / statistics.fmean(slow["delayed:1"]["virtual_s"])
    lost = statistics.fmean(slow["bsp"]["accuracy"]) - statistics.fmean(slow["delayed:1"]["accuracy"])
    met = faster >= 1.4 and lost <= 0.01
    print_verdict("where an exchange takes a step, delayed:1 is 1.4x as fast as bsp and loses a point at most", met=met)
    if not arguments.quick:
        settings = {"seeds": num_seeds, "workers": NUM_WORKERS, "batch_size": BATCH_SIZE, "step_s": STEP_S}
        save("overlap", settings=settings, results=results, met=met)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
