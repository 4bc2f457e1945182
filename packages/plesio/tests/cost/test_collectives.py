import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.collectives import (
    ALL_REDUCES,
    all_gather_s,
    all_reduce_crossovers,
    all_to_all_s,
    broadcast_s,
    bus_bytes_per_s,
    busiest_rank_bytes,
    bytes_sent_per_rank,
    double_tree_all_reduce_s,
    halving_doubling_all_reduce_s,
    hierarchical_all_reduce_s,
    nccl_all_reduce_s,
    parameter_server_one_way_s,
    parameter_server_s,
    point_to_point_s,
    reduce_scatter_s,
    ring_all_reduce_s,
    select_all_reduce,
    tree_all_reduce_s,
)
from plesio.cost.link import Link

ONE_PASS = {"all_gather": all_gather_s, "reduce_scatter": reduce_scatter_s, "all_to_all": all_to_all_s}
COLLECTIVES: dict[str, Any] = {**ALL_REDUCES, **ONE_PASS, "broadcast": broadcast_s}

num_ranks = st.integers(1, 1100)
num_bytes = st.just(0.0) | st.floats(1e-3, 1e13)
links = st.builds(Link, latency_s=st.just(0.0) | st.floats(1e-9, 1), bytes_per_s=st.floats(1e3, 1e13))
ROUNDING = 1 - 1e-12


# ---- laws


@pytest.mark.parametrize("name", COLLECTIVES)
@given(size=num_bytes, link=links)
def test_one_rank_has_nobody_to_talk_to(name: str, size: float, link: Link):
    assert COLLECTIVES[name](size, num_ranks=1, link=link) == 0


@pytest.mark.parametrize("name", ALL_REDUCES)
@given(size=num_bytes, ranks=num_ranks, link=links)
def test_no_all_reduce_beats_the_lower_bounds(name: str, size: float, ranks: int, link: Link):
    duration_s = ALL_REDUCES[name](size, num_ranks=ranks, link=link)
    assert duration_s >= 2 * (ranks - 1) / ranks * size / link.bytes_per_s * ROUNDING
    assert duration_s >= math.ceil(math.log2(ranks)) * link.latency_s * ROUNDING


@given(size=num_bytes, hosts=st.integers(1, 40), per_host=st.integers(1, 16), link=links)
def test_two_levels_of_equal_links_do_not_beat_them_either(size: float, hosts: int, per_host: int, link: Link):
    ranks = hosts * per_host
    duration_s = hierarchical_all_reduce_s(
        size,
        num_hosts=hosts,
        ranks_per_host=per_host,
        local=link,
        link=Link(latency_s=link.latency_s, bytes_per_s=link.bytes_per_s * per_host),  # a NIC for every rank
    )
    assert duration_s >= 2 * (ranks - 1) / ranks * size / link.bytes_per_s * ROUNDING
    assert duration_s >= math.ceil(math.log2(ranks)) * link.latency_s * ROUNDING


@given(size=num_bytes, workers=num_ranks, servers=st.integers(1, 300), link=links)
def test_a_parameter_server_obeys_the_bounds_of_an_all_reduce(size: float, workers: int, servers: int, link: Link):
    duration_s = parameter_server_s(size, num_workers=workers, num_servers=servers, link=link)
    assert duration_s >= 2 * size / link.bytes_per_s * ROUNDING
    assert duration_s >= math.ceil(math.log2(workers)) * link.latency_s * ROUNDING


@pytest.mark.parametrize("name", ["broadcast", *ONE_PASS])
@given(size=num_bytes, ranks=st.integers(2, 1100), link=links)
def test_the_others_cannot_beat_theirs(name: str, size: float, ranks: int, link: Link):
    duration_s = COLLECTIVES[name](size, num_ranks=ranks, link=link)
    share = 1.0 if name == "broadcast" else (ranks - 1) / ranks
    assert duration_s >= share * size / link.bytes_per_s * ROUNDING
    assert duration_s >= math.ceil(math.log2(ranks)) * link.latency_s * ROUNDING


@pytest.mark.parametrize("name", COLLECTIVES)
@given(sizes=st.tuples(num_bytes, num_bytes), ranks=num_ranks, link=links, factor=st.floats(1, 100))
def test_more_bytes_and_worse_links_never_make_it_faster(
    name: str, sizes: tuple[float, float], ranks: int, link: Link, factor: float
):
    time = partial(COLLECTIVES[name], num_ranks=ranks)
    low, high = sorted(sizes)
    base_s = time(high, link=link)
    assert time(low, link=link) <= base_s / ROUNDING
    assert base_s <= time(high, link=replace(link, latency_s=link.latency_s * factor)) / ROUNDING
    assert base_s <= time(high, link=replace(link, bytes_per_s=link.bytes_per_s / factor)) / ROUNDING


@pytest.mark.parametrize("name", ["ring", "tree", "double tree", "broadcast", *ONE_PASS])
@given(size=num_bytes, ranks=num_ranks, link=links)
def test_one_more_rank_never_makes_it_faster(name: str, size: float, ranks: int, link: Link):
    time = partial(COLLECTIVES[name], size, link=link)
    assert time(num_ranks=ranks) <= time(num_ranks=ranks + 1) / ROUNDING


# ---- closed forms


@given(size=num_bytes, power=st.integers(1, 10), link=links)
def test_halving_doubling_reaches_both_bounds_of_a_power_of_two(size: float, power: int, link: Link):
    ranks = 2**power
    expected_s = 2 * power * link.latency_s + 2 * (ranks - 1) / ranks * size / link.bytes_per_s
    assert halving_doubling_all_reduce_s(size, num_ranks=ranks, link=link) == pytest.approx(expected_s)
    assert select_all_reduce(size, num_ranks=ranks, link=link).duration_s == pytest.approx(expected_s)


def test_other_numbers_of_ranks_fold_into_a_power_of_two():
    link = Link(latency_s=1.0, bytes_per_s=1.0)
    four_s = halving_doubling_all_reduce_s(8, num_ranks=4, link=link)
    assert [halving_doubling_all_reduce_s(8, num_ranks=ranks, link=link) for ranks in (5, 6, 7)] == [four_s + 18] * 3


@given(size=st.floats(1, 1e12), ranks=st.integers(3, 1000), link=links)
def test_the_double_tree_takes_the_best_number_of_packets(size: float, ranks: int, link: Link):
    levels = math.ceil(math.log2(ranks))
    latency_s, bytes_per_s = link.latency_s, link.bytes_per_s

    def with_packets(number: float) -> float:
        return 4 * (levels + number - 1) * (latency_s + size / (2 * number * bytes_per_s))

    duration_s = double_tree_all_reduce_s(size, num_ranks=ranks, link=link)
    whole = [with_packets(number) for number in (1, 2, 3, 5, 10, 100, 10_000)]
    assert duration_s <= min(whole) / ROUNDING
    if latency_s:
        best = max(1.0, math.sqrt((levels - 1) * size / (2 * latency_s * bytes_per_s)))
        assert duration_s == pytest.approx(with_packets(best))
    else:
        assert duration_s == pytest.approx(2 * size / bytes_per_s)


def test_ring_is_reduce_scatter_then_all_gather():
    arguments = {"num_ranks": 7, "link": Link(latency_s=3e-6, bytes_per_s=1e9)}
    parts_s = reduce_scatter_s(1e6, **arguments) + all_gather_s(1e6, **arguments)
    assert ring_all_reduce_s(1e6, **arguments) == pytest.approx(parts_s)


def test_broadcast_is_a_tree_when_small_and_scattered_when_large():
    link = Link(latency_s=1e-5, bytes_per_s=1e9)
    assert broadcast_s(100, num_ranks=9, link=link) == pytest.approx(4 * (1e-5 + 1e-7))
    assert broadcast_s(1e9, num_ranks=9, link=link) == pytest.approx(12 * 1e-5 + 2 * 8 / 9)
    assert broadcast_s(1e9, num_ranks=2, link=link) == pytest.approx(point_to_point_s(1e9, link=link))


MS = 1e-3


@pytest.mark.parametrize(
    ("size", "ring_ms", "tree_ms"),
    [(1e6, 5.14, 0.48), (10e6, 5.50, 3.36), (100e6, 9.08, 32.2), (1e9, 44.9, 320)],
)
def test_ring_against_tree_on_256_ranks(size: float, ring_ms: float, tree_ms: float):
    arguments = {"num_ranks": 256, "link": Link(latency_s=10e-6, bytes_per_s=50e9)}
    assert ring_all_reduce_s(size, **arguments) == pytest.approx(ring_ms * MS, rel=2e-3)
    assert tree_all_reduce_s(size, **arguments) == pytest.approx(tree_ms * MS, rel=2e-3)


def test_two_levels_against_one():
    flat_s = ring_all_reduce_s(700e6, num_ranks=256, link=Link(latency_s=10e-6, bytes_per_s=25e9))
    levels: dict[str, Any] = {"num_hosts": 32, "ranks_per_host": 8, "local": Link(latency_s=1e-6, bytes_per_s=600e9)}

    def time(num_bytes: float, *, bytes_per_s: float) -> float:
        return hierarchical_all_reduce_s(num_bytes, **levels, link=Link(latency_s=10e-6, bytes_per_s=bytes_per_s))

    assert flat_s == pytest.approx(60.9 * MS, rel=1e-3)
    assert time(700e6, bytes_per_s=25e9) == pytest.approx(56.9 * MS, rel=1e-3)
    assert time(700e6, bytes_per_s=8 * 25e9) == pytest.approx(9.46 * MS, rel=1e-3)
    assert time(100e3, bytes_per_s=25e9) == pytest.approx(0.64 * MS, rel=1e-2)


def test_a_parameter_server_is_a_hub_until_there_are_as_many_servers_as_workers():
    link = Link(latency_s=0.0, bytes_per_s=100e9)
    one_way_s = parameter_server_one_way_s(700e6, num_workers=256, num_servers=16, link=link)
    half_ring_s = reduce_scatter_s(700e6, num_ranks=256, link=link)
    assert one_way_s == pytest.approx(0.112)
    assert one_way_s / half_ring_s == pytest.approx(16.06, rel=1e-3)
    assert parameter_server_one_way_s(
        700e6, num_workers=256, num_servers=256, link=link
    ) / half_ring_s == pytest.approx(1.004, rel=1e-3)


# ---- selection


@pytest.mark.parametrize(
    ("ranks", "bytes_per_s", "crossover_bytes"),
    [(256, 50e9, 17.6e6), (8, 25e9, 0.47e6), (64, 25e9, 2.84e6), (1024, 25e9, 28.1e6)],
)
def test_ring_overtakes_tree_at_the_closed_form(ranks: int, bytes_per_s: float, crossover_bytes: float):
    levels = math.log2(ranks)
    closed = 10e-6 * bytes_per_s * ((ranks - 1) - levels) / (levels - (ranks - 1) / ranks)
    first, second = all_reduce_crossovers(
        num_ranks=ranks, link=Link(latency_s=10e-6, bytes_per_s=bytes_per_s), algorithms=["ring", "tree"]
    )
    assert (first.algorithm, first.from_bytes, second.algorithm) == ("tree", 0, "ring")
    assert second.from_bytes == pytest.approx(closed, rel=1e-6)
    assert second.from_bytes == pytest.approx(crossover_bytes, rel=1e-2)


@given(ranks=st.integers(2, 300), link=links)
def test_crossovers_and_selection_agree(ranks: int, link: Link):
    algorithms = ["ring", "double tree", "halving-doubling"]
    found = all_reduce_crossovers(num_ranks=ranks, link=link, algorithms=algorithms)
    assert [crossover.from_bytes for crossover in found] == sorted(crossover.from_bytes for crossover in found)
    for low, high in pairwise(found):
        middle = (low.from_bytes + high.from_bytes) / 2
        choice = select_all_reduce(middle, num_ranks=ranks, link=link, algorithms=algorithms)
        assert choice.duration_s == pytest.approx(ALL_REDUCES[low.algorithm](middle, num_ranks=ranks, link=link))


@given(size=num_bytes, ranks=num_ranks, link=links)
def test_what_is_selected_is_the_fastest(size: float, ranks: int, link: Link):
    times = [time(size, num_ranks=ranks, link=link) for time in ALL_REDUCES.values()]
    assert select_all_reduce(size, num_ranks=ranks, link=link).duration_s == pytest.approx(min(times), rel=1e-8)


# ---- bytes and bus bandwidth


@given(ranks=st.integers(2, 1000))
def test_nobody_sends_less_than_the_mean_when_he_is_the_busiest(ranks: int):
    mean = bytes_sent_per_rank(1.0, num_ranks=ranks)
    busiest = {name: busiest_rank_bytes(name, 1.0, num_ranks=ranks) for name in ALL_REDUCES}
    assert all(most >= mean * ROUNDING for most in busiest.values())
    assert busiest["ring"] == pytest.approx(mean) == pytest.approx(2 * (ranks - 1) / ranks)


def test_bus_bandwidth_is_that_of_the_link_where_only_bandwidth_counts():
    link = Link(latency_s=0.0, bytes_per_s=300e9)
    for ranks in (2, 3, 8, 100):
        all_reduce_s = ring_all_reduce_s(1e9, num_ranks=ranks, link=link)
        assert bus_bytes_per_s(1e9, all_reduce_s, num_ranks=ranks) == pytest.approx(300e9)
        for name, time in ONE_PASS.items():
            measured = bus_bytes_per_s(1e9, time(1e9, num_ranks=ranks, link=link), num_ranks=ranks, collective=name)
            assert measured == pytest.approx(300e9)


# ---- measured


@pytest.mark.parametrize(
    ("ranks", "latency_s", "bus"), [(8, 78.6e-6, 227e9), (2, 46e-6, 193e9), (8, 75.9e-6, 136e9)], ids=str
)
def test_a_ring_with_the_links_of_a_hockney_fit_is_that_fit(ranks: int, latency_s: float, bus: float):
    """A100 x 8, A100 x 2, V100 x 8: measured all-reduces are α + S / algorithm bandwidth."""
    steps = 2 * (ranks - 1)
    for size in (0, 1e3, 1e6, 8 * 2**30):
        fit_s = latency_s + size / (bus * ranks / steps)
        ring_s = ring_all_reduce_s(size, num_ranks=ranks, link=Link(latency_s=latency_s / steps, bytes_per_s=bus))
        nccl_s = nccl_all_reduce_s(
            size,
            num_hosts=1,
            ranks_per_host=ranks,
            algorithm="ring",
            local_latency_s=latency_s / steps,
            link=Link(latency_s=1.0, bytes_per_s=bus),
        )
        assert ring_s == pytest.approx(fit_s, rel=1e-12)
        assert nccl_s == pytest.approx(fit_s, rel=1e-12)
    assert bus_bytes_per_s(8 * 2**30, ring_s, num_ranks=ranks) == pytest.approx(bus, rel=5e-3)


def test_a_ring_says_that_bus_bandwidth_does_not_depend_on_ranks_as_measured_on_h200():
    link = Link(latency_s=5.61e-6, bytes_per_s=366e9)  # the bandwidth of 8 GPUs, without reduction in the switch
    four = bus_bytes_per_s(8 * 2**30, ring_all_reduce_s(8 * 2**30, num_ranks=4, link=link), num_ranks=4)
    assert four == pytest.approx(363e9, rel=0.01)


def test_one_latency_and_one_bandwidth_do_not_fit_b200_between_their_ends():
    """docs/cost.md says so: NCCL changes protocols on the way, and the model is up to 1.6 times too fast there."""
    sizes = [2**20, 2**26, 2**30, 2**34]
    measured = [36e9, 401e9, 723e9, 846e9]
    times = [2 * 7 / 8 * size / bus for size, bus in zip(sizes, measured, strict=True)]
    per_byte = (times[3] - times[0]) / (sizes[3] - sizes[0])
    latency_s = times[0] - sizes[0] * per_byte
    link = Link(latency_s=latency_s / 14, bytes_per_s=14 / 8 / per_byte)
    ratios = [time / ring_all_reduce_s(size, num_ranks=8, link=link) for size, time in zip(sizes, times, strict=True)]
    assert ratios == pytest.approx([1, 1.56, 1.14, 1], abs=0.01)


def test_nccl_adds_up_slow_and_fast_steps():
    link = Link(latency_s=100.0, bytes_per_s=1e9)
    nccl = partial(nccl_all_reduce_s, 0, local_latency_s=1.0, link=link)
    assert nccl(num_hosts=2, ranks_per_host=8, algorithm="ring") == 26 + 400
    assert nccl(num_hosts=3, ranks_per_host=1, algorithm="ring") == 400
    assert nccl(num_hosts=3, ranks_per_host=8, algorithm="tree") == 14 + 400
    assert nccl(num_hosts=1, ranks_per_host=1, algorithm="tree") == 0


# ---- mistakes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_bytes": -1}, "a message of -1 bytes; write 0 or more"),
        ({"num_bytes": math.nan}, "nan bytes"),
        ({"num_ranks": 0}, "0 ranks; write 1 or more"),
    ],
)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_impossible_arguments_are_refused(name: str, wrong: dict[str, Any], message: str):
    arguments = {"num_bytes": 1, "num_ranks": 3, "link": Link(latency_s=1.0, bytes_per_s=1.0), **wrong}
    with pytest.raises(ConfigError, match=message):
        COLLECTIVES[name](arguments.pop("num_bytes"), **arguments)


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s"),
    [(-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (0.0, 0.0), (0.0, math.nan), (0.0, math.inf)],
)
def test_an_impossible_link_is_refused(latency_s: float, bytes_per_s: float):
    with pytest.raises(ConfigError, match="write a latency of 0 or more and a bandwidth of more than 0"):
        Link(latency_s=latency_s, bytes_per_s=bytes_per_s)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match='did you mean "ring"'):
        select_all_reduce(1, num_ranks=2, link=Link(latency_s=0, bytes_per_s=1), algorithms=["rings"])
    with pytest.raises(ConfigError, match="no algorithms"):
        select_all_reduce(1, num_ranks=2, link=Link(latency_s=0, bytes_per_s=1), algorithms=[])
    with pytest.raises(ConfigError, match='did you mean "all_reduce"'):
        bytes_sent_per_rank(1, num_ranks=2, collective="allreduce")
    with pytest.raises(ConfigError, match='did you mean "tree"'):
        busiest_rank_bytes("trees", 1, num_ranks=2)
    with pytest.raises(ConfigError, match="has no bandwidth"):
        bus_bytes_per_s(1, 0, num_ranks=2)
    with pytest.raises(ConfigError, match="0 servers"):
        parameter_server_s(1, num_workers=1, num_servers=0, link=Link(latency_s=0, bytes_per_s=1))
