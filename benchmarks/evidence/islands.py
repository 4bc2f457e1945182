"""Memory of a rank: a worker of one process beside an island of two, whose ranks share the replica by FSDP2.

    python benchmarks/evidence/islands.py

Two workers train a chain of linear layers under AdamW and local SGD on the store. Printed for each kind, the largest of
its ranks: the bytes of parameters, gradients and optimizer state when a gradient is complete, and how much the process
has grown at most since before the model was made, up to the last step.
"""

import os
import sys
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import plesio
from plesio.testing import LocalJob

NUM_LAYERS, WIDTH, BATCH, NUM_STEPS = 24, 1024, 4, 8
POLICY = "local_sgd:2,exchange=store"
LIMIT_S = 300.0


def local_bytes(tensors: list[torch.Tensor]) -> int:
    parts = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(part.numel() * part.element_size() for part in parts)


def status_bytes(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(text.partition(f"\n{name}:")[2].split(maxsplit=1)[0])


def measure(size: int) -> dict[str, int]:
    """Train as one rank of an island of ``size``; returns the bytes of what it holds, and of its growth."""
    torch.set_num_threads(1)
    if size > 1:
        os.environ["PLESIO_ISLAND"] = str(size)
        plesio.island()
    torch.optim.AdamW([torch.zeros(1)]).step()  # imports what it needs
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))
    if size > 1:
        for layer in (*model, model):
            fully_shard(layer)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            getattr(parameter, "_local_tensor", parameter).normal_(std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    held = 0
    with plesio.join(model, optimizer, policy=POLICY) as session:
        for _ in range(NUM_STEPS):
            model(torch.randn(BATCH, WIDTH)).square().mean().backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            state = [one for of in optimizer.state.values() for one in of.values()]
            held = max(held, local_bytes([*model.parameters(), *gradients, *state]))
            session.step(samples=BATCH)
            grown = status_bytes("VmHWM") - before
    return {"held": held, "grown": grown}


def main() -> None:
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what a process frees goes back to the system at once
    of: dict[int, dict[str, int]] = {}
    for size in (1, 2):
        with LocalJob(2 * size) as job:
            endings = job.run(Path(__file__), "measure", timeout_s=LIMIT_S, size=size)
        if errors := [ending.trace for ending in endings.values() if ending.error is not None]:
            sys.exit(errors[0])
        of[size] = {key: max(ending.value[key] for ending in endings.values()) for key in ("held", "grown")}
        held_mb, grown_mb = (of[size][key] / 1e6 for key in ("held", "grown"))
        print(f"ranks of a worker {size}: held {held_mb:.0f} MB, grown by {grown_mb:.0f} MB at most", flush=True)
    shares = {key: of[2][key] / of[1][key] for key in of[1]}
    print(f"share of the unsharded worker's: held {shares['held']:.2f}, grown {shares['grown']:.2f}")


if __name__ == "__main__":
    main()
