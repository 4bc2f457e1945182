"""Push and pull of 1, 20 and 100 MB between two processes: Plesio's transport, Gloo send/recv, and memcpy as the limit.

One exchange is what a worker does with a server: push a payload and, when all of it has arrived, pull one of the same
size. It begins with a payload packed in memory and ends with one that can be read in memory, on both sides.

* ``tcp`` and ``ipc``: as the store does it. Payloads are packed in staged memory and read where they arrive. Over tcp
  they are encrypted. Over ipc they lie in shared memory, so nothing is copied between packing and reading, and what is
  left is the time of two messages.
* ``unencrypted``: as ``tcp``, with ``PLESIO_UNENCRYPTED=1``: payloads of up to 24 MiB go in one piece.
* ``tcp copied`` and ``ipc copied``: from any array to any array of the caller's.

The same two processes run every way, one exchange of each in random order per round, so that whatever else the machine
does meets all of them; a ratio is the median over the rounds of Gloo's time by the other's in the same round.

    python benchmarks/bench_transport.py [--rounds 25] [--megabytes 1 20 100]

Prints a table and writes benchmarks/results/transport.json.
"""

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import zmq

from plesio.runtime.transport import Bulk, ClientEndpoint, Control, Header, JobKeys, ServerEndpoint
from record import Spread, print_table, print_verdict, save

JOB = "bench"
KEYS = JobKeys.derive("bench")
NUM_WARM_UP = 3
PATIENCE_S = 60.0
GLOO, STOP, STAGE = 1, 2, 3
IN_PLACE, COPIED = 1, 2
GOALS = {"unencrypted": 1.2, "ipc": 1.5, "ipc copied": 1.5}
ENCRYPTED_GOAL = 0.5
"""Throughput of 20 MB and more over tcp, by the same without encryption."""


def join_gloo(rank: int, store_file: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store_file}", rank=rank, world_size=2)


def serve(pipe: Connection, directory: str, max_bytes: int) -> None:
    """Answer every push with as many bytes, in the other process, and take part in Gloo's exchange when asked to."""
    join_gloo(1, f"{directory}/store")
    gloo_in, gloo_out = torch.zeros(max_bytes, dtype=torch.uint8), torch.ones(max_bytes, dtype=torch.uint8)
    answer = staged = np.ones(max_bytes, dtype=np.uint8)
    with closing(
        ServerEndpoint(
            job=JOB,
            keys=KEYS,
            names=lambda _: (b"tcp", b"plain", b"ipc"),
            host="127.0.0.1",
            ipc_dir=Path(directory),
            max_bulk_bytes=max_bytes,
            encrypt=False,
        )
    ) as server:
        pipe.send(server.addresses)
        while True:
            for incoming in server.poll(1.0):
                match incoming:
                    case Bulk(peer=peer, header=header, payload=payload):
                        in_place = header.kind == IN_PLACE
                        server.send(peer, header, payload=staged if in_place else answer[: payload.size])
                        server.release(incoming)
                    case Control(peer=peer, kind=kind, body=body) if kind == STAGE:
                        staged = server.stage(body["num_bytes"])
                        server.send_control(peer, STAGE, {})
                    case Control(kind=kind, body=body) if kind == GLOO:
                        dist.recv(gloo_in[: body["num_bytes"]], 0)
                        dist.send(gloo_out[: body["num_bytes"]], 0)
                    case Control(kind=kind) if kind == STOP:
                        dist.destroy_process_group()
                        return


def time_s(exchange: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    exchange()
    return time.perf_counter() - started_s


def request(client: ClientEndpoint, kind: int, payload: np.ndarray) -> Bulk:
    client.push(Header(kind=kind, generation=0), payload=payload)
    while True:
        for incoming in client.poll(PATIENCE_S):
            if isinstance(incoming, Bulk):
                return incoming


def ways_to_exchange(
    num_bytes: int, *, tcp: ClientEndpoint, plain: ClientEndpoint, ipc: ClientEndpoint
) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """For each way, what tells the other process (not timed), and the exchange itself."""
    sent, received = np.ones(num_bytes, dtype=np.uint8), np.zeros(num_bytes, dtype=np.uint8)
    gloo_sent, gloo_received = torch.from_numpy(sent), torch.from_numpy(received)

    def by_gloo() -> None:
        dist.send(gloo_sent, 1)
        dist.recv(gloo_received, 1)

    def by_memcpy() -> None:
        received[:] = sent
        sent[:] = received

    def copied(client: ClientEndpoint) -> tuple[Callable[[], None], Callable[[], None]]:
        def exchange() -> None:
            answer = request(client, COPIED, sent)
            received[:] = answer.payload
            client.release(answer)

        return nothing, exchange

    def in_place(client: ClientEndpoint) -> tuple[Callable[[], None], Callable[[], None]]:
        staged = received

        def stage() -> None:
            nonlocal staged
            staged = client.stage(num_bytes)
            client.send_control(STAGE, {"num_bytes": num_bytes})
            while not client.poll(PATIENCE_S):
                pass

        def exchange() -> None:
            client.release(request(client, IN_PLACE, staged))

        return stage, exchange

    def nothing() -> None:
        pass

    return {
        "gloo": (lambda: tcp.send_control(GLOO, {"num_bytes": num_bytes}), by_gloo),
        "tcp": in_place(tcp),
        "unencrypted": in_place(plain),
        "tcp copied": copied(tcp),
        "ipc": in_place(ipc),
        "ipc copied": copied(ipc),
        "memcpy": (nothing, by_memcpy),
    }


def measure(num_bytes: int, *, num_rounds: int, **clients: ClientEndpoint) -> dict[str, list[float]]:
    """Seconds of each exchange, in the order of the rounds."""
    ways = ways_to_exchange(num_bytes, **clients)
    times_s: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(NUM_WARM_UP + num_rounds):
        for way in random.sample(list(ways), len(ways)):
            prepare, exchange = ways[way]
            prepare()
            times_s[way].append(time_s(exchange))
    return {way: values[NUM_WARM_UP:] for way, values in times_s.items()}


def summarise(times_s: dict[str, list[float]], *, num_bytes: int) -> dict[str, Any]:
    """Seconds, bandwidth (there and back), and Gloo's time and that without encryption by this one's."""
    summary = {}
    for way, values in times_s.items():
        seconds = Spread(values)
        summary[way] = {
            "seconds": seconds,
            "bytes_per_s": 2 * num_bytes / seconds["median"],
            "ratio_to_gloo": Spread([gloo / own for gloo, own in zip(times_s["gloo"], values, strict=True)]),
            "ratio_to_unencrypted": Spread(
                [plain / own for plain, own in zip(times_s["unencrypted"], values, strict=True)]
            ),
        }
    return summary


def report(results: dict[int, dict[str, Any]]) -> bool:
    """Print all figures; True if the ways are as fast as is aimed at, from 20 MB on."""
    rows = [
        [
            f"{num_bytes / 1e6:.0f} MB, {way}",
            f"{row['seconds'].text('.2f', scale=1e3)} ms",
            f"{row['bytes_per_s'] / 1e9:.2f}",
            row["ratio_to_gloo"].text(".2f"),
        ]
        for num_bytes, ways in results.items()
        for way, row in ways.items()
    ]
    columns = ["payload, way", "median (quartiles)", "GB/s", "Gloo's time by this one's"]
    print_table("push and pull", columns=columns, rows=rows)
    met = True
    for num_bytes, ways in results.items():
        goals = {f"{way} by Gloo": (ways[way]["ratio_to_gloo"], goal) for way, goal in GOALS.items()}
        goals["encrypted by unencrypted"] = (ways["tcp"]["ratio_to_unencrypted"], ENCRYPTED_GOAL)
        for what, (ratio, goal) in goals.items():
            if num_bytes >= 20_000_000:
                met = met and ratio["median"] >= goal
                done = f"{num_bytes / 1e6:.0f} MB, {what}: {ratio['median']:.2f}"
                print_verdict(f"{done}, at least {goal} of the throughput", met=ratio["median"] >= goal)
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 20, 100])
    arguments = parser.parse_args()
    sizes = [int(megabytes * 1e6) for megabytes in arguments.megabytes]
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    with tempfile.TemporaryDirectory() as directory:
        partner = spawn.Process(target=serve, args=(there, directory, max(sizes)), daemon=True)
        partner.start()
        join_gloo(0, f"{directory}/store")
        addresses = here.recv()
        remote = KEYS.sealed({**addresses, "data_ipc": ""})
        settings: dict[str, Any] = {
            "job": JOB,
            "keys": KEYS,
            "timeout_s": PATIENCE_S,
            "max_bulk_bytes": max(sizes),
        }
        with (
            zmq.Context() as context,
            ClientEndpoint(remote, identity=b"tcp", context=context, **settings) as tcp,
            ClientEndpoint(remote, identity=b"plain", context=context, encrypt=False, **settings) as plain,
            ClientEndpoint(addresses, identity=b"ipc", context=context, **settings) as ipc,
        ):
            assert (tcp.link, plain.link, ipc.link) == ("tcp", "tcp", "ipc")
            results = {}
            for num_bytes in sizes:
                times_s = measure(num_bytes, num_rounds=arguments.rounds, tcp=tcp, plain=plain, ipc=ipc)
                results[num_bytes] = summarise(times_s, num_bytes=num_bytes)
            tcp.send_control(STOP, {})
            dist.destroy_process_group()
            partner.join()
    save("transport", settings={"rounds": arguments.rounds}, results=results, met=report(results))


if __name__ == "__main__":
    main()
