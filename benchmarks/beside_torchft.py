"""How long do the others stand still when one of four workers is killed: torchft beside Plesio, in turns.

The work is that of `bench_recovery.py --of kill`: a small network on the CPU, Gloo, a wait of 10 ms in a step, and
SIGKILL at a third of the steps. torchft has a replica where Plesio has a worker. Its lighthouse is started as its
README does (losses are found by a heartbeat timeout of 5 s, the default), and with a heartbeat timeout of 1 s.

    pip install torchft opentelemetry-sdk opentelemetry-exporter-otlp-proto-http   # into an environment of its own
    python benchmarks/beside_torchft.py [--repeat 3]

Prints, by way, the median over the repeats of the longest time that another worker went without finishing a step after
that, less its median step.
"""

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from bench_recovery import BATCH, VICTIM, WIDTHS, build, longest_stall_s, run
from record import print_table

WORKERS, STEPS, STEP_S = 4, 100, 0.01
LIGHTHOUSES: dict[str, dict[str, int]] = {
    "torchft, as its README has it": {"quorum_tick_ms": 100, "join_timeout_ms": 10_000},
    "torchft, heartbeats 1 s": {"quorum_tick_ms": 100, "join_timeout_ms": 1000, "heartbeat_timeout_ms": 1000},
}
POLICIES = ("bsp", "ssp:4")
LIMIT_S = timedelta(seconds=30)


def replica(rank: int, folder: str, lighthouse: str) -> None:
    """Train as one replica group of torchft; the victim is killed once all take part."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, sgd = build(WIDTHS["small"])
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LIMIT_S),
        min_replica_size=2,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), sgd.load_state_dict(state["sgd"])),
        state_dict=lambda: {"model": model.state_dict(), "sgd": sgd.state_dict()},
        replica_id=f"replica{rank}",
        lighthouse_addr=lighthouse,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=LIMIT_S,
    )
    called, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
    happened, ended_s = Path(folder, "happened"), list[float]()
    while (step := manager.current_step()) < STEPS:
        if rank == VICTIM and step >= STEPS // 3 and manager.num_participants() == WORKERS:
            happened.with_name("written").write_text(str(time.monotonic()))
            happened.with_name("written").rename(happened)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        called(torch.randn(BATCH, 64)).square().mean().backward()
        time.sleep(STEP_S)
        optimizer.step()
        if manager.current_step() > step:
            ended_s.append(time.monotonic())
    Path(folder, f"ended-{rank}").write_text(json.dumps([*ended_s, time.monotonic()]))
    os._exit(0)  # its threads would wait for the others


def stall_of_torchft_s(settings: dict[str, int], folder: Path) -> float:
    """Run the replicas; return the longest stall of one that was not killed."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, **settings)
    context = get_context("spawn")
    every: list[Any] = [
        context.Process(target=replica, args=(rank, str(folder), lighthouse.address())) for rank in range(WORKERS)
    ]
    for process in every:
        process.start()
    for process in every:
        process.join()
    lighthouse.shutdown()
    ended_s = [json.loads(path.read_text()) for path in folder.glob("ended-*")]
    return longest_stall_s(ended_s, since_s=float((folder / "happened").read_text()))


def stall_of_plesio_s(policy: str, folder: Path) -> float:
    """Run the workers; return the longest stall of one that was not killed."""
    since_s, ended_s, _ = run(policy, "kill", steps=STEPS, folder=folder)
    return longest_stall_s(ended_s.values(), since_s=since_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each way")
    repeat = parser.parse_args().repeat
    ways: list[tuple[str, Any, Any]] = [(name, stall_of_torchft_s, one) for name, one in LIGHTHOUSES.items()]
    ways += [(f"`{policy}`", stall_of_plesio_s, policy) for policy in POLICIES]
    found: dict[str, list[float]] = {name: [] for name, *_ in ways}
    for _ in range(repeat):
        for name, stall_s, setting in ways:
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(stall_s(setting, Path(folder)))
    rows = [[name, *(f"{one:.3f} s" for one in (statistics.median(each), min(each), max(each)))]
            for name, each in found.items()]  # fmt: skip
    print_table("one of four workers is killed", columns=["way", "stall, median", "least", "most"], rows=rows)


if __name__ == "__main__":
    main()
