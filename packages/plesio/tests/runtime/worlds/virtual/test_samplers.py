"""With every sampler and every way of dealing, a loader's workers together train on the samples that it gives."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, WeightedRandomSampler

import plesio
from plesio.core.errors import DataError
from plesio.cost.cluster import Cluster
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

NUM_WORKERS, NUM_SAMPLES = 3, 60


class Numbers(Dataset[tuple[int, torch.Tensor]]):
    """Samples that say which they are."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((2,), index / NUM_SAMPLES)


def buckets() -> list[list[int]]:
    """Batches of 1, 2, ... 9 samples."""
    numbers = iter(range(45))
    return [[next(numbers) for _ in range(size)] for size in range(1, 10)]


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(Numbers(), batch_size=4),
    "subset": lambda: DataLoader(Numbers(), batch_size=4, sampler=SubsetRandomSampler(list(range(0, 60, 3)))),
    "weighted": lambda: DataLoader(
        Numbers(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 10 + [0.0] * 50, num_samples=40)
    ),
    "batches": lambda: DataLoader(Numbers(), batch_sampler=buckets()),
    "one by one": lambda: DataLoader(Numbers(), batch_size=None),
    "bulk": lambda: DataLoader(Numbers(), batch_size=None, sampler=range(30), collate_fn=lambda one: one),
    "processes that stay": lambda: DataLoader(
        Numbers(), batch_size=4, num_workers=1, persistent_workers=True, sampler=SubsetRandomSampler(list(range(30)))
    ),
}
EXPECTED = {
    "in order": Counter(range(60)),
    "subset": Counter(range(0, 60, 3)),
    "batches": Counter(range(45)),
    "one by one": Counter(range(60)),
    "bulk": Counter(range(30)),
    "processes that stay": Counter(range(30)),
}


def work(job: VirtualJob, policy: str, loader: Callable[[], DataLoader[Any]]) -> list[list[list[int]]]:
    """By epoch, the worker's batches."""
    model = nn.Linear(2, 1)
    epochs = []
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy) as session:
        loaded = loader()
        for _ in range(2):
            batches: list[list[int]] = []
            for index, x in session.shard(loaded):
                batches.append([index] if isinstance(index, int) else index.tolist())
                model(x).square().mean().backward()
                session.step()
            epochs.append(batches)
    return epochs


@pytest.mark.one_in(5)  # each loader, and each policy
@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp", "ssp:2", "bsp,exchange=store", "adaptive"])
@pytest.mark.parametrize("name", LOADERS)
def test_the_workers_together_train_on_what_the_loader_gives(name: str, policy: str) -> None:
    simulation = simulate(
        lambda job: work(job, policy, LOADERS[name]), num_workers=NUM_WORKERS, cluster=Cluster.one_host(NUM_WORKERS)
    )
    epochs = list(zip(*simulation.values(), strict=True))
    drawn = [Counter(index for batches in epoch for batch in batches for index in batch) for epoch in epochs]
    if name == "weighted":
        assert all(sum(one.values()) == 40 and max(one) < 10 for one in drawn)
        assert drawn[0] != drawn[1]
    else:
        assert drawn == [EXPECTED[name]] * 2
    if name == "batches":
        given = sorted(batch for batches in epochs[0] for batch in batches)
        assert given == sorted(buckets())
    assert simulation.runs[0].samples == sum(sum(one.values()) for one in drawn)


def test_fewer_samples_than_workers_are_refused() -> None:
    few = DataLoader(range(2), batch_size=4)
    simulation = simulate(
        lambda job: work(job, "bsp", lambda: few), num_workers=NUM_WORKERS, cluster=Cluster.one_host(NUM_WORKERS)
    )
    with pytest.raises(DataError, match="2 samples are too few for 3 workers: use fewer workers or more data"):
        simulation.values()
