"""Loops over loaders of the script's own: samples, the clock, and batches that are the same on all workers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import plesio
from plesio.core.errors import ConfigError
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import LogNormal
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.problems import Problem, perceptron

SAME = "all workers draw the same batches"
STEPS, BATCH_SIZE, STEP_S = 6, 4, 0.02


def run(policy: str, seed_of: Callable[[int], int], *, num_workers: int = 2, constant: bool = False) -> RunResult:
    def work(job: VirtualJob) -> None:
        model, data = perceptron(4, 3), Problem(60, 4)
        draws = torch.Generator().manual_seed(seed_of(job.place.rank))
        pacer = Pacer(step_time=LogNormal(mean_s=STEP_S, cv=0), seed=5, worker=job.place.rank, clock=job.clock)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = plesio.JoinOptions(pacer=pacer)
        with plesio.join(model, optimizer, policy=policy, options=options, total_samples=1000) as session:
            for _ in range(STEPS):
                batch = torch.randint(60, (BATCH_SIZE,), generator=draws)
                loss = (model(data.x[batch]) - data.y[batch]).square().mean()
                loss.backward()
                session.step(1.0 if constant else loss, samples=BATCH_SIZE)
            session.evaluate(lambda: 1.0)

    simulation = simulate(work, num_workers=num_workers, cluster=Cluster.one_host(num_workers))
    for outcome in simulation.outcomes.values():
        assert outcome.error is None
    [result] = simulation.runs
    return result


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp", "bsp,exchange=store", "adaptive"])
def test_samples_and_time_are_counted(policy: str):
    result = run(policy, lambda rank: rank)
    assert result.samples == 2 * STEPS * BATCH_SIZE
    assert result.wall_s >= STEPS * STEP_S
    assert result.samples_per_s == pytest.approx(result.samples / result.wall_s)
    assert result.evaluations[-1].samples == result.samples


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp", "adaptive"])
@pytest.mark.parametrize(
    ("arguments", "warns"),
    [
        ({"seed_of": lambda rank: 0}, True),
        ({"seed_of": lambda rank: rank}, False),
        ({"seed_of": lambda rank: rank, "constant": True}, False),
        ({"seed_of": lambda rank: rank // 2, "num_workers": 3}, False),
        ({"seed_of": lambda rank: 0, "num_workers": 1}, False),
    ],
)
def test_equal_batches_on_all_workers_are_noticed(policy: str, arguments: dict[str, Any], warns: bool):
    assert sum(SAME in line for line in run(policy, **arguments).fallbacks) == warns


@pytest.mark.parametrize("samples", [0, -1, 2.5, True, "4"])
def test_what_is_no_number_of_samples_is_refused(samples: Any):
    model = perceptron(4, 0)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        model(torch.ones(1, 4).double()).sum().backward()
        with pytest.raises(ConfigError, match="is no number of samples"):
            session.step(samples=samples)


@pytest.mark.parametrize("samples", [None, 40])
def test_samples_that_shard_counts_are_not_counted_twice(samples: int | None):
    model = perceptron(4, 0)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        for _, x, _ in session.shard(torch.utils.data.DataLoader(Problem(40, 4), batch_size=4), samples=samples):
            model(x).sum().backward()
            with pytest.raises(ConfigError, match="counts the samples of its batches"):
                session.step(samples=4)
            break


def test_alone_the_clock_runs_and_samples_count():
    model = perceptron(4, 0)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as session:
        for _ in range(2):
            model(torch.ones(8, 4).double()).sum().backward()
            session.step(samples=8)
        assert session.elapsed_s > 0
        session.evaluate(lambda: 1.0)
    result = session.report()
    assert (result.samples, result.evaluations[-1].samples) == (16, 16)
