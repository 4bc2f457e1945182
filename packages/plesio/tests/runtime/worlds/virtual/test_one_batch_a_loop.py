"""Loops that a script leaves before the step on their last batch, which it makes all the same, or never makes."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch.utils.data import DataLoader

import plesio
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.problems import Problem, perceptron

LOOPS, BATCH_SIZE = 6, 4
POLICIES = ["bsp", "local_sgd:2", "asp", "ssp:2", "adaptive"]

Loop = Callable[[plesio.Session, DataLoader[object], Callable[..., None]], Sequence[int]]


def by_next(session: plesio.Session, loader: DataLoader[object], train: Callable[..., None]) -> Sequence[int]:
    batch = next(iter(session.shard(loader)))
    train(*batch)
    session.step()
    return batch[0].tolist()


def after_the_loop(session: plesio.Session, loader: DataLoader[object], train: Callable[..., None]) -> Sequence[int]:
    """Accumulate two batches, and step when the loop is left."""
    trained: list[int] = []
    for number, batch in enumerate(session.shard(loader), start=1):
        train(*batch)
        trained += batch[0].tolist()
        if number == 2:
            break
    session.step()
    return trained


def looks(session: plesio.Session, loader: DataLoader[object], train: Callable[..., None]) -> Sequence[int]:
    """Look at a batch, which goes back, and train in a loop that is left before a step."""
    next(iter(session.shard(loader)))
    trained: list[int] = []
    for number, batch in enumerate(session.shard(loader)):
        if number == 2:
            break
        train(*batch)
        trained += batch[0].tolist()
        session.step()
    return trained


def run(policy: str, loop: Loop, *, num_workers: int) -> tuple[RunResult, list[list[Sequence[int]]]]:
    def work(job: VirtualJob) -> list[Sequence[int]]:
        model = perceptron(4, 0)
        with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy) as session:

            def train(_: object, x: torch.Tensor, y: torch.Tensor) -> None:
                (model(x) - y).square().mean().backward()

            loader = DataLoader(Problem(40, 4), batch_size=BATCH_SIZE, shuffle=True)
            return [loop(session, loader, train) for _ in range(LOOPS)]

    simulation = simulate(work, num_workers=num_workers, cluster=Cluster.one_host(num_workers))
    [result] = simulation.runs
    return result, list(simulation.values())


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("loop", [by_next, after_the_loop, looks])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_that_is_stepped_on_counts_and_is_given_to_one_worker(policy: str, loop: Loop, num_workers: int):
    result, trained = run(policy, loop, num_workers=num_workers)
    assert result.samples == sum(len(batch) for batches in trained for batch in batches)
    for in_loop in zip(*trained, strict=True):
        indices = [index for batch in in_loop for index in batch]
        assert len(indices) == len(set(indices)), "two workers trained on one sample"
    assert not result.fallbacks
