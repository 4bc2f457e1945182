import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.cluster import NAMED_CLUSTERS, Cluster, Hop, parse_cluster
from plesio.cost.link import Link

DOCS = Path(__file__).parents[4] / "docs" / "cost.md"

TWO_RACKS = """
hosts = 6
workers_per_host = 2
racks = 2
device = "some core"
memory = "16 GiB"

[local]
latency = "1 s"
bandwidth = "10 GB/s"
shared = false

[nic]
latency = "50 us"
bandwidth = "10 Gbit/s"

[uplink]
latency = "5 us"
oversubscription = 3.0
"""


def test_a_file_says_all_there_is_to_say():
    cluster = Cluster.from_toml(TWO_RACKS, name="two")
    assert cluster == Cluster(
        name="two",
        hosts=6,
        workers_per_host=2,
        cores_per_host=2,
        racks=2,
        local=Link(latency_s=1.0, bytes_per_s=1e10, shared=False),
        nic=Link(latency_s=50 * 1e-6, bytes_per_s=1.25e9),
        uplink=Link(latency_s=5 * 1e-6, bytes_per_s=1.25e9),
        device="some core",
        memory_bytes=16 * 2**30,
    )
    assert (cluster.hosts, cluster.num_slots) == (6, 12)


def test_ranks_fill_hosts_and_hosts_fill_racks():
    cluster = Cluster.from_toml(TWO_RACKS, name="two")
    assert [cluster.host_of(rank) for rank in range(12)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [cluster.rack_of(rank) for rank in range(12)] == [0] * 6 + [1] * 6


def test_a_path_is_made_of_the_links_on_the_way():
    cluster = Cluster.from_toml(TWO_RACKS, name="two")
    assert cluster.path(1, 1) == (Hop(name="local:1", latency_s=1.0, bytes_per_s=1e10, shared=False),)
    assert [link.name for link in cluster.path(0, 2)] == ["nic:0:out", "nic:2:in"]
    assert [link.name for link in cluster.path(4, 1)] == ["nic:4:out", "uplink:1:up", "uplink:0:down", "nic:1:in"]
    assert all(link.shared for link in cluster.path(4, 1))


@given(st.sampled_from(sorted(NAMED_CLUSTERS)), st.data())
def test_both_directions_take_as_long_and_no_link_is_in_both(name: str, data: st.DataObject):
    cluster = NAMED_CLUSTERS[name]
    hosts = st.integers(0, cluster.hosts - 1)
    source, target = data.draw(hosts), data.draw(hosts)
    there, back = cluster.path(source, target), cluster.path(target, source)
    assert math.fsum(link.latency_s for link in there) == math.fsum(link.latency_s for link in back)
    assert min(link.bytes_per_s for link in there) == min(link.bytes_per_s for link in back)
    if source != target:
        assert {link.name for link in there}.isdisjoint(link.name for link in back)


def test_named_clusters_are_as_their_names_say():
    assert parse_cluster("4x1gbe").nic.bytes_per_s == 125e6
    assert (parse_cluster("16x8h100").num_slots, parse_cluster(" 8xA100 ").num_slots) == (128, 8)
    two = parse_cluster("2-racks")
    assert two.uplink is not None
    assert two.uplink.bytes_per_s == pytest.approx(8 * two.nic.bytes_per_s / 4)


def test_a_cluster_is_a_name_a_file_or_a_text(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(TWO_RACKS)
    assert parse_cluster(str(path)).name == "mine"
    assert parse_cluster(f'name = "ours"\n{TWO_RACKS}').name == "ours"
    with pytest.raises(ConfigError, match='did you mean "8xa100"'):
        parse_cluster("8xa10")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no cluster file"):
        Cluster.read(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot read"):
        Cluster.read(tmp_path / "bytes.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        Cluster.read(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hosts = 6", "hosts = 0", "hosts is 0; write a whole number of 1 or more"),
        ("hosts = 6", "", "hosts is missing; write how many there are, as in: hosts = 4"),
        ("hosts = 6", 'hosts = "6"', "hosts: '6' is not a whole number"),
        ("hosts = 6", "hosts = true", "hosts: True is not a whole number"),
        ("hosts = 6", "host = 6", 'unknown key "host"; did you mean "hosts"?'),
        ("racks = 2", "racks = 7", "7 racks for 6 hosts; write 6 or less"),
        ("racks = 2", "racks = 0", "racks is 0; write a whole number of 1 or more"),
        ('"16 GiB"', '"0 B"', "memory_bytes is 0; write a whole number of 1 to"),
        ('"16 GiB"', "16", r'memory: 16 has no unit; write it as in "80 GiB"'),
        ('"some core"', '"some core"\ncollectives = "mpi"', 'collectives is \'mpi\'; write "nccl" or "gloo" or None'),
        ('"some core"', "1", "device: 1 is not a text; write it in quotes"),
        ('"50 us"', '"-50 us"', r"\[nic\]: latency: .* is negative"),
        ('"50 us"', "50", r'\[nic\]: latency: 50 has no unit; write it as in "50 us"'),
        ('"10 Gbit/s"', "10", r'\[nic\]: bandwidth: 10 has no unit; write it as in "10 Gbit/s"'),
        ('"10 Gbit/s"', '"10 Gb/s"', r'\[nic\]: bandwidth: .* may mean bits or bytes; write "10 Gbit/s" \(bits\)'),
        ('"10 Gbit/s"', '"0 Gbit/s"', r"\[nic\]: bandwidth: .* carries nothing"),
        ('bandwidth = "10 Gbit/s"', "", r"\[nic\] has no bandwidth"),
        (
            'bandwidth = "10 Gbit/s"',
            'bandwith = "1 GB/s"',
            r'\[nic\]: unknown key "bandwith"; did you mean "bandwidth"',
        ),
        ("[nic]", "[nik]", 'unknown key "nik"; did you mean "nic"'),
        ("shared = false", "shared = 0", "shared: 0 is neither true nor false"),
        ("oversubscription = 3.0", "oversubscription = 0", "oversubscription is 0.0; write more than 0"),
        ("oversubscription = 3.0", 'oversubscription = "3"', "oversubscription: '3' is not a number"),
        ("oversubscription = 3.0", "", "neither is given: write one of them"),
        ("oversubscription = 3.0", 'oversubscription = 3\nbandwidth = "1 GB/s"', "both are given: write one of them"),
        ("racks = 2", "racks = 2\nuplink_oversubscription = 2.0", r"uplink_oversubscription and \[uplink\] both say"),
        ("racks = 2", "racks = 2\npayload_share = 0.0", "payload_share"),
        ("racks = 2", "racks = 2\ntcp_flows = 0", "tcp_flows"),
        ("racks = 2", "racks = 2\nbackward_share = 1.5", "backward_share"),
        ("[local]", "[local", "is not valid TOML"),
    ],
)
def test_an_impossible_cluster_is_one_line_that_says_what_to_write(old: str, new: str, message: str):
    assert TWO_RACKS.count(old) == 1
    with pytest.raises(ConfigError, match=message) as error:
        Cluster.from_toml(TWO_RACKS.replace(old, new), name="two", where="two.toml")
    assert str(error.value).startswith("two.toml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts = 2", r"\[nic\] is missing"),
        ("hosts = 1\n[uplink]\noversubscription = 2.0", r"\[nic\] is missing"),
        ("hosts = 1\nnic = 3", r"nic is 3; write \[nic\]"),
        ('hosts = 2\nracks = 2\n[nic]\nbandwidth = "1 GB/s"', r"2 racks need an \[uplink\]"),
    ],
)
def test_what_is_missing_is_said(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        parse_cluster(text)


def test_links_between_hosts_are_shared():
    with pytest.raises(ConfigError, match="only \\[local\\] may be not"):
        Cluster(
            name="x",
            hosts=2,
            workers_per_host=1,
            cores_per_host=1,
            nic=Link(latency_s=0, bytes_per_s=1, shared=False),
        )


def test_there_must_be_room_for_the_workers():
    cluster = parse_cluster("4x1gbe")
    cluster.check_workers(4)
    with pytest.raises(ConfigError, match=r"room for 4 workers .* not for 9; .*workers_per_host = 3"):
        cluster.check_workers(9)
    with pytest.raises(ConfigError, match="0 workers"):
        cluster.check_workers(0)
    with pytest.raises(ConfigError, match="ranks 0 to 3, not for 4"):
        cluster.rack_of(4)
    for host in (-1, 4):
        with pytest.raises(ConfigError, match="hosts 0 to 3"):
            cluster.path(0, host)


def test_one_host_takes_any_number_of_workers():
    assert parse_cluster("laptop").for_workers(5).num_slots == 5
    assert Cluster.one_host(3).cores_per_host == 3
    with pytest.raises(ConfigError, match="room for 4"):
        parse_cluster("4x1gbe").for_workers(5)


def test_the_example_of_the_documentation_is_a_cluster():
    text = DOCS.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    cluster = parse_cluster(text)
    assert (cluster.num_slots, cluster.rack_of(16), len(cluster.path(0, 2))) == (32, 1, 4)


def test_the_documentation_lists_every_named_cluster():
    text = DOCS.read_text(encoding="utf-8")
    assert [name for name in NAMED_CLUSTERS if f"`{name}`" not in text] == []


def test_uplinks_may_be_said_by_their_oversubscription_alone():
    text = TWO_RACKS[: TWO_RACKS.index("[uplink]")]
    cluster = Cluster.from_toml("uplink_oversubscription = 3.0\n" + text, name="two")
    assert cluster.uplink == Link(latency_s=0.0, bytes_per_s=1.25e9)
    assert cluster.with_oversubscription(6.0).uplink == Link(latency_s=0.0, bytes_per_s=0.625e9)


def test_one_rack_has_no_uplink_to_oversubscribe():
    with pytest.raises(ConfigError, match="is one rack, and no uplink is oversubscribed; write racks = 2"):
        parse_cluster("4x1gbe").with_oversubscription(2.0)
    text = TWO_RACKS[: TWO_RACKS.index("[uplink]")].replace("racks = 2", "uplink_oversubscription = 3.0")
    with pytest.raises(ConfigError, match="is one rack, and no uplink is oversubscribed; write racks = 2"):
        Cluster.from_toml(text, name="one")
