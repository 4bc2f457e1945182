"""Figures in mid-run: a worker's own are those of the step that it has just finished."""

import pytest
import torch
from torch.utils.data import DataLoader

import plesio
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import LogNormal
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.problems import Problem, perceptron

BATCH_SIZE = 3


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp", "adaptive"])
def test_a_report_is_of_one_moment_and_the_run_runs(policy: str, num_workers: int):
    def work(job: VirtualJob) -> RunResult:
        model, rank = perceptron(4, 0), job.place.rank
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        pacer = Pacer(step_time=LogNormal(mean_s=0.02, cv=0.3), seed=5, worker=rank, clock=job.clock)
        steps = samples = 0
        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer)) as session:
            for _, x, y in session.shard(DataLoader(Problem(40, 4), batch_size=BATCH_SIZE)):
                loss = (model(x) - y).square().mean()
                loss.backward()
                session.step(loss)
                steps, samples = steps + 1, samples + len(x)
                found = session.report()
                own = next(worker for worker in found.workers if worker.worker == rank)
                assert (found.status, own.steps, own.samples) == ("running", steps, samples)
                assert found.steps == sum(worker.steps for worker in found.workers)
                assert found.samples == sum(worker.samples for worker in found.workers)
                assert max(point.clock for point in found.losses) >= session.clock
            assert session.report().status == "running"
        return session.report()

    simulation = simulate(work, num_workers=num_workers, cluster=Cluster.one_host(num_workers))
    for outcome in simulation.outcomes.values():
        if outcome.error is not None:
            raise outcome.error
        assert outcome.value is not None
        assert (outcome.value.status, outcome.value.samples) == ("finished", 40)
