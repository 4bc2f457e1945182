import math

import numpy as np
import pytest

from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.placement import all_reduce_times_on
from plesio_planning.sim import all_reduce as simulated
from plesio_planning.studies import hierarchical
from plesio_planning.studies.models.hierarchical import Hosts


def test_reference_values_of_one_nic():
    """studies/reference.md, study 18."""
    answer = hierarchical(nics_per_host=1)
    assert answer.total == pytest.approx(56.9e-3, abs=0.05e-3)
    assert answer.times_s["flat ring"] == pytest.approx(60.9e-3, abs=0.05e-3)
    assert answer.times_s["flat ring"] / answer.total == pytest.approx(1.07, abs=0.005)


def test_reference_values_of_a_nic_a_gpu():
    answer = hierarchical()
    assert answer.total == pytest.approx(9.46e-3, abs=0.005e-3)
    assert answer.times_s["flat ring"] / answer.total == pytest.approx(6.4, abs=0.05)
    assert answer.times_s["a flat ring for each NIC"] / answer.total == pytest.approx(1.3, abs=0.05)


def test_reference_values_of_small_messages():
    small_s = hierarchical(nics_per_host=1, message_bytes=100e3).times_s
    assert small_s["flat ring"] == pytest.approx(5.1e-3, abs=0.05e-3)
    assert small_s["hierarchical"] == pytest.approx(0.64e-3, abs=0.005e-3)
    assert small_s["flat tree"] == pytest.approx(0.22e-3, abs=0.005e-3)


@pytest.mark.parametrize("nics_per_host", [1, 2, 8])
def test_the_formula_is_what_a_simulation_send_by_send_takes(nics_per_host: int):
    ends_s = simulated.hierarchical_all_reduce_s(
        700e6,
        num_hosts=32,
        ranks_per_host=8,
        latency_s=1e-6,
        bytes_per_s=600e9,
        cross_latency_s=10e-6,
        cross_bytes_per_s=nics_per_host * 25e9 / 8,
    )
    np.testing.assert_allclose(ends_s, hierarchical(nics_per_host=nics_per_host).total, rtol=1e-12)


def test_a_flat_ring_is_as_slow_as_its_slowest_links():
    """Seven of eight sends stay within a host, and save nothing."""
    latency_s, bytes_per_s = np.full(256, 1e-6), np.full(256, 600e9)
    latency_s[7::8], bytes_per_s[7::8] = 10e-6, 25e9
    ends_s = simulated.ring_all_reduce_s(700e6, num_ranks=256, latency_s=latency_s, bytes_per_s=bytes_per_s)
    assert ends_s.max() == pytest.approx(hierarchical().times_s["flat ring"])


@pytest.mark.parametrize("nics_per_host", [1, 8])
def test_the_formula_is_what_its_rounds_take_on_a_cluster(nics_per_host: int):
    cluster = Cluster(
        name="four hosts",
        hosts=4,
        workers_per_host=8,
        cores_per_host=8,
        local=Link(latency_s=1e-6, bytes_per_s=600e9, shared=False),
        nic=Link(latency_s=10e-6, bytes_per_s=nics_per_host * 25e9),
        collectives="nccl",
    )
    on_cluster_s = all_reduce_times_on(cluster, range(32), 700e6)["hierarchical"]
    assert hierarchical(num_hosts=4, nics_per_host=nics_per_host).total == pytest.approx(on_cluster_s)


def test_groups_of_one_and_of_all_are_a_flat_ring():
    answer = hierarchical()
    assert answer.by_group[1] == pytest.approx(answer.times_s["flat ring"])
    assert answer.by_group[256] == pytest.approx(answer.times_s["flat ring"])
    assert answer.by_group[8] == pytest.approx(answer.total)
    assert answer.best_group == 8


@pytest.mark.parametrize("num_ranks", [16, 36, 256])
def test_among_equal_links_the_best_group_is_the_root(num_ranks: int):
    hosts = Hosts(
        num_hosts=num_ranks,
        ranks_per_host=1,
        nics_per_host=1,
        bytes_per_s=1e9,
        latency_s=1e-5,
        local_bytes_per_s=1e9,
        local_latency_s=1e-5,
    )
    times_s = {group: hosts.grouped_s(1e6, group=group) for group in hosts.groups()}
    assert min(times_s, key=times_s.__getitem__) == math.isqrt(num_ranks)
    wire_s = 2 * (num_ranks - 1) / num_ranks * 1e-3
    for group, duration_s in times_s.items():
        assert duration_s == pytest.approx(2 * (group + num_ranks / group - 2) * 1e-5 + wire_s)


@pytest.mark.parametrize("nics_per_host", [1, 4, 8])
def test_where_two_levels_pay_is_where_times_cross(nics_per_host: int):
    answer = hierarchical(nics_per_host=nics_per_host)
    for other, (low, high) in answer.faster_between_bytes.items():
        for size in (10.0, 1e5, 1e6, 1e8, 1e10, 1e12):
            times_s = answer.hosts.times_s(size)
            assert (times_s["hierarchical"] < times_s[other]) == (low < size < high)
