import fcntl
import gc
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq

from plesio.core.errors import TransportError
from plesio.core.records import to_values
from plesio.runtime.transport import Bulk, ClientEndpoint, Header, Refusal
from plesio.runtime.transport.segments import MemoryOffer, SegmentPool, segment_name
from plesio.runtime.transport.wire import Form, Reference, encode_chunk, encode_reference, job_digest
from support.transport import (
    JOB,
    PATIENCE_S,
    Connect,
    EchoServer,
    StartServer,
    answer_to,
    control_to,
    header_of,
    random_bytes,
    request,
)

Forge = Callable[[MemoryOffer, int], int]

MIB = 2**20


def request_staged(client: ClientEndpoint, payload: np.ndarray) -> Bulk:
    staged = client.stage(payload.size)
    staged[:] = payload
    return request(client, staged)


def mapped_segments(token: str) -> int:
    """How many of the segments with this token are mapped in this process."""
    return sum(f"memfd:plesio-{token}" in line for line in Path("/proc/self/maps").read_text().splitlines())


def num_lent(server: EchoServer) -> int:
    return server.run(lambda endpoint: endpoint._memory.outbox.num_lent)


@pytest.mark.parametrize("link", ["ipc", "tcp"])
def test_what_is_held_is_not_overwritten(server: EchoServer, connect: Connect, link: str):
    sizes = np.random.default_rng(1).integers(MIB // 4, 2 * MIB, (3, 24)).tolist()

    def exchange_many(number: int) -> None:
        client = connect(server.addresses if link == "ipc" else server.tcp_addresses, b"w%d" % number)
        assert client._memory.outbox.shares(b"") == (link == "ipc")
        held: list[tuple[Bulk, np.ndarray]] = []
        for turn, num_bytes in enumerate(sizes[number]):
            payload = random_bytes(num_bytes, seed=100 * number + turn)
            if turn % 3:
                held.append((request_staged(client, payload), payload))
            else:
                held.append((request(client, payload), payload))
            for bulk, expected in held:
                np.testing.assert_array_equal(bulk.payload, expected)
            if len(held) == 3:
                client.release(held.pop(turn % 3)[0])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(exchange_many, range(3)))


def test_steady_exchanges_take_no_new_segments(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    for turn in range(40):
        payload = random_bytes(MIB - turn, seed=turn)
        answer = request_staged(client, payload)
        np.testing.assert_array_equal(answer.payload, payload)
        client.release(answer)
    # a segment may still be on its way back when the answer is there, so there may be one more
    assert client._memory.outbox.segments.num_allocated <= 2
    assert server.run(lambda endpoint: endpoint._memory.outbox.segments.num_allocated) <= 2


def test_a_peer_has_mapped_its_own_answers_alone(server: EchoServer, connect: Connect):
    clients = [connect(server.addresses, b"w%d" % number) for number in range(2)]
    for turn in range(8):
        answers = [request(client, random_bytes(MIB)) for client in clients]
        for number in (turn % 2, 1 - turn % 2):
            clients[number].release(answers[number])
    for client in clients:
        [peer] = client._memory.mappings._peers.values()
        assert len(peer.mapped) == 1


def test_an_array_of_the_callers_may_change_as_soon_as_it_is_pushed(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    payload = random_bytes(MIB)
    header = header_of(client)
    assert client.push(header, payload=payload).done
    expected = payload.copy()
    payload[:] = 0
    np.testing.assert_array_equal(answer_to(client, header).payload, expected)


@pytest.mark.parametrize("link", ["ipc", "tcp"])
def test_the_beginning_of_a_staged_array_of_any_type_is_sent_without_a_copy(
    server: EchoServer, connect: Connect, link: str
):
    client = connect(server.addresses if link == "ipc" else server.tcp_addresses)
    staged = client.stage(8 * 100_000).view(np.float64)
    staged[:] = np.arange(100_000)
    header = header_of(client)
    sending = client.push(header, payload=staged[:70_000])
    assert not client._memory.outbox._staged
    answer = answer_to(client, header)
    np.testing.assert_array_equal(answer.payload.view(np.float64), np.arange(70_000))
    # the answer comes before the message that gives the push's segment back
    while not sending.done or client._memory.outbox.num_lent:
        client.poll(0.01)
    assert np.shares_memory(client.stage(8 * 100_000), staged)


def test_a_payload_that_nobody_refers_to_any_more_is_given_back(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    view = request(client, random_bytes(MIB)).payload[5:10].view()
    gc.collect()
    client.poll(0.0)
    assert num_lent(server) == 1
    del view
    gc.collect()
    while num_lent(server):
        client.poll(0.0)
    again = request(client, random_bytes(MIB, seed=1))
    np.testing.assert_array_equal(again.payload, random_bytes(MIB, seed=1))
    assert server.run(lambda endpoint: endpoint._memory.outbox.segments.num_allocated) == 1


_PUSH_AND_HOLD = """
import sys, signal, json, numpy as np, zmq
from plesio.runtime.transport import ClientEndpoint, Header, JobKeys
client = ClientEndpoint(json.loads(sys.argv[1]), identity=b"w0", job="test job", context=zmq.Context(),
                        keys=JobKeys.derive("the job's secret"), timeout_s=20, max_bulk_bytes=2**25)
payload = np.random.default_rng(0).integers(0, 256, 2**21, dtype=np.uint8)
held = []
for n in (1, 2):
    client.push(Header(kind=7, generation=0, request=n), payload=payload)
    held += client.poll(20)
staged = client.stage(2**22)
print(client._memory.outbox.segments.offer.token, flush=True)
signal.pause()
"""


def test_a_client_killed_with_segments_in_its_hands_leaves_none_behind(
    server: EchoServer, connect: Connect, tmp_path: Path
):
    shm_before = sorted(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", _PUSH_AND_HOLD, json.dumps(server.addresses)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            token = process.stdout.readline().strip()
            assert mapped_segments(token) > 0
            assert num_lent(server) == 2
        finally:
            process.send_signal(signal.SIGKILL)
    server.wait_for(lambda: server.gone == [b"w0"])
    assert num_lent(server) == 0
    last = server.seen[-1]
    np.testing.assert_array_equal(last.payload, random_bytes(2 * MIB))  # memory outlives its owner while it is used
    del last
    server.run(lambda _: server.seen.clear())
    gc.collect()
    assert mapped_segments(token) == 0
    assert sorted(os.listdir("/dev/shm")) == shm_before
    assert [path.suffix for path in tmp_path.iterdir()] == [".sock"]
    again = connect(server.addresses)
    np.testing.assert_array_equal(request_staged(again, random_bytes(MIB)).payload, random_bytes(MIB))
    assert not server.endpoint.refused


def test_what_a_client_reads_in_place_outlives_the_server(start_server: StartServer, connect: Connect):
    server = start_server()
    client = connect(server.addresses)
    answer = request(client, random_bytes(MIB))
    server.close()
    with pytest.raises(TransportError, match="ended the connection"):
        client.poll(PATIENCE_S)
    np.testing.assert_array_equal(answer.payload, random_bytes(MIB))


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """The kernel makes no file, and so no memfd, larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_memory_for_a_segment_the_payload_goes_through_the_socket(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    payload = random_bytes(30 * MIB)
    with largest_file(16 * MIB):
        for _ in range(2):
            np.testing.assert_array_equal(request_staged(client, payload).payload, payload)
    assert client._memory.outbox.num_unshared >= 2
    assert server.endpoint._memory.outbox.num_unshared >= 2
    assert client.traffic.ipc.sent_payload == 2 * payload.size
    small = random_bytes(MIB)
    np.testing.assert_array_equal(request_staged(client, small).payload, small)
    assert client._memory.outbox.num_lent <= 1


def test_without_any_shared_memory_everything_goes_through_the_socket(
    server: EchoServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> int:
        raise OSError("not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        client = connect(server.addresses)
    assert (client.link, client._memory.outbox.shares(b"")) == ("ipc", False)
    payload = random_bytes(30 * MIB)
    np.testing.assert_array_equal(request_staged(client, payload).payload, payload)


def opens(server: EchoServer, context: zmq.Context, memory: object) -> bool:
    """Return True if the server can open the memory that a client offers."""
    with control_to(server, context, hello={"data": "ipc", "memory": memory}) as client:
        return client.welcome["opens"]


@pytest.mark.parametrize(
    "changes",
    [
        {"process": 1},
        {"process": -1},
        {"process": "self"},
        {"process": 2**70},
        {"token": "0" * 32},
        {"token": "../../../etc/passwd"},
        {"probe": 0},
        {"probe": -1},
        {"probe": 10**6},
        {"probe": None},
    ],
)
def test_memory_that_is_not_as_offered_is_not_opened(
    server: EchoServer, context: zmq.Context, changes: dict[str, object]
):
    pool = SegmentPool(max_free_bytes=MIB)
    offer = to_values(pool.offer)
    assert opens(server, context, offer) is True
    assert opens(server, context, {**offer, **changes}) is False
    assert opens(server, context, None) is False
    assert opens(server, context, []) is False
    pool.close()


def send_reference(client: ClientEndpoint, *, serial: int, descriptor: int, num_bytes: int) -> None:
    head = encode_chunk(
        header_of(client), job=job_digest(JOB), total_bytes=num_bytes, offset=0, meta=None, form=Form.REFERENCE
    )
    reference = encode_reference(Reference(serial=serial, descriptor=descriptor))
    seal = client._data._link_to(b"").seal
    client._data.socket.send_multipart([head, reference] if seal is None else seal.close_chunk(head, reference))


def still_serves(client: ClientEndpoint) -> bool:
    payload = random_bytes(MIB)
    return np.array_equal(request_staged(client, payload).payload, payload)


def unsealed(offer: MemoryOffer, serial: int) -> int:
    descriptor = os.memfd_create(segment_name(offer.token, serial), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, MIB)
    return descriptor


def too_large(offer: MemoryOffer, serial: int) -> int:
    descriptor = unsealed(offer, serial)
    os.ftruncate(descriptor, 100 * MIB)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


def named_otherwise(offer: MemoryOffer, serial: int) -> int:
    return unsealed(offer, serial + 1)


def a_file(_offer: MemoryOffer, _serial: int) -> int:
    return os.open("/etc/passwd", os.O_RDONLY | os.O_CLOEXEC)


@pytest.mark.parametrize("forge", [unsealed, too_large, named_otherwise, a_file])
def test_a_reference_to_anything_but_a_segment_is_refused_and_counted(
    server: EchoServer, connect: Connect, forge: Forge
):
    client = connect(server.addresses)
    descriptor = forge(client._memory.outbox.segments.offer, 1000)
    try:
        send_reference(client, serial=1000, descriptor=descriptor, num_bytes=MIB)
        server.wait_for(lambda: server.endpoint.refused == {Refusal.SEGMENT: 1})
    finally:
        os.close(descriptor)
    assert still_serves(client)


def test_a_reference_to_a_descriptor_that_is_closed_is_a_message_abandoned(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    send_reference(client, serial=1000, descriptor=10**6, num_bytes=MIB)
    server.wait_for(lambda: server.endpoint._memory.assembler.num_abandoned == 1)
    assert still_serves(client)


@pytest.mark.parametrize(("num_bytes", "reason"), [(2 * MIB, Refusal.SEGMENT), (2**50, Refusal.OVERSIZE)])
def test_a_payload_longer_than_its_segment_is_refused_and_counted(
    server: EchoServer, connect: Connect, num_bytes: int, reason: Refusal
):
    client = connect(server.addresses)
    segment = client._memory.outbox.segments.take(MIB)
    send_reference(client, serial=segment.serial, descriptor=segment.descriptor, num_bytes=num_bytes)
    server.wait_for(lambda: server.endpoint.refused == {reason: 1})
    assert still_serves(client)


def test_a_reference_from_another_host_is_refused_and_counted(server: EchoServer, connect: Connect):
    client = connect(server.tcp_addresses)
    pool = SegmentPool(max_free_bytes=MIB)
    send_reference(client, serial=0, descriptor=pool.offer.probe, num_bytes=10)
    server.wait_for(lambda: server.endpoint.refused == {Refusal.MALFORMED: 1})
    assert still_serves(client)
    pool.close()


def test_what_is_refused_gives_its_segment_back(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    for _ in range(5):
        client.push(Header(kind=1, generation=7), payload=random_bytes(MIB))
        while client._memory.outbox.num_lent:
            client.poll(0.01)
    assert client._memory.outbox.segments.num_allocated == 1
    assert server.endpoint.refused == {Refusal.FOREIGN_GENERATION: 5}


def test_a_pool_of_segments_keeps_no_more_than_it_is_told_to():
    pool = SegmentPool(max_free_bytes=3 * MIB)
    first, second = pool.take(2 * MIB), pool.take(2 * MIB)
    num_open = len(os.listdir("/proc/self/fd"))
    pool.give_back(first)
    pool.give_back(second)
    del second
    assert len(os.listdir("/proc/self/fd")) == num_open - 2  # its own, and that of the mapping
    assert pool.take(MIB + 1) is first
    assert pool.take(2 * MIB) is not first
    pool.close()
    pool.close()


@pytest.mark.parametrize("num_bytes", [1, 20, 2047, 2048, 4096, 5000, 100_000])
def test_a_segment_is_used_again_however_little_it_is_for(num_bytes: int):
    pool = SegmentPool(max_free_bytes=2**20)
    try:
        for _ in range(50):
            pool.give_back(pool.take(num_bytes))
        assert pool.num_allocated == 1, "each is a descriptor, of which a process has few thousand"
    finally:
        pool.close()
