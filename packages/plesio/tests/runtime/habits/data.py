"""Habits with data: samplers, loaders, data sets."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler

from runtime.habits.table import BATCH_SIZE, NUM_SAMPLES, Facts, Numbered, Script, habit, sgd_net

PART = "Data"


def seen_by_all(facts: Sequence[Facts]) -> list[int]:
    return [index for one in facts for index in one["seen"]]


def once_each(expected: Sequence[int]) -> Any:
    def check(facts: Sequence[Facts], script: Script) -> None:
        assert sorted(seen_by_all(facts)) == sorted(expected)

    return check


def trained_on(script: Script, loader: DataLoader[Any], **join: Any) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer, **join)
    return {"seen": script.train(session, model, loader)}


@habit("a loader with `shuffle=True`", part=PART, check=once_each(range(NUM_SAMPLES)))
def shuffled(script: Script) -> Facts:
    return trained_on(script, DataLoader(Numbered(), batch_size=BATCH_SIZE, shuffle=True))


def _in_order(facts: Sequence[Facts], script: Script) -> None:
    once_each(range(NUM_SAMPLES))(facts, script)
    for one in facts:
        assert one["seen"] == sorted(one["seen"]), "the data set's order"


@habit("a loader with `shuffle=False`", part=PART, check=_in_order)
def unshuffled(script: Script) -> Facts:
    return trained_on(script, DataLoader(Numbered(), batch_size=BATCH_SIZE, shuffle=False))


@habit("`SubsetRandomSampler`: a split for training", part=PART, check=once_each(range(0, NUM_SAMPLES, 2)))
def subset_sampler(script: Script) -> Facts:
    sampler = SubsetRandomSampler(range(0, NUM_SAMPLES, 2))
    return trained_on(script, DataLoader(Numbered(), batch_size=BATCH_SIZE, sampler=sampler))


@habit("`Subset`, `random_split`", part=PART, check=once_each(range(0, NUM_SAMPLES, 3)))
def subset(script: Script) -> Facts:
    return trained_on(script, DataLoader(Subset(Numbered(), range(0, NUM_SAMPLES, 3)), batch_size=BATCH_SIZE))


def _weighted(facts: Sequence[Facts], script: Script) -> None:
    counts = Counter(seen_by_all(facts))
    assert counts.total() == 2 * NUM_SAMPLES
    assert not any(index % 4 == 0 for index in counts), "their weight is 0"
    assert max(counts.values()) > 1, "drawn with replacement"


@habit("`WeightedRandomSampler` for classes out of balance", part=PART, check=_weighted)
def weighted_sampler(script: Script) -> Facts:
    weights = [0.0 if index % 4 == 0 else 1.0 for index in range(NUM_SAMPLES)]
    sampler = WeightedRandomSampler(weights, num_samples=2 * NUM_SAMPLES)
    return trained_on(script, DataLoader(Numbered(), batch_size=BATCH_SIZE, sampler=sampler))


def _bootstrap(facts: Sequence[Facts], script: Script) -> None:
    counts = Counter(seen_by_all(facts))
    assert counts.total() == 32
    assert max(counts.values()) > 1, "drawn with replacement"


@habit("`RandomSampler(replacement=True, num_samples=n)`", part=PART, check=_bootstrap)
def replacement(script: Script) -> Facts:
    sampler = RandomSampler(range(NUM_SAMPLES), replacement=True, num_samples=32)
    return trained_on(script, DataLoader(Numbered(), batch_size=BATCH_SIZE, sampler=sampler))


class EveryThirdTwice(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([index for index in range(0, NUM_SAMPLES, 3) for _ in range(2)])

    def __len__(self) -> int:
        return 2 * len(range(0, NUM_SAMPLES, 3))


@habit("a sampler of one's own", part=PART, check=once_each([i for i in range(0, NUM_SAMPLES, 3) for _ in range(2)]))
def own_sampler(script: Script) -> Facts:
    return trained_on(script, DataLoader(Numbered(), batch_size=BATCH_SIZE, sampler=EveryThirdTwice()))


class ByRank(Sampler[int]):
    """Every worker draws an order of its own."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(self._rank)).tolist())

    def __len__(self) -> int:
        return NUM_SAMPLES


@habit("a sampler that draws another order on each worker", part=PART, kind="warned")
def sampler_by_rank(script: Script) -> Facts:
    return trained_on(script, DataLoader(Numbered(), batch_size=BATCH_SIZE, sampler=ByRank(script.rank)))


@habit("`random_split` with another seed on each worker", part=PART, kind="warned")
def split_by_rank(script: Script) -> Facts:
    generator = torch.Generator().manual_seed(script.rank)
    part, _ = random_split(Numbered(), [NUM_SAMPLES - 8, 8], generator=generator)
    return trained_on(script, DataLoader(part, batch_size=BATCH_SIZE))


class Buckets(Sampler[list[int]]):
    """Batches of neighbours, of unequal sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for number in range(len(self)):
            size = 2 + 2 * (number % 3)
            yield list(range(start, start + size))
            start += size

    def __len__(self) -> int:
        return NUM_SAMPLES // 4


@habit("a batch sampler of one's own (buckets by length)", part=PART, check=once_each(range(NUM_SAMPLES)))
def own_batch_sampler(script: Script) -> Facts:
    return trained_on(script, DataLoader(Numbered(), batch_sampler=Buckets()))


@habit("torch's `BatchSampler` around a sampler", part=PART, check=once_each(range(NUM_SAMPLES)))
def batch_sampler(script: Script) -> Facts:
    batches = BatchSampler(RandomSampler(range(NUM_SAMPLES)), batch_size=BATCH_SIZE, drop_last=False)
    return trained_on(script, DataLoader(Numbered(), batch_sampler=batches))


@habit("`DistributedSampler`, from a DDP script", part=PART, check=once_each(range(NUM_SAMPLES)))
def distributed_sampler(script: Script) -> Facts:
    data = Numbered()
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=script.num_workers, rank=script.rank)
    sampler.set_epoch(0)
    return trained_on(script, DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler))


@habit(
    "loader processes, `persistent_workers`",
    part=PART,
    check=once_each(range(NUM_SAMPLES)),
)
def persistent_workers(script: Script) -> Facts:
    loader = DataLoader(
        Numbered(), batch_size=BATCH_SIZE, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    return trained_on(script, loader)


def _whole_batches(facts: Sequence[Facts], script: Script) -> None:
    assert len(seen_by_all(facts)) == 44 - 44 % BATCH_SIZE


@habit("`drop_last`", part=PART, check=_whole_batches)
def drop_last(script: Script) -> Facts:
    return trained_on(script, DataLoader(Numbered(46), batch_size=BATCH_SIZE, drop_last=True))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        data = Numbered()
        return (data[index] for index in range(NUM_SAMPLES))


@habit("an `IterableDataset`", part=PART, check=once_each(range(NUM_SAMPLES)))
def iterable(script: Script) -> Facts:
    return trained_on(script, DataLoader(Stream(), batch_size=BATCH_SIZE))


@habit("an `IterableDataset` of texts, whose last batch is short", part=PART, check=lambda facts, script: _texts(facts))
def texts(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    given = 0
    for words in session.shard(DataLoader(Words(), batch_size=BATCH_SIZE)):
        model(torch.ones(len(words), 3)).sum().backward()
        session.step()
        given += len(words)
    session.close()
    return {"given": given, "samples": session.report().samples}


def _texts(facts: Sequence[Facts]) -> None:
    assert sum(one["given"] for one in facts) == facts[0]["samples"] == NUM_TEXTS


NUM_TEXTS = 3 * BATCH_SIZE + 1


class Words(IterableDataset[str]):
    def __iter__(self) -> Iterator[str]:
        return iter([f"word {number}" for number in range(NUM_TEXTS)])


@habit("an `IterableDataset` that gives nothing", part=PART, kind="warned", alone="warned")
def nothing(script: Script) -> Facts:
    return trained_on(script, DataLoader(Empty(), batch_size=BATCH_SIZE))


class Empty(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


class SelfShuffled(IterableDataset[Any]):
    def __init__(self, seed: int) -> None:
        self._order = random.Random(seed)

    def __iter__(self) -> Iterator[Any]:
        data = Numbered()
        late = self._order.sample(range(BATCH_SIZE, NUM_SAMPLES), NUM_SAMPLES - BATCH_SIZE)
        return (data[index] for index in [*range(BATCH_SIZE), *late])


@habit(
    "an `IterableDataset` that shuffles otherwise on each worker, but for its first batch",
    part=PART,
    kind="warned",
)
def self_shuffled(script: Script) -> Facts:
    return trained_on(script, DataLoader(SelfShuffled(script.rank), batch_size=BATCH_SIZE))


def _len_is_number_of_steps(facts: Sequence[Facts], script: Script) -> None:
    steps = sum(one["steps"] for one in facts)
    assert steps == NUM_SAMPLES // BATCH_SIZE
    assert sum(one["len"] for one in facts) == steps
    assert all(one["len"] == one["expected"] for one in facts)


@habit("`len()` of the loop, as tqdm asks for it", part=PART, check=_len_is_number_of_steps)
def length(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    loader = DataLoader(Numbered(), batch_size=BATCH_SIZE)
    num = len(session.shard(loader))
    return {
        "len": num,
        "expected": session.steps_per_epoch(loader),
        "steps": len(script.train(session, model, loader)) // BATCH_SIZE,
    }


@habit(
    "two loops at a time: `zip(session.shard(a), session.shard(b))`",
    part=PART,
    kind="refused",
)
def zipped(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    script.at = "shard"
    loops = [session.shard(DataLoader(Numbered(), batch_size=BATCH_SIZE)) for _ in range(2)]
    for (_, x, y), (_, x_2, y_2) in zip(*loops, strict=True):
        loss = (model(x) - y).square().mean() + (model(x_2) - y_2).square().mean()
        loss.backward()
        session.step(loss)
    session.close()
    return {}


@habit(
    "fewer samples than workers",
    part=PART,
    kind="refused",
    check=lambda facts, script: None,
)
def too_few(script: Script) -> Facts:
    return trained_on(script, DataLoader(Numbered(1), batch_size=BATCH_SIZE))


def _left_early(facts: Sequence[Facts], script: Script) -> None:
    assert facts[0]["samples"] == 2 * 2 * BATCH_SIZE * len(facts), "those of steps, not the batch that was left"


@habit("`enumerate`, and leaving the loop with `break` (all workers at the same step)", part=PART, check=_left_early)
def left_early(script: Script) -> Facts:
    model, optimizer = sgd_net(script)
    session = script.join(model, optimizer)
    for _ in range(2):
        for number, (_, x, y) in enumerate(session.shard(DataLoader(Numbered(), batch_size=BATCH_SIZE))):
            if number == 2:
                break
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            session.step(loss)
    session.close()
    return {"samples": session.report().samples}
