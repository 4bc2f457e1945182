"""Does what a run keeps grow with its steps? Resident memory of servers, workers and launcher over many tiny steps.

`plesio run` trains a model of five parameters with two workers, with traces, and this program looks at its processes
meanwhile: `plesio run` itself, the workers, and the servers that they start.

    python benchmarks/bench_long.py [--steps 100000] [--policies asp bsp ...] [--quick]

Prints, for each policy and part, the memory after every tenth of the steps and the growth per step over the last half
of them, by least squares, and what is on the disk; writes benchmarks/results/long.json. The verdict is of the growth:
what is kept of every step shows as tens of bytes at least.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from record import print_table, print_verdict, save

POLICIES = ("asp", "ssp:4", "bsp", "local_sgd:8", "adaptive")
NUM_WORKERS = 2
NUM_SAMPLES = 4096
LIMIT_BYTES_PER_STEP = 20.0
PARTS = ("launcher", "server", "worker")


def train(policy: str, num_steps: int, folder: Path) -> None:
    """Train as one worker; worker 0 writes down how far it is."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(NUM_SAMPLES, 4), torch.randn(NUM_SAMPLES, 1))
    with plesio.join(model, optimizer, policy=policy, trace=folder / "run") as session:
        for x, y in session.shard(DataLoader(data, batch_size=1, shuffle=True), samples=NUM_WORKERS * num_steps):
            loss = (model(x) - y).square().mean()
            loss.backward()
            session.step(loss)
            if session.rank == 0 and session.clock % max(1, num_steps // 200) == 0:
                (folder / "clock").write_text(str(session.clock))


def part_of(process: psutil.Process, *, launcher: int) -> str | None:
    if process.pid == launcher:
        return "launcher"
    line = " ".join(process.cmdline())
    if "server.process" in line:
        return "server"
    return "worker" if Path(__file__).name in line else None


def memory_of(launcher: psutil.Process) -> dict[str, float]:
    """Mean resident MB of each part's processes."""
    found: dict[str, list[float]] = {}
    for process in (launcher, *launcher.children(recursive=True)):
        try:
            part = part_of(process, launcher=launcher.pid)
            if part is not None:
                found.setdefault(part, []).append(process.memory_info().rss / 1e6)
        except psutil.Error:
            continue  # it has just ended
    return {part: sum(each) / len(each) for part, each in found.items()}


def watched(policy: str, *, num_steps: int, folder: Path) -> tuple[list[tuple[int, dict[str, float]]], float]:
    """Return steps and memory, every so often; and how long the run took."""
    argv = [sys.executable, "-m", "plesio", "run", "--workers", str(NUM_WORKERS), __file__]
    argv += ["--train", policy, str(num_steps), str(folder)]
    began_s = time.monotonic()
    seen: list[tuple[int, dict[str, float]]] = []
    with subprocess.Popen(argv) as process:
        launcher = psutil.Process(process.pid)
        while process.poll() is None:
            time.sleep(0.2)
            clock = (folder / "clock").read_text() if (folder / "clock").exists() else ""
            if clock and (not seen or int(clock) > seen[-1][0]):
                seen.append((int(clock), memory_of(launcher)))
    assert process.returncode == 0, f"{policy} failed"
    return [one for one in seen if set(PARTS) <= one[1].keys()], time.monotonic() - began_s


def figures_of(seen: list[tuple[int, dict[str, float]]], *, num_steps: int, part: str) -> dict[str, Any]:
    """Memory after each tenth of the steps, in MB, and bytes a step over the last half."""
    steps = np.array([clock for clock, _ in seen])
    memory_mb = np.array([memory[part] for _, memory in seen])
    tenths = [float(np.interp(share * num_steps, steps, memory_mb)) for share in np.arange(0.1, 1.01, 0.1)]
    late = steps >= num_steps / 2
    slope_mb, _ = np.polyfit(steps[late], memory_mb[late], 1)
    return {"tenths_mb": tenths, "bytes_per_step": float(slope_mb) * 1e6}


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, metavar="N")
    parser.add_argument("--policies", nargs="+", default=POLICIES, metavar="POLICY")
    parser.add_argument("--quick", action="store_true", help="few steps: does it work?")
    arguments = parser.parse_args()
    num_steps = 2000 if arguments.quick else arguments.steps
    results: dict[str, Any] = {}
    rows = []
    for policy in arguments.policies:
        with tempfile.TemporaryDirectory() as root:
            seen, took_s = watched(policy, num_steps=num_steps, folder=Path(root))
            files_mb = {file.name: file.stat().st_size / 1e6 for file in Path(root, "run").iterdir()}
        for part in PARTS:
            figures = figures_of(seen, num_steps=num_steps, part=part)
            results[f"{policy}: {part}"] = figures
            memory = " ".join(f"{mb:.0f}" for mb in figures["tenths_mb"])
            rows.append([policy, part, memory, f"{figures['bytes_per_step']:.1f}"])
        results[f"{policy}: files_mb"] = files_mb
        results[f"{policy}: took_s"] = took_s
        rows.append(
            [policy, f"took {took_s:.0f} s", ", ".join(f"{n} {mb:.1f}" for n, mb in sorted(files_mb.items())), ""]
        )
        print_table(
            f"{num_steps:,} steps", columns=["policy", "part", "MB after each tenth", "bytes a step"], rows=rows
        )
    growths = [one["bytes_per_step"] for one in results.values() if isinstance(one, dict) and "bytes_per_step" in one]
    met = max(growths) <= LIMIT_BYTES_PER_STEP
    print_verdict(f"no part grows by more than {LIMIT_BYTES_PER_STEP:.0f} bytes a step", met=met)
    save("long", settings={"steps": num_steps, "policies": list(arguments.policies)}, results=results, met=met)


if __name__ == "__main__":
    main()
