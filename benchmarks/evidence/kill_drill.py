"""Do eight workers train on while one is killed and one joins every ten seconds: docs/log.md, section 94.

    python benchmarks/evidence/kill_drill.py [--policy P] [--seconds 300] [--every 10]

`plesio run` starts eight processes on this machine, which train a small `stdlib_lm`; a step is paced to 200 ms, so that
the machine's cores are not the limit. In the drill one of the workers that train, drawn by chance, is killed (SIGKILL)
at every moment, and `plesio run --join` starts another. The undisturbed run trains on as many samples.

A worker is there from when `plesio.join` returns until it is killed or leaves its loop. *Goodput* is the samples of the
run for each second of a worker that is there, over the same of the undisturbed run. A *stall* is the longest that a
survivor goes without finishing a step from one moment to the next, less its median step.
"""

import argparse
import itertools
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import plesio
from plesio.cost.step_time import Constant
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.tasks.stdlib_lm import stdlib_lm

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import print_table

WORKERS, STEP_S, BATCH_SIZE, SEED = 8, 0.2, 8, 0
POLICY = "diloco:8,outer_momentum=0.3,exchange=store"


def work(policy: str, samples: int, folder: Path) -> None:
    """Train as one worker; its file has its process, and when it had joined and each step was over."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    task = stdlib_lm(width=32, depth=1, context=32, corpus_bytes=200_000, batch_size=BATCH_SIZE)
    model, optimizer = task.build(SEED)
    pacer = Pacer(step_time=Constant(mean_s=STEP_S), seed=SEED, worker=rank)
    options = plesio.JoinOptions(pacer=pacer, info=RunInfo(seed=SEED))
    scheduler = task.schedule(optimizer, samples // (BATCH_SIZE * WORKERS))
    with plesio.join(model, optimizer, policy=policy, options=options) as session, open(folder / f"{rank}", "w") as log:
        assert scheduler is not None
        session.schedule(scheduler)
        print(os.getpid(), time.monotonic(), file=log, flush=True)
        for batch in session.shard(DataLoader(task.train_set(), batch_size=BATCH_SIZE, shuffle=True), samples=samples):
            task.loss(model, batch).backward()
            session.step()
            print(time.monotonic(), file=log, flush=True)
        session.finish(lambda: task.metric(model))
    result = session.report()
    written = folder / f"result-{rank}"
    written.write_text(json.dumps([result.samples, result.final_metric, list(result.fallbacks)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A worker's record: the moments are of one clock."""

    pid: int
    joined_s: float
    steps_s: list[float]


def seen_in(folder: Path) -> dict[int, Seen]:
    """Return the records of the workers that have joined, by rank."""
    found = {}
    for path in folder.iterdir():
        if path.name.isdecimal() and (lines := path.read_text().rpartition("\n")[0].splitlines()):
            pid, joined_s = lines[0].split()
            found[int(path.name)] = Seen(pid=int(pid), joined_s=float(joined_s), steps_s=[*map(float, lines[1:])])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The outcome of a run."""

    wall_s: float
    num_killed: int
    there: float
    """Workers that are there, on average."""
    samples_per_worker_s: float
    stalls_s: list[float]
    """Stalls of each survivor, from each moment to the next."""
    longest_s: list[float]
    """The longest of them, from each moment to the next."""
    starts_s: list[float]
    """Seconds from when a newcomer's command is started until its first step is over."""
    loss: float
    fallbacks: list[str]


def run(policy: str, *, seconds: float, every_s: float, disturbed: bool) -> Figures:
    """Do a run that takes so long where nothing disturbs it."""
    samples = round(WORKERS * BATCH_SIZE * seconds / STEP_S)
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as name, ExitStack() as started:
        folder = Path(name)
        script = [str(Path(__file__).resolve()), "--work", str(folder), "--policy", policy, "--samples", str(samples)]
        plesio_run = [sys.executable, "-m", "plesio", "run"]
        job = subprocess.Popen([*plesio_run, "--workers", str(WORKERS), *script], stderr=subprocess.PIPE, text=True)
        started.callback(job.terminate)  # which is nothing once it has ended
        address, began_s = _began(job, folder)
        killed_s: dict[int, float] = {}
        launchers, asked_s = list[subprocess.Popen[bytes]](), list[float]()
        moments = [began_s + every_s * number for number in range(1, math.ceil(seconds / every_s))]
        for moment_s in moments:
            time.sleep(max(0.0, moment_s - time.monotonic()))
            if not disturbed:
                continue
            ranks = sorted(rank for rank, one in seen_in(folder).items() if one.steps_s and rank not in killed_s)
            victim = rng.choice(ranks)
            killed_s[victim] = time.monotonic()
            os.kill(seen_in(folder)[victim].pid, signal.SIGKILL)
            asked_s.append(time.monotonic())
            launchers.append(subprocess.Popen([*plesio_run, "--join", address, *script]))
            started.callback(launchers[-1].terminate)
        statuses = [job.wait(timeout=2 * seconds + 120), *(one.wait(timeout=120) for one in launchers)]
        print(f"exit statuses {statuses}", file=sys.stderr)
        seen = seen_in(folder)
        results = [json.loads(path.read_text()) for path in folder.glob("result-*")]
    num_samples, metric, fallbacks = results[0]
    ended_s = max(one.steps_s[-1] for one in seen.values() if one.steps_s)
    present_s = sum(killed_s.get(rank, max([one.joined_s, *one.steps_s])) - one.joined_s for rank, one in seen.items())
    spans = list(_stalls(seen, moments=[*moments, ended_s], killed_s=killed_s))
    first_s = {rank - WORKERS: one.steps_s[0] for rank, one in seen.items() if rank >= WORKERS and one.steps_s}
    return Figures(
        wall_s=ended_s - began_s,
        num_killed=len(killed_s),
        there=present_s / (ended_s - began_s),
        samples_per_worker_s=num_samples / present_s,
        stalls_s=[stall_s for each in spans for stall_s in each],
        longest_s=[max(each) for each in spans],
        starts_s=[at_s - asked_s[number] for number, at_s in first_s.items()],
        loss=math.log(metric),
        fallbacks=fallbacks,
    )


def _began(job: subprocess.Popen[str], folder: Path) -> tuple[str, float]:
    """Wait until all workers have joined; return the job's address and that moment."""
    assert job.stderr is not None
    address = ""
    for line in job.stderr:
        if found := re.search(r"--join (\S+)", line):
            address = found[1]
            break
    threading.Thread(target=lambda: sys.stderr.writelines(job.stderr or ()), daemon=True).start()
    while len(seen := seen_in(folder)) < WORKERS:
        if job.poll() is not None:
            raise SystemExit("the run ended before its workers had joined")
        time.sleep(0.1)
    return address, max(one.joined_s for one in seen.values())


def _stalls(seen: dict[int, Seen], *, moments: list[float], killed_s: dict[int, float]) -> Iterator[list[float]]:
    """Yield the stall of each worker that works at a moment and at the next one."""
    for since_s, until_s in itertools.pairwise(moments):
        stalls = []
        for rank, one in seen.items():
            if len(one.steps_s) < 2 or one.steps_s[0] > since_s or killed_s.get(rank, math.inf) <= until_s:
                continue
            gaps = [(later, later - earlier) for earlier, later in itertools.pairwise(one.steps_s)]
            usual_s = statistics.median(gap for _, gap in gaps)
            found = [gap - usual_s for later, gap in gaps if since_s < later <= until_s]
            stalls += [max(found)] if found else []
        if stalls:
            yield stalls


def main() -> None:
    """Print both runs, or work as one of their workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default=POLICY)
    parser.add_argument("--seconds", type=float, default=300.0, help="of the undisturbed run")
    parser.add_argument("--every", type=float, default=10.0, metavar="S", help="seconds between two moments")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.policy, arguments.samples, arguments.work)
        return
    rows, undisturbed = [], None
    for name, disturbed in (("undisturbed", False), ("drill", True)):
        found = run(arguments.policy, seconds=arguments.seconds, every_s=arguments.every, disturbed=disturbed)
        undisturbed = undisturbed or found
        stalls_ms = [1e3 * stall_s for stall_s in found.longest_s]
        rows.append(
            [
                name,
                f"{found.wall_s:.1f} s",
                f"{found.num_killed}",
                f"{found.there:.2f}",
                f"{found.samples_per_worker_s / undisturbed.samples_per_worker_s:.3f}",
                f"{1e3 * statistics.median(found.stalls_s):.0f} ms",
                f"{statistics.median(stalls_ms):.0f} ms, {max(stalls_ms):.0f} ms",
                f"{statistics.median(found.starts_s):.1f} s" if found.starts_s else "",
                f"{found.loss:.3f}",
                f"{100 * (found.loss / undisturbed.loss - 1):+.2f} %",
            ]
        )
        for line in found.fallbacks:
            print(f"{name}: {line}", file=sys.stderr)
    columns = [
        "run",
        "time",
        "killed",
        "there",
        "goodput",
        "stall",
        "longest of all, median, most",
        "a start",
        "loss",
        "more loss",
    ]
    print_table(f"`{arguments.policy}`, {WORKERS} workers", columns=columns, rows=rows)


if __name__ == "__main__":
    main()
