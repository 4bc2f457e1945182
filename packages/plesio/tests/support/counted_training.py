"""One small training in loops, whose workers note the samples of steps that counted; some are lost, and some join."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import LogNormal
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.problems import Problem, perceptron
from support.workers import cluster_of_racks

NUM_SAMPLES, BATCH_SIZE = 90, 4


@dataclass
class Worker:
    """The record of one worker: by loop, the samples of steps that counted; and its end."""

    counted: list[list[int]] = field(default_factory=list)
    metrics: list[float | None] = field(default_factory=list)
    parameters: list[list[float]] = field(default_factory=list)
    cut_off: int = 0
    began_at: int = 0
    clock: int = 0
    rate: float = 0.0


def train(
    policy: str,
    pacer: Pacer,
    *,
    loops: int,
    evaluates: bool = False,
    checkpoint: Path | None = None,
    trace: Path | None = None,
    **options: Any,
) -> Worker:
    model, data = perceptron(5, 6), Problem(NUM_SAMPLES, 5)
    with torch.no_grad():  # who joins begins with other parameters
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    saw = Worker()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    joined = plesio.JoinOptions(pacer=pacer, info=RunInfo(seed=7), **options)

    def loss_of_all() -> float:
        return float((model(data.x) - data.y).square().mean())

    arguments: dict[str, Any] = {} if checkpoint is None else {"checkpoint": checkpoint, "every": "8 steps"}
    with plesio.join(model, optimizer, policy=policy, trace=trace, options=joined, **arguments) as session:
        saw.began_at = session.clock
        session.register(scheduler=scheduler)
        for _ in range(loops):
            saw.counted.append([])
            for index, x, y in session.shard(DataLoader(data, batch_size=BATCH_SIZE, shuffle=True)):
                (model(x) - y).square().mean().backward()
                before = session.clock
                session.step()
                if session.clock > before:
                    saw.counted[-1] += index.tolist()
                else:
                    saw.cut_off += 1
            scheduler.step()
            if evaluates:
                saw.metrics.append(session.evaluate(loss_of_all))
        session.finish(None if evaluates else loss_of_all)
        saw.clock = session.clock
    saw.parameters = [parameter.flatten().tolist() for parameter in model.parameters()]
    saw.rate = optimizer.param_groups[0]["lr"]
    return saw


def pacer_of(job: VirtualJob) -> Pacer:
    return Pacer(step_time=LogNormal(mean_s=0.02, cv=0.3), seed=5, worker=job.place.rank, clock=job.clock)


def run(
    policy: str, *faults: Fault, num_workers: int, loops: int, racks: Sequence[int] = (), **options: Any
) -> Simulation[Worker]:
    """Train on virtual workers on one host, or in racks of these sizes."""
    cluster = cluster_of_racks(racks) if racks else Cluster.one_host(num_workers)
    return simulate(
        lambda job: train(policy, pacer_of(job), loops=loops, **options),
        num_workers=sum(racks) or num_workers,
        cluster=cluster,
        faults=faults,
    )


def join(*, at_s: float) -> Fault:
    return Fault(at_s=at_s, kind="join")


def lose(worker: int, *, at_s: float) -> Fault:
    return Fault(at_s=at_s, worker=worker, kind="lose")
