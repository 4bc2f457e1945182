"""The workers' programs in the tests on a GPU: the same training on the GPU and on the CPU."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everyone calls it
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.runtime.worker.exchange.group import TorchGroup

NUM_SAMPLES, BATCH_SIZE, EPOCHS = 256, 8, 2
LINEAR = torch.randn(16, 4, generator=torch.Generator().manual_seed(5)) / 4


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_SAMPLES, 16, generator=generator)
    return TensorDataset(x, x @ LINEAR + 0.1 * torch.randn(NUM_SAMPLES, 4, generator=generator))


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.005)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def flat(tensors: Any) -> list[float]:
    return torch.cat([tensor.detach().double().flatten().cpu() for tensor in tensors]).tolist()


def train(
    *,
    policy: str,
    device: str,
    optimizer: str = "sgd",
    half: bool = False,
    compiler: str | None = None,
    folder: str | None = None,
    stop_at: int | None = None,
    dropout: float = 0.0,
) -> dict[str, Any]:
    """Train for two epochs, or until a step at which this worker ends by an error, as one that is lost does not."""
    model = layers()
    model.append(nn.Dropout(dropout))
    model = model.to(device)
    made = optimizer_of(model, optimizer)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10) if half else None
    saving: dict[str, Any] = {} if folder is None else {"checkpoint": folder, "every": "8 steps"}
    torch.manual_seed(11)
    loss_of = nn.MSELoss()
    called = model if compiler is None else torch.compile(model, backend=compiler)
    with plesio.join(called, made, policy=policy, scaler=scaler, **saving) as session:
        loader = DataLoader(data(), BATCH_SIZE, shuffle=True, generator=torch.Generator().manual_seed(2))
        steps = 0
        for _ in range(EPOCHS):
            for batch in session.shard(loader):
                x, y = (tensor.to(device) for tensor in batch)
                made.zero_grad()
                with torch.autocast(device, dtype=torch.float16) if half else nullcontext():
                    loss = loss_of(called(x).float(), y)
                (loss if scaler is None else scaler.scale(loss)).backward()
                session.step(loss)
                steps += 1
                if steps == stop_at:
                    time.sleep(1.0)  # the checkpoint of step 16 is written meanwhile
                    os._exit(9)
            session.evaluate(lambda: loss_over(model, device), goal="min")
    report = session.report()
    return {
        "parameters": flat(model.parameters()),
        "loss": loss_over(model, device),
        "devices": {tensor.device.type for tensor in model.parameters()},
        "fallbacks": list(report.fallbacks),
        "steps": steps,
        "utilisation": report.to_json().get("memory"),
    }


def loss_over(model: nn.Module, device: str) -> float:
    x, y = (tensor.to(device) for tensor in data().tensors)
    with torch.no_grad():
        return float(F.mse_loss(model(x), y))


def one_after_another(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [train(**setting) for setting in settings]


def grid(*, setting: str, device: str) -> dict[str, Any]:
    """The same network in stages."""
    torch.manual_seed(11)
    made = plesio.grid(
        layers().to(device),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.5),
        loss=F.mse_loss,
        setting=setting,
        cuts=[3] if setting.startswith("1x2") else None,
    )
    with made:
        for _ in range(EPOCHS):
            loader = DataLoader(data(), BATCH_SIZE, shuffle=True, generator=torch.Generator().manual_seed(2))
            for x, y in made.shard(loader):
                made.step(x.to(device), y.to(device))
        state = made.state_dict()
    return {"parameters": [] if state is None else flat(state.values()), "fallbacks": list(made.report().fallbacks)}


def collectives() -> dict[str, Any]:
    """All collectives of a group that NCCL serves, which is alone on its GPU."""
    store = dist.HashStore()
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    world = dist.group.WORLD
    assert world is not None
    group = TorchGroup(world)
    told: dict[str, Any] = {}
    for device in ("cpu", "cuda"):
        numbers = torch.arange(4.0, device=device)
        group.broadcast(numbers)
        work = group.all_reduce(numbers)
        work.wait()
        rows = group.all_to_all(numbers.view(1, 4)).wait()
        told[device] = (
            numbers.tolist(),
            work.took_s() > 0,
            [one.tolist() for one in group.all_gather(numbers).wait()],
            [one.tolist() for one in rows],
        )
    part = group.split([[0]])
    assert part is not None
    part.all_reduce(torch.ones(2, device="cuda")).wait()
    group.abort()
    try:
        group.all_reduce(torch.ones(2, device="cuda"))
    except RuntimeError as error:
        told["aborted"] = type(error).__name__
    dist.destroy_process_group()
    return told
