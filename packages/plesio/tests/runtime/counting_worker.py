"""A worker that counts: every update moves the one parameter by exactly its weight, so nothing can be lost unseen."""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.testing import forked_server

NUM_SAMPLES, BATCH_SIZE = 240, 4


def count(*, policy: str, folder: Path, steps: int, victim: str, seed: int) -> dict[str, float | str]:
    """Train; rank 0 kills the server, or its backup, at a random moment.

    Args:
        policy: Under which.
        folder: Where results go.
        steps: Of this worker.
        victim: "primary", "backup" or "nobody".
        seed: Of the moment.

    Returns:
        The parameter at the end, the longest step, and the median one.
    """
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = plesio.JoinOptions(replicas=2)
    with plesio.join(model, optimizer, policy=policy, trace=folder, options=options) as session:
        if int(os.environ["RANK"]) == 0 and victim != "nobody":
            threading.Thread(target=_kill, args=(victim, seed), daemon=True).start()
        durations = []
        for _ in range(steps):
            began_s = time.perf_counter()
            (-model.weight.sum()).backward()
            session.step()
            durations.append(time.perf_counter() - began_s)
        session.finish()
        weight = model.weight.item()
    durations.sort()
    return {"weight": weight, "longest_s": durations[-1], "median_s": durations[len(durations) // 2]}


def count_samples(
    *,
    policy: str,
    folder: Path,
    epochs: int,
    step_s: float,
    replicas: int,
    trace: Path | None = None,
    checkpoint: Path | None = None,
    racks: Sequence[int] | None = None,
) -> float:
    """Train on numbered samples, and note after every step that counted which they were.

    Each step moves the one parameter by 1 in all. While it trains, FOLDER has ``pid-RANK`` and ``steps-RANK``: a line
    for each step that has returned, with its clock and its samples. ``end-RANK`` comes when its loops are over, and the
    evaluation then takes as long as ten steps.

    Args:
        policy: Under which.
        folder: Where the notes go.
        epochs: Loops over the data.
        step_s: Seconds of a step, at least.
        replicas: How often the server is there.
        trace: Where results go; None is a folder in ``folder``.
        checkpoint: Where checkpoints go, one every ten steps; None takes none.
        racks: Of every worker, the one that it is in; None has them found.

    Returns:
        The parameter at the end.
    """
    rank = os.environ["RANK"]
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = TensorDataset(torch.arange(NUM_SAMPLES))
    also = {} if checkpoint is None else {"checkpoint": checkpoint, "every": "10 steps"}
    also |= {} if racks is None else {"racks": racks}

    def metric() -> float:
        time.sleep(10 * step_s)
        return model.weight.item()

    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    options = plesio.JoinOptions(replicas=replicas)
    with (
        plesio.join(model, optimizer, policy=policy, trace=trace or folder / "trace", options=options, **also) as run,
        (folder / f"steps-{rank}").open("w", buffering=1) as notes,
    ):
        for _ in range(epochs):
            for (numbers,) in run.shard(DataLoader(data, batch_size=BATCH_SIZE, shuffle=True)):
                (-model.weight.sum()).backward()
                time.sleep(step_s)
                before = run.clock
                run.step()
                if run.clock > before:
                    notes.write(" ".join(map(str, [run.clock, *numbers.tolist()])) + "\n")
        (folder / f"end-{rank}").write_text("over")
        run.finish(metric)
        return model.weight.item()


def _kill(victim: str, seed: int) -> None:
    time.sleep(random.Random(seed).uniform(0.1, 1.0))
    servers = [one for one in psutil.Process().children() if one.name() == forked_server.NAME]
    backup, primary = sorted(servers, key=lambda one: one.create_time())
    os.kill((primary if victim == "primary" else backup).pid, signal.SIGKILL)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    print(json.dumps(count(**{**arguments, "folder": Path(arguments["folder"])})))
