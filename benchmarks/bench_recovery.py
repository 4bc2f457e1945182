"""How long do the others stand still when one of four workers is killed, or a fifth joins, and what does it cost else?

    python benchmarks/bench_recovery.py [--join] [--policies bsp,local_sgd:8,adaptive,ssp:4,asp] [--repeat 10] [--quick]

Prints, by policy, the median over the repeats of the longest time that a worker went without finishing a step after
the kill, or after the fifth was started, less its median step; after kills, the time of a step of `bsp` with and
without ``elastic``, in blocks that alternate. What the fifth takes to start and to make its parts costs nobody else.
"""

import argparse
import json
import os
import signal
import statistics
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import LocalJob

NUM_WORKERS, VICTIM, NEWCOMER, WIDTH = 4, 1, 4, 256
MOST_STALL_S, MOST_RATIO = 1.0, 1.02
HELD_TO_IT = ("bsp", "local_sgd", "adaptive")


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Build a model of about 85 thousand parameters."""
    model = torch.nn.Sequential(torch.nn.Linear(64, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(*, policy: str, steps: int, at: int, kills: bool, step_s: float, folder: str) -> None:
    """Train as one worker: one kills itself or calls for another; all write down when their steps had ended."""
    torch.set_num_threads(1)
    model, optimizer = build()
    data = TensorDataset(torch.randn(4096, 64))
    ended_s: list[float] = []
    with plesio.join(model, optimizer, policy=policy) as session:
        rank = session.rank
        for (x,) in session.shard(DataLoader(data, batch_size=16, shuffle=True), samples=16 * NUM_WORKERS * steps):
            if rank == VICTIM and session.clock == at:
                Path(folder, "writes").write_text(str(time.monotonic()))
                Path(folder, "writes").rename(Path(folder, "happened"))
                if kills:
                    os.kill(os.getpid(), signal.SIGKILL)
            model(x).square().mean().backward()
            time.sleep(step_s)
            before = session.clock
            session.step()
            if session.clock > before:
                ended_s.append(time.monotonic())
    Path(folder, f"ended-{rank}").write_text(json.dumps(ended_s))


def stall_s(policy: str, *, kills: bool, steps: int, step_s: float, folder: Path) -> float:
    """Return the longest that another worker of a run went without finishing a step, less its median step."""
    from stalls import longest_stall_s  # not in the workers, which do not find it

    options = {"policy": policy, "steps": steps, "at": steps // 3, "kills": kills, "step_s": step_s}
    with LocalJob(NUM_WORKERS) as job:
        for rank in range(NUM_WORKERS):
            job.start(rank, Path(__file__), "train", folder=str(folder), **options)
        while not kills and not (folder / "happened").exists():
            time.sleep(0.01)
        if not kills:
            job.start(NEWCOMER, Path(__file__), "train", folder=str(folder), **options)
        endings = job.wait(timeout_s=120)
    killed_s = float((folder / "happened").read_text())
    if not kills:
        assert endings[NEWCOMER].error is None, endings[NEWCOMER].trace
    others = [rank for rank in range(NUM_WORKERS) if rank != VICTIM or not kills]
    for rank in others:
        assert endings[rank].error is None, endings[rank].trace
    return longest_stall_s(folder, ranks=others, since_s=killed_s)


def blocks(*, num_blocks: int, steps: int, step_s: float) -> dict[str, list[float]]:
    """Seconds of a step of `bsp` with and without ``elastic``, in sessions that take turns."""
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    assert place is not None
    times: dict[str, list[float]] = {"on": [], "off": []}
    data = TensorDataset(torch.randn(4096, 64))
    with plesio.Job(place) as job:
        for number in range(2 * num_blocks):
            name = ("on", "off")[(number + number // 2) % 2]
            model, optimizer = build()
            options = plesio.JoinOptions(job=job, elastic=name == "on")
            with plesio.join(model, optimizer, policy="bsp", options=options) as session:
                began_s = 0.0
                loader = DataLoader(data, batch_size=16, shuffle=True)
                for (x,) in session.shard(loader, samples=16 * place.num_workers * (steps + 5)):
                    if session.clock == 5:
                        began_s = time.perf_counter()
                    model(x).square().mean().backward()
                    time.sleep(step_s)
                    session.step()
                times[name].append((time.perf_counter() - began_s) / steps)
    return times


def main() -> None:
    """Do what the command line names."""
    from record import print_verdict, save  # not in the workers, which do not find it
    from stalls import measure_stalls

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="bsp,local_sgd:8,adaptive,ssp:4,asp")
    parser.add_argument("--repeat", type=int, default=5, metavar="N")
    parser.add_argument("--join", action="store_true", help="a fifth joins, and nobody is killed")
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    arguments = parser.parse_args()
    repeat, steps, num_blocks = (1, 60, 2) if arguments.quick else (arguments.repeat, 150, 12)
    steps = 400 if arguments.join else steps  # until it is there
    kills = not arguments.join
    found = measure_stalls(
        arguments.policies.split(","),
        lambda policy, folder: stall_s(policy, kills=kills, steps=steps, step_s=0.01, folder=folder),
        repeat=repeat,
    )
    held = [runs for policy, runs in found.items() if policy.startswith(HELD_TO_IT)]
    met = all(statistics.median(runs) <= MOST_STALL_S for runs in held)
    settings = {"workers": NUM_WORKERS, "repeat": repeat, "steps": steps}
    if arguments.join:
        print_verdict(f"a stall of at most {MOST_STALL_S:g} s in collectives", met=met)
        save("joining", settings=settings, results={"stall_s": found}, met=met)
        return
    with LocalJob(NUM_WORKERS) as job:
        endings = job.run(
            Path(__file__), "blocks", timeout_s=300, num_blocks=num_blocks, steps=100 if not arguments.quick else 20,
            step_s=0.005,
        )  # fmt: skip
    times = endings[0].value
    ratios = [on / off for on, off in zip(times["on"], times["off"], strict=True)]
    low, ratio, high = statistics.quantiles(ratios)
    on_ms, off_ms = (1e3 * statistics.median(times[name]) for name in ("on", "off"))
    print(
        f"a step with elastic {on_ms:.3f} ms, without {off_ms:.3f} ms; "
        f"ratio in pairs {ratio:.4f} ({low:.4f} to {high:.4f})"
    )
    met = met and ratio <= MOST_RATIO
    print_verdict(f"a stall of at most {MOST_STALL_S:g} s in collectives, {MOST_RATIO} of the step", met=met)
    save("recovery", settings=settings, results={"stall_s": found, "step_s": times}, met=met)


if __name__ == "__main__":
    main()
