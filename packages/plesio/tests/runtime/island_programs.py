"""Islands of ranks that hold one replica together, in several ways, and the same training in one process."""

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional as F  # noqa: N812  # as everyone calls it
from torch.utils.data import DataLoader, TensorDataset

import plesio

NUM_STEPS = 6
NUM_ISLANDS = 2
BATCH = 8
SAVED_STEPS = 20
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


OVERFLOW = (4, 1)
"""Step and worker whose scaled gradient overflows, on one rank."""


def make_model(policy: str = "") -> nn.Module:
    """Make a model with a frozen parameter. Its sizes do not divide, but under a compression each part has pairs."""
    torch.manual_seed(0)
    first, second, third = (4, 8, 8) if "compress" in policy else (5, 14, 3)
    model = nn.Sequential(nn.Linear(first, second), nn.Tanh(), nn.Linear(second, third), nn.LayerNorm(third))
    model[3].weight.requires_grad_(False)
    return model


def batch(step: int, worker: int, *, features: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features ``[BATCH, features]`` and labels ``[BATCH]`` of one step of one worker."""
    generator = torch.Generator().manual_seed(100 * step + worker)
    return torch.randn(BATCH, features, generator=generator), torch.randint(0, 3, (BATCH,), generator=generator)


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
    elif way == "two dimensions" and island.size > 1:
        mesh = init_device_mesh("cpu", (2, island.size // 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        for part in (model[0], model[2], model[3], model):
            fully_shard(part, mesh=mesh["data"])
    elif way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    return model


def whole(model: nn.Module) -> dict[str, list[float]]:
    """Return all values of the model's parameters and buffers, by name; all ranks of an island call it."""
    state = model.state_dict()
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).flatten().tolist() for name, t in state.items()}


def train(way: str, policy: str, optimizer: str) -> dict[str, Any]:
    """Train in this way; with "scaled" in it, the loss is scaled, and one gradient overflows."""
    island, (way, _, scaled) = plesio.island(), way.partition("-")
    model = make_model(policy)
    call = shared_by(way, model, island)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=bool(scaled))
    features = model[0].in_features
    with plesio.join(model, OPTIMIZERS[optimizer](model), policy=policy, scaler=scaler) as session:
        for step in range(NUM_STEPS):
            x, y = batch(step, session.rank, features=features)
            if way in ("fsdp", "ddp"):
                x, y = x[island.rank :: island.size], y[island.rank :: island.size]
            elif way == "two dimensions" and island.size > 1:
                x, y = x[island.rank // 2 :: 2], y[island.rank // 2 :: 2]
            scaler.scale(F.cross_entropy(call(x), y)).backward()
            if scaled and (step, session.rank) == OVERFLOW and not island.leads:
                model[0].weight.grad.to_local().fill_(torch.inf)
            session.step(samples=BATCH)
        x, y = batch(99, 0, features=features)
        metric = session.evaluate(lambda: float(F.cross_entropy(model(x), y)))
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
        "scale": scaler.get_scale(),
    }


def train_all(sizes: str, runs: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Train session after session, each in its way (one for all islands, or one each) under its policy."""
    torch.set_num_threads(1)
    os.environ["PLESIO_ISLAND"] = sizes
    worker = plesio.island().worker
    return [train(way.split("|")[worker % len(way.split("|"))], *rest) for way, *rest in runs]


def lose_one(policy: str, size: int, lost: int, *, elastic: bool = True) -> tuple[int, tuple[int, ...], int, Any]:
    """Train on a loader's samples, in islands or as workers of one process; rank ``lost`` of worker 1 is killed."""
    torch.set_num_threads(1)
    if size > 1:
        os.environ["PLESIO_ISLAND"] = str(size)
    island = plesio.island()
    model = make_model()
    shared_by("fsdp", model, island)
    features, labels = torch.randn(160, 5), torch.randint(0, 3, (160,))
    loader = DataLoader(TensorDataset(features, labels), batch_size=BATCH)
    options = plesio.JoinOptions(elastic=elastic)
    with plesio.join(model, OPTIMIZERS["momentum"](model), policy=policy, options=options) as session:
        for x, y in session.shard(loader):
            if session.rank == 1 and island.rank == lost and session.clock == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            own = slice(island.rank, None, size)
            F.cross_entropy(model(x[own]), y[own]).backward()
            session.step()
    report = session.report()
    return session.rank, report.lost_workers, report.samples, whole(model)


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


def save(
    sizes: str,
    way: str,
    policy: str,
    folder: str,
    optimizer: str = "AdamW",
    resume: str = "auto",
    die_at: int | None = None,
    *,
    evaluates: bool = False,
) -> dict[str, Any]:
    """Train with checkpoints; a rank of the last island is killed at step ``die_at``.

    Without ``sizes`` the ranks are workers. Those that evaluate do so after each step, everywhere. Batches are a
    function of worker and clock, so that it does not matter who leases which samples.
    """
    torch.set_num_threads(1)
    if sizes:
        os.environ["PLESIO_ISLAND"] = sizes
    island = plesio.island()
    model = make_model(policy)
    call = shared_by(way, model, island)
    loader = DataLoader(TensorDataset(torch.arange(SAVED_STEPS * NUM_ISLANDS * BATCH)), batch_size=BATCH)
    trained = OPTIMIZERS[optimizer](model)
    schedule = torch.optim.lr_scheduler.StepLR(trained, 5, 0.5)
    seen = []
    with plesio.join(
        model, trained, policy=policy, checkpoint=folder, every="4 steps", keep=20, resume=resume
    ) as session:
        session.register(schedule=schedule)
        for _ in session.shard(loader):
            last = session.rank == session.num_workers - 1 and island.rank == island.size - 1
            if die_at is not None and session.clock >= die_at and last:
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(session.clock)
            x, y = batch(session.clock, session.rank, features=model[0].in_features)
            if way in ("fsdp", "ddp"):
                x, y = x[island.rank :: island.size], y[island.rank :: island.size]
            elif way == "two dimensions" and island.size > 1:
                x, y = x[island.rank // 2 :: 2], y[island.rank // 2 :: 2]
            F.cross_entropy(call(x), y).backward()
            session.step()
            schedule.step()
            if evaluates:
                session.evaluate(lambda x=x, y=y: float(F.cross_entropy(model(x), y)), everywhere=True)
    report = session.report()
    return {
        "whole": whole(model),
        "samples": report.samples,
        "rate": trained.param_groups[0]["lr"],
        "seen": seen,
        "fallbacks": report.fallbacks,
    }
