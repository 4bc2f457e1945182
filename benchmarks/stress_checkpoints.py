"""Does a run that is killed while it writes a checkpoint end as one that was not, when it is resumed?

    python benchmarks/stress_checkpoints.py [--crashes 200] [--workers 1] [--policy bsp] [--steps 12]

A run with a checkpoint every few steps is killed (SIGKILL) at one moment after the other at which it touches the
checkpoints' folder: opens, renames or deletes a file, makes or deletes a folder. Each time it is then run again and
goes on from the latest whole checkpoint. Counts how often the parameters, metrics and figures are those of the run that
nobody killed, to the bit, and what was lost; any difference is an error.
"""

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "plesio" / "tests"))

from arguments import at_least
from plesio.runtime.server.shard import warm_up
from plesio.testing import LocalJob
from runtime.checkpoint_programs import checkpoints, train

warm_up()

TOUCHES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}
COMPARED = ("sha", "metrics", "samples", "steps", "clock", "rate")
PRELOADED = ["torch.distributed.checkpoint", "torch._dynamo", "plesio.runtime.join", "runtime.checkpoint_programs"]
"""Modules that the fork server imports once, so that its children need not: they would for seconds each."""


def train_and_die(
    *, folder: str, die_after: int | None, policy: str = "bsp", rank: int = 0, steps: int = 12
) -> dict[str, Any]:
    """Train; worker ``rank`` is killed when it touches the folder for the ``die_after``-th time."""
    lock, touched = threading.Lock(), 0

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal touched
        if event not in TOUCHES or not arguments or folder not in str(arguments[0]):
            return
        with lock:
            touched += 1
            if touched == die_after:
                os.kill(os.getpid(), signal.SIGKILL)

    if die_after is not None and int(os.environ.get("RANK", rank)) == rank:
        sys.addaudithook(look)
    torch.set_num_threads(1)
    done = train(policy=policy, folder=folder, every=f"{steps} steps")
    return {name: done[name] for name in COMPARED} | {"touched": touched}


def _alone(folder: str, die_after: int | None, steps: int, said: Any) -> None:
    said.put(train_and_die(folder=folder, die_after=die_after, steps=steps))


def one_run(folder: Path, *, die_after: int | None, workers: int, policy: str, steps: int) -> dict[str, Any] | None:
    """Return the outcome of a run; None if it was killed."""
    if workers > 1:
        with LocalJob(workers) as job:
            rank = 0 if die_after is None else die_after % workers
            endings = job.run(
                Path(__file__),
                "train_and_die",
                timeout_s=120,
                folder=str(folder),
                die_after=None if die_after is None else 1 + die_after // workers,
                policy=policy,
                rank=rank,
                steps=steps,
            )
        if any(ending.exit_status == -signal.SIGKILL for ending in endings.values()):
            return None
        value: dict[str, Any] = endings[0].value
        return value
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    said = context.Queue()
    process = context.Process(target=_alone, args=(str(folder), die_after, steps, said))
    process.start()
    process.join()
    if process.exitcode == -signal.SIGKILL:
        return None
    found: dict[str, Any] = said.get()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crashes", type=at_least(1), default=200)
    parser.add_argument("--workers", type=at_least(1), default=1)
    parser.add_argument("--policy", default="bsp")
    parser.add_argument("--steps", type=at_least(1), default=12, help="between two checkpoints (default: 12)")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        named: dict[str, Any] = {
            "workers": arguments.workers,
            "policy": arguments.policy,
            "steps": arguments.steps,
        }
        whole = one_run(Path(root, "whole"), die_after=None, **named)
        assert whole is not None, "nobody kills this one"
        for crash in track(range(arguments.crashes), "killed", disable=not sys.stderr.isatty()):
            folder = Path(root, "killed")
            shutil.rmtree(folder, ignore_errors=True)
            if one_run(folder, die_after=crash + 1, **named) is not None:
                counts["ended before the moment to be killed at"] += 1
                continue
            counts["killed"] += 1
            counts[f"killed with {len(checkpoints(folder)) if folder.is_dir() else 0} whole checkpoints"] += 1
            again = one_run(folder, die_after=None, **named)
            equal = again is not None and all(again[name] == whole[name] for name in COMPARED)
            counts["resumed, equal to the bit" if equal else "DIFFERENT"] += 1
    for what, number in sorted(counts.items()):
        print(f"{number:6} {what}")
    sys.exit(1 if counts["DIFFERENT"] else 0)


if __name__ == "__main__":
    main()
