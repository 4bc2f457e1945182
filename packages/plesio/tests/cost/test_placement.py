from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster, parse_cluster
from plesio.cost.collectives import (
    ALL_REDUCES,
    all_reduce_on,
    all_reduce_times_on,
    broadcast_on,
    bucket_all_reduce_on,
    hierarchical_all_reduce_s,
    select_all_reduce_on,
)
from plesio.cost.link import Link

LOCAL = Link(latency_s=1e-6, bytes_per_s=600e9, shared=False)
NIC = Link(latency_s=10e-6, bytes_per_s=25e9)


def cluster_of(hosts: int, *, workers: int = 1, local: Link = LOCAL, nic: Link = NIC) -> Cluster:
    return Cluster(
        name="test",
        hosts=hosts,
        workers_per_host=workers,
        cores_per_host=workers,
        local=local,
        nic=nic,
        device="an accelerator",
    )


@given(num_ranks=st.integers(1, 70), num_bytes=st.floats(0, 1e10))
def test_on_equal_links_the_rounds_take_what_the_formulas_say(num_ranks: int, num_bytes: float):
    times = all_reduce_times_on(cluster_of(num_ranks), range(num_ranks), num_bytes)
    assert set(times) == {"ring", "halving-doubling", "tree"}
    for name, duration_s in times.items():
        formula_s = ALL_REDUCES[name](num_bytes, num_ranks=num_ranks, link=Link(latency_s=10e-6, bytes_per_s=25e9))
        assert duration_s == pytest.approx(formula_s), name


@given(hosts=st.integers(2, 12), workers=st.integers(2, 8), num_bytes=st.floats(0, 1e10))
def test_on_equal_hosts_two_levels_take_what_the_formula_says(hosts: int, workers: int, num_bytes: float):
    cluster = cluster_of(hosts, workers=workers)
    formula_s = hierarchical_all_reduce_s(
        num_bytes,
        num_hosts=hosts,
        ranks_per_host=workers,
        local=Link(latency_s=1e-6, bytes_per_s=600e9),
        link=Link(latency_s=10e-6, bytes_per_s=25e9),
    )
    times = all_reduce_times_on(cluster, range(hosts * workers), num_bytes)
    assert times["hierarchical"] == pytest.approx(formula_s)


@given(st.sampled_from(["8xa100", "2-racks", "4x1gbe", "16x8h100", "laptop"]), st.floats(0, 1e10), st.data())
def test_no_algorithm_beats_the_fastest_links_there_are(name: str, num_bytes: float, data: st.DataObject):
    cluster = parse_cluster(name)
    ranks = data.draw(st.lists(st.integers(0, cluster.num_slots - 1), min_size=1, unique=True))
    bandwidth = max(cluster.local.bytes_per_s, cluster.nic.bytes_per_s)
    bound_s = 2 * (len(ranks) - 1) / len(ranks) * num_bytes / bandwidth
    times = all_reduce_times_on(cluster, ranks, num_bytes)
    assert min(times.values()) >= bound_s * (1 - 1e-12)
    choice = select_all_reduce_on(cluster, ranks, num_bytes)
    assert choice.duration_s == times[choice.algorithm] == pytest.approx(min(times.values()), rel=1e-8)
    assert all_reduce_on(cluster, ranks, num_bytes) == times["ring"]
    assert all_reduce_on(cluster, ranks[::-1], num_bytes) == times["ring"]


@pytest.mark.parametrize("num_bytes", [0.0, 1e3, 1e6, 1e8, 8 * 2**30])
def test_a_ring_in_one_host_takes_what_the_published_fit_of_nvlink_says(num_bytes: float):
    """A100 x 8, nccl-tests' all-reduce: 78.6 µs, bus bandwidth 227 GB/s. The named cluster has three digits of it."""
    cluster = parse_cluster("8xa100")
    fit_s = 78.6e-6 + num_bytes * 2 * 7 / 8 / 227e9
    assert all_reduce_on(cluster, range(8), num_bytes) == pytest.approx(fit_s, rel=1e-3)


def test_workers_of_a_host_share_a_link_that_is_shared():
    shared = Link(latency_s=0.0, bytes_per_s=8.0)
    cluster = cluster_of(1, workers=4, local=shared)
    assert all_reduce_on(cluster, range(4), 4.0) == pytest.approx(6 * 1 / (8 / 4))  # four messages a round
    alone = Link(latency_s=0.0, bytes_per_s=8.0, shared=False)
    assert all_reduce_on(cluster_of(1, workers=4, local=alone), range(4), 4.0) == pytest.approx(6 * 1 / 8)


def test_with_gloo_a_message_takes_the_latency_twice():
    cluster = cluster_of(4)
    gloo, no_device = replace(cluster, collectives="gloo"), replace(cluster, device="")
    for num_bytes in (0.0, 4e6):
        more_s = all_reduce_on(gloo, range(4), num_bytes) - all_reduce_on(cluster, range(4), num_bytes)
        assert more_s == pytest.approx(6 * cluster.nic.latency_s)
        assert all_reduce_on(no_device, range(4), num_bytes) == all_reduce_on(gloo, range(4), num_bytes)
    assert no_device.assumes == (
        'Collectives are priced as Gloo\'s, since cluster test names no device; collectives = "..." says otherwise.'
    )
    assert gloo.assumes is None


def test_a_ring_crosses_an_uplink_once_and_halving_doubling_with_everybody():
    cluster = replace(parse_cluster("2-racks"), collectives="nccl")
    times = all_reduce_times_on(cluster, range(16), 16e9)
    assert times["ring"] == pytest.approx(30 * (50e-6 + 1e9 / 1.25e9))  # two uplinks for one message each way
    rounds_s = 2 * 16e9 * (1 / 2 + 1 / 4 + 1 / 8) / 1.25e9 + 2 * 1e9 * 8 / 2.5e9  # eight messages on an uplink of two
    assert times["halving-doubling"] == pytest.approx(rounds_s, rel=1e-4)


def test_hosts_with_unequal_numbers_of_ranks_have_no_two_levels():
    cluster = cluster_of(3, workers=2)
    assert "hierarchical" not in all_reduce_times_on(cluster, [0, 1, 2], 1.0)
    assert "hierarchical" in all_reduce_times_on(cluster, [0, 1, 4, 5], 1.0)


def test_a_broadcast_goes_down_a_tree():
    cluster = cluster_of(5)
    assert broadcast_on(cluster, range(5), 25e6) == pytest.approx(3 * (10e-6 + 1e-3))
    assert broadcast_on(cluster, [3], 25e6) == 0
    assert broadcast_on(cluster_of(2, workers=2), range(4), 25e6) == pytest.approx(
        (1e-6 + 25e6 / 600e9) + (10e-6 + 1e-3)
    )


@pytest.mark.parametrize(
    ("ranks", "num_bytes", "message"),
    [
        ([], 1, "write one or more, each once"),
        ([1, 1], 1, "each once"),
        ([9], 1, "ranks 0 to 3"),
        ([0], -1, "-1 bytes"),
    ],
)
def test_impossible_collectives_are_refused(ranks: list[int], num_bytes: float, message: str):
    with pytest.raises(ConfigError, match=message):
        select_all_reduce_on(cluster_of(4), ranks, num_bytes)


@given(hosts=st.integers(2, 6), workers=st.integers(2, 5), num_bytes=st.floats(0, 1e10), shared=st.booleans())
def test_groups_side_by_side_share_links_as_the_rounds_of_one_collective_do(
    hosts: int, workers: int, num_bytes: float, shared: bool
):
    """Two levels are rings in all hosts at once, and then rings between them, one for each worker of a host."""
    local = Link(latency_s=1e-6, bytes_per_s=6e9, shared=shared)
    cluster = cluster_of(hosts, workers=workers, local=local)
    inside = [list(range(host * workers, (host + 1) * workers)) for host in range(hosts)]
    rails = [[ranks[index] for ranks in inside] for index in range(workers)]
    inside_s = all_reduce_on(cluster, inside[0], num_bytes, beside=inside[1:])
    between_s = all_reduce_on(cluster, rails[0], num_bytes / workers, beside=rails[1:])
    assert inside_s + between_s == pytest.approx(
        all_reduce_times_on(cluster, range(hosts * workers), num_bytes)["hierarchical"]
    )
    assert inside_s == pytest.approx(all_reduce_on(cluster, inside[0], num_bytes)), (
        "other hosts have links of their own"
    )


def test_broadcasts_side_by_side_share_an_uplink():
    cluster = replace(parse_cluster("2-racks"), collectives="nccl")
    assert cluster.uplink is not None
    alone_s = broadcast_on(cluster, [0, 8], 1e9)
    # an uplink is as fast as two interfaces: two messages do not slow each other, four do
    assert broadcast_on(cluster, [0, 8], 1e9, beside=[[1, 9]]) == pytest.approx(alone_s)
    three_more = [[1, 9], [2, 10], [3, 11]]
    both_s = cluster.nic.latency_s + cluster.uplink.latency_s + 4e9 / cluster.uplink.bytes_per_s
    assert broadcast_on(cluster, [0, 8], 1e9, beside=three_more) == pytest.approx(both_s)


@given(num_ranks=st.integers(2, 40), num_bytes=st.floats(1, 1e9))
def test_a_bucket_takes_what_the_busiest_rank_of_a_double_tree_sends_by_nccl_and_a_ring_by_gloo(
    num_ranks: int, num_bytes: float
):
    nic = Link(latency_s=0.0, bytes_per_s=1e9)
    by_nccl = replace(cluster_of(num_ranks, nic=nic), collectives="nccl")
    tree_s = bucket_all_reduce_on(by_nccl, range(num_ranks), num_bytes)
    assert tree_s == pytest.approx(min(2.0, num_ranks / 2) * num_bytes / 1e9)
    by_gloo = replace(by_nccl, collectives="gloo")
    assert bucket_all_reduce_on(by_gloo, range(num_ranks), num_bytes) == all_reduce_on(
        by_gloo, range(num_ranks), num_bytes
    )


def test_a_bucket_within_a_host_goes_by_a_ring():
    one = cluster_of(1, workers=8)
    assert bucket_all_reduce_on(one, range(8), 1e8) == all_reduce_on(one, range(8), 1e8)


@given(flows=st.integers(1, 500), more=st.integers(1, 500), megabits=st.floats(1, 1e5))
def test_flows_that_time_out_never_make_a_link_faster(flows: int, more: int, megabits: float):
    cluster = cluster_of(2, nic=Link(latency_s=0.0, bytes_per_s=megabits * 125e3))
    ideal_s, some_s, most_s = (
        all_reduce_on(replace(cluster, tcp_flows=number), range(2), 1e6) for number in (None, flows, flows + more)
    )
    assert ideal_s < some_s < most_s


@given(ratio=st.floats(0.1, 50), more=st.floats(0, 50), num_bytes=st.floats(1, 1e9))
def test_adding_oversubscription_never_makes_a_collective_faster(ratio: float, more: float, num_bytes: float):
    racks = replace(cluster_of(6), racks=2, uplink=NIC)
    for on_links in (all_reduce_on, bucket_all_reduce_on, broadcast_on):
        little_s, much_s = (
            on_links(racks.with_oversubscription(each), range(6), num_bytes) for each in (ratio, ratio + more)
        )
        assert little_s <= much_s
