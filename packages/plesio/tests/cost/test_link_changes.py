"""Links that change: in cluster files, on paths, and in the time of work that they find under way."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster
from plesio.cost.link_changes import LinkChange, seconds_through_changes
from plesio.cost.placement import all_reduce_on

TWO_RACKS = """
hosts = 4
racks = 2
[nic]
latency = "50 us"
bandwidth = "1 GB/s"
[uplink]
latency = "5 us"
bandwidth = "2 GB/s"

[[changes]]
at = "2 min"
link = "nic"
host = 1
latency = "1 ms"

[[changes]]
at = "30 s"
link = "nic"
bandwidth = "100 MB/s"

[[changes]]
at = "60 s"
link = "uplink"
rack = 1
bandwidth = "10 MB/s"

[[changes]]
at = "90 s"
link = "nic"
host = 1
bandwidth = "1 MB/s"

[[changes]]
at = "3 min"
link = "nic"
bandwidth = "1 GB/s"
"""


def test_links_on_a_path_are_as_they_are_at_the_moment():
    cluster = Cluster.from_toml(TWO_RACKS, name="two")

    def seen(at_s: float, *, source: int = 0, target: int = 1) -> list[tuple[float, float]]:
        return [(link.latency_s * 1e6, link.bytes_per_s / 1e6) for link in cluster.at(at_s).path(source, target)]

    assert cluster.path(0, 3) == replace(cluster, changes=()).path(0, 3)
    assert seen(29.9) == [pytest.approx((50, 1000)), (0, 1000)]
    assert seen(30) == [pytest.approx((50, 100)), (0, 100)]
    assert seen(60, target=3) == [pytest.approx((50, 100)), pytest.approx((5, 2000)), (0, 10), (0, 100)]
    assert seen(60, source=3, target=0)[1:3] == [pytest.approx((5, 10)), (0, 2000)]
    assert seen(100) == [pytest.approx((50, 100)), (0, 1)]
    assert seen(120, source=1, target=0) == [pytest.approx((1000, 1)), (0, 100)]
    assert seen(1000, source=1, target=0) == [pytest.approx((1000, 1000)), (0, 1000)]
    assert cluster.at(40).at(50).path(0, 3) == cluster.at(90).path(0, 3)


def test_the_examples_of_the_documentation_are_clusters():
    docs = Path(__file__).parents[4] / "docs"
    [changes] = [text for text in _blocks(docs / "cost.md") if text.startswith("[[changes]]")]
    plain = next(text for text in _blocks(docs / "virtual.md") if text.startswith("hosts"))
    backup = next(text for text in _blocks(docs / "virtual.md") if text.startswith("[[changes]]"))
    assert len(Cluster.from_toml(plain + changes, name="four").changes) == 1
    cluster = Cluster.from_toml(plain + backup, name="four")
    ends = [cluster.at(at_s).path(2, 3) for at_s in (0, 45, 60)]
    assert [[link.bytes_per_s * 8 / 1e6 for link in path] for path in ends] == [[1000, 1000], [100, 100], [1000, 10]]


def _blocks(page: Path) -> list[str]:
    return [part.split("```")[0] for part in page.read_text(encoding="utf-8").split("```toml\n")[1:]]


def test_an_all_reduce_is_as_slow_as_its_slowest_link_at_the_moment():
    cluster = replace(Cluster.from_toml(TWO_RACKS, name="two"), collectives="nccl")
    before_s, after_s, host_s = (all_reduce_on(cluster.at(at_s), range(4), 40e6) for at_s in (0, 30, 90))
    assert after_s == pytest.approx(10 * before_s, rel=0.01)
    assert host_s == pytest.approx(1000 * before_s, rel=0.01)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('at = "30 s"\n', "", '[[changes]] 2: at is missing; write it as in at = "30 s"'),
        ('at = "30 s"', "at = 30", "[[changes]] 2: at: 30 has no unit"),
        ('at = "30 s"\nlink = "nic"\n', 'at = "30 s"\n', '[[changes]] 2: link is missing; write it as in link = "nic"'),
        (
            'at = "30 s"\nlink = "nic"',
            'at = "30 s"\nlink = "lan"',
            'a change of the link "lan"; write one of local, nic',
        ),
        ('bandwidth = "100 MB/s"', "", "the change at 30 s changes nothing; write a bandwidth, a latency or both"),
        ('bandwidth = "100 MB/s"', 'bandwidth = "0 MB/s"', "bandwidth"),
        ('bandwidth = "100 MB/s"', 'bandwith = "1 MB/s"', 'unknown key "bandwith"; did you mean "bandwidth"?'),
        ("host = 1\nlatency", "rack = 1\nlatency", 'a link "nic" is of a host, and not of a rack; write host = 0'),
        ("rack = 1", "host = 1", 'a link "uplink" is of a rack, and not of a host; write rack = 0'),
        ("host = 1\nlatency", "host = 4\nlatency", "a change of host 4; write host = 0 to 3"),
        ("rack = 1", "rack = 2", "a change of rack 2; write rack = 0 to 1"),
        ("racks = 2", "racks = 1", "a change of the uplink, but there is one rack"),
        ("[[changes]]", "[[change]]", 'unknown key "change"; did you mean "changes"?'),
    ],
)
def test_an_impossible_change_is_one_line_that_says_what_to_write(old: str, new: str, message: str):
    assert old in TWO_RACKS
    with pytest.raises(ConfigError) as raised:
        Cluster.from_toml(TWO_RACKS.replace(old, new), name="two", where="my.toml")
    assert message in str(raised.value)
    assert str(raised.value).startswith("my.toml: ")
    assert "\n" not in str(raised.value)


def test_changes_that_are_no_list_of_tables_are_refused():
    for text in ('changes = "30 s"\nhosts = 1', "changes = [3]\nhosts = 1"):
        with pytest.raises(ConfigError, match=r"\[\[changes\]\]"):
            Cluster.from_toml(text, name="one")


@given(
    begin_s=st.floats(0, 100),
    changes=st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 50)), max_size=5, unique_by=lambda one: one[0]),
    first_s=st.floats(0.1, 50),
)
def test_the_parts_done_between_changes_make_a_whole(
    begin_s: float, changes: list[tuple[float, float]], first_s: float
):
    times = dict(sorted(changes))
    durations_s = {0.0: first_s, **times}
    end_s = begin_s + seconds_through_changes(begin_s, list(times), durations_s.__getitem__)
    done, edges = 0.0, [*durations_s, float("inf")]
    for since_s, until_s in pairwise(edges):
        done += max(0.0, min(end_s, until_s) - max(begin_s, since_s)) / durations_s[since_s]
    assert done == pytest.approx(1.0, rel=1e-9)


def test_a_sweep_over_bandwidths_scales_what_links_change_to():
    cluster = Cluster.from_toml(TWO_RACKS, name="two")
    half = cluster.with_bandwidth(5e8)
    for at_s in (0, 30, 60, 90):
        for before, after in zip(cluster.at(at_s).path(0, 3), half.at(at_s).path(0, 3), strict=True):
            assert after == replace(before, bytes_per_s=before.bytes_per_s / 2)


def test_changes_made_in_python_are_in_the_order_of_time():
    changes = tuple(LinkChange(at_s=at_s, link="nic", bytes_per_s=1e6) for at_s in (2.0, 1.0))
    with pytest.raises(ConfigError, match="not in the order of time"):
        Cluster(name="two", hosts=2, workers_per_host=1, cores_per_host=1, changes=changes)
