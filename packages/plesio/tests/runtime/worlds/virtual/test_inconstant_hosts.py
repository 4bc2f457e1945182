"""Hosts of a cluster that fail, are taken away and come by chance: runs go on, and repeat to the bit."""

from dataclasses import replace

import pytest

from plesio.core.results import RunResult
from plesio.cost.cluster import Churn, Cluster
from plesio.cost.faults import Failures
from plesio.runtime.worlds.virtual import simulate
from support.counted_training import NUM_SAMPLES, Worker, pacer_of, train
from support.workers import workers_of

LOOPS = 4
PAIRS = Cluster(name="pairs", hosts=3, workers_per_host=2, cores_per_host=2)


def fated(kind: str, *, mtbf_s: float, away_s: float | None, hosts: int | None = None) -> Cluster:
    failures = Failures(mtbf_s=mtbf_s, rejoin_after_s=away_s)
    return replace(PAIRS, churn=(Churn(kind=kind, failures=failures, hosts=hosts),))  # type: ignore[arg-type]


def trained(policy: str, cluster: Cluster, *, seed: int = 0) -> tuple[RunResult, list[Worker]]:
    simulation = simulate(
        lambda job: train(policy, pacer_of(job), loops=LOOPS), num_workers=6, cluster=cluster, seed=seed
    )
    [run] = simulation.runs
    return run, workers_of(simulation)


@pytest.mark.parametrize("policy", ["bsp", "asp"])
@pytest.mark.parametrize("kind", ["failures", "preemption"])
def test_a_mean_time_of_for_ever_changes_no_bit(policy: str, kind: str):
    assert trained(policy, fated(kind, mtbf_s=1e15, away_s=1.0)) == trained(policy, PAIRS)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp"])
def test_a_run_goes_on_when_a_host_is_lost_with_its_workers_and_repaired(policy: str):
    cluster = fated("failures", mtbf_s=1.5, away_s=0.2)
    run, workers = trained(policy, cluster, seed=2)
    assert run.status == "finished"
    assert run.lost_workers
    assert sorted(run.lost_workers)[::2] == [rank for rank in sorted(run.lost_workers) if rank % 2 == 0]
    assert run.samples == LOOPS * NUM_SAMPLES
    assert trained(policy, cluster, seed=2) == (run, workers)


def test_preempted_hosts_are_the_last_ones():
    run, _ = trained("asp", fated("preemption", mtbf_s=0.05, away_s=None, hosts=1), seed=1)
    assert sorted(run.lost_workers) == [4, 5]


def test_scavenged_hosts_bring_workers_besides():
    cluster = fated("scavenged", mtbf_s=1e15, away_s=0.1, hosts=1)
    run, _ = trained("asp", cluster)
    assert {worker.worker for worker in run.workers} == {0, 1, 2, 3, 4, 5, 6, 7}
    assert run.samples == LOOPS * NUM_SAMPLES
    assert run.wall_s < trained("asp", PAIRS)[0].wall_s
