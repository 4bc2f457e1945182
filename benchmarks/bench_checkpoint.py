"""The cost of a checkpoint of a 100 MB model: while it is written, while training stops, and when it is read.

Two workers train under bsp; most of a step is a wait, so that the cores have room for what is real, as they have where
a GPU computes. Checkpoints are asked for one after another, with as many steps between them. Then, in one process, the
same tensors are saved and loaded by Plesio and by torch.save and torch.load, in alternating order.

    python benchmarks/bench_checkpoint.py [--checkpoints 8] [--repeats 15] [--milliseconds 300] [--quick]

Prints tables and writes benchmarks/results/checkpoint.json.
"""

import argparse
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.runtime.checkpoints import reading, tensors
from plesio.runtime.checkpoints.folder import faults, flush, written
from plesio.runtime.worker.exchange.replica import Replica
from plesio.testing import LocalJob
from record import Spread, print_table, print_verdict, save

NUM_WORKERS = 2
WIDTH = 1024
NUM_LAYERS = 24
"""Layers of 4.2 MB each."""
MOST_STEPS = 4000
DURING_LIMIT = 1.05
FILE_LIMIT = 1.5


class Waiting(torch.nn.Module):
    """Its parameters are many and its work is little: what a step takes beside the exchange is a wait."""

    def __init__(self, num_layers: int, *, wait_s: float) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))
        self.wait_s = wait_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through all layers."""
        time.sleep(self.wait_s)
        for layer in self.layers:
            x = layer(x) / 8
        return x


def train(*, folder: str, wait_s: float, num_layers: int, checkpoints: int) -> list[tuple[float, float, bool]]:
    """Train as one worker; return of each step the wait before it, its seconds, and whether a write was beside it."""
    torch.manual_seed(0)
    model = Waiting(num_layers, wait_s=wait_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    steps: list[tuple[float, float, bool]] = []
    taken = 0
    with plesio.join(model, optimizer, policy="bsp", checkpoint=folder, every="1000 h", keep=1) as session:
        loader = DataLoader(TensorDataset(torch.ones(2 * MOST_STEPS, WIDTH)), batch_size=1, shuffle=True)
        asked, was_writing, ended_s = -1, False, time.perf_counter()
        for number, (x,) in enumerate(session.shard(loader)):
            began_s = time.perf_counter()
            writing = any(thread.name == "checkpoint" and thread.is_alive() for thread in threading.enumerate())
            taken += writing and not was_writing
            steps.append((began_s - ended_s, 0.0, writing))
            if asked < taken and number % 20 == 15:
                session.save()
                asked = taken
            loss = model(x).square().mean()
            loss.backward()
            session.step(loss)
            ended_s = time.perf_counter()
            steps[-1] = (steps[-1][0], ended_s - began_s, writing)
            was_writing = writing
            if number >= 20 * (checkpoints + 2):
                break
    return steps


def while_training(*, wait_s: float, num_layers: int, checkpoints: int) -> dict[str, Spread]:
    """Step times, and how long training stands still."""
    with tempfile.TemporaryDirectory() as root, LocalJob(NUM_WORKERS) as job:
        endings = job.run(
            Path(__file__),
            "train",
            timeout_s=1200,
            folder=str(Path(root, "checkpoints")),
            wait_s=wait_s,
            num_layers=num_layers,
            checkpoints=checkpoints,
        )
    assert endings[0].error is None, endings[0].trace
    steps = endings[0].value[5:]
    # only the first step of those that are still being written is sure to have had the write beside it to its end
    during = [step_s for _, step_s, writing in steps if writing]
    without = [step_s for _, step_s, writing in steps if not writing]
    gaps = [gap_s for gap_s, _, _ in steps]
    still = [gap_s for (gap_s, _, writing), before in zip(steps[1:], steps, strict=False) if writing and not before[2]]
    assert during, "no step had a write beside it"
    usual_s = Spread(gaps)["median"]
    return {
        "step without": Spread(without),
        "step during the write": Spread(during),
        "stands still": Spread([gap_s - usual_s for gap_s in still]),
        "steps with a write beside them": Spread([float(len(during))]),
    }


def saved_by_plesio(state: dict[str, Any], path: Path) -> None:
    """Save as a run of one worker does, with checksums."""
    path.mkdir()
    share = tensors.Share(0, state, num_shares=1)
    _, places = share.write(path)
    share.finish(path, places)


def saved_by_torch(state: dict[str, Any], path: Path) -> None:
    """On the disk when it returns, as Plesio's is."""
    torch.save(state, path)
    flush(path)


def of_files(*, num_layers: int, repeats: int) -> dict[str, Spread]:
    """Seconds to save and to load, and their ratios in the same round."""
    torch.manual_seed(0)
    model = Waiting(num_layers, wait_s=0.0)
    state = tensors.state_of(Replica(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as root:
        ours, theirs = Path(root, "plesio"), Path(root, "torch.pt")

        def timed(name: str, act: Callable[[], object]) -> None:
            os.sync()  # what the one before has left to write is not this one's
            gc.collect()
            began_s, worked_s = time.perf_counter(), time.process_time()
            result = act()
            times.setdefault(name, []).append(time.perf_counter() - began_s)
            times.setdefault(f"{name}, processor time", []).append(time.process_time() - worked_s)
            del result

        def verified() -> None:
            files = {file.name: known[file.name] for file in ours.iterdir()}
            assert not list(faults(ours, files))

        for number in range(repeats + 1):
            shutil.rmtree(ours, ignore_errors=True)
            theirs.unlink(missing_ok=True)
            saves = [
                ("save: Plesio", lambda: saved_by_plesio(state, ours)),
                ("save: torch.save", lambda: saved_by_torch(state, theirs)),
            ]
            loads = [
                ("load: Plesio", lambda: reading.read(ours)),
                ("load: torch.load", lambda: torch.load(theirs, weights_only=True)),
            ]
            for name, act in saves[:: 1 if number % 2 else -1]:
                timed(name, act)
            known = {file.name: written(file) for file in ours.iterdir()}
            for name, act in loads[:: 1 if number % 2 else -1]:
                timed(name, act)
            timed("verify before a load", verified)
            if number == 0:
                times.clear()  # the first round has what is done once: imports, the first pages
    for what in ("save", "load"):
        pairs = zip(times[f"{what}: Plesio"], times[f"{what}: torch.{what}"], strict=True)
        times[f"{what}: ratio"] = [one / other for one, other in pairs]
    return {name: Spread(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=8, metavar="N")
    parser.add_argument("--repeats", type=int, default=15, metavar="N")
    parser.add_argument("--milliseconds", type=float, default=300.0, help="wait of a step (default: 300)")
    parser.add_argument("--quick", action="store_true", help="a small model, once: does it work?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    num_layers, checkpoints, repeats = NUM_LAYERS, arguments.checkpoints, arguments.repeats
    if arguments.quick:
        num_layers, checkpoints, repeats = 4, 2, 3
    files = of_files(num_layers=num_layers, repeats=repeats)
    training = while_training(wait_s=arguments.milliseconds / 1e3, num_layers=num_layers, checkpoints=checkpoints)
    results = {**training, **files}
    slower = training["step during the write"]["median"] / training["step without"]["median"]
    rows = [
        [name, spread.text(".2f") if "ratio" in name else f"{spread.text('.1f', scale=1e3)} ms"]
        for name, spread in results.items()
        if "beside" not in name
    ]
    rows.append(["step during the write / without", f"{slower:.3f}"])
    print_table(
        f"a model of {num_layers * (WIDTH + 1) * WIDTH * 4 / 1e6:.0f} MB",
        columns=["what", "median (quartiles)"],
        rows=rows,
    )
    met = slower <= DURING_LIMIT and all(files[f"{what}: ratio"]["median"] <= FILE_LIMIT for what in ("save", "load"))
    print_verdict(
        f"a step at most {DURING_LIMIT}x during the write, save and load at most {FILE_LIMIT}x torch's", met=met
    )
    settings = {"checkpoints": checkpoints, "repeats": repeats, "milliseconds": arguments.milliseconds}
    save("checkpoint", settings=settings, results={**results, "slower": slower}, met=met)


if __name__ == "__main__":
    main()
