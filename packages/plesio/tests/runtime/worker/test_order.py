"""A sampler's own order is what is dealt out: the same on every worker, whatever its random numbers are."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from plesio.core.errors import DataError
from plesio.protocol.plans import Span
from plesio.runtime.coordinator.leases import epoch_order
from plesio.runtime.worker.order import Order

DATA = range(12)


class Own(Sampler[int]):
    """Draws with every kind of generator."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(torch.initial_seed() % 1000)
        self.numbers = np.random.default_rng()
        self.old_numbers = np.random.RandomState()
        self.python = random.Random()

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Iterator[int]:
        yield int(torch.randint(12, (1,), generator=self.generator))
        yield int(torch.randint(12, (1,)))
        yield int(np.random.randint(12))
        yield int(self.numbers.integers(12))
        yield int(self.old_numbers.randint(12))
        yield self.python.randrange(12)
        yield random.randrange(12)
        yield from (0, 1)


class ByEpoch(Own):
    """Is told the epoch, as samplers of ranks are."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch, self.epoch + 9))


class Batches(Own):
    """Batches of unequal size."""

    def __iter__(self) -> Iterator[Any]:
        numbers = torch.randperm(12).tolist()
        yield from (numbers[:2], numbers[2:7], numbers[7:])

    def __len__(self) -> int:
        return 3


SAMPLERS: dict[str, Callable[[], Any]] = {
    "subset": lambda: SubsetRandomSampler([1, 3, 5, 7]),
    "weighted": lambda: WeightedRandomSampler([0.0, 1.0, 1.0], num_samples=20, generator=torch.Generator()),
    "replacement": lambda: RandomSampler(DATA, replacement=True),
    "a part": lambda: RandomSampler(DATA, num_samples=5),
    "several times": lambda: RandomSampler(DATA, num_samples=30),
    "own": Own,
    "ranks": lambda: DistributedSampler(DATA, num_replicas=3, rank=2, shuffle=True, seed=3),
}


def order(seed: int = 0, **options: Any) -> Order:
    return Order(DataLoader(DATA, **options), seed=seed)


def drawn(made: Order, epoch: int = 0) -> list[Any]:
    return list(made.positions(epoch))


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_order_is_a_function_of_seed_and_epoch_and_disturbs_no_generator(name: str) -> None:
    orders = []
    for process in range(2):
        torch.manual_seed(process)
        sampler = SAMPLERS[name]()
        generator = getattr(sampler, "generator", None)
        own = None if generator is None else generator.get_state()
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        one = order(sampler=sampler)
        orders.append([drawn(one, epoch) for epoch in range(3)])
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
        assert own is None or torch.equal(generator.get_state(), own)
        assert len(orders[0][0]) == len(orders[0][1])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


def test_the_loaders_own_samplers_are_not_asked() -> None:
    assert drawn(order()) == list(DATA)
    assert drawn(order(shuffle=True, seed=5), 2) == epoch_order(12, seed=5, epoch=2).tolist()
    assert drawn(order(batch_sampler=BatchSampler(SequentialSampler(DATA), 4, drop_last=True))) == list(DATA)


def test_what_a_sampler_means_is_kept() -> None:
    assert sorted(drawn(order(sampler=SAMPLERS["subset"]()))) == [1, 3, 5, 7]
    assert set(drawn(order(sampler=SAMPLERS["weighted"]()))) == {1, 2}
    assert drawn(order(sampler=ByEpoch()), 2) == list(range(2, 11))
    assert drawn(order(sampler=[4, 2])) == [4, 2]
    keys = order(sampler=["a", ("b", 1)])
    assert keys.indices([Span(0, 0, 2)], first_epoch=0) == ["a", ("b", 1)]


def test_a_sampler_of_ranks_is_dealt_whole_and_shuffles_as_it_would() -> None:
    """The others' parts are theirs; all parts together are dealt, without those that it repeats to make parts equal."""
    whole = drawn(order(sampler=DistributedSampler(range(11), num_replicas=3, rank=2, seed=3)), 4)
    assert sorted(whole) == list(range(11))
    alone = DistributedSampler(range(11), num_replicas=1, rank=0, seed=3)
    alone.set_epoch(4)
    assert whole == list(alone)
    assert drawn(order(sampler=DistributedSampler(DATA, num_replicas=3, rank=2, shuffle=False))) == list(DATA)


def test_batches_of_a_users_own_are_dealt_whole() -> None:
    own = order(batch_sampler=Batches())
    assert own.in_units
    assert sorted(map(len, drawn(own))) == [2, 5, 5]
    figures = own.figures(samples=None, epoch=0, num_workers=2)
    assert (figures.num_samples, figures.batch_size, figures.budget_samples) == (3, 1, 3)
    single = order(batch_size=None)
    assert (single.in_units, drawn(single)) == (True, list(DATA))


class Uneven(Own):
    """Has another length each time."""

    times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return iter(range(self.times))


class Endless(Sampler[int]):
    """Has no length."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


class Parts(BatchSampler):
    """Divides batches among processes, as Accelerate's does."""

    num_processes = 4


@pytest.mark.parametrize(
    ("options", "samples", "message"),
    [
        ({"sampler": Endless()}, None, "Endless, which has no length; give it a __len__"),
        ({"batch_sampler": Parts(range(12), 2, drop_last=False)}, None, "Parts deals to 4 ranks itself"),
        ({"sampler": Uneven()}, 20, r"epochs of unequal length \(1 and 2\)"),
        ({"batch_sampler": Batches()}, 20, r"samples=...\) needs a loader with a batch_size"),
        ({"batch_size": 4, "sampler": [1, 2]}, None, "2 samples are too few for 3 workers: use fewer workers"),
        ({"batch_size": 16, "drop_last": True}, None, "nothing to train on: 12 samples, batches of 16"),
        ({"sampler": []}, None, "nothing to train on: 0 samples"),
    ],
)
def test_what_cannot_be_dealt_is_refused(options: dict[str, Any], samples: int | None, message: str) -> None:
    def asked() -> None:
        one = order(**options)
        one.figures(samples=samples, epoch=0, num_workers=3)
        one.indices([Span(0, 0, 1), Span(1, 0, 1)], first_epoch=0)

    with pytest.raises(DataError, match=message):
        asked()
