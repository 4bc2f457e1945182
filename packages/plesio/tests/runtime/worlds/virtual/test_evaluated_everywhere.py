"""An evaluation that all workers get, where each comes to it at its own time."""

from collections.abc import Sequence

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

import plesio
from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import LogNormal
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.problems import Problem, perceptron
from support.workers import cluster_of_racks

Seen = tuple[list[float], list[float]]
"""Metrics that a worker was given, and its learning rates after each."""
ON_THE_STORE = ["asp", "ssp:1", "bsp,exchange=store", "asp,update=delta"]


def run(
    policy: str, *faults: Fault, own_loader: bool = False, racks: Sequence[int] = (), fails_on: int = -1
) -> Simulation[Seen]:
    def work(job: VirtualJob) -> Seen:
        model, data, rank = perceptron(4, 0), Problem(60, 4), job.place.rank
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scheduler = ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        pacer = Pacer(step_time=LogNormal(mean_s=0.02 * (1 + rank % 3), cv=0.3), seed=5, worker=rank, clock=job.clock)
        seen: Seen = [], []

        def metric() -> float:
            if rank == fails_on:
                raise ZeroDivisionError
            return float((model(data.x) - data.y).square().mean())

        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer)) as session:
            loader = DataLoader(data, batch_size=3, shuffle=True)
            for _ in range(5):
                for _, x, y in loader if own_loader else session.shard(loader):
                    (model(x) - y).square().mean().backward()
                    session.step(samples=len(x) if own_loader else None)
                value = session.evaluate(metric, goal="min", everywhere=True)
                assert value is not None
                scheduler.step(value)
                seen[0].append(value)
                seen[1].append(optimizer.param_groups[0]["lr"])
        return seen

    cluster = cluster_of_racks(racks) if racks else Cluster.one_host(3)
    return simulate(work, num_workers=3, cluster=cluster, faults=faults)


def values(simulation: Simulation[Seen]) -> list[Seen]:
    for outcome in simulation.outcomes.values():
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in simulation.outcomes.values() if outcome.value is not None]


@pytest.mark.parametrize(
    ("policy", "racks"),
    [
        *((policy, ()) for policy in (*ON_THE_STORE, "bsp", "adaptive", "switch:bsp/asp@8/bsp@25")),
        ("hier:bsp/ssp:2", (2, 1)),
    ],
)
def test_all_workers_get_one_value_and_go_by_it(policy: str, racks: Sequence[int]):
    first, *others = values(simulation := run(policy, racks=racks))
    assert others == [first, first]
    assert len(set(first[0])) == 5
    assert first[1][-1] < 0.05
    assert [point.metric for point in simulation.runs[0].evaluations] == first[0], "each is made once"
    assert values(run(policy, racks=racks)) == [first, first, first]


@pytest.mark.parametrize("policy", ["asp", "ssp:1"])
def test_nobody_waits_for_one_that_still_trains(policy: str):
    first, *others = values(run(policy, own_loader=True))
    assert others == [first, first]


@pytest.mark.parametrize("policy", ["asp", "ssp:1", "adaptive"])
def test_a_worker_that_joins_late_is_told_what_was_found_before(policy: str):
    first, *others = values(run(policy, Fault(at_s=0.7, kind="join")))
    assert others == [first, first, first]


@pytest.mark.parametrize("lost", [0, 1])
def test_the_others_go_on_without_a_lost_worker(lost: int):
    first, other = values(run("asp", Fault(at_s=0.7, kind="lose", worker=lost)))
    assert first == other


def test_another_worker_evaluates_where_one_has_failed():
    simulation = run("asp", fails_on=0)
    kinds = {rank: type(outcome.error) for rank, outcome in simulation.outcomes.items()}
    assert kinds == {0: ZeroDivisionError, 1: type(None), 2: type(None)}
    assert simulation.outcomes[1].value == simulation.outcomes[2].value


def test_what_is_no_yes_or_no_is_refused():
    model = perceptron(4, 0)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="asp") as session:
        with pytest.raises(ConfigError, match="True or False"):
            session.evaluate(lambda: 1.0, everywhere=1)  # type: ignore[arg-type]
        assert session.evaluate(lambda: 1.0, everywhere=True) == 1.0
