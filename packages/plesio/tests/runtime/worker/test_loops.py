"""Loaders that `session.shard` returns: alone the user's own, with a length, and each iteration is a new epoch."""

import copy
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import plesio
from plesio.cost.cluster import Cluster
from plesio.protocol.plans import PlanFigures
from plesio.runtime.coordinator.leases import round_sizes
from plesio.runtime.grid.deal import Deal
from plesio.runtime.worker.loops import num_rounds
from plesio.runtime.worlds.virtual import simulate

DATA = TensorDataset(torch.arange(20.0))


def joined(folder: Path | None = None) -> plesio.Session:
    model = nn.Linear(1, 1)
    return plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="bsp", checkpoint=folder)


def given(session: plesio.Session, batches: Any) -> list[list[float]]:
    seen = []
    for (x,) in batches:
        seen.append(x.tolist())
        session.model(x[:, None]).square().mean().backward()
        session.step()
    return seen


class Counted(DataLoader[Any]):
    """Counts how often it is iterated."""

    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 6, "sampler": SubsetRandomSampler(list(range(10)))},
        {"batch_size": 6, "shuffle": True},
        {"batch_size": 6, "drop_last": True},
        {"batch_sampler": [[1, 2, 3], [4]]},
    ],
)
def test_alone_the_loader_is_iterated_as_it_is(options: dict[str, Any]) -> None:
    loader = Counted(DATA, **options)
    torch.manual_seed(3)
    expected = [[x.tolist() for (x,) in loader] for _ in range(2)]
    loader.times = 0
    with joined() as session:
        torch.manual_seed(3)
        assert session.steps_per_epoch(loader) == len(session.shard(loader)) == len(loader)
        assert [given(session, session.shard(loader)) for _ in range(2)] == expected
    assert loader.times == 2
    assert session.report().samples == sum(map(len, expected[0] + expected[1]))


def test_alone_with_a_checkpoint_the_samplers_order_is_dealt(tmp_path: Path) -> None:
    orders = []
    for folder in ("one", "two"):
        with joined(tmp_path / folder) as session:
            loader = DataLoader(DATA, batch_size=6, sampler=SubsetRandomSampler(list(range(10))))
            orders.append([given(session, session.shard(loader)) for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    assert [sorted(chain.from_iterable(epoch)) for epoch in orders[0]] == [list(range(10))] * 2


def test_a_shard_is_iterated_as_often_as_one_likes_and_each_time_is_an_epoch(tmp_path: Path) -> None:
    loader = DataLoader(DATA, batch_size=5, shuffle=True)
    with joined(tmp_path / "one") as session:
        session.shard(loader)  # never iterated: no epoch
        batches = session.shard(loader)
        once = [given(session, batches) for _ in range(2)]
    with joined(tmp_path / "two") as session:
        assert [given(session, session.shard(loader)) for _ in range(2)] == once


def test_a_batch_that_is_fetched_ahead_is_none_that_is_left_out() -> None:
    def train(batch: Any) -> None:
        session.model(batch[0][:, None]).square().mean().backward()
        session.step()

    def is_left_out() -> bool:
        return any("a batch was given and left no gradient" in line for line in session.report().fallbacks)

    with joined() as session:
        for _ in range(2):
            batches = iter(session.shard(DataLoader(DATA, batch_size=4)))
            ahead = next(batches)
            for following in batches:
                train(ahead)
                ahead = following
            train(ahead)
        assert not is_left_out()
        for number, batch in enumerate(session.shard(DataLoader(DATA, batch_size=4))):
            if number != 2:
                train(batch)
        assert is_left_out()


def test_a_batch_whose_gradients_are_cleared_is_left_out_too() -> None:
    with joined() as session:
        for number, batch in enumerate(session.shard(DataLoader(DATA, batch_size=4))):
            session.model(batch[0][:, None]).square().mean().backward()
            if number == 1:
                session.optimizer.zero_grad()
                continue
            session.step()
        (line,) = session.report().fallbacks
        assert "its gradients were cleared" in line


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_the_length_is_the_number_of_this_workers_steps(policy: str) -> None:
    def work(job: Any) -> tuple[int, int, int]:
        model = nn.Linear(1, 1)
        loader = DataLoader(DATA, batch_size=3, shuffle=True)
        with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy) as session:
            lengths = session.steps_per_epoch(loader), len(session.shard(loader, samples=50))
            return *lengths, len(given(session, session.shard(loader, samples=50)))

    simulation = simulate(work, num_workers=3, cluster=Cluster.one_host(3))
    lengths = list(simulation.values())
    assert [one[:2] for one in lengths] == [(2, 5)] * 3
    assert sum(one[2] for one in lengths) >= 15
    assert policy == "asp" or [one[2] for one in lengths] == [5] * 3


def test_rounds_are_counted_as_they_are_dealt() -> None:
    for num_samples in range(1, 60):
        for num_workers in range(1, min(5, num_samples) + 1):
            for batch_size in (1, 2, 5):
                figures = PlanFigures(num_samples=num_samples, batch_size=batch_size, budget_samples=num_samples)
                dealt = list(round_sizes(num_samples, num_workers=num_workers, batch_size=batch_size))
                assert num_rounds(figures, num_workers=num_workers) == len(dealt)


def sizes(num_samples: int, groups: int, batch_size: int) -> Iterator[list[int]]:
    deal = Deal(0, range(groups), horizon=1, say=pytest.fail)
    return deal.equal_sizes(num_samples, batch_size=batch_size)


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
def test_no_micro_batch_of_a_grid_is_larger_than_the_first_or_empty(groups: int, batch_size: int) -> None:
    """For every remainder of the data, no micro-batch of a group is larger than its first, or than ``batch_size``."""
    for num_samples in range(groups, 4 * groups * batch_size + 1):
        rounds = list(sizes(num_samples, groups, batch_size))
        left = num_samples - sum(map(sum, rounds))
        assert left == (num_samples % groups if batch_size == 1 else 0)
        assert all(1 <= size <= batch_size for one in rounds for size in one)
        assert all(now >= then for one, other in pairwise(rounds) for now, then in zip(one, other, strict=True))


OTHERS: dict[str, tuple[Callable[[Any, torch.optim.Optimizer], Any], bool]] = {
    "of all": (lambda model, _: torch.optim.SGD(model.parameters(), lr=0.01), True),
    "of a part": (lambda model, _: torch.optim.SGD(model[1].parameters(), lr=0.01), True),
    "with a state": (lambda model, old: loaded(torch.optim.SGD(model.parameters(), lr=0.01), old), True),
    "of another model": (lambda *_: torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.01), False),
    "a copy": (lambda _, old: copy.deepcopy(old), False),
    "a wrapper": (lambda _, old: Wrapper(old), False),
    "a variable": (lambda model, _: model[1].bias, False),
}
"""Things that a script may make between two loops, and whether each is an optimizer that the session would not step."""


class Wrapper(torch.optim.Optimizer):
    def __init__(self, wrapped: torch.optim.Optimizer) -> None:
        self.param_groups, self.state = wrapped.param_groups, wrapped.state


def loaded(optimizer: torch.optim.Optimizer, old: torch.optim.Optimizer) -> torch.optim.Optimizer:
    optimizer.load_state_dict(old.state_dict())
    return optimizer


@pytest.mark.parametrize("policy", ["bsp", "asp"])
@pytest.mark.parametrize("made", OTHERS)
def test_an_optimizer_made_in_the_session_is_named(policy: str, made: str) -> None:
    make, told = OTHERS[made]

    def work(job: Any) -> None:
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        before = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with plesio.join(model, optimizer, policy=policy) as session:
            given(session, session.shard(DataLoader(DATA, batch_size=3)))
            kept = make(model, optimizer)
            given(session, session.shard(DataLoader(DATA, batch_size=3)))
            del before, kept

    simulation = simulate(work, num_workers=2, cluster=Cluster.one_host(2))
    simulation.values()
    lines = [line for line in simulation.runs[0].fallbacks if "has made another optimizer" in line]
    assert len(lines) == told, simulation.runs[0].fallbacks


def test_the_sessions_outer_optimizer_is_no_other_of_the_script() -> None:
    def work(job: Any) -> None:
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        with plesio.join(model, optimizer, policy="switch:bsp/diloco:2,exchange=store@2") as session:
            for _ in range(3):
                given(session, session.shard(DataLoader(DATA, batch_size=3)))

    simulation = simulate(work, num_workers=2, cluster=Cluster.one_host(2))
    simulation.values()
    assert simulation.runs[0].fallbacks == ()


def test_alone_it_is_named_too() -> None:
    with joined() as session:
        given(session, session.shard(DataLoader(DATA, batch_size=4)))
        other = torch.optim.SGD(session.model.parameters(), lr=0.01)
        given(session, session.shard(DataLoader(DATA, batch_size=4)))
        assert len(session.report().fallbacks) == 1
        del other
