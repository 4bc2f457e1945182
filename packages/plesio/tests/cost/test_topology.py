import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.all_reduce import hierarchical_all_reduce_s, ring_all_reduce_s
from plesio.cost.cluster import Cluster, parse_cluster
from plesio.cost.exchange_plan import WORTHWHILE, Plan, plan
from plesio.cost.link import Link
from plesio.cost.placement import all_reduce_on
from plesio.cost.ring_order import ring_s
from plesio.cost.topology import PairMatrix, Topology, racks_of, slower_between
from plesio.cost.topology_file import alike, cluster_text, read_topology

NIC, UPLINK, LATENCY_S = 125e6, 25e6, 1e-4


def matrix_of(
    racks: Sequence[int],
    *,
    nic: float | Sequence[float] = NIC,
    uplink: float = UPLINK,
    uplink_latency_s: float = LATENCY_S,
    noise: float = 0.0,
    seed: int = 0,
) -> PairMatrix:
    """Hosts in these racks; bandwidths and latencies off by lognormal errors, latencies by twice as much."""
    generator = random.Random(seed)
    nics = [nic] * len(racks) if isinstance(nic, int | float) else nic

    def rate(one: int, other: int) -> float:
        way = min(nics[one], nics[other], math.inf if racks[one] == racks[other] else uplink)
        return way * math.exp(generator.gauss(0, noise))

    def latency_s(one: int, other: int) -> float:
        own_s = LATENCY_S if racks[one] == racks[other] else uplink_latency_s
        return own_s * math.exp(generator.gauss(0, 2 * noise))

    hosts = range(len(racks))
    return PairMatrix(
        hosts=tuple(f"host{host}" for host in hosts),
        latency_s=tuple(tuple(latency_s(one, other) for other in hosts) for one in hosts),
        bytes_per_s=tuple(tuple(rate(one, other) for other in hosts) for one in hosts),
    )


def shuffled(sizes: Sequence[int], *, seed: int) -> tuple[int, ...]:
    """Racks of these sizes, hosts mixed, counted in the order in which they appear."""
    labels = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    random.Random(seed).shuffle(labels)
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(label, len(numbers)) for label in labels)


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16, 32])
@pytest.mark.parametrize("seed", range(5))
def test_hosts_that_differ_by_noise_are_one_rack(size: int, seed: int):
    assert set(racks_of(matrix_of([0] * size, noise=0.2, seed=seed))) == {0}


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4), (6, 2), (3, 5), (2, 3, 4), (8, 8, 8, 8), (2, 2, 2, 2, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_racks_are_found_whatever_their_sizes(sizes: tuple[int, ...], seed: int):
    racks = shuffled(sizes, seed=seed)
    assert racks_of(matrix_of(racks, noise=0.15, seed=seed)) == racks


def test_racks_may_differ_in_latency_alone():
    racks = (0, 1, 0, 1, 1, 0)
    assert racks_of(matrix_of(racks, uplink=NIC, uplink_latency_s=5 * LATENCY_S, noise=0.05)) == racks


@pytest.mark.parametrize("ratio", [1.2, 1.4])
def test_ways_that_are_little_slower_make_no_racks(ratio: float):
    matrix = matrix_of((0, 0, 1, 1), uplink=NIC / ratio)
    assert racks_of(matrix) == (0, 0, 0, 0)
    assert racks_of(matrix, factor=1.1) == (0, 0, 1, 1)
    assert not slower_between(matrix, (0, 0, 1, 1))


def test_a_slow_host_is_no_rack():
    matrix = matrix_of([0] * 6, nic=[NIC] * 5 + [NIC / 10], noise=0.05)
    assert set(racks_of(matrix)) == {0}


@pytest.mark.parametrize("seed", range(5))
def test_who_is_alone_behind_an_uplink_counts_to_the_nearest_rack(seed: int):
    racks = shuffled((3, 2, 1), seed=seed)
    found = racks_of(matrix_of(racks, noise=0.05, seed=seed))
    in_company = [host for host, rack in enumerate(racks) if racks.count(rack) > 1]
    for one, other in itertools.combinations(in_company, 2):
        assert (found[one] == found[other]) == (racks[one] == racks[other])
    assert len(set(found)) == 2
    assert set(racks_of(matrix_of(shuffled((3, 1), seed=seed)))) == {0}


@pytest.mark.parametrize("num_bytes", [0, 1e3, 1e8])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_ring_of_equal_ways_is_the_formula(count: int, num_bytes: float):
    topology = Topology.of(matrix_of([0] * count))
    formula_s = ring_all_reduce_s(num_bytes, num_ranks=count, link=Link(latency_s=LATENCY_S, bytes_per_s=NIC))
    assert ring_s(topology, range(count), num_bytes) == pytest.approx(formula_s)


def test_the_planned_ring_takes_what_placement_says_of_the_cluster():
    cluster = replace(parse_cluster("2-racks"), collectives="nccl")
    assert cluster.uplink is not None
    racks = [cluster.rack_of_host(host) for host in range(cluster.hosts)]
    matrix = matrix_of(racks, nic=cluster.nic.bytes_per_s, uplink=cluster.uplink.bytes_per_s)
    pairs = itertools.product(range(cluster.hosts), repeat=2)
    latencies = {pair: sum(link.latency_s for link in cluster.path(*pair)) for pair in pairs}
    rows = tuple(tuple(latencies[one, other] for other in range(cluster.hosts)) for one in range(cluster.hosts))
    exact = PairMatrix(hosts=matrix.hosts, latency_s=rows, bytes_per_s=matrix.bytes_per_s)
    topology = Topology(
        matrix=exact, racks=tuple(racks), uplink_bytes_per_s=(cluster.uplink.bytes_per_s,) * cluster.racks
    )
    on_cluster_s = all_reduce_on(cluster, range(cluster.hosts), 1e8)
    assert ring_s(topology, range(cluster.hosts), 1e8) == pytest.approx(on_cluster_s)


def test_two_levels_are_the_formula_where_racks_are_alike():
    found = plan(matrix_of((0, 1, 0, 1, 1, 0)), num_bytes=1e7)
    formula_s = hierarchical_all_reduce_s(
        1e7,
        num_hosts=2,
        ranks_per_host=3,
        local=Link(latency_s=LATENCY_S, bytes_per_s=NIC),
        link=Link(latency_s=LATENCY_S, bytes_per_s=UPLINK),
    )
    assert found.sharded_s == pytest.approx(formula_s, rel=1e-3)  # latencies of parts that are sent side by side


@pytest.mark.parametrize(("size", "saves"), [(2, 0.5), (4, 0.75), (8, 0.875)])
def test_dealt_ranks_share_the_uplink_and_planned_ones_do_not(size: int, saves: float):
    found = plan(matrix_of([0, 1] * size), num_bytes=1e8)
    assert found.rank_order == (*range(0, 2 * size, 2), *range(1, 2 * size, 2))
    assert 1 - found.planned_ring_s / found.given_ring_s == pytest.approx(saves, abs=1e-2)
    assert found.saving >= saves - 1e-2
    assert found.way == "sharded"


def test_an_uplink_that_carries_all_is_not_shared():
    matrix = matrix_of([0, 1, 0, 1], uplink=NIC, uplink_latency_s=10 * LATENCY_S)
    wide = Topology(matrix=matrix, racks=(0, 1, 0, 1), uplink_bytes_per_s=(2 * NIC,) * 2)
    narrow = Topology(matrix=matrix, racks=(0, 1, 0, 1), uplink_bytes_per_s=(NIC,) * 2)
    assert ring_s(narrow, range(4), 1e9) == pytest.approx(2 * ring_s(wide, range(4), 1e9), rel=1e-2)


def test_an_order_that_saves_nothing_worthwhile_is_left_as_it_is():
    assert plan(matrix_of([0] * 6, noise=0.01), num_bytes=1e7).rank_order == tuple(range(6))
    assert plan(matrix_of([0, 0, 1, 1]), num_bytes=1e7).rank_order == (0, 1, 2, 3)


def test_a_slow_pair_is_not_neighbours_in_the_ring():
    matrix = matrix_of([0] * 5)
    rows = [list(row) for row in matrix.bytes_per_s]
    rows[1][2] = rows[2][1] = NIC / 8
    slow = PairMatrix(hosts=matrix.hosts, latency_s=matrix.latency_s, bytes_per_s=tuple(map(tuple, rows)))
    order = plan(slow, num_bytes=1e7).rank_order
    assert {1, 2} not in [{one, other} for one, other in zip(order, (*order[1:], order[0]), strict=True)]


def test_the_leader_is_who_has_the_best_ways_to_others():
    racks = [0, 0, 0, 1, 1, 1]
    found = plan(matrix_of(racks, nic=[NIC, NIC, 2 * NIC, NIC, 3 * NIC, NIC], uplink=1.9 * NIC), num_bytes=1e7)
    assert plan(Topology.of(found.topology.matrix, racks=racks), num_bytes=1e7).leaders == (2, 4)


def test_the_smallest_rack_comes_last():
    found = plan(matrix_of([0, 1, 1, 0, 1]), num_bytes=1e7)
    assert [found.topology.racks[host] for host in found.rank_order] == [1, 1, 1, 0, 0]


def test_slow_hosts_get_less_of_the_store():
    found = plan(matrix_of([0] * 8, nic=[NIC] * 7 + [NIC / 1.5]), num_bytes=1e7)
    *fast, slow = found.shard_shares
    assert slow < min(fast) == pytest.approx(max(fast))
    assert found.planned_store_s < found.even_store_s
    assert plan(matrix_of([0] * 8, noise=0.01), num_bytes=1e7).shard_shares == (1 / 8,) * 8


@pytest.mark.parametrize("seed", range(10))
def test_the_order_is_the_best_of_all_that_go_rack_by_rack(seed: int):
    racks = shuffled((3, 3), seed=seed)
    found = plan(matrix_of(racks, noise=0.3, seed=seed), num_bytes=1e8)
    topology = found.topology
    parts = [itertools.permutations(topology.members(rack)) for rack in range(topology.num_racks)]
    best_s = min(ring_s(topology, tuple(itertools.chain(*order)), 1e8) for order in itertools.product(*parts))
    assert found.planned_ring_s <= best_s / (1 - WORTHWHILE)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    count = draw(st.integers(2, 7))
    rates = st.floats(1e6, 1e10)
    racks = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    numbers: dict[int, int] = {}
    labels = tuple(numbers.setdefault(rack, len(numbers)) for rack in racks)

    def rows(values: st.SearchStrategy[float]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(draw(values) for _ in range(count)) for _ in range(count))

    matrix = PairMatrix(
        hosts=tuple(map(str, range(count))), latency_s=rows(st.floats(0, 1e-2)), bytes_per_s=rows(rates)
    )
    return Topology.of(matrix, racks=labels)


@settings(max_examples=60, deadline=None)
@given(topologies(), st.floats(0, 1e9))
def test_laws_of_a_plan(topology: Topology, num_bytes: float):
    found = plan(topology, num_bytes=num_bytes)
    count = topology.matrix.num_hosts
    assert sorted(found.rank_order) == list(range(count))
    assert found.planned_ring_s <= found.given_ring_s
    assert found.planned_store_s <= found.even_store_s
    assert min(found.shard_shares) >= 0
    assert math.fsum(found.shard_shares) == pytest.approx(1)
    assert [topology.racks[leader] for leader in found.leaders] == list(range(topology.num_racks))
    assert found.saving >= 0
    assert found.way in found.times_s
    assert found == plan(topology, num_bytes=num_bytes)


def written(found: Plan, path: Path) -> Topology:
    path.write_text(cluster_text(found))
    return read_topology(path)


def test_a_cluster_file_has_the_hosts_in_the_planned_order(tmp_path: Path):
    found = plan(matrix_of([0, 1, 1, 0, 1], noise=0.01), num_bytes=1e7)
    path = tmp_path / "probed.toml"
    back = written(found, path)
    assert back.matrix.hosts == tuple(f"host{host}" for host in found.rank_order)
    assert back.racks == (0, 0, 0, 1, 1)
    again = plan(back, num_bytes=1e7)
    assert again.rank_order == (0, 1, 2, 3, 4)
    assert again.planned_ring_s == pytest.approx(found.planned_ring_s, rel=1e-4)
    cluster = Cluster.read(path)
    assert (cluster.hosts, cluster.racks, cluster.num_slots) == (5, 2, 5)
    assert [cluster.rack_of_host(host) for host in range(5)] == [0, 0, 0, 1, 1]
    assert cluster.uplink is not None
    assert cluster.uplink.bytes_per_s == pytest.approx(UPLINK, rel=0.1)
    assert cluster.nic.bytes_per_s == pytest.approx(NIC, rel=0.1)
    assert alike(back)


def test_racks_that_a_cluster_cannot_have_are_said_to_be_so(tmp_path: Path):
    found = plan(matrix_of([0, 0, 0, 0, 1, 1]), num_bytes=1e7)
    assert not alike(written(found, tmp_path / "probed.toml"))
    assert "these have 4 and 2 hosts" in (tmp_path / "probed.toml").read_text()
    assert Cluster.read(tmp_path / "probed.toml").hosts == 6


def test_one_rack_has_no_uplink(tmp_path: Path):
    back = written(plan(matrix_of([0] * 3), num_bytes=1e7), tmp_path / "one.toml")
    assert back.uplink_bytes_per_s == (math.inf,)
    assert parse_cluster(str(tmp_path / "one.toml")).uplink is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no cluster file"),
        ("hosts = 1", r"has no \[probe\]: it was not measured"),
        ("[probe]\nhosts = ['a', 'b']", "'racks' is missing; plesio lab probe --out FILE writes it anew"),
        ("[probe", "cannot read"),
        ("[probe]\nracks = [0]\nuplink_bytes_per_s = []\nhosts = ['a']\nlatency_s = []\nbytes_per_s = []", "2 or more"),
    ],
)
def test_a_file_without_a_measurement_is_one_line(text: str | None, message: str, tmp_path: Path):
    path = tmp_path / "some.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        read_topology(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": ("a",)}, "pairs of 1 hosts; measure 2 or more"),
        ({"hosts": ("a", "a")}, "a name is there twice"),
        ({"latency_s": ((0.0, 1.0),)}, "latency_s is not of 2 x 2 hosts"),
        ({"latency_s": ((0.0, -1.0), (1.0, 0.0))}, "latency_s from a to b is -1.0; write 0 or more"),
        ({"bytes_per_s": ((0.0, 1.0), (0.0, 0.0))}, "bytes_per_s from b to a is 0.0; write more than 0"),
        ({"bytes_per_s": ((0.0, math.nan), (1.0, 0.0))}, "from a to b is nan"),
    ],
)
def test_impossible_pairs_are_one_line(change: dict[str, object], message: str):
    fine = {"hosts": ("a", "b"), "latency_s": ((0.0, 1.0), (1.0, 0.0)), "bytes_per_s": ((0.0, 1.0), (1.0, 0.0))}
    with pytest.raises(ConfigError, match=message):
        PairMatrix(**{**fine, **change})  # type: ignore[arg-type]


def test_impossible_racks_orders_and_sizes_are_refused():
    matrix = matrix_of([0, 0, 0])
    with pytest.raises(ConfigError, match="counting from 0"):
        Topology(matrix=matrix, racks=(0, 2, 0), uplink_bytes_per_s=(1.0, 1.0))
    with pytest.raises(ConfigError, match="write one for each, more than 0"):
        Topology(matrix=matrix, racks=(0, 1, 0), uplink_bytes_per_s=(1.0, 0.0))
    with pytest.raises(ConfigError, match="each of 0 to 2 once"):
        ring_s(Topology.of(matrix), (0, 1, 1), 1.0)
    with pytest.raises(ConfigError, match="a message of -1"):
        plan(matrix, num_bytes=-1)
    with pytest.raises(ConfigError, match="write more than 1"):
        racks_of(matrix, factor=1.0)
