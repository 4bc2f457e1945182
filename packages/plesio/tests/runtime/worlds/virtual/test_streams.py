"""An iterable data set is divided batch by batch: no batch twice, equally many on all workers, and resumed exactly."""

import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import plesio
from plesio.core.errors import DataError
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import Constant
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

NUM_WORKERS = 3
POLICIES = ["bsp", "local_sgd:4", "asp", "ssp:2", "adaptive"]


class Stream(IterableDataset[torch.Tensor]):
    """Shuffles with all the random numbers that there are."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        numbers = torch.randperm(self.num_samples).numpy()
        np.random.shuffle(numbers)
        for number in numbers:
            random.random()
            yield torch.tensor([float(number)])


def work(job: VirtualJob | None, policy: str, num_samples: int, **options: Any) -> list[list[list[float]]]:
    """By epoch, the worker's batches."""
    model = nn.Linear(1, 1)
    epochs = []
    loader = DataLoader(Stream(num_samples), batch_size=4)
    if job is not None:
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=5, worker=job.place.rank, clock=job.clock)
        options["options"] = plesio.JoinOptions(pacer=pacer)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=1e-6), policy=policy, **options) as session:
        for _ in range(2):
            batches = []
            for x in session.shard(loader):
                batches.append(x[:, 0].tolist())
                torch.rand(1 + session.rank)  # a worker's own random numbers do not change the stream
                model(x).square().mean().backward()
                session.step()
            epochs.append(batches)
    return epochs


def run(policy: str, num_samples: int, **options: Any) -> Any:
    return simulate(
        lambda job: work(job, policy, num_samples),
        num_workers=NUM_WORKERS,
        cluster=Cluster.one_host(NUM_WORKERS),
        **options,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_no_batch_comes_twice_and_all_workers_have_equally_many(policy: str) -> None:
    simulation = run(policy, 44)  # eleven batches: three rounds, and two that make none
    epochs = list(zip(*simulation.values(), strict=True))
    for epoch in epochs:
        assert [len(batches) for batches in epoch] == [3] * NUM_WORKERS
        given = list(chain.from_iterable(chain.from_iterable(epoch)))
        assert len(given) == len(set(given)) == 36
    assert epochs[0] != epochs[1]
    result = simulation.runs[0]
    assert result.samples == 72
    assert any("the last 2 of a stream's batches were left out" in line for line in result.fallbacks)


@pytest.mark.parametrize("fault", [Fault(at_s=0.15, kind="lose", worker=1), Fault(at_s=0.15, kind="join")])
def test_where_the_group_changes_the_next_round_is_the_new_groups(fault: Fault) -> None:
    simulation = run("bsp", 400, faults=[fault])
    given = [outcome.value for outcome in simulation.outcomes.values() if outcome.value is not None]
    assert len(given) == (2 if fault.kind == "lose" else 4)
    second = [worker[-1] for worker in given]
    assert len({len(batches) for batches in second}) == 1
    assert not any("left no gradient" in line for line in simulation.runs[0].fallbacks)
    numbers = list(chain.from_iterable(chain.from_iterable(second)))
    assert len(numbers) == len(set(numbers)) == 400 - 400 % (4 * len(given))


def test_alone_a_run_goes_on_in_its_stream(tmp_path: Path) -> None:
    whole = work(None, "bsp", 60, checkpoint=tmp_path / "whole", every="4 steps", keep=20)
    paths = sorted((tmp_path / "whole").glob("step-*"))
    assert len(paths) > 5
    for path in paths:
        again = work(None, "bsp", 60, checkpoint=tmp_path / path.name, resume=str(path))
        done = int(path.name.removeprefix("step-"))
        assert list(chain.from_iterable(again)) == list(chain.from_iterable(whole))[done:], path.name


def test_what_cannot_be_divided_is_refused() -> None:
    model = nn.Linear(1, 1)
    split = Stream(8)
    split._distributed = "rank 0 of 2"  # type: ignore[attr-defined]
    world = Cluster.one_host(2)

    def refused(job: VirtualJob, data: Stream, samples: int | None) -> None:
        with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="bsp") as session:
            session.shard(DataLoader(data, batch_size=4), samples=samples)

    for data, samples, message in ((split, None, "has been split by rank"), (Stream(8), 8, "needs a map-style")):
        simulation = simulate(lambda job, d=data, s=samples: refused(job, d, s), num_workers=2, cluster=world)
        with pytest.raises(DataError, match=message):
            simulation.values()
