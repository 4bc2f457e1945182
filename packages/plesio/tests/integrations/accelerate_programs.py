"""Training with Accelerate; here, because worker processes import it by name."""

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DataLoaderConfiguration,
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    set_seed,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from plesio.core.results import read_results
from plesio.integrations.accelerate import PlesioAccelerator
from support.frameworks import lines_of

BATCH = 4
EPOCHS = 3
ACCUMULATED = 2


def data(number: int, *, seed: int) -> TensorDataset:
    x = torch.randn(number, 5, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


def accelerator_of(policy: str, *, trace: Path | None = None, **settings: Any) -> Accelerator:
    settings = {"cpu": True, "gradient_accumulation_steps": ACCUMULATED} | settings
    return Accelerator(**settings) if policy == "ddp" else PlesioAccelerator(policy, trace=trace, **settings)


def parts(*, shuffle: bool = True) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any], Any]:
    set_seed(7)
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    loader = DataLoader(data(90, seed=0), batch_size=BATCH, shuffle=shuffle)
    return model, optimizer, loader, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))


def epoch(accelerator: Accelerator, model: nn.Module, optimizer: Any, loader: Any, scheduler: Any) -> list[float]:
    norms = []
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return norms


@torch.no_grad()
def evaluated(accelerator: Accelerator, model: nn.Module, loader: Any) -> dict[str, float]:
    model.eval()
    right, loss, seen = 0, 0.0, 0
    for x, y in loader:
        logits, targets = accelerator.gather_for_metrics((model(x), y))
        right += int((logits.argmax(1) == targets).sum())
        loss += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
        seen += len(targets)
    return {"accuracy": right / seen, "loss": loss / seen, "seen": seen}


def trained(*, policies: list[str], folder: str) -> dict[str, Any]:
    """Train under each policy, and by Accelerate's own DDP; evaluate after every epoch."""
    found = {}
    for policy in policies:
        trace = Path(folder) / policy.replace(":", "")
        accelerator = accelerator_of(policy, trace=trace)
        model, optimizer, loader, scheduler = accelerator.prepare(*parts())
        held_out = accelerator.prepare(DataLoader(data(31, seed=1), batch_size=BATCH))
        metrics, norms = [], []
        for _ in range(EPOCHS):
            norms += epoch(accelerator, model, optimizer, loader, scheduler)
            with accelerator.shared() if policy != "ddp" else torch.no_grad():
                metrics.append(evaluated(accelerator, model, held_out))
        rate = optimizer.param_groups[0]["lr"]
        model, optimizer, loader, scheduler = accelerator.free_memory(model, optimizer, loader, scheduler)
        found[policy] = {"metrics": metrics, "norms": norms, "rate": rate, "wrapped": type(model).__name__}
        if policy != "ddp" and accelerator.is_main_process:
            (result,) = read_results(trace / "results.json")
            found[policy] |= {
                "steps": result.steps,
                "samples": result.samples,
                "fallbacks": result.fallbacks,
                "status": result.status,
                "bytes": result.bytes_sent_total,
            }
    accelerator.end_training()
    return found


def values(model: nn.Module) -> list[float]:
    return [value for p in model.parameters() for value in p.detach().flatten().tolist()]


def saved_and_loaded(*, policy: str, folder: str) -> dict[str, Any]:
    """Train on for an epoch after saving; the same in a second training, which loads that; and once more in a third.

    Accelerate saves no order of samples.
    """
    accelerator = accelerator_of(policy, gradient_accumulation_steps=1)
    model, optimizer, loader, scheduler = accelerator.prepare(*parts(shuffle=False))
    epoch(accelerator, model, optimizer, loader, scheduler)
    accelerator.save_state(folder)
    with accelerator.shared():
        at_save = values(model)
    epoch(accelerator, model, optimizer, loader, scheduler)
    accelerator.leave()
    straight = values(model)
    model, optimizer, loader, scheduler = accelerator.free_memory(model, optimizer, loader, scheduler)
    accelerator = accelerator_of(policy, gradient_accumulation_steps=1)
    model, optimizer, loader, scheduler = accelerator.prepare(*parts(shuffle=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(folder)
    loaded, rate = values(model), optimizer.param_groups[0]["lr"]
    epoch(accelerator, model, optimizer, loader, scheduler)
    found: dict[str, Any] = lines_of({"load_state": lambda: accelerator.load_state(folder)})
    accelerator.leave()
    again = values(model)
    accelerator.free_memory()
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    epoch(accelerator, model, optimizer, loader, scheduler)
    once_more = accelerator.session.clock
    accelerator.end_training()
    ended = accelerator.session is None and torch.distributed.is_initialized()
    uneven = DataLoaderConfiguration(even_batches=False)
    found |= lines_of({"uneven": lambda: accelerator_of(policy, dataloader_config=uneven)})
    found |= {"at_save": at_save, "loaded": loaded, "rate": rate, "straight": straight}
    return found | {"again": again, "once_more": once_more, "has_group_after_end": ended}


def gan(*, policies: list[str], folder: str) -> dict[str, Any]:
    """Train two models in turns under each policy, and by Accelerate's own DDP."""
    found = {}
    for policy in policies:
        trace = Path(folder) / policy.replace(":", "")
        accelerator = accelerator_of(policy, trace=trace, gradient_accumulation_steps=1)
        set_seed(7)
        gen = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
        disc = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizers = torch.optim.Adam(gen.parameters(), lr=0.01), torch.optim.Adam(disc.parameters(), lr=0.01)
        loader = DataLoader(data(96, seed=0), batch_size=BATCH, shuffle=True)
        gen, disc, opt_g, opt_d, loader = accelerator.prepare(gen, disc, *optimizers, loader)
        noise = torch.Generator().manual_seed(accelerator.process_index)
        norms = []
        for _ in range(2):
            for x, _labels in loader:
                z = torch.randn(len(x), 3, generator=noise)
                opt_d.zero_grad()
                with torch.no_grad():
                    fake = gen(z)
                accelerator.backward(judged(disc(x), 1.0) + judged(disc(fake), 0.0))
                opt_d.step()
                opt_g.zero_grad()
                accelerator.backward(judged(disc(gen(z)), 1.0))
                norms.append(float(accelerator.clip_grad_norm_(gen.parameters(), 0.5)))
                opt_g.step()
        raw = [accelerator.unwrap_model(one) for one in (gen, disc)]
        accelerator.free_memory()
        found[policy] = {"parameters": [value for one in raw for value in values(one)], "norms": norms}
        if policy != "ddp" and accelerator.is_main_process:
            (result,) = read_results(trace / "results.json")
            found[policy] |= {"steps": result.steps, "samples": result.samples, "fallbacks": result.fallbacks}
    accelerator.end_training()
    return found


def judged(logits: torch.Tensor, real: float) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, real))


def without_gpus() -> dict[str, Any]:
    """Make an accelerator as on a machine with GPUs, and one where the script has kept Accelerate from using CPUs."""
    own = PlesioAccelerator("bsp")
    found = {"place": (own.process_index, own.num_processes), "device": own.device.type}
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["ACCELERATE_USE_CPU"] = "false"
    return found | lines_of({"alone": lambda: PlesioAccelerator("bsp")})


def refused() -> dict[str, str]:
    """Ask for what cannot be, and return the lines."""

    def two_calls(accelerator: Accelerator) -> None:
        model, optimizer, *_ = parts()
        accelerator.prepare(model, optimizer)
        accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))

    def other_model(accelerator: Accelerator) -> None:
        accelerator.prepare(nn.Linear(2, 2), parts()[1])

    handlers = [DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)]
    return lines_of(
        {
            "fsdp": lambda: accelerator_of("fsdp"),
            "other model": lambda: other_model(accelerator_of("bsp")),
            "optimizer first": lambda: accelerator_of("bsp").prepare(parts()[1]),
            "two calls": lambda: two_calls(accelerator_of("bsp")),
            "comm_hook": lambda: accelerator_of("bsp", kwargs_handlers=handlers),
            "uneven": lambda: accelerator_of("bsp").join_uneven_inputs([]),
        }
    )
