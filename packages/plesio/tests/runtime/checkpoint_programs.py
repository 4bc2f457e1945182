"""The workers' programs in the tests of checkpoints."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.exchange.replica import parameters_sha256
from plesio.runtime.worker.pacing import Pacer

NUM_SAMPLES = 240
NUM_EPOCHS = 3


def model_of() -> nn.Module:
    """Has a buffer of its own on every worker, and draws random numbers."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    """By its name."""
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def data() -> TensorDataset:
    """The same in every process."""
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(NUM_SAMPLES, 6, generator=generator), torch.arange(NUM_SAMPLES))


def train(
    *,
    policy: str,
    folder: str | None,
    optimizer: str = "sgd",
    every: str = "8 steps",
    resume: str = "auto",
    keep: int = 20,
    die_at: int | None = None,
    die: int = 0,
    pacer: Pacer | None = None,
    job: Any = None,
    rate_at: int | None = 12,
    elastic: bool = True,
    dtype: str = "float32",
    scale: float | None = None,
) -> dict[str, Any]:
    """Train for three epochs; the worker ``die`` is killed before it ends step ``die_at``.

    Returns:
        What there is to compare: a digest of the parameters, metrics, samples seen by this worker, the run's figures.
    """
    model = model_of().to(getattr(torch, dtype))
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, growth_interval=5, enabled=scale is not None)
    trained = optimizer_of(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(trained, NUM_SAMPLES if rate_at is None else rate_at, 0.5)
    metrics: list[float | None] = []
    seen: list[int] = []
    with plesio.join(
        model,
        trained,
        policy=policy,
        checkpoint=folder,
        every=every,
        keep=keep,
        resume=resume,
        scaler=scaler,
        options=JoinOptions(pacer=pacer, job=job, elastic=elastic),
    ) as session:
        torch.manual_seed(100 + session.rank)
        session.register(schedule=schedule)
        for _ in range(NUM_EPOCHS):
            for x, index in session.shard(DataLoader(data(), batch_size=5, shuffle=True)):
                if session.rank == die and session.clock == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = nn.functional.cross_entropy(model(x.to(getattr(torch, dtype))), index % 2)
                overflows = scale is not None and session.rank == 1 and session.clock % 8 == 5
                (scaler.scale(loss) * (torch.inf if overflows else 1.0)).backward()
                session.step(loss)
                schedule.step()
                seen += index.tolist()
            metrics.append(session.evaluate(lambda: float(sum(p.double().sum() for p in model.parameters()))))
    result = session.report()
    return {
        "sha": parameters_sha256(session._replica.parameters, session._replica.state()),
        "metrics": metrics,
        "seen": seen,
        "rank": session.rank,
        "samples": result.samples,
        "steps": result.steps,
        "clock": session.clock,
        "wall_s": result.wall_s,
        "fallbacks": result.fallbacks,
        "scaler": scaler.state_dict(),
        "rate": trained.param_groups[0]["lr"],
    }


def checkpoints(folder: Path) -> list[Path]:
    """The committed ones, the latest last."""
    return sorted(path for path in folder.glob("step-*") if not path.name.endswith(".part"))


def assert_plain_torch_reads(checkpoint: Path, name: str) -> None:
    """Load a checkpoint without Plesio into a new model and its optimizer."""
    model = model_of()
    optimizer = optimizer_of(model, name)
    parameters, state = get_state_dict(model, optimizer)
    loaded = {"model": parameters, "optimizer": state}
    dcp.load(loaded, checkpoint_id=str(checkpoint))
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    key = "exp_avg" if name == "adamw" else "momentum_buffer"
    moments = [values[key] for values in optimizer.state.values()]
    assert len(moments) == len(list(model.parameters()))
    assert all(bool(moment.abs().sum() > 0) for moment in moments if moment.numel() > 8)
    assert not torch.equal(model[0].weight, model_of()[0].weight)
