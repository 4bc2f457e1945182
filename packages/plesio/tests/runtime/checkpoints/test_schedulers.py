"""A program whose loops begin anew steps its schedulers as it always does."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import LogNormal
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

SCHEDULERS = {
    "chained": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4),
    "of NumPy's numbers": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: np.float64(0.5) ** epoch
    ),
    "composed": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.1, 1), torch.optim.lr_scheduler.StepLR(optimizer, 1)],
        [2],
    ),
}


def run(name: str, folder: Path, *, policy: str, resume: str) -> list[dict[str, Any]]:
    def work(job: VirtualJob) -> dict[str, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        data = TensorDataset(torch.randn(96, 2, generator=torch.Generator().manual_seed(1)))
        rates = []
        pacer = Pacer(step_time=LogNormal(mean_s=0.02, cv=0.4), seed=5, worker=job.place.rank, clock=job.clock)
        with plesio.join(
            model,
            optimizer,
            policy=policy,
            checkpoint=folder,
            every="10 steps",
            keep=20,
            resume=resume,
            options=JoinOptions(job=job, pacer=pacer),
        ) as session:
            scheduler = SCHEDULERS[name](optimizer)
            session.register(scheduler=scheduler)
            for _ in range(4):
                for (x,) in session.shard(DataLoader(data, batch_size=4, shuffle=True)):
                    rates.append(optimizer.param_groups[0]["lr"])
                    loss = model(x).square().mean()
                    loss.backward()
                    session.step(loss)
                scheduler.step()
        return {"rates": rates, "weight": model.weight.tolist(), "last": scheduler.get_last_lr()}

    return [one for one in simulate(work, num_workers=2, cluster=Cluster.one_host(2)).values() if one is not None]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("policy", [pytest.param("bsp", marks=pytest.mark.slow), "asp"])
def test_a_scheduler_of_epochs_goes_on_where_it_was(name: str, policy: str, tmp_path: Path):
    whole = run(name, tmp_path / "whole", policy=policy, resume="no")
    paths = sorted((tmp_path / "whole").glob("step-*"))
    assert len(paths) > 1
    for path in paths[::2]:
        again = run(name, tmp_path / "again", policy=policy, resume=str(path))
        for one, other in zip(whole, again, strict=True):
            assert other["rates"] == one["rates"][len(one["rates"]) - len(other["rates"]) :]
            assert (other["weight"], other["last"]) == (one["weight"], one["last"])


def decayed(folder: Path, *, num_workers: int, policy: str, resume: str) -> list[list[float]]:
    """Rates by worker of a run whose schedule falls to zero over three epochs, as the session counts their steps."""

    def work(job: VirtualJob) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.ones(96, 2)), batch_size=4, shuffle=True)
        rates = []
        pacer = Pacer(step_time=LogNormal(mean_s=0.02, cv=0.4), seed=5, worker=job.place.rank, clock=job.clock)
        options = JoinOptions(job=job, pacer=pacer)
        with plesio.join(
            model, optimizer, policy=policy, checkpoint=folder, every="5 steps", keep=20, resume=resume, options=options
        ) as session:
            num_steps = 3 * session.steps_per_epoch(loader)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / num_steps))
            session.schedule(schedule)
            for _ in range(3):
                for (x,) in session.shard(loader):
                    rates.append(optimizer.param_groups[0]["lr"])
                    loss = model(x).square().mean()
                    loss.backward()
                    session.step(loss)
        return [*rates, optimizer.param_groups[0]["lr"]]

    done = simulate(work, num_workers=num_workers, cluster=Cluster.one_host(num_workers))
    return [one for one in done.values() if one is not None]


@pytest.mark.parametrize("policy", ["bsp", pytest.param("asp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_schedule_by_steps_ends_at_zero_with_another_number_of_workers(num_workers: int, policy: str, tmp_path: Path):
    decayed(tmp_path / "whole", num_workers=2, policy=policy, resume="no")
    paths = sorted((tmp_path / "whole").glob("step-*"))
    for rates in decayed(
        tmp_path / "again", num_workers=num_workers, policy=policy, resume=str(paths[len(paths) // 2])
    ):
        assert 0.03 < rates[0] < 0.07  # about half-way
        falls = [before - after for before, after in pairwise(rates)]
        assert 0 <= min(falls) <= max(falls) < 0.1 * 4 / 36  # others make up to two rounds meanwhile
        assert rates[-1] == pytest.approx(0, abs=0.1 / 24)
