"""A run that is watched against the same run unwatched: what does `plesio watch` take from a step?

Four workers train under a policy, with a wait inside ``forward`` that makes a step of one process alone take 20 ms.
Blocks of steps lie between two barriers. In one of two `plesio watch --page` looks on, in the other a signal stops it.
The time of a block varies by more than the half percent that is asked for, so processor time decides: that of a worker
(the mean over all) and of server 0, watched less unwatched, a step, in the two blocks of a pair. The mean over the
pairs is given with its standard error; twice that is added where it is held against the limit. The watcher's own time
is not in it: it may run elsewhere.

    python benchmarks/bench_watch.py [--pairs 40] [--quick]

Prints a table and writes benchmarks/results/watch.json.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F  # noqa: N812

import plesio
from bench_session import BATCH, NUM_WARM_UP, bare_step_s, build, data, timed
from plesio.runtime.transport import RunningJob
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import LocalJob
from record import Spread, mean_and_error, print_table, print_verdict, save, with_error

LIMIT = 0.005
"""The share of a step that watching may take from a worker and the server together."""
NUM_WORKERS = 4
STEP_S = 0.020
STEPS = 100
"""Steps of a block: two seconds, in which the run is looked at as often."""
POLICIES = ("bsp", "local_sgd:8", "asp")


def seen(address: str) -> bool:
    """Tell whether the watcher has figures of the run."""
    try:
        urllib.request.urlopen(address).close()
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return True


def cpu_s(process: int) -> float:
    """Return the seconds that all threads of a process have had a core, by Linux's clock of that process."""
    return time.clock_gettime((~process << 3) | 2)


@contextmanager
def watcher(place: WorkerPlace) -> Iterator[Callable[[bool], None]]:
    """Watch the run from this process, from when the watcher has seen it; gives what lets it go on, or stops it."""
    if place.rank > 0:
        yield lambda looks_on: None
        return
    command = [sys.executable, "-m", "plesio", "watch", f"{place.address}:{place.port}", "--page"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        while not seen(f"{address}metrics"):
            time.sleep(0.1)
        try:
            yield lambda looks_on: process.send_signal(signal.SIGCONT if looks_on else signal.SIGSTOP)
        finally:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            process.wait()


def work(*, policy: str, num_pairs: int) -> list[dict[str, dict[str, float]]]:
    """Measure as one worker; return the seconds of each pair of blocks: in all, of this process, and of the server."""
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    assert place is not None
    pairs: list[dict[str, dict[str, float]]] = []
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

            def block(*, looks_on: bool) -> dict[str, float]:
                times_s: list[float] = []
                look_on(looks_on)
                with timed(times_s):
                    worker_s, server_s = time.process_time(), cpu_s(server)
                    train(STEPS)
                    worker_s, server_s = time.process_time() - worker_s, cpu_s(server) - server_s
                return {"step": times_s[0] / STEPS, "worker": worker_s / STEPS, "server": server_s / STEPS}

            train(NUM_WARM_UP)
            (server,) = (one.pid for one in RunningJob.all() if one.meeting == f"{place.address}:{place.port}")
            with watcher(place) as look_on:
                for number in range(num_pairs):
                    order = (False, True) if number % 2 == 0 else (True, False)
                    pairs.append({("watched" if looks_on else "alone"): block(looks_on=looks_on) for looks_on in order})
    return pairs


def figures(by_worker: Sequence[Sequence[dict[str, dict[str, float]]]]) -> dict[str, Any]:
    """Return the spread of the ratio of times, and shares of a step with their standard errors."""
    pairs = list(zip(*by_worker, strict=True))

    def seconds(pair: Sequence[dict[str, dict[str, float]]], block: str, part: str) -> float:
        return statistics.fmean(worker[block][part] for worker in pair)

    def more(*parts: str) -> tuple[float, float]:
        shares = [
            sum(seconds(pair, "watched", part) - seconds(pair, "alone", part) for part in parts) / STEP_S
            for pair in pairs
        ]
        return mean_and_error(shares)

    return {
        "ratio": Spread([seconds(pair, "watched", "step") / seconds(pair, "alone", "step") for pair in pairs]),
        "worker_s": Spread([seconds(pair, "alone", "worker") for pair in pairs]),
        "worker": more("worker"),
        "server": more("server"),
        "together": more("worker", "server"),
    }


def row(policy: str, found: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    shares = [with_error(*(100 * value for value in found[name]), ".3f") for name in ("worker", "server", "together")]
    return [policy, found["ratio"].text(".4f"), f"{found['worker_s'].text('.2f', scale=1e3)} ms", *shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of blocks under each policy")
    parser.add_argument("--quick", action="store_true", help="2 pairs: does it work?")
    arguments = parser.parse_args()
    num_pairs = 2 if arguments.quick else arguments.pairs
    results: dict[str, Any] = {}
    for policy in POLICIES:
        with LocalJob(NUM_WORKERS) as job:
            endings = job.run(Path(__file__), "work", timeout_s=3600, policy=policy, num_pairs=num_pairs)
        assert all(ending.error is None for ending in endings.values()), endings
        results[policy] = figures([ending.value for ending in endings.values()])
    columns = [
        "policy",
        "watched / unwatched",
        "a worker's CPU, a step",
        "more of it",
        "more of the server",
        "together",
    ]
    print_table(
        f"a run that is watched, {NUM_WORKERS} workers, {num_pairs} pairs of blocks; in % of a step",
        columns=columns,
        rows=[row(policy, found) for policy, found in results.items()],
    )
    met = all(found["together"][0] + 2 * found["together"][1] <= LIMIT for found in results.values())
    print_verdict(f"watching takes at most {LIMIT:.1%} of a step of {1e3 * STEP_S:.0f} ms", met=met)
    save("watch", settings={"pairs": num_pairs, "steps": STEPS, "cores": os.cpu_count()}, results=results, met=met)


if __name__ == "__main__":
    main()
