"""How long do workers stand still when something happens to their run, and what does being ready for it cost?

    python benchmarks/bench_recovery.py [--of kill,join,server,error] [--policies bsp,asp] [--repeat 5] [--quick]

At a third of their steps one of four workers is killed, or calls for a fifth that joins; the only server of two workers
is killed, which has a backup; or one of two workers raises an error. Prints, by policy, the median over the repeats of
the longest time that another worker went without finishing a step after that, less its median step; after an error, the
seconds until the sessions of the worker that raised it and of the other one have ended, and what the other one says.
What the fifth takes to start and to make its parts costs nobody else.

After kills of a worker and of the server, prints the time of a step in sessions that take turns: of `bsp` with and
without ``elastic``, and of `asp`, for a small and a large model, with and without a backup of the server.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.cli.compare import split_policies
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import Ending, LocalJob
from record import Spread, print_table, print_verdict, save

EVENTS = {
    "kill": (4, "bsp,local_sgd:8,adaptive,ssp:4,asp"),
    "join": (4, "bsp,local_sgd:8,adaptive,ssp:4,asp"),
    "server": (2, "bsp,adaptive,ssp:4,asp"),
    "error": (2, "bsp,adaptive,asp"),
}
"""Workers, and the policies that are tried."""
VICTIM, NEWCOMER, BATCH = 1, 4, 16
MOST_STALL_S, MOST_RATIO = 1.0, 1.02
HELD_TO_IT = ("bsp", "local_sgd", "adaptive")
WITHIN_S = 30.0
"""A gap that ends later than this after what happened is not its doing."""
WIDTHS = {"small": 256, "large": 1600}
COSTS: dict[str, list[tuple[str, str, str, float, dict[str, Any], dict[str, Any]]]] = {
    "kill": [("elastic", "bsp", "small", 0.005, {"elastic": False}, {})],
    "server": [(f"a backup, {size} model", "asp", size, 0.0, {}, {"replicas": 2}) for size in WIDTHS],
}
"""Ways to be ready: name, policy, model, what a step waits, and the options of sessions without and with it."""


def build(width: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Build a model of about 64 times ``width`` plus ``width`` squared parameters: 85 thousand, or 2.7 million."""
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, width))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(*, policy: str, event: str, workers: int, steps: int, step_s: float, folder: str) -> None:
    """Train as one worker; one has it happen, and all write down when their steps and their sessions had ended."""
    torch.set_num_threads(1)
    model, optimizer = build(WIDTHS["small"])
    loader = DataLoader(TensorDataset(torch.randn(4096, 64)), batch_size=BATCH, shuffle=True)
    options = plesio.JoinOptions(replicas=2 if event == "server" else 1)
    happened = Path(folder, "happened")
    ended_s: list[float] = []
    rank, actor = 0, 0 if event == "server" else VICTIM  # the servers are rank 0's children
    try:
        with plesio.join(model, optimizer, policy=policy, options=options) as session:
            rank = session.rank
            for (x,) in session.shard(loader, samples=BATCH * workers * steps):
                if rank == actor and session.clock >= steps // 3 and not happened.exists():
                    happened.with_name("written").write_text(str(time.monotonic()))
                    happened.with_name("written").rename(happened)
                    act(event)
                model(x).square().mean().backward()
                time.sleep(step_s)
                before = session.clock
                session.step()
                if session.clock > before:
                    ended_s.append(time.monotonic())
    finally:
        Path(folder, f"ended-{rank}").write_text(json.dumps([*ended_s, time.monotonic()]))


def act(event: str) -> None:
    """Have it happen, in the process of the worker that it happens to, or that has started the servers."""
    if event == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if event == "error":
        raise ValueError("mine")
    if event == "server":
        servers = [one for one in psutil.Process().children() if "plesio.runtime.server.process" in one.cmdline()]
        max(servers, key=lambda one: one.create_time()).kill()  # the backup was there before


def run(
    policy: str, event: str, *, steps: int, folder: Path
) -> tuple[float, dict[int, list[float]], dict[int, Ending]]:
    """Return when it happened; by rank, when steps had ended, and last the session; and how the workers ended."""
    workers, _ = EVENTS[event]
    options = {"policy": policy, "event": event, "workers": workers, "steps": steps, "step_s": 0.01}
    happened = folder / "happened"
    with LocalJob(workers) as job:
        for rank in range(workers):
            job.start(rank, Path(__file__), "train", folder=str(folder), **options)
        while event == "join" and not happened.exists():
            time.sleep(0.01)
        if event == "join":
            job.start(NEWCOMER, Path(__file__), "train", folder=str(folder), **options)
        endings = job.wait(timeout_s=120)
    for rank, ending in endings.items():
        assert ending.error is None or event == "error", ending.trace
        assert ending.exit_status == 0 or (event, rank) == ("kill", VICTIM), ending
    ended_s = {int(path.name.partition("-")[2]): json.loads(path.read_text()) for path in folder.glob("ended-*")}
    return float(happened.read_text()), ended_s, endings


def longest_stall_s(ended_s: Iterable[list[float]], *, since_s: float) -> float:
    """Return the longest that a worker went without finishing a step after a moment, less its median step."""
    stalls = []
    for each in ended_s:
        gaps = [(later, later - earlier) for earlier, later in itertools.pairwise(each[:-1])]
        usual_s = statistics.median(gap for _, gap in gaps)
        stalls.append(max(gap for later, gap in gaps if since_s < later < since_s + WITHIN_S) - usual_s)
    return max(stalls)


def stalls(event: str, policies: list[str], *, repeat: int, steps: int) -> tuple[dict[str, list[float]], bool]:
    """Print the stalls by policy and return them; True if they are as short as is aimed at."""
    found: dict[str, list[float]] = {}
    rows = []
    for policy in policies:
        each = found[policy] = []
        for _ in range(repeat):
            with tempfile.TemporaryDirectory() as folder:
                since_s, ended_s, _ = run(policy, event, steps=steps, folder=Path(folder))
            old = [times for rank, times in ended_s.items() if rank != NEWCOMER]
            each.append(longest_stall_s(old, since_s=since_s))
        rows.append([f"`{policy}`", *(f"{one:.3f} s" for one in (statistics.median(each), min(each), max(each)))])
    print_table(f"{event}: stalls", columns=["policy", "stall, median", "least", "most"], rows=rows)
    held = [each for policy, each in found.items() if event == "server" or policy.startswith(HELD_TO_IT)]
    met = all(statistics.median(each) <= MOST_STALL_S for each in held)
    print_verdict(f"{event}: a stall of at most {MOST_STALL_S:g} s, of the store only where a server is lost", met=met)
    return found, met


def errors(policies: list[str], *, repeat: int, steps: int) -> dict[str, Any]:
    """Print by policy, and return, how long after an error the failing and the other worker have ended."""
    found: dict[str, Any] = {}
    rows = []
    for policy in policies:
        each = found[policy] = []
        for _ in range(repeat):
            with tempfile.TemporaryDirectory() as folder:
                since_s, ended_s, endings = run(policy, "error", steps=steps, folder=Path(folder))
            each.append([ended_s[rank][-1] - since_s for rank in (VICTIM, 0)])
        medians = [f"{statistics.median(times):.2f} s" for times in zip(*each, strict=True)]
        rows.append([f"`{policy}`", *medians, (endings[0].message or "trains on").splitlines()[0]])
    columns = ["policy", "the failing worker", "the other", "which says"]
    print_table("error: until the sessions have ended", columns=columns, rows=rows)
    return found


def blocks(*, event: str, num_blocks: int, steps: int) -> dict[str, list[list[float]]]:
    """Seconds of a step of this worker, block by block, without and with what makes ready for the event."""
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    assert place is not None
    times: dict[str, list[list[float]]] = {name: [[], []] for name, *_ in COSTS[event]}
    with plesio.Job(place) as plain, plesio.Job(place) as replicated:
        for number in range(num_blocks):
            for name, policy, size, wait_s, *sides in COSTS[event]:
                for side in (0, 1) if number % 2 else (1, 0):
                    options = plesio.JoinOptions(job=replicated if "replicas" in sides[side] else plain, **sides[side])
                    model, optimizer = build(WIDTHS[size])
                    x, began_s = torch.randn(BATCH, 64), 0.0
                    with plesio.join(model, optimizer, policy=policy, options=options) as session:
                        for step in range(steps + 5):
                            if step == 5:
                                began_s = time.perf_counter()
                            model(x).square().mean().backward()
                            time.sleep(wait_s)
                            session.step()
                        times[name][side].append((time.perf_counter() - began_s) / steps)
    return times


def costs(event: str, *, num_blocks: int, steps: int) -> tuple[dict[str, Any], bool]:
    """Print what being ready costs a step, and return it; True if `elastic` costs as little as is aimed at."""
    workers, _ = EVENTS[event]
    with LocalJob(workers) as job:
        endings = job.run(Path(__file__), "blocks", timeout_s=500, event=event, num_blocks=num_blocks, steps=steps)
    assert endings[0].error is None, endings[0].trace
    rows, met = [], True
    for name, (without, ready) in endings[0].value.items():
        ratio = Spread([one / other for one, other in zip(ready, without, strict=True)])
        met = met and (name != "elastic" or ratio["median"] <= MOST_RATIO)
        rows.append(
            [name, *(f"{1e3 * statistics.median(each):.3f} ms" for each in (without, ready)), ratio.text(".4f")]
        )
    print_table("a step", columns=["what", "without", "with", "ratio in pairs"], rows=rows)
    print_verdict(f"a step with elastic takes at most {MOST_RATIO} of one without", met=met)
    return endings[0].value, met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", default=",".join(EVENTS), help=f"({','.join(EVENTS)})")
    parser.add_argument("--policies", help="instead of the event's own")
    parser.add_argument("--repeat", type=int, default=5, metavar="N")
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    arguments = parser.parse_args()
    repeat, num_blocks, block_steps = (1, 2, 20) if arguments.quick else (arguments.repeat, 12, 100)
    results: dict[str, Any] = {}
    met = True
    for event in arguments.of.split(","):
        policies = split_policies(arguments.policies or EVENTS[event][1])
        steps = 400 if event == "join" else 60 if arguments.quick else 150  # until a fifth is there
        if event == "error":
            results[event] = errors(policies, repeat=repeat, steps=steps)
            continue
        results[event], short = stalls(event, policies, repeat=repeat, steps=steps)
        met = met and short
        if event in COSTS:
            results[f"{event}: step_s"], cheap = costs(event, num_blocks=num_blocks, steps=block_steps)
            met = met and cheap
    save("recovery", settings={"repeat": repeat, "blocks": num_blocks, "steps": block_steps}, results=results, met=met)


if __name__ == "__main__":
    main()
