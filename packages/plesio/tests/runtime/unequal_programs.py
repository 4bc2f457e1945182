"""Workers of a collective that make unequally many steps."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.errors import WorkerLostError
from support.processes import own_job


def train(*, policy: str, short: int, what: str) -> dict[str, Any]:
    """Rank ``short`` makes 10 steps and the other one 21, over loaders of their own or by a ``break`` in `shard`."""
    rank = int(os.environ["RANK"])
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with plesio.join(model, optimizer, policy=policy) as session:
        for _ in range(2 if what == "evaluate" else 1):
            loader = DataLoader(TensorDataset(torch.randn(21 * 4 * 2, 3)), batch_size=4)
            batches = session.shard(loader) if what == "break" else loader
            for step, (x,) in enumerate(batches):
                if step == (10 if rank == short else 21):
                    break
                model(x).square().mean().backward()
                session.step(samples=None if what == "break" else len(x))
            if what == "evaluate":
                session.evaluate(lambda: 0.0)
    result = session.report()
    return {
        "status": (result.status, result.lost_workers),
        "fallbacks": result.fallbacks,
        "steps": [worker.steps for worker in result.workers],
        "samples": result.samples,
        "own": sum(worker.samples for worker in result.workers),
    }


def meet(*, policy: str) -> tuple[str, ...]:
    """Add up the losses of all workers by a collective of the script's own, in the first steps of a loop."""
    dist.init_process_group("gloo")
    model = nn.Linear(3, 1)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy) as session:
        loader = DataLoader(TensorDataset(torch.randn(64, 3)), batch_size=2)
        for step, (x,) in enumerate(session.shard(loader)):
            loss = model(x).square().mean()
            loss.backward()
            session.step(loss)
            if step == 2:
                break
            dist.all_reduce(loss.detach())
    dist.destroy_process_group()
    return session.report().fallbacks


def train_again(*, policy: str) -> tuple[str, int]:
    """Train twice in a job; worker 1 raises in the first session."""
    with own_job() as job:
        for again in (False, True):
            model = nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            try:
                options = plesio.JoinOptions(job=job)
                with plesio.join(model, optimizer, policy=policy, options=options) as session:
                    for step in range(4):
                        model(torch.randn(4, 3)).square().mean().backward()
                        if step == 2 and job.place.rank == 1 and not again:
                            raise ValueError
                        session.step(samples=4)
            except (ValueError, WorkerLostError):
                assert not again
    return session.report().status, session.report().steps


def leave_out(*, policy: str, short: int) -> None:
    """Rank ``short`` leaves out one of 8 batches before an evaluation."""
    rank = int(os.environ["RANK"])
    model = nn.Linear(3, 1)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy) as session:
        for batch in range(8):
            if rank == short and batch == 3:
                continue
            model(torch.randn(4, 3)).square().mean().backward()
            session.step(samples=4)
        session.evaluate(lambda: 0.0)
