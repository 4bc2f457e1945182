import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.cost.link import Link
from plesio.sim.kernel import Kernel
from plesio.sim.link import LinkNetwork

Transfer = tuple[float, Sequence[str], float]
"""Begin, links, bytes."""


def arrivals(transfers: Sequence[Transfer], **bandwidths: float) -> list[float]:
    """When each transfer has arrived, over links without latency."""
    kernel = Kernel()
    network = LinkNetwork(kernel)
    for name, bytes_per_s in bandwidths.items():
        network.link(name, link=Link(latency_s=0.0, bytes_per_s=bytes_per_s))
    arrived = [math.nan] * len(transfers)

    def begin(number: int, links: Sequence[str], num_bytes: float) -> None:
        network.send(network.route(links), num_bytes, lambda: arrived.__setitem__(number, kernel.now_s))

    for number, (begin_s, links, num_bytes) in enumerate(transfers):
        kernel.at(begin_s, lambda number=number, links=links, num_bytes=num_bytes: begin(number, links, num_bytes))
    kernel.run()
    return arrived


@pytest.mark.parametrize(
    ("transfers", "expected"),
    [
        ([(0.0, "a", 100)], [1.0]),
        ([(0.0, "a", 100), (0.0, "a", 100)], [2.0, 2.0]),  # two equal ones take twice as long
        ([(0.0, "a", 100), (0.5, "a", 100)], [1.5, 2.0]),  # one comes half way
        ([(0.0, "a", 50), (0.0, "a", 100)], [1.0, 1.5]),  # what remains has the link to itself
        ([(0.0, "a", 100), (0.0, "b", 100)], [1.0, 2.0]),  # links of their own
        ([(0.0, "ab", 100)], [2.0]),  # the narrower link decides
        ([(0.0, "ab", 100), (0.0, "b", 100)], [4.0, 4.0]),  # shared at the narrow one
        # "a" is split evenly although the first is held to 25 a second by "b": that is not max-min fairness.
        ([(0.0, "ab", 50), (0.0, "b", 50), (0.0, "a", 100)], [2.0, 2.0, 2.0]),
        ([(0.0, "a", 0), (0.0, "", 100)], [0.0, 0.0]),  # nothing to send, or no way to go, takes no time
    ],
)
def test_known_arrivals(transfers: Any, expected: list[float]):
    assert arrivals(transfers, a=100.0, b=50.0) == expected


def test_latencies_add_up_and_begin_when_the_last_byte_is_out():
    kernel = Kernel()
    network = LinkNetwork(kernel)
    network.link("nic", link=Link(latency_s=0.25, bytes_per_s=100.0))
    network.link("uplink", link=Link(latency_s=1.0, bytes_per_s=200.0))
    seen: list[tuple[str, float]] = []
    network.send(
        network.route(["nic", "uplink"]),
        100,
        lambda: seen.append(("arrived", kernel.now_s)),
        on_sent=lambda: seen.append(("sent", kernel.now_s)),
    )
    kernel.run()
    assert seen == [("sent", 1.0), ("arrived", 2.25)]


TRANSFERS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", "c", "ab", "bc", "abc"]), st.integers(0, 400)),
    min_size=1,
    max_size=10,
)


@given(TRANSFERS)
def test_bytes_are_conserved_on_one_link(transfers: Any):
    """A link is never idle while there are bytes: the last arrival is that of one transfer after the other."""
    one_link = [(begin_s, "a", num_bytes) for begin_s, _, num_bytes in transfers]
    free_s = 0.0
    for begin_s, _, num_bytes in sorted(one_link):
        free_s = max(free_s, begin_s) + num_bytes / 100.0
    assert max(arrivals(one_link, a=100.0)) == pytest.approx(free_s, abs=1e-10)


@given(TRANSFERS)
def test_no_link_carries_more_than_its_bandwidth(transfers: Any):
    bandwidths = {"a": 100.0, "b": 50.0, "c": 75.0}
    arrived = arrivals(transfers, **bandwidths)
    for link, bytes_per_s in bandwidths.items():
        windows = [(t[0], end_s, t[2]) for t, end_s in zip(transfers, arrived, strict=True) if link in t[1]]
        for begin_s, _, _ in windows:
            for _, end_s, _ in windows:
                inside = sum(n for b, e, n in windows if begin_s <= b and e <= end_s)
                assert inside <= bytes_per_s * max(0.0, end_s - begin_s) + 1e-7
    for (begin_s, links, num_bytes), end_s in zip(transfers, arrived, strict=True):
        assert end_s - begin_s >= num_bytes / min(bandwidths[name] for name in links) - 1e-9


@given(TRANSFERS)
def test_two_runs_are_equal_to_the_bit(transfers: Any):
    bandwidths = {"a": 100.0, "b": 50.0, "c": 75.0}
    assert arrivals(transfers, **bandwidths) == arrivals(transfers, **bandwidths)


def test_a_link_is_made_once():
    network = LinkNetwork(Kernel())
    link = network.link("a", link=Link(latency_s=0.0, bytes_per_s=1.0))
    assert network.link("a", link=Link(latency_s=0.0, bytes_per_s=1.0)) is link
    with pytest.raises(ValueError, match="there already"):
        network.link("a", link=Link(latency_s=0.0, bytes_per_s=2.0))


@pytest.mark.parametrize(
    ("links", "num_bytes", "message"),
    [("a", -1, "bytes"), ("a", math.nan, "bytes"), ("b", 1, "no link named b"), ("aa", 1, "once")],
)
def test_an_impossible_transfer_is_refused(links: str, num_bytes: float, message: str):
    network = LinkNetwork(Kernel())
    network.link("a", link=Link(latency_s=0.0, bytes_per_s=1.0))
    with pytest.raises(ValueError, match=message):
        network.send(network.route(links), num_bytes, lambda: None)


def test_flows_that_time_out_leave_less_of_a_link_the_more_there_are():
    shaped = Link(latency_s=0.0, bytes_per_s=1e6, flows=1)

    def ends_s(count: int) -> float:
        kernel = Kernel()
        network = LinkNetwork(kernel)
        network.link("a", shaped)
        for _ in range(count):
            network.send(network.route("a"), 1e6 / count, lambda: None)
        kernel.run()
        return kernel.now_s

    assert [ends_s(count) for count in (1, 4)] == pytest.approx([1 + 0.02896, 1 + 4 * 0.02896])


@pytest.mark.parametrize(
    ("trunk_bytes_per_s", "expected"),
    [
        (200.0, [1.0, 3.0, 3.0, 3.0]),  # room for both interfaces: nobody is held back
        (150.0, [2.0, 3.0, 3.0, 3.0]),  # three have 33 a second from their interface, and the first what they leave
        (100.0, [4.0] * 4),  # all are held back, to an equal part
    ],
)
def test_a_trunk_holds_back_what_is_faster_than_its_level_and_leaves_the_rest(
    trunk_bytes_per_s: float, expected: list[float]
):
    kernel = Kernel()
    network = LinkNetwork(kernel)
    for name, bytes_per_s in (("a", 100.0), ("b", 100.0)):
        network.link(name, Link(latency_s=0.0, bytes_per_s=bytes_per_s))
    network.link("up", Link(latency_s=0.0, bytes_per_s=trunk_bytes_per_s), trunk=True)
    arrived: list[float] = []
    for name in "abbb":
        network.send(network.route([name, "up"]), 100, lambda: arrived.append(kernel.now_s))
    kernel.run()
    assert arrived == pytest.approx(expected)
    assert kernel.now_s >= 400 / trunk_bytes_per_s
