"""How long do bursts of bare TCP take on four hosts behind shaped links: docs/log.md, section 84.

    python benchmarks/evidence/tcp_bursts.py [--mbit 50] [--bytes 137000]     # it needs root

Every half second hosts send each other messages over connections that stay; each waits until all that it has sent have
been acknowledged, or answered with as much. Prints the median of the hosts' times, and of the slowest host's.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from plesio.testbed.testbed import Testbed

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import print_table

HOSTS, PORT, ROUNDS, WARM_UP, EVERY_S, START_S = 4, 7000, 14, 2, 0.5, 12.0
PAYLOAD_SHARE = 1448 / 1514
"""Share of a full packet that is not headers."""
PATTERNS = ("one to three", "three to one", "each to the next", "each to all", "each to all, and back")
"""A message of the third one is three times as large: an interface has as many bytes as under the fourth."""


def receive(connection: socket.socket, num_bytes: int) -> None:
    """Read exactly so many bytes, or fewer where the connection ends."""
    while num_bytes and (got := len(connection.recv(min(num_bytes, 2**20)))):
        num_bytes -= got


def listen(server: socket.socket, num_bytes: int, answer: bytes) -> None:
    """Answer each message of every connection."""

    def serve(connection: socket.socket) -> None:
        while connection.recv(1, socket.MSG_PEEK):
            receive(connection, num_bytes)
            connection.sendall(answer)

    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()


def act(rank: int, addresses: list[str], pattern: str, num_bytes: int, *, begin_s: float) -> None:
    """Do one host's part, and print its seconds of each round."""
    num_bytes *= 3 if pattern == PATTERNS[2] else 1
    answer = bytes(num_bytes) if pattern == PATTERNS[4] else b"."
    server = socket.create_server(("", PORT))
    threading.Thread(target=listen, args=(server, num_bytes, answer), daemon=True).start()
    others = {
        PATTERNS[0]: [1, 2, 3] if rank == 0 else [],
        PATTERNS[1]: [0] if rank else [],
        PATTERNS[2]: [(rank + 1) % HOSTS],
    }.get(pattern, [other for other in range(HOSTS) if other != rank])
    time.sleep(max(0.0, begin_s - START_S / 2 - time.monotonic()))
    connections = [socket.create_connection((addresses[other], PORT)) for other in others]
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(connection: socket.socket) -> None:
        connection.sendall(bytes(num_bytes))
        receive(connection, len(answer))

    took_s = []
    for number in range(ROUNDS):
        time.sleep(max(0.0, begin_s + number * EVERY_S - time.monotonic()))
        begun_s = time.monotonic()
        threads = [threading.Thread(target=ask, args=(connection,)) for connection in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s.append(time.monotonic() - begun_s)
    print(json.dumps(took_s[WARM_UP:] if others else []), flush=True)
    time.sleep(EVERY_S)  # the others' last messages


def main() -> None:
    """Print the table, or act as one of its hosts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=50.0)
    parser.add_argument("--bytes", type=int, default=137_000)
    parser.add_argument("--host", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.host is not None:
        rank, addresses, pattern, begin_s = given.host
        act(rank, addresses, pattern, given.bytes, begin_s=begin_s)
        return
    rows = []
    with Testbed.of_racks([HOSTS], nic_bytes_per_s=given.mbit * 1e6 / 8) as testbed:
        for pattern in PATTERNS:
            begin_s, addresses = time.monotonic() + START_S, [host.address for host in testbed.hosts]
            hosts = []
            for rank, host in enumerate(testbed.hosts):
                part = json.dumps([rank, addresses, pattern, begin_s])
                command = [sys.executable, __file__, "--bytes", str(given.bytes), "--host", part]
                hosts.append(subprocess.Popen(host.command(command), stdout=subprocess.PIPE))
            times = [each for host in hosts if (each := json.loads(host.communicate(timeout=60)[0]))]
            num_bytes = 3 * given.bytes * (2 if pattern == PATTERNS[4] else 1)
            least_s = num_bytes / PAYLOAD_SHARE / (given.mbit * 1e6 / 8)
            median_s = statistics.median(took_s for each in times for took_s in each)
            slowest_s = statistics.median(map(max, zip(*times, strict=True)))
            rows.append([pattern, *(f"{1e3 * one:.0f} ms" for one in (least_s, median_s, slowest_s))])
    columns = ["", "at all of the bandwidth", "median", "slowest host"]
    print_table(f"{given.bytes} bytes at {given.mbit:g} Mbit/s", columns=columns, rows=rows)


if __name__ == "__main__":
    main()
