"""Mixed and half precision: the training that the tests look at, and the same in one process by hand.

`train` runs on virtual workers, and by `LocalJob` on processes, which load this file.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.utils.data import DataLoader, Dataset

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import LogNormal
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support import processes
from support.processes import own_job
from support.workers import cluster_of_racks

NUM_SAMPLES, BATCH_SIZE, NUM_WORKERS, EPOCHS = 120, 4, 3, 2
STEP_TIME = LogNormal(mean_s=0.02, cv=0.3)
TOO_LARGE = 2.0**20
"""A scale under which the first gradients overflow in float16."""
TOLERANCE: dict[str, Any] = {"rel": 1e-4, "abs": 1e-5}
"""Gradients in float16 are the same; float32 sums of them are made in another order. 20 steps."""


class Noisy(Dataset[tuple[int, Tensor, Tensor]]):
    """Targets that a small network can learn."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(NUM_SAMPLES, 6, generator=generator)
        self.y = self.x[:, :1] * 2 - self.x[:, 1:2] + 0.1 * torch.randn(NUM_SAMPLES, 1, generator=generator)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        return index, self.x[index], self.y[index]


def build(dtype: str = "float32", *, optimizer: str = "momentum") -> tuple[nn.Module, torch.optim.Optimizer]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(getattr(torch, dtype))
    made: dict[str, Any] = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.05),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.02),
    }
    return model, made[optimizer]()


def loss_of(model: nn.Module, x: Tensor, y: Tensor, *, autocast: str | None) -> Tensor:
    dtype = next(model.parameters()).dtype
    with nullcontext() if autocast is None else torch.autocast("cpu", dtype=getattr(torch, autocast)):
        return (model(x.to(dtype)).float() - y).square().mean()


def flat_of(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().float().reshape(-1) for parameter in model.parameters()]).tolist()


def loss_with(parameters: list[float]) -> float:
    """Return the loss of all samples."""
    model, data = build()[0], Noisy()
    nn.utils.vector_to_parameters(torch.tensor(parameters), model.parameters())
    return float(loss_of(model, data.x, data.y, autocast=None).detach())


@dataclass(kw_only=True)
class Worker:
    """The record of one worker: each step, and its end."""

    batches: list[list[int]] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    final: list[float] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)
    sha256: str | None = None
    dtypes: list[str] = field(default_factory=list)
    refused: dict[str, dict[str, int]] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)


def train(
    policy: str,
    *,
    scale: float | None = None,
    growth_interval: int = 2000,
    growth_factor: float = 2.0,
    epochs: int = EPOCHS,
    autocast: str | None = None,
    dtype: str = "float32",
    optimizer: str = "momentum",
    clip: float | None = None,
    clip_value: float | None = None,
    overflows: Sequence[tuple[int, int]] = (),
    pacer: Pacer | None = None,
    job: Any = None,
    trace: str | None = None,
) -> Worker:
    """An ordinary mixed-precision loop; ``overflows`` are (worker, step) whose gradient does."""
    model, stepped = build(dtype, optimizer=optimizer)
    scaler = GradScaler(
        "cpu",
        init_scale=scale or 1.0,
        growth_factor=growth_factor,
        growth_interval=growth_interval,
        enabled=scale is not None,
    )
    saw = Worker()
    options = plesio.JoinOptions(pacer=pacer, job=job, info=RunInfo(seed=7))
    with plesio.join(model, stepped, policy=policy, scaler=scaler, options=options, trace=trace) as session:
        loader = DataLoader(Noisy(), batch_size=BATCH_SIZE, shuffle=True)
        for number, (index, x, y) in enumerate(session.shard(loader, samples=epochs * NUM_SAMPLES), start=1):
            saw.batches.append(index.tolist())
            loss = loss_of(model, x, y, autocast=autocast)
            scaled = scaler.scale(loss)
            saw.scales.append(scaler.get_scale())
            (scaled * math.inf if (session.rank, number) in overflows else scaled).backward()
            if clip is not None:
                scaler.unscale_(stepped)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            if clip_value is not None:
                scaler.unscale_(stepped)
                nn.utils.clip_grad_value_(model.parameters(), clip_value)
            session.step(loss)
            saw.losses.append(loss.item())
    report = session.report()
    saw.final, saw.scaler, saw.sha256 = flat_of(model), scaler.state_dict(), report.parameters_sha256
    saw.dtypes = sorted({str(parameter.dtype) for parameter in model.parameters()})
    saw.refused, saw.fallbacks = report.refused_updates, list(report.fallbacks)
    return saw


def run(
    policy: str,
    *,
    cluster: Cluster | None = None,
    num_workers: int = NUM_WORKERS,
    faults: Sequence[Fault] = (),
    **options: Any,
) -> Simulation:
    def work(job: VirtualJob) -> Worker:
        pacer = Pacer(step_time=STEP_TIME, seed=0, worker=job.place.rank, clock=job.clock)
        return train(policy, pacer=pacer, **options)

    return simulate(
        work, num_workers=num_workers, cluster=cluster or Cluster.one_host(num_workers), faults=list(faults)
    )


def train_on_processes(*, cases: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """`train` under each policy, for `LocalJob`, whose workers pickle what they return."""
    with own_job() as job:
        return [asdict(train(policy, job=job, **options)) for policy, options in cases]


def on_processes(cases: list[tuple[str, dict[str, Any]]]) -> list[list[Worker]]:
    """Return the results of two processes in each case."""
    found = processes.on_processes(2, __file__, "train_on_processes", cases=cases)
    return [[Worker(**worker[number]) for worker in found] for number in range(len(cases))]


def steps_of(workers: Sequence[Worker]) -> Iterator[list[list[int]]]:
    """Yield every worker's batch of each step."""
    yield from (list(batches) for batches in zip(*(worker.batches for worker in workers), strict=True))


def plain_loop(
    steps: Iterator[list[list[int]]],
    *,
    scale: float,
    growth_interval: int = 2000,
    clip: float | None = None,
    overflows: Sequence[tuple[int, int]] = (),
    whole: bool = False,
) -> tuple[list[float], list[float], dict[str, Any]]:
    """Mixed precision in one process: parameters, scales by step, the scaler's state.

    The gradient of a step is the mean of those of the workers' batches, or with ``whole`` that of all of them as one.
    """
    model, optimizer = build()
    scaler = GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
    data, scales = Noisy(), []
    for number, batches in enumerate(steps, start=1):
        parts = [list(chain(*batches))] if whole else batches
        optimizer.zero_grad()
        for rank, batch in enumerate(parts):
            scaled = scaler.scale(loss_of(model, data.x[batch], data.y[batch], autocast="float16"))
            (scaled * math.inf if (rank, number) in overflows else scaled).backward()
        scales.append(scaler.get_scale())
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= len(parts)
        scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
    return flat_of(model), scales, scaler.state_dict()


ALL = [
    ("bsp", 3),
    ("bsp,compress=qsgd:8+feedback", 3),
    ("bsp,compress=powersgd:2", 3),
    ("bsp,exchange=store", 3),
    ("delayed:1", 3),
    ("delayed:2,compress=topk:0.3", 3),
    ("local_sgd:3", 3),
    ("local_sgd:3,delay=1,compress=qsgd:8", 3),
    ("local_sgd:4,inner_rate=0.5,momentum=0.5", 3),
    ("ssp:2", 3),
    ("ssp:2,period=3", 3),
    ("asp", 3),
    ("asp,update=delta", 3),
    ("hier:bsp/local_sgd:3", 4),
    ("hier:bsp/ssp:2", 4),
    ("switch:bsp/asp@4/local_sgd:2@9/bsp@14", 3),
    ("switch:local_sgd:2/bsp@6", 3),
    ("adaptive", 3),
]


def simulated(policy: str, num_workers: int, **options: Any) -> Simulation:
    cluster = cluster_of_racks((2, 2)) if num_workers == 4 else cluster_of_racks((num_workers,))
    return run(policy, cluster=cluster, num_workers=num_workers, **options)


HALF = ["bfloat16", "float16"]
