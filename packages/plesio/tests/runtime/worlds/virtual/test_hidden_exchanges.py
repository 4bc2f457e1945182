"""The store's exchanges behind the training: each step counts once, and a transfer that steps hide takes no time."""

import pytest
import torch

from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.step_time import LogNormal
from support import noted_training
from support.by_hand import flat_of, parameters_of
from support.noted_training import (
    NUM_FEATURES,
    NUM_SAMPLES,
    TOLERANCE,
    Worker,
    assert_processes_train_what_virtual_workers_do,
    build,
    run,
)
from support.problems import Problem
from support.processes import on_processes
from support.workers import workers_of

STEP_S = 0.1
HIDDEN = 400
NUM_BYTES = 8 * sum(parameter.numel() for parameter in build(hidden=HIDDEN)[0].parameters())


def alone(worker: Worker) -> torch.Tensor:
    """Train by hand on a worker's batches."""
    model, optimizer = build(momentum=0.0)
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    for batch in worker.batches:
        optimizer.zero_grad()
        (model(data.x[batch]) - data.y[batch]).square().mean().backward()
        optimizer.step()
    return flat_of(model)


@pytest.mark.parametrize(
    "policy",
    [
        "asp",
        "asp,delay=1",
        "ssp:3,delay=1",
        "asp,update=delta,period=3,delay=2",
        "asp,update=delta,delay=1",
        "ssp:4,update=delta,period=4,delay=4",
    ],
)
def test_one_worker_trains_as_alone_so_each_step_counts_once(policy: str):
    """Its own steps behind an exchange are those that the answer brings."""
    [worker] = workers_of(run(policy, num_workers=1, cluster=Cluster.one_host(1), momentum=0.0))
    torch.testing.assert_close(worker.final, alone(worker), **TOLERANCE)


@pytest.mark.parametrize("policy", ["asp,delay=1", "ssp:3,period=3,delay=2", "local_sgd:4,exchange=store,delay=2"])
def test_every_sample_is_trained_on_once(policy: str):
    simulation = run(policy)
    workers = workers_of(simulation)
    assert sorted(one for worker in workers for batch in worker.batches for one in batch) == sorted(
        2 * list(range(NUM_SAMPLES))
    )
    assert simulation.runs[0].samples == 2 * NUM_SAMPLES


@pytest.mark.parametrize("policy", ["asp{}", "ssp:4{}", "ssp:4,period=3{}", "asp,update=delta,period=3{}"])
def test_a_transfer_takes_no_time_while_it_is_shorter_than_the_steps_before_it(policy: str):
    """A push and a pull take nearly a step, while the other worker beyond the link exchanges too."""
    slow = Cluster(
        name="slow",
        hosts=3,
        workers_per_host=1,
        cores_per_host=1,
        nic=Link(latency_s=1e-4, bytes_per_s=4 * NUM_BYTES / (0.9 * STEP_S)),
    )
    walls = [
        run(policy.format(delay), hidden=HIDDEN, step_time=LogNormal(mean_s=STEP_S, cv=0.05), cluster=cluster)
        .runs[0]
        .wall_s
        for delay, cluster in ((",delay=1", slow), ("", slow), ("", Cluster.one_host(3)))
    ]
    assert walls[0] < 1.05 * walls[2]
    assert walls[1] > 1.15 * walls[2]


@pytest.mark.timeout(120)
def test_real_processes_train_what_virtual_workers_do():
    policies = ("local_sgd:4,exchange=store,delay=2", "local_sgd:3,exchange=store,delay=3")
    assert_processes_train_what_virtual_workers_do(dict.fromkeys(policies, 1e-12), virtually=run)


@pytest.mark.timeout(120)
def test_asynchronous_processes_learn():
    """Their order is their machine's, so they end with no parameters in particular."""
    policies = ["asp,delay=1", "ssp:4,period=3,delay=2", "asp,update=delta,period=3,delay=2"]
    before = loss(flat_of(build()[0]))
    for found in zip(*on_processes(2, noted_training.__file__, "train_each", policies=policies), strict=True):
        assert all(loss(torch.tensor(one, dtype=torch.float64)) < 0.5 * before for one in found)


def loss(parameters: torch.Tensor) -> float:
    model, _ = build()
    torch.nn.utils.vector_to_parameters(parameters, parameters_of(model))
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    return float((model(data.x) - data.y).square().mean().detach())
