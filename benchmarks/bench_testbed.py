"""How true is a testbed? Its links beside what the cluster file says, and what a delay line carries at all.

    python benchmarks/bench_testbed.py [--repeats 20] [--quick]

Four tables: Gloo's all-reduce on four hosts at 1 Gbit/s beside the ideal ring's time, 2 (N - 1) / N times the bytes
over the bandwidth; the same over links with latency, in latencies, beside the ring's 2 (N - 1); round trips of one byte
beside twice the latency; megabits per second through links with latency, beside their bandwidth. Needs root and an idle
machine.
"""

import argparse
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # the hosts' addresses have no names

from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.testbed.host import Host
from plesio.testbed.namespaces import in_namespace
from plesio.testbed.testbed import Testbed
from plesio_planning.measured.ranks import Ranks, all_reduce_times, ranks_on_hosts, slowest_s
from record import Spread, print_table, print_verdict, save

NUM_HOSTS, GIGABIT = 4, 125e6
SIZES = (1_000_000, 10_000_000, 25_000_000, 50_000_000)
HELD_TO_IT, MOST_RATIO = 10_000_000, 1.08
LATENCIES_S = (0.0, 0.5e-3, 2e-3, 5e-3, 20e-3)
RATES = ((1e-3, 12.5e6), (1e-3, 125e6), (5e-3, 125e6), (20e-3, 125e6), (1e-3, 312.5e6), (1e-3, 1.25e9))
STREAM_S = 3.0
FAR_S, RANKS, FAR_SIZES = 20e-3, (2, 3, 4, 6), (64, 200_000)


def pair_of(*, latency_s: float, bytes_per_s: float, hosts: int = 2) -> Cluster:
    """Hosts on one switch."""
    nic = Link(latency_s=latency_s, bytes_per_s=bytes_per_s)
    return Cluster(name="pair", hosts=hosts, workers_per_host=1, cores_per_host=1, nic=nic)


@contextmanager
def connected(source: Host, target: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection between two hosts."""
    with in_namespace(target.namespace):
        listener = socket.create_server((target.address, 0))
    with in_namespace(source.namespace):
        sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    with listener, sender, receiver:
        for end in (sender, receiver):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sender, receiver


def all_reduces(sizes: tuple[int, ...], *, repeats: int) -> dict[int, Spread]:
    """Measured over ideal, by size."""
    found = {}
    with ranks_on_hosts(NUM_HOSTS, bytes_per_s=GIGABIT) as ranks:
        for size in sizes:
            answers = ranks.run(all_reduce_times, num_bytes=size, repeats=repeats)
            ideal_s = 2 * (NUM_HOSTS - 1) / NUM_HOSTS * size / GIGABIT
            found[size] = Spread([each_s / ideal_s for each_s in slowest_s(answers)])
    return found


def in_latencies(num_hosts: int, sizes: tuple[int, ...], *, repeats: int) -> list[float]:
    """Medians of all-reduces between hosts that are far from each other, by the one-way latency."""
    cluster = pair_of(latency_s=FAR_S, bytes_per_s=GIGABIT, hosts=num_hosts)
    with Testbed.of(cluster) as testbed, Ranks(num_hosts, site=testbed.record) as ranks:
        answers = [ranks.run(all_reduce_times, num_bytes=one, repeats=repeats) for one in sizes]
    return [statistics.median(slowest_s(each)) / FAR_S for each in answers]


def round_trips(latency_s: float, *, repeats: int) -> Spread:
    """Seconds of one byte there and one back."""
    times_s = []
    with Testbed.of(pair_of(latency_s=latency_s, bytes_per_s=GIGABIT)) as testbed:
        source, target = testbed.hosts
        with connected(source, target) as (sender, receiver):
            for _ in range(repeats):
                begun_s = time.perf_counter()
                sender.sendall(b".")
                receiver.recv(1)
                receiver.sendall(b".")
                sender.recv(1)
                times_s.append(time.perf_counter() - begun_s)
    return Spread(times_s[repeats // 5 :])


def stream(latency_s: float, bytes_per_s: float, *, seconds: float) -> float:
    """Bytes a second of one connection, once it has had a third of the time to find its pace."""
    arrived: list[tuple[float, int]] = []

    def receive(receiver: socket.socket) -> None:
        number, buffer = 0, bytearray(1 << 20)
        while size := receiver.recv_into(buffer):
            number += size
            arrived.append((time.perf_counter(), number))

    with Testbed.of(pair_of(latency_s=latency_s, bytes_per_s=bytes_per_s)) as testbed:
        source, target = testbed.hosts
        with connected(source, target) as (sender, receiver):
            thread = threading.Thread(target=receive, args=(receiver,))
            thread.start()
            block, begun_s = bytes(1 << 20), time.perf_counter()
            while time.perf_counter() - begun_s < seconds:
                sender.sendall(block)
            sender.shutdown(socket.SHUT_WR)
            thread.join()
    later = [(at_s, number) for at_s, number in arrived if seconds / 3 < at_s - begun_s < seconds]
    (first_s, first), (last_s, last) = later[0], later[-1]
    return (last - first) / (last_s - first_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, metavar="N")
    parser.add_argument("--quick", action="store_true", help="one size, two latencies, one rate")
    arguments = parser.parse_args()
    sizes = (HELD_TO_IT,) if arguments.quick else SIZES
    latencies_s = LATENCIES_S[1:3] if arguments.quick else LATENCIES_S
    rates = RATES[1:2] if arguments.quick else RATES

    reduced = all_reduces(sizes, repeats=arguments.repeats)
    rows = [[f"{size / 1e6:g} MB", spread.text(".3f")] for size, spread in reduced.items()]
    print_table("all-reduce of four hosts at 1 Gbit/s, by the ideal ring", columns=["size", "quartiles"], rows=rows)
    far = {n: in_latencies(n, FAR_SIZES, repeats=8) for n in (RANKS[:1] if arguments.quick else RANKS)}
    rows = [[str(n), str(2 * (n - 1)), *(f"{one:.1f}" for one in found)] for n, found in far.items()]
    columns = ["ranks", "messages of the ring", *(f"{size:,} bytes" for size in FAR_SIZES)]
    print_table(f"all-reduce over links of {1e3 * FAR_S:g} ms, in latencies", columns=columns, rows=rows)
    trips = {latency_s: round_trips(latency_s, repeats=10 * arguments.repeats) for latency_s in latencies_s}
    rows = [[f"{1e3 * one:g} ms", spread.text(".3f", scale=1e3) + " ms"] for one, spread in trips.items()]
    print_table("a round trip", columns=["latency", "quartiles"], rows=rows)
    carried = {one: [stream(*one, seconds=STREAM_S) for _ in range(1 if arguments.quick else 3)] for one in rates}
    rows = [
        [f"{8e-6 * rate:g} Mbit/s, {1e3 * latency_s:g} ms", f"{8e-6 * statistics.median(found):.0f} Mbit/s"]
        for (latency_s, rate), found in carried.items()
    ]
    print_table("one connection through a link with latency", columns=["link", "carried"], rows=rows)
    met = all(spread["median"] <= MOST_RATIO for size, spread in reduced.items() if size >= HELD_TO_IT)
    print_verdict(f"all-reduces of 10 MB and more take at most {MOST_RATIO} times the ideal ring's time", met=met)
    results = {
        "all_reduce": {str(size): spread for size, spread in reduced.items()},
        "all_reduce_in_latencies": {str(n): dict(zip(FAR_SIZES, found, strict=True)) for n, found in far.items()},
        "round_trip_s": {str(latency_s): spread for latency_s, spread in trips.items()},
        "stream_bytes_per_s": [[*one, found] for one, found in carried.items()],
    }
    save("testbed", settings={"repeats": arguments.repeats, "hosts": NUM_HOSTS}, results=results, met=met)


if __name__ == "__main__":
    main()
