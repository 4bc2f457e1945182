"""A run that is watched against the same run unwatched: what does `plesio watch` take from a step?

Four workers train under a policy, with a wait inside ``forward`` that makes a step of one process alone take 20 ms.
Blocks of steps are timed from barrier to barrier, and in one of two `plesio watch --page` looks on, from before the
block begins. A ratio is the watched block's time by the unwatched one's beside it.

    python benchmarks/bench_watch.py [--pairs 20] [--quick]

Prints a table and writes benchmarks/results/watch.json.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F  # noqa: N812

import plesio
from bench_session import BATCH, NUM_WARM_UP, bare_step_s, build, data, timed
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import LocalJob
from record import Spread, print_table, print_verdict, save

LIMIT = 1.005
NUM_WORKERS = 4
STEP_S = 0.020
STEPS = 150
"""Steps of a block: some three seconds, in which the run is looked at as often."""
POLICIES = ("bsp", "local_sgd:8", "asp")


def seen(address: str) -> bool:
    """Tell whether the watcher has figures of the run."""
    with urllib.request.urlopen(address) as answer:
        return bool(answer.read())


@contextmanager
def watched(place: WorkerPlace) -> Iterator[None]:
    """Watch the run from this process, from when the watcher has seen it."""
    command = [sys.executable, "-m", "plesio", "watch", f"{place.address}:{place.port}", "--page"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        while not seen(f"{address}metrics"):
            time.sleep(0.1)
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def work(*, policy: str, num_pairs: int) -> list[dict[str, float]]:
    """Measure as one worker; return the seconds of each pair of blocks."""
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    assert place is not None
    pairs: list[dict[str, float]] = []
    with plesio.Job(place) as job:
        job.group("cpu")
        bare_s = torch.tensor([bare_step_s()])
        dist.broadcast(bare_s, src=0)
        model, optimizer = build(pause_s=max(0.0, STEP_S - bare_s.item()), busy=False)
        inputs, labels = next(iter(torch.utils.data.DataLoader(data(1, num_workers=1), batch_size=BATCH)))
        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(job=job)) as session:

            def train(num_steps: int) -> None:
                for _ in range(num_steps):
                    loss = F.cross_entropy(model(inputs), labels)
                    loss.backward()
                    session.step(loss, samples=BATCH)

            def block_s(*, looks_on: bool) -> float:
                times_s: list[float] = []
                if looks_on and place.rank == 0:
                    with watched(place), timed(times_s):
                        train(STEPS)
                else:
                    with timed(times_s):
                        train(STEPS)
                return times_s[0]

            train(NUM_WARM_UP)
            for number in range(num_pairs):
                order = (False, True) if number % 2 == 0 else (True, False)
                pairs.append({("watched" if looks_on else "alone"): block_s(looks_on=looks_on) for looks_on in order})
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of blocks under each policy")
    parser.add_argument("--quick", action="store_true", help="2 pairs: does it work?")
    arguments = parser.parse_args()
    num_pairs = 2 if arguments.quick else arguments.pairs
    results: dict[str, Any] = {}
    for policy in POLICIES:
        with LocalJob(NUM_WORKERS) as job:
            endings = job.run(Path(__file__), "work", timeout_s=3600, policy=policy, num_pairs=num_pairs)
        assert endings[0].error is None, endings[0].trace
        pairs = endings[0].value
        results[policy] = {
            "alone_step_s": Spread([pair["alone"] / STEPS for pair in pairs]),
            "watched_step_s": Spread([pair["watched"] / STEPS for pair in pairs]),
            "ratio": Spread([pair["watched"] / pair["alone"] for pair in pairs]),
        }
    rows = [
        [
            policy,
            f"{row['alone_step_s'].text('.3f', scale=1e3)} ms",
            f"{row['watched_step_s'].text('.3f', scale=1e3)} ms",
            row["ratio"].text(".4f"),
        ]
        for policy, row in results.items()
    ]
    columns = ["policy", "unwatched, a step", "watched, a step", "watched / unwatched"]
    print_table(
        f"a run that is watched, {NUM_WORKERS} workers, {num_pairs} pairs of blocks", columns=columns, rows=rows
    )
    met = all(row["ratio"]["median"] <= LIMIT for row in results.values())
    print_verdict(f"watching takes at most {LIMIT - 1:.1%} of a step of {1e3 * STEP_S:.0f} ms", met=met)
    save("watch", settings={"pairs": num_pairs, "steps": STEPS, "cores": os.cpu_count()}, results=results, met=met)


if __name__ == "__main__":
    main()
