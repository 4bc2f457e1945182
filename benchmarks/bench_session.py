"""BSP through a Session against a hand-written DDP loop: what does Plesio add to a step?

The same processes run both, in blocks: A B, then B A, and so on; a ratio is the hand-written block's time by the
session's in the same pair, so whatever else the machine does meets both. Each block builds its model, its loader and
its DDP (or session) anew and trains a few steps before it is timed, from barrier to barrier. The model is small; the
rest of a step is a wait inside ``forward``, long enough that a step of one process alone takes 5 or 50 ms, so that four
workers on two cores behave like four machines, as long as two cores can do the work that is real. ``--busy`` computes
instead of waiting: only on a machine with more cores than workers.

    python benchmarks/bench_session.py [--pairs 20] [--busy] [--quick]

Prints a table and writes benchmarks/results/session.json.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import plesio
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import LocalJob
from record import Spread, print_table, print_verdict, save

LIMIT = 0.98
NUM_WORKERS = (2, 4)
STEPS = {0.005: 100, 0.050: 20}
"""Steps of a block, by the seconds that one takes."""
BATCH = 32
NUM_WARM_UP = 5


class Net(nn.Module):
    """85 thousand parameters, and a pause that stands for the rest of a larger model."""

    def __init__(self, *, pause_s: float, busy: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        self.pause_s = pause_s
        self.busy = busy
        self.work = torch.ones(96, 96)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [batch, 10] of inputs [batch, 64]."""
        if self.busy:
            until_s = time.perf_counter() + self.pause_s
            while time.perf_counter() < until_s:
                self.work @ self.work
        elif self.pause_s:
            time.sleep(self.pause_s)
        logits: Tensor = self.layers(inputs)
        return logits


def build(*, pause_s: float, busy: bool) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net(pause_s=pause_s, busy=busy)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def data(num_steps: int, *, num_workers: int) -> TensorDataset:
    number = num_steps * num_workers * BATCH
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(number, 64, generator=generator), torch.randint(10, (number,), generator=generator)
    )


@contextmanager
def timed(times_s: list[float]) -> Iterator[None]:
    """From the moment when all have come to the moment when all are done."""
    dist.barrier()
    started_s = time.perf_counter()
    yield
    dist.barrier()
    times_s.append(time.perf_counter() - started_s)


def by_hand_s(dataset: TensorDataset, *, pause_s: float, busy: bool) -> float:
    """Seconds of a block of the loop that the PyTorch tutorials show."""
    model, optimizer = build(pause_s=pause_s, busy=busy)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    batches = iter(DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset)))

    def train(inputs: Tensor, labels: Tensor) -> None:
        loss = F.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(NUM_WARM_UP):
        train(*next(batches))
    times_s: list[float] = []
    with timed(times_s):
        for inputs, labels in batches:
            train(inputs, labels)
    return times_s[0]


def by_session_s(dataset: TensorDataset, *, pause_s: float, busy: bool, job: plesio.Job) -> float:
    """Seconds of the same block through a session."""
    model, optimizer = build(pause_s=pause_s, busy=busy)
    with plesio.join(model, optimizer, policy="bsp", options=plesio.JoinOptions(job=job)) as session:
        batches = iter(session.shard(DataLoader(dataset, batch_size=BATCH, shuffle=True)))

        def train(inputs: Tensor, labels: Tensor) -> None:
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            session.step(loss)

        for _ in range(NUM_WARM_UP):
            train(*next(batches))
        times_s: list[float] = []
        with timed(times_s):
            for inputs, labels in batches:
                train(inputs, labels)
    return times_s[0]


def bare_step_s() -> float:
    """Seconds of a step of this process alone, without the pause: the shortest of many, as others may be running."""
    model, optimizer = build(pause_s=0.0, busy=False)
    times_s = []
    for inputs, labels in DataLoader(data(100, num_workers=1), batch_size=BATCH):
        started_s = time.perf_counter()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times_s.append(time.perf_counter() - started_s)
    return min(times_s)


def work(*, num_pairs: int, busy: bool) -> dict[float, list[dict[str, float]]]:
    """Measure as one worker; return the seconds of each block by step time, in pairs."""
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    assert place is not None
    with plesio.Job(place) as job:
        job.group("cpu")
        bare_s = torch.tensor([bare_step_s()])
        dist.broadcast(bare_s, src=0)
        measured: dict[float, list[dict[str, float]]] = {}
        for step_s, num_steps in STEPS.items():
            pause_s = max(0.0, step_s - bare_s.item())
            dataset = data(NUM_WARM_UP + num_steps, num_workers=place.num_workers)
            pairs = []
            for number in range(num_pairs):
                block: dict[str, float] = {}
                for way in ("hand", "session") if number % 2 == 0 else ("session", "hand"):
                    if way == "hand":
                        block[way] = by_hand_s(dataset, pause_s=pause_s, busy=busy)
                    else:
                        block[way] = by_session_s(dataset, pause_s=pause_s, busy=busy, job=job)
                pairs.append(block)
            measured[step_s] = pairs
    return measured


def summarise(pairs: list[dict[str, float]], *, num_steps: int) -> dict[str, Any]:
    """Per step of each way, and the ratio of throughputs over the pairs."""
    return {
        "hand_step_s": Spread([pair["hand"] / num_steps for pair in pairs]),
        "session_step_s": Spread([pair["session"] / num_steps for pair in pairs]),
        "ratio": Spread([pair["hand"] / pair["session"] for pair in pairs]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of blocks for each setting")
    parser.add_argument("--busy", action="store_true", help="compute instead of waiting")
    parser.add_argument("--quick", action="store_true", help="2 pairs: does it work?")
    arguments = parser.parse_args()
    num_pairs = 2 if arguments.quick else arguments.pairs
    results: dict[str, Any] = {}
    for num_workers in NUM_WORKERS:
        with LocalJob(num_workers) as job:
            endings = job.run(Path(__file__), "work", timeout_s=3600, num_pairs=num_pairs, busy=arguments.busy)
        assert endings[0].error is None, endings[0].trace
        for step_s, pairs in endings[0].value.items():
            results[f"{num_workers} workers, {1e3 * step_s:.0f} ms"] = summarise(pairs, num_steps=STEPS[step_s])
    rows = [
        [
            name,
            f"{row['hand_step_s'].text('.2f', scale=1e3)} ms",
            f"{row['session_step_s'].text('.2f', scale=1e3)} ms",
            row["ratio"].text(".3f"),
        ]
        for name, row in results.items()
    ]
    columns = ["setting", "hand-written, a step", "session, a step", "throughput ratio"]
    print_table(f"BSP against DDP, {num_pairs} pairs of blocks", columns=columns, rows=rows)
    met = all(row["ratio"]["median"] >= LIMIT for row in results.values())
    print_verdict(f"a session has at least {LIMIT} of the throughput of a hand-written DDP loop", met=met)
    save("session", settings={"pairs": num_pairs, "busy": arguments.busy, "steps": STEPS}, results=results, met=met)


if __name__ == "__main__":
    main()
