"""The cost of a backup of the server, and the workers' stall when it takes over.

    python benchmarks/bench_replicas.py [--policies bsp,adaptive,ssp:4,asp] [--repeat 5] [--quick]

Prints the time of a step under `asp` with and without a backup, for a small and a large model, in sessions that take
turns; then, by policy, the longest time that a worker went without finishing a step after the server was killed, less
its median step.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import psutil
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import LocalJob

NUM_WORKERS = 2
WIDTHS = {"small": 256, "large": 1600}
MOST_STALL_S = 1.0


def build(width: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Build a model of about 64 times ``width`` plus ``width`` squared parameters: 85 thousand, or 2.7 million."""
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, width))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def blocks(*, num_blocks: int, steps: int) -> dict[str, list[float]]:
    """Seconds of a step, by model and replicas, of this worker."""
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    assert place is not None
    times: dict[str, list[float]] = {f"{size} {replicas}": [] for size in WIDTHS for replicas in (1, 2)}
    with plesio.Job(place) as plain, plesio.Job(place) as replicated:
        jobs = {1: plain, 2: replicated}
        for number in range(num_blocks):
            for size, width in WIDTHS.items():
                for replicas in (1, 2) if number % 2 else (2, 1):
                    model, optimizer = build(width)
                    options = plesio.JoinOptions(job=jobs[replicas], replicas=replicas)
                    x = torch.randn(1, 64)
                    with plesio.join(model, optimizer, policy="asp", options=options) as session:
                        for step in range(steps + 5):
                            if step == 5:
                                began_s = time.perf_counter()
                            model(x).square().mean().backward()
                            session.step()
                        times[f"{size} {replicas}"].append((time.perf_counter() - began_s) / steps)
    return times


def train(*, policy: str, steps: int, kill_at: int, step_s: float, folder: str) -> None:
    """Train as one worker; rank 0 kills the server, and both write down when each of their steps had ended."""
    torch.set_num_threads(1)
    model, optimizer = build(WIDTHS["small"])
    data = TensorDataset(torch.randn(4096, 64))
    ended_s: list[float] = []
    with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(replicas=2)) as session:
        for (x,) in session.shard(DataLoader(data, batch_size=16, shuffle=True), samples=16 * NUM_WORKERS * steps):
            if session.rank == 0 and session.clock >= kill_at and not Path(folder, "killed").exists():
                children = psutil.Process().children()
                servers = [one for one in children if "plesio.runtime.server.process" in one.cmdline()]
                Path(folder, "killed").write_text(str(time.monotonic()))
                max(servers, key=lambda one: one.create_time()).kill()  # the backup was there before
            model(x).square().mean().backward()
            time.sleep(step_s)
            session.step()
            ended_s.append(time.monotonic())
    Path(folder, f"ended-{session.rank}").write_text(json.dumps(ended_s))


def stall_s(policy: str, *, steps: int, step_s: float, folder: Path) -> float:
    """Return the longest that a worker of a run went without finishing a step, less its median step."""
    from stalls import longest_stall_s  # not in the workers, which do not find it

    options = {"policy": policy, "steps": steps, "kill_at": steps // 3, "step_s": step_s, "folder": str(folder)}
    with LocalJob(NUM_WORKERS) as job:
        endings = job.run(Path(__file__), "train", timeout_s=120, **options)
    killed_s = float((folder / "killed").read_text())
    for ending in endings.values():
        assert ending.error is None, ending.trace
    return longest_stall_s(folder, ranks=range(NUM_WORKERS), since_s=killed_s)


def main() -> None:
    """Do what the command line names."""
    from record import print_verdict, save  # not in the workers, which do not find it
    from stalls import measure_stalls

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="bsp,adaptive,ssp:4,asp")
    parser.add_argument("--repeat", type=int, default=5, metavar="N")
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    arguments = parser.parse_args()
    repeat, num_blocks, steps = (1, 2, 20) if arguments.quick else (arguments.repeat, 8, 100)
    with LocalJob(NUM_WORKERS) as job:
        endings = job.run(Path(__file__), "blocks", timeout_s=400, num_blocks=num_blocks, steps=steps)
    assert endings[0].error is None, endings[0].trace
    times = endings[0].value
    print("| model | a step | with a backup | ratio |\n|:--|--:|--:|--:|")
    for size in WIDTHS:
        one, two = (statistics.median(times[f"{size} {replicas}"]) for replicas in (1, 2))
        print(f"| {size} | {one * 1e3:.2f} ms | {two * 1e3:.2f} ms | {two / one:.2f} |")
    print()
    found = measure_stalls(
        arguments.policies.split(","),
        lambda policy, folder: stall_s(policy, steps=150, step_s=0.01, folder=folder),
        repeat=repeat,
    )
    met = all(statistics.median(runs) <= MOST_STALL_S for runs in found.values())
    print_verdict(f"a stall of at most {MOST_STALL_S:g} s", met=met)
    settings = {"workers": NUM_WORKERS, "repeat": repeat, "blocks": num_blocks, "steps": steps, "widths": WIDTHS}
    save("replicas", settings=settings, results={"stall_s": found, "step_s": times}, met=met)


if __name__ == "__main__":
    main()
