"""What sparse gradients save: bytes and time of a step of a large embedding, and time of a look at its gradient.

Virtual: 8 workers, a host each with 1 Gbit/s, steps of 20 ms; a bag of words with rows of 32 numbers, of which each
batch touches 512 at most, and a layer, under plain SGD. Real: the processor time in which `StepMonitor`, which the
adaptive policy has, measures one gradient. Met if steps under `bsp` and `delayed` and the look cost less, and those
under `adaptive` with sparse gradients take at most 1.02 of the better of `bsp` and `local_sgd:8`.

    python benchmarks/adaptive/sparse_gradients.py [--rows 50000] [--quick]

Prints tables and writes benchmarks/results/sparse_gradients.json.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.clock import MonotonicClock
from plesio.core.results import RunResult
from plesio.core.trace import TraceWriter
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.step_time import Constant
from plesio.policies.adaptive import GuardConfig, ReviewConfig
from plesio.runtime.worker.exchange.exchange import Progress
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worker.monitor import StepMonitor
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worker.timeline import Timeline
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import print_table, print_verdict, save

POLICIES = ("bsp", "delayed:1", "local_sgd:8", "asp", "adaptive,system.store=off", "adaptive")
LIMIT = 1.02
"""Of a step under `adaptive`, over the better of the two that it has to choose from."""
NUM_WORKERS, WIDTH, BATCH_SIZE, WORDS, NUM_STEPS = 8, 32, 32, 16, 40


class Bag(nn.Module):
    """A bag of words and a layer."""

    def __init__(self, rows: int, *, sparse: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, WIDTH, sparse=sparse)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number a sample."""
        out: Tensor = self.last(self.bag(x))
        return out


def train(policy: str, *, rows: int, sparse: bool, num_steps: int) -> RunResult:
    """One run in the virtual world."""
    num_samples = NUM_WORKERS * BATCH_SIZE * num_steps
    words = torch.randint(0, rows, (num_samples, WORDS), generator=torch.Generator().manual_seed(0))
    data = TensorDataset(words, words.float().mean(1, keepdim=True) / rows)

    def work(job: VirtualJob) -> None:
        torch.manual_seed(0)
        model = Bag(rows, sparse=sparse)
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=0, worker=job.place.rank, clock=job.clock)
        with plesio.join(
            model, torch.optim.SGD(model.parameters(), lr=0.05), policy=policy, options=plesio.JoinOptions(pacer=pacer)
        ) as session:
            for x, y in session.shard(DataLoader(data, batch_size=BATCH_SIZE, shuffle=True)):
                loss = (model(x) - y).square().mean()
                loss.backward()
                session.step(loss)

    nic = Link(latency_s=50e-6, bytes_per_s=125e6)
    cluster = Cluster(name="8x1gbe", hosts=NUM_WORKERS, workers_per_host=1, cores_per_host=1, nic=nic)
    [result] = simulate(work, num_workers=NUM_WORKERS, cluster=cluster).runs
    return result


def look_s(rows: int, *, sparse: bool, repeats: int) -> list[float]:
    """Processor seconds of looks at one gradient."""
    clock = MonotonicClock()
    timeline = Timeline(Meter(), TraceWriter(None, header={}, on_failure=print, clock=clock), clock=clock)
    monitor = StepMonitor(
        0,
        config=ReviewConfig(),
        guard=GuardConfig(),
        timeline=timeline,
        rounds=RoundRecords(0, NUM_WORKERS, say=print),
        total_samples=None,
    )
    model = Bag(rows, sparse=sparse)
    model(torch.randint(0, rows, (BATCH_SIZE, WORDS))).square().mean().backward()
    gradients = [p.grad.coalesce() if p.grad.is_sparse else p.grad for p in model.parameters() if p.grad is not None]
    took_s = []
    for clock_ in range(1, repeats + 1):
        began_s = time.process_time()
        monitor.measure(gradients)
        took_s.append(time.process_time() - began_s)
        monitor.step(Progress(clock_, BATCH_SIZE, None, 1.0, 0.0))
    return took_s


def main() -> int:
    """Run all, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="5 steps, 20 looks")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    num_steps, repeats = (5, 20) if arguments.quick else (NUM_STEPS, 400)
    found: dict[str, Any] = {}
    table = []
    for policy in POLICIES:
        by_kind = {
            kind: train(policy, rows=arguments.rows, sparse=kind == "sparse", num_steps=num_steps)
            for kind in ("dense", "sparse")
        }
        found[policy] = {
            kind: {"step_s": run.wall_s / num_steps, "step_bytes": run.bytes_sent_total / num_steps / NUM_WORKERS}
            for kind, run in by_kind.items()
        }
        cells = [f"{one['step_s'] * 1e3:.1f} ms, {one['step_bytes'] / 1e6:.2f} MB" for one in found[policy].values()]
        table.append([policy, *cells])
    title = f"{arguments.rows} rows of {WIDTH} numbers"
    print_table(title, columns=["policy", "dense: a step", "sparse: a step"], rows=table)
    looks = {kind: look_s(arguments.rows, sparse=kind == "sparse", repeats=repeats) for kind in ("dense", "sparse")}
    found["look_s"] = {kind: statistics.median(each) for kind, each in looks.items()}
    for kind, each in looks.items():
        quartiles = statistics.quantiles(each, n=4)
        low, middle, high = (f"{1e6 * each_s:.0f}" for each_s in quartiles)
        print(f"a look at a {kind} gradient: {middle} us ({low}-{high})")
    collectives = [found[policy] for policy in POLICIES if policy in ("bsp", "delayed:1")]
    met = all(one["sparse"][key] < one["dense"][key] for one in collectives for key in ("step_s", "step_bytes"))
    met = met and found["look_s"]["sparse"] < found["look_s"]["dense"]
    print_verdict("under bsp and delayed, sparse gradients take less time and bytes; so does a look", met=met)
    best_s = min(found[policy]["sparse"]["step_s"] for policy in ("bsp", "local_sgd:8"))
    chosen = all(found[policy]["sparse"]["step_s"] <= LIMIT * best_s for policy in POLICIES if "adaptive" in policy)
    print_verdict("under adaptive a sparse step takes at most 1.02 of the better of bsp and local_sgd:8", met=chosen)
    met = met and chosen
    save("sparse_gradients", settings=vars(arguments), results=found, met=met)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
