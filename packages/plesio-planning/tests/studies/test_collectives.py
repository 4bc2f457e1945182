from functools import partial

import numpy as np
import pytest

from plesio.cost.cluster import Cluster
from plesio.cost.collectives import ALL_REDUCES, all_reduce_times_on
from plesio.cost.link import Link
from plesio_planning.sim import all_reduce as simulated
from plesio_planning.studies import collectives
from plesio_planning.studies.models.collectives import ring_tree_crossover_bytes


@pytest.mark.parametrize(
    ("size_bytes", "ring_ms", "tree_ms"),
    [(1e6, "5.14", "0.48"), (10e6, "5.50", "3.36"), (100e6, "9.08", "32.2"), (1e9, "44.9", "320")],
)
def test_reference_times(size_bytes: float, ring_ms: str, tree_ms: str):
    """studies/reference.md, study 4."""
    at_s = collectives(message_bytes=size_bytes).at_s
    for name, text in (("ring", ring_ms), ("tree", tree_ms)):
        decimals = len(text.partition(".")[2])
        assert round(1e3 * at_s[name], decimals) == float(text)


def test_reference_crossovers():
    """studies/reference.md, study 4."""
    assert collectives().ring_from_bytes[256] == pytest.approx(17.6e6, abs=0.05e6)
    slower = collectives(bytes_per_s=25e9).ring_from_bytes
    for num_ranks, mb, half_digit in ((8, 0.47, 0.005), (64, 2.84, 0.005), (1024, 28.1, 0.05)):
        assert slower[num_ranks] / 1e6 == pytest.approx(mb, abs=half_digit)


def test_halving_doubling_beats_ring_and_tree_at_100_mb():
    at_s = collectives(algorithms=("ring", "halving-doubling", "tree")).at_s
    assert at_s["halving-doubling"] == pytest.approx(4.14e-3, abs=0.005e-3)
    assert at_s["halving-doubling"] < min(at_s["ring"], at_s["tree"])


@pytest.mark.parametrize("num_ranks", [3, 5, 6, 16, 100])
def test_ring_and_tree_take_the_same_time_where_they_cross(num_ranks: int):
    link = Link(latency_s=3e-6, bytes_per_s=7e9)
    size = ring_tree_crossover_bytes(num_ranks, link=link)
    ring, tree = (partial(ALL_REDUCES[name], num_ranks=num_ranks, link=link) for name in ("ring", "tree"))
    if size:
        assert ring(size) == pytest.approx(tree(size))
    assert ring(2 * size + 1) < tree(2 * size + 1)


def test_formulas_are_what_a_simulation_send_by_send_takes():
    answer = collectives(num_ranks=64)
    ring_s = simulated.ring_all_reduce_s(100e6, num_ranks=64, latency_s=10e-6, bytes_per_s=50e9)
    tree_s = simulated.tree_all_reduce_s(100e6, num_ranks=64, latency_s=10e-6, bytes_per_s=50e9)
    two_levels_s = simulated.hierarchical_all_reduce_s(
        100e6,
        num_hosts=8,
        ranks_per_host=8,
        latency_s=1e-6,
        bytes_per_s=600e9,
        cross_latency_s=10e-6,
        cross_bytes_per_s=50e9,
    )
    for name, ends_s in (("ring", ring_s), ("tree", tree_s), ("hierarchical", two_levels_s)):
        np.testing.assert_allclose(ends_s.max(), answer.at_s[name], rtol=1e-12)


def test_the_hierarchical_formula_is_what_its_rounds_take_on_a_cluster():
    cluster = Cluster(
        name="eight hosts",
        hosts=8,
        workers_per_host=8,
        cores_per_host=8,
        local=Link(latency_s=1e-6, bytes_per_s=600e9, shared=False),
        nic=Link(latency_s=10e-6, bytes_per_s=8 * 50e9),
        collectives="nccl",
    )
    on_cluster_s = all_reduce_times_on(cluster, range(64), 100e6)["hierarchical"]
    assert collectives(num_ranks=64).at_s["hierarchical"] == pytest.approx(on_cluster_s)


def test_all_send_as_much_but_not_their_busiest_rank():
    answer = collectives()
    assert answer.mean_sent_bytes == pytest.approx(2 * 255 / 256 * 100e6)
    assert answer.busiest_sent_bytes["tree"] == 8 * 100e6
    assert answer.busiest_sent_bytes["ring"] == pytest.approx(answer.mean_sent_bytes)


def test_hosts_that_are_not_whole_have_no_hierarchy():
    assert "hierarchical" not in collectives(num_ranks=12).at_s
    assert "hierarchical" not in collectives(num_ranks=8).at_s
    assert "hierarchical" in collectives(num_ranks=12, ranks_per_host=4).at_s
