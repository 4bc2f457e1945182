import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.sim.kernel import Kernel
from plesio.sim.link import Network


def network(**bytes_per_s: float) -> tuple[Kernel, Network]:
    kernel = Kernel()
    net = Network(kernel)
    for name, rate in bytes_per_s.items():
        net.link(name, latency_s=0.5, bytes_per_s=rate)
    return kernel, net


def arrivals(kernel: Kernel, net: Network, plan: list[tuple[float, list[str], float]]) -> list[float]:
    ends = [float("nan")] * len(plan)

    def begin(number: int) -> None:
        _, links, num_bytes = plan[number]
        net.transfer(links, num_bytes, lambda: ends.__setitem__(number, kernel.now_s))

    for number, (start_s, _, _) in enumerate(plan):
        kernel.at(start_s, lambda number=number: begin(number))
    kernel.run()
    return ends


def test_one_transfer_takes_latency_and_bytes_over_bandwidth():
    assert arrivals(*network(a=10.0), [(0.0, ["a"], 100.0)]) == [10.5]


def test_a_message_of_no_bytes_takes_the_latencies():
    assert arrivals(*network(a=10.0, b=5.0), [(0.0, ["a", "b"], 0.0)]) == [1.0]


def test_two_transfers_share_a_link():
    assert arrivals(*network(a=10.0), [(0.0, ["a"], 100.0), (0.0, ["a"], 100.0)]) == [20.5, 20.5]


def test_a_transfer_that_comes_half_way_slows_the_other_from_then_on():
    # 50 bytes alone in 5 s, then 50 more at half the rate in 10 s; the second has 50 left and the link to itself
    assert arrivals(*network(a=10.0), [(0.0, ["a"], 100.0), (5.0, ["a"], 100.0)]) == [15.5, 20.5]


def test_the_narrowest_link_of_a_route_counts():
    assert arrivals(*network(a=10.0, b=4.0), [(0.0, ["a", "b"], 100.0)]) == [26.0]


def test_transfers_on_different_links_do_not_meet():
    assert arrivals(*network(a=10.0, b=10.0), [(0.0, ["a"], 100.0), (0.0, ["b"], 100.0)]) == [10.5, 10.5]


def test_the_last_byte_is_out_a_latency_before_it_arrives():
    kernel, net = network(a=10.0)
    seen = []
    net.transfer(
        ["a"], 100, lambda: seen.append(("in", kernel.now_s)), on_sent=lambda: seen.append(("out", kernel.now_s))
    )
    kernel.run()
    assert seen == [("out", 10.0), ("in", 10.5)]


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 100)), min_size=1, max_size=12))
def test_a_busy_link_wastes_nothing(plan: list[tuple[float, float]]):
    kernel, net = Kernel(), None
    net = Network(kernel)
    net.link("a", latency_s=0.0, bytes_per_s=3.0)
    ends = arrivals(kernel, net, [(start_s, ["a"], num_bytes) for start_s, num_bytes in plan])
    busy_until_s = 0.0
    for start_s, num_bytes in sorted(plan):
        busy_until_s = max(busy_until_s, start_s) + num_bytes / 3.0
    assert max(ends) == pytest.approx(busy_until_s)
    for (start_s, num_bytes), end_s in zip(plan, ends, strict=True):
        assert end_s >= start_s + num_bytes / 3.0 - 1e-9


def test_impossible_links_are_refused():
    net = Network(Kernel())
    with pytest.raises(ValueError, match="link a"):
        net.link("a", latency_s=0.0, bytes_per_s=0.0)
