"""Islands of ranks that hold one replica together, in several ways, and the same training in one process."""

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional as F  # noqa: N812  # as everyone calls it
from torch.utils.data import DataLoader, TensorDataset

import plesio

NUM_STEPS = 6
NUM_ISLANDS = 2
BATCH = 8
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


def make_model() -> nn.Module:
    """Make a model whose sizes do not divide, with a buffer that moves not and a parameter that is frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 14), nn.Tanh(), nn.Linear(14, 3), nn.LayerNorm(3))
    model[3].weight.requires_grad_(False)
    return model


def batch(step: int, worker: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features ``[BATCH, 5]`` and labels ``[BATCH]`` of one step of one worker."""
    generator = torch.Generator().manual_seed(100 * step + worker)
    return torch.randn(BATCH, 5, generator=generator), torch.randint(0, 3, (BATCH,), generator=generator)


def shared_by(way: str, model: nn.Module, island: Any) -> nn.Module:
    """Have the island's ranks share the model in this way; return what the script calls."""
    if way == "fsdp":
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=island.mesh)
        fully_shard(model, mesh=island.mesh)
    elif way == "tensor":
        norm = SequenceParallel(sequence_dim=0)  # whose gradients are parts of sums
        row = RowwiseParallel(output_layouts=Shard(0), use_local_output=False)
        parallelize_module(model, island.mesh, {"0": ColwiseParallel(), "2": row, "3": norm})
        model[3].weight.requires_grad_(False)
        model.register_forward_hook(lambda *called: called[-1].full_tensor())
    elif way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    return model


def whole(model: nn.Module) -> dict[str, list[float]]:
    """Return all values of the model's parameters and buffers, by name; all ranks of an island call it."""
    state = model.state_dict()
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).flatten().tolist() for name, t in state.items()}


def train(way: str, policy: str, optimizer: str) -> dict[str, Any]:
    island = plesio.island()
    model = make_model()
    call = shared_by(way, model, island)
    with plesio.join(model, OPTIMIZERS[optimizer](model), policy=policy) as session:
        for step in range(NUM_STEPS):
            x, y = batch(step, session.rank)
            if way in ("fsdp", "ddp"):
                x, y = x[island.rank :: island.size], y[island.rank :: island.size]
            F.cross_entropy(call(x), y).backward()
            session.step(samples=BATCH)
        metric = session.evaluate(lambda: float(F.cross_entropy(model(batch(99, 0)[0]), batch(99, 0)[1])))
    assert session.island is island
    report = session.report()
    return {
        "rank": session.rank,
        "metric": metric,
        "whole": whole(model),
        "steps": report.steps,
        "samples": report.samples,
        "memory": [one.memory for one in report.workers],
        "sha256": report.parameters_sha256,
    }


def train_all(sizes: str, runs: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Train session after session, each in its way (one for all islands, or one each) under its policy."""
    torch.set_num_threads(1)
    os.environ["PLESIO_ISLAND"] = sizes
    worker = plesio.island().worker
    return [train(way.split("|")[worker % len(way.split("|"))], *rest) for way, *rest in runs]


def lose_one(policy: str) -> tuple[int, tuple[int, ...], int]:
    """Train on a loader's samples; the second rank of island 1 is killed at step 5."""
    torch.set_num_threads(1)
    os.environ["PLESIO_ISLAND"] = "2"
    island = plesio.island()
    model = make_model()
    shared_by("fsdp", model, island)
    features, labels = torch.randn(160, 5), torch.randint(0, 3, (160,))
    loader = DataLoader(TensorDataset(features, labels), batch_size=BATCH)
    with plesio.join(model, OPTIMIZERS["momentum"](model), policy=policy) as session:
        for x, y in session.shard(loader):
            if session.rank == 1 and island.rank == 1 and session.clock == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            F.cross_entropy(model(x[island.rank :: 2]), y[island.rank :: 2]).backward()
            session.step()
    report = session.report()
    return session.rank, report.lost_workers, report.samples


def refused(sizes: str, what: str) -> str:
    """Return the line with which an island is refused."""
    os.environ["PLESIO_ISLAND"] = sizes
    model = make_model()
    try:
        island = plesio.island()
        if what == "partial":
            model = nn.Linear(4, 4)
            model.weight = nn.Parameter(DTensor.from_local(torch.ones(4, 4), island.mesh, [Partial()]))
        policy = "asp" if what == "partial" else what
        plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy)
    except plesio.PlesioError as error:
        return str(error)
    raise AssertionError(f"{what} was not refused")
