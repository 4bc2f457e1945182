"""Racks whose uplinks are oversubscribed: never faster than others, and with a ratio of 1 like one rack."""

from dataclasses import replace

import pytest

from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.runtime.worlds.virtual import simulate
from support.counted_training import Worker, pacer_of, train
from support.workers import workers_of

NIC = Link(latency_s=50e-6, bytes_per_s=40e3)
ONE_RACK = Cluster(name="one", hosts=4, workers_per_host=1, cores_per_host=1, nic=NIC, collectives="gloo")


def in_racks(ratio: float) -> Cluster:
    uplink = Link(latency_s=0.0, bytes_per_s=1.0)
    return replace(ONE_RACK, racks=2, uplink=uplink).with_oversubscription(ratio)


def trained(policy: str, cluster: Cluster) -> tuple[float, list[Worker]]:
    simulation = simulate(lambda job: train(policy, pacer_of(job), loops=2), num_workers=4, cluster=cluster)
    [run] = simulation.runs
    return run.wall_s, workers_of(simulation)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp", "ssp:2"])
def test_a_ratio_of_1_changes_no_bit(policy: str):
    assert trained(policy, in_racks(1.0)) == trained(policy, ONE_RACK)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp"])
def test_more_oversubscription_never_makes_a_run_faster(policy: str):
    times_s = [trained(policy, in_racks(ratio))[0] for ratio in (1.0, 2.0, 4.0, 16.0)]
    assert times_s == sorted(times_s)
    assert times_s[-1] > 1.5 * times_s[0]
