import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from plesio.core.errors import TransportError
from plesio.runtime.transport import (
    Bulk,
    ClientEndpoint,
    Control,
    ControlClient,
    Gone,
    Header,
    ServerEndpoint,
)
from plesio.runtime.transport.sockets import IN_PLACE_FROM_BYTES, PLAIN, SEALED
from support.transport import (
    JOB,
    KEYS,
    NAMES,
    PATIENCE_S,
    Connect,
    EchoServer,
    StartServer,
    control_to,
    header_of,
    random_bytes,
    request,
)

MIB = 2**20


@pytest.mark.one_in(3)
@pytest.mark.parametrize("link", ["ipc", "tcp"])
@pytest.mark.parametrize("num_bytes", [0, 1, 8191, 20_000_000, SEALED.chunk_bytes + 1, 7 * SEALED.chunk_bytes])
def test_what_is_pushed_comes_back_bit_for_bit(server: EchoServer, connect: Connect, link: str, num_bytes: int):
    client = connect(server.addresses if link == "ipc" else server.tcp_addresses)
    assert client.link == link
    sent, header = random_bytes(num_bytes), header_of(client, worker=3, clock=2**40, base_version=2**63)
    answer = request(client, sent, header=header, meta={"shape": [num_bytes]})
    assert (answer.header, answer.meta, answer.peer) == (header, {"shape": [num_bytes]}, b"")
    np.testing.assert_array_equal(answer.payload, sent)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_bytes", [0, 8191, 20_000_000, PLAIN.whole_bytes, PLAIN.whole_bytes + 1])
def test_unencrypted_it_comes_back_too_and_takes_memory_only_beyond_one_piece(
    start_server: StartServer, connect: Connect, num_bytes: int
):
    server = start_server(encrypt=False)
    client = connect(server.tcp_addresses, encrypt=False)
    num_allocated = server.endpoint._memory.pool.num_allocated
    sent = random_bytes(num_bytes)
    for _ in range(2):
        answer = request(client, sent)
        np.testing.assert_array_equal(answer.payload, sent)
        client.release(answer)
    whole = IN_PLACE_FROM_BYTES <= num_bytes <= PLAIN.whole_bytes or not num_bytes
    assert server.endpoint._memory.pool.num_allocated - num_allocated == int(not whole)


def test_arrays_of_any_type_travel_as_their_bytes_and_a_strided_one_is_refused(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    sent = np.linspace(0, 1, 3000).reshape(30, 100)
    np.testing.assert_array_equal(request(client, sent).payload.view(np.float64).reshape(30, 100), sent)
    with pytest.raises(ValueError, match="contiguous"):
        client.push(header_of(client), payload=sent[:, ::2])


def test_pushes_of_several_clients_at_once_do_not_mix(server: EchoServer, connect: Connect):
    clients = [connect(server.tcp_addresses if i % 2 else server.addresses, b"w%d" % i) for i in range(4)]
    payloads = [random_bytes(5_000_000 + 1000 * i, seed=i) for i in range(len(clients))]

    def push_and_compare(i: int) -> None:
        for _ in range(3):
            np.testing.assert_array_equal(request(clients[i], payloads[i]).payload, payloads[i])

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(push_and_compare, range(len(clients))))


def test_control_and_bulk_messages_come_out_of_one_poll(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    header = header_of(client)
    client.push(header, payload=random_bytes(3 * MIB))
    client.send_control(5, {"n": 1})
    arrived = []
    while len(arrived) < 2:
        arrived += client.poll(PATIENCE_S)
    kinds = {type(incoming).__name__: incoming for incoming in arrived}
    assert kinds["Control"] == Control(peer=b"", kind=5, generation=0, body={"n": 1})
    assert kinds["Bulk"].header == header


def test_control_from_a_thread_of_its_own_during_a_large_push(
    server: EchoServer, connect: Connect, context: zmq.Context
):
    client = connect(server.tcp_addresses)

    def beat() -> list[int]:
        with control_to(server, context, identity=b"w0/beat") as control:
            beats = []
            for n in range(50):
                control.send(9, {"n": n})
                beats += [answer.body["n"] for answer in control.poll(PATIENCE_S)]
            return beats

    payload = random_bytes(30_000_000)
    with ThreadPoolExecutor(1) as pool:
        beats = pool.submit(beat)
        np.testing.assert_array_equal(request(client, payload).payload, payload)
        assert beats.result(PATIENCE_S) == list(range(50))


@pytest.fixture
def pair(context: zmq.Context) -> Iterator[tuple[ServerEndpoint, ClientEndpoint]]:
    """A server that looks only when the test says so, and a client that has joined it."""
    with closing(
        ServerEndpoint(job=JOB, keys=KEYS, names=NAMES, host="127.0.0.1", ipc_dir=None, max_bulk_bytes=32 * MIB)
    ) as server:
        settings = {"job": JOB, "keys": KEYS, "timeout_s": PATIENCE_S, "max_bulk_bytes": MIB}
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(ClientEndpoint, server.addresses, identity=b"w0", context=context, **settings)
            while not joining.done():
                assert server.poll(0.01) == []
        with closing(joining.result()) as client:
            yield server, client


def test_steady_pushes_take_no_new_memory_at_the_server(pair: tuple[ServerEndpoint, ClientEndpoint]):
    server, client = pair
    for seed in range(10):
        payload = random_bytes(7 * SEALED.chunk_bytes - seed, seed=seed)
        client.push(header_of(client), payload=payload)
        (bulk,) = server.poll(PATIENCE_S)
        np.testing.assert_array_equal(bulk.payload, payload)
        server.release(bulk)
    assert server._memory.pool.num_allocated == 1


def test_both_ends_count_the_same_bytes(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    request(client, random_bytes(2 * SEALED.chunk_bytes + 5), meta={"a": 1})
    client.send_control(1, {"text": "x" * 1000})
    client.poll(PATIENCE_S)
    ours, theirs = client.traffic, server.endpoint.traffic
    assert ours.ipc.sent_payload == ours.ipc.received_payload == 2 * SEALED.chunk_bytes + 5
    for link in ("ipc", "tcp"):
        mine, its = ours.of(link), theirs.of(link)
        server.wait_for(lambda mine=mine, its=its: (mine.sent, mine.received) == (its.received, its.sent))
    assert 2000 < ours.tcp.sent + ours.tcp.received < 4000


def test_the_end_of_a_client_is_reported_once_after_all_it_said(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    client.send_control(1, {})
    client.poll(PATIENCE_S)
    client.close()
    server.wait_for(lambda: server.gone)
    assert server.gone == [b"w0"]
    assert [incoming.kind for incoming in server.seen] == [1]
    while server.run(lambda endpoint: endpoint.send_control(b"w0", 1, {})):
        pass  # ZeroMQ reports the end of a connection a moment before it stops taking messages for it
    assert not server.endpoint.refused


def test_what_a_client_said_is_heard_before_its_end_however_late_the_server_looks(
    pair: tuple[ServerEndpoint, ClientEndpoint],
):
    server, client = pair
    # The server looks only when the client's last words and the ends of both its connections are there to be read.
    client.send_control(1, {})
    client.push(header_of(client), payload=random_bytes(10))
    for socket in client.sockets:
        socket.linger = int(PATIENCE_S * 1e3)
    client.close()
    for watch in (server._control_watch, server._data_watch):
        while not watch.num_ended:
            assert watch.socket.poll(PATIENCE_S * 1e3)
            watch.read()
    assert [type(incoming) for incoming in server.poll(PATIENCE_S)] == [Control, Bulk, Gone]
    assert server._memory.assembler.num_abandoned == 0
    assert server.refused == {}


def test_sending_to_a_peer_that_never_was_is_refused_not_queued(server: EchoServer):
    header = Header(kind=1, generation=0)
    payload = random_bytes(10)
    assert server.run(lambda endpoint: endpoint.send(b"nobody", header, payload=payload)) is None


_HALF_A_PUSH = """
import sys, signal, json, numpy as np, zmq
from plesio.runtime.transport import ClientEndpoint, Header, JobKeys
from plesio.runtime.transport.wire import encode_chunk, job_digest
client = ClientEndpoint(json.loads(sys.argv[1]), identity=b"w0", job="test job", context=zmq.Context(),
                        keys=JobKeys.derive("the job's secret"), timeout_s=20, max_bulk_bytes=1)
data, seal = client._data.socket, client._data._link_to(b"").seal
for offset in (0, 2**16):
    head = encode_chunk(Header(kind=7, generation=0), job=job_digest("test job"), total_bytes=2**24, offset=offset,
                        meta=None)
    body = memoryview(bytes(2**16))
    data.send_multipart([head, body] if seal is None else seal.close_chunk(head, body))
signal.pause()
"""


@pytest.mark.parametrize("link", ["ipc", "tcp"])
def test_a_client_killed_in_the_middle_of_a_push_is_forgotten_and_may_come_back(
    server: EchoServer, connect: Connect, link: str
):
    addresses = server.addresses if link == "ipc" else server.tcp_addresses
    process = subprocess.Popen([sys.executable, "-c", _HALF_A_PUSH, json.dumps(addresses)])
    try:
        server.wait_for(lambda: len(server.endpoint._memory.assembler._open) == 1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    server.wait_for(lambda: server.gone == [b"w0"] and server.endpoint._memory.assembler.num_abandoned == 1)
    assert len(server.endpoint._memory.assembler._open) == 0
    again = connect(addresses)
    payload = random_bytes(MIB)
    answer = request(again, payload)
    np.testing.assert_array_equal(answer.payload, payload)
    assert not server.endpoint.refused


def test_a_server_that_ends_is_an_error_for_its_clients(start_server: StartServer, connect: Connect):
    server = start_server()
    client = connect(server.addresses)
    server.close()
    with pytest.raises(TransportError, match="ended the connection"):
        client.poll(PATIENCE_S)


def test_a_server_that_does_not_answer_is_an_error_in_one_line(context: zmq.Context):
    with closing(
        ServerEndpoint(job=JOB, keys=KEYS, names=NAMES, host="127.0.0.1", ipc_dir=None, max_bulk_bytes=1)
    ) as server:
        addresses = server.addresses
    with pytest.raises(TransportError, match=r"no server answers at tcp://127\.0\.0\.1:\d+") as raised:
        ControlClient(addresses, identity=b"w0", job=JOB, keys=KEYS, context=context, timeout_s=0.3)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "192.0.2.1"}, "cannot listen"),
        ({"ipc_dir": Path("/nonexistent")}, "cannot make a socket"),
        ({"ipc_dir": Path("/tmp") / ("x" * 120)}, "too long"),
    ],
)
def test_addresses_that_cannot_be_bound(settings: dict[str, object], message: str):
    settings = {"host": "127.0.0.1", "ipc_dir": None, **settings}
    with pytest.raises(TransportError, match=message):
        ServerEndpoint(job=JOB, keys=KEYS, names=NAMES, max_bulk_bytes=1, **settings)


def test_another_host_or_an_unreachable_socket_file_means_tcp(server: EchoServer, connect: Connect):
    assert connect(KEYS.sealed({**server.addresses, "host": "elsewhere"}), b"w1").link == "tcp"
    assert connect(KEYS.sealed({**server.addresses, "data_ipc": "/nonexistent"}), b"w2").link == "tcp"


def open_files() -> Counter[str]:
    """Count this process's open files, by kind."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            targets.append(re.sub(r"[0-9a-f]+", "*", os.readlink(f"/proc/self/fd/{name}")))
    return Counter(targets)


def threads_and_files() -> tuple[int, Counter[str]]:
    """Count this process's threads and open files, when their number stands still: the kernel ends threads later."""
    gc.collect()
    process, num_threads, steady = psutil.Process(), 0, 0
    while steady < 10:
        time.sleep(0.02)
        latest = process.num_threads()
        num_threads, steady = latest, steady + 1 if latest == num_threads else 0
    return num_threads, open_files()


def test_nothing_is_left_behind(start_server: StartServer, tmp_path: Path):

    def exchange_once() -> None:
        server = start_server()
        assert list(tmp_path.iterdir())
        with zmq.Context() as context:
            client = ClientEndpoint(
                server.addresses,
                identity=b"w0",
                job=JOB,
                keys=KEYS,
                context=context,
                timeout_s=PATIENCE_S,
                max_bulk_bytes=4 * MIB,
            )
            request(client, random_bytes(3 * MIB))
            client.close()
            client.close()
        server.close()
        server.seen.clear()  # the payloads in it keep what they lie in

    exchange_once()  # pyzmq starts its one thread for freeing sent buffers, and keeps it
    before = threads_and_files()
    for _ in range(3):
        exchange_once()
    assert threads_and_files() == before
    assert not list(tmp_path.iterdir())
