import dataclasses
import socket
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from plesio.core.errors import TransportError
from plesio.runtime.transport import ClientEndpoint, ControlClient, Header, JobKeys, Refusal
from plesio.runtime.transport.sockets import SEALED
from plesio.runtime.transport.wire import MAX_META_BYTES, Form, encode_chunk, encode_control, job_digest
from support.transport import JOB, KEYS, PATIENCE_S, Connect, EchoServer, StartServer, control_to, request

STRANGER = JobKeys.derive("another secret")


def still_serves(client: ClientEndpoint) -> bool:
    payload = np.arange(10_000, dtype=np.uint8)
    return np.array_equal(request(client, payload).payload, payload)


@pytest.fixture
def stranger(context: zmq.Context) -> Iterator[zmq.Socket]:
    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.reconnect_ivl = -1
        yield dealer


def test_a_key_of_another_job_is_refused_and_counted(server: EchoServer, connect: Connect):
    with pytest.raises(TransportError, match="refused the connection"):
        connect(server.addresses, keys=dataclasses.replace(KEYS, peers=STRANGER.peers))
    server.wait_for(lambda: server.endpoint.refused == {Refusal.KEY: 1})
    assert still_serves(connect(server.addresses))


def test_a_wrong_server_key_is_refused_and_counted(server: EchoServer, connect: Connect):
    with pytest.raises(TransportError, match="refused the connection"):
        connect(server.addresses, keys=dataclasses.replace(KEYS, server=STRANGER.server))
    server.wait_for(lambda: server.endpoint.refused[Refusal.HANDSHAKE] > 0)
    assert set(server.endpoint.refused) == {Refusal.HANDSHAKE}
    assert still_serves(connect(server.addresses))


@pytest.mark.parametrize("channel", ["control", "data_tcp"])
def test_zeromq_without_any_key_is_refused_and_counted(
    server: EchoServer, connect: Connect, stranger: zmq.Socket, channel: str
):
    stranger.connect(server.addresses[channel])
    server.wait_for(lambda: server.endpoint.refused == {Refusal.HANDSHAKE: 1})
    assert still_serves(connect(server.addresses))


@pytest.mark.parametrize("channel", ["data_tcp", "data_ipc"])
def test_a_data_connection_with_a_guessed_ticket_is_refused_and_counted(
    server: EchoServer, connect: Connect, stranger: zmq.Socket, channel: str
):
    client = connect(server.addresses)
    stranger.plain_username, stranger.plain_password = b"w0", b"guess"
    stranger.connect(("ipc://" if channel == "data_ipc" else "") + server.addresses[channel])
    server.wait_for(lambda: server.endpoint.refused == {Refusal.TICKET: 1})
    assert still_serves(client)


def unused_ticket(server: EchoServer, context: zmq.Context, identity: bytes) -> bytes:
    with control_to(server, context, identity=identity, hello={"data": "tcp", "encrypt": True}) as control:
        return control.welcome["ticket"].encode()


def test_a_ticket_does_not_let_its_holder_speak_for_another(
    server: EchoServer, connect: Connect, stranger: zmq.Socket, context: zmq.Context
):
    client = connect(server.addresses, b"w2")
    stranger.plain_username, stranger.plain_password = b"w1", unused_ticket(server, context, b"w1")
    stranger.routing_id = b"w9"
    stranger.connect(server.addresses["data_tcp"])
    chunk = encode_chunk(Header(kind=1, generation=0), job=job_digest(JOB), total_bytes=1, offset=0, meta=None)
    stranger.send_multipart([chunk, b"x"])
    server.wait_for(lambda: server.endpoint.refused == {Refusal.TICKET: 1})
    assert still_serves(client)
    assert all(bulk.peer != b"w9" for bulk in server.seen)


def test_a_ticket_that_was_read_on_its_way_takes_nothing_over(
    server: EchoServer, connect: Connect, stranger: zmq.Socket
):
    client = connect(server.tcp_addresses, b"w1")
    stranger.plain_username, stranger.plain_password = b"w1", client._control.welcome["ticket"].encode()
    stranger.routing_id = b"w1"
    stranger.connect(server.addresses["data_tcp"])
    server.wait_for(lambda: server.endpoint.refused == {Refusal.TICKET: 1})
    assert still_serves(client)


def test_a_member_s_key_does_not_let_it_speak_for_another(server: EchoServer, connect: Connect, stranger: zmq.Socket):
    client, own = connect(server.addresses, b"w2"), KEYS.of_peer(b"w1")
    stranger.curve_publickey, stranger.curve_secretkey = own.public, own.secret
    stranger.curve_serverkey = KEYS.server.public
    stranger.routing_id = b"w9"
    stranger.connect(server.addresses["control"])
    stranger.send(encode_control(1, {}, job=job_digest(JOB), generation=0))
    server.wait_for(lambda: server.endpoint.refused == {Refusal.KEY: 1})
    assert still_serves(client)
    assert all(incoming.peer != b"w9" for incoming in server.seen)


@pytest.mark.parametrize("channel", ["control", "data_tcp"])
@pytest.mark.parametrize(
    "garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 300, b"\x01\x02", b"\x80\x04\x95cposix\nsystem\n"]
)
def test_garbage_over_tcp_is_refused_and_counted(server: EchoServer, connect: Connect, channel: str, garbage: bytes):
    host, port = server.addresses[channel].removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(garbage)
    server.wait_for(lambda: server.endpoint.refused == {Refusal.HANDSHAKE: 1})
    assert still_serves(connect(server.addresses))


@pytest.mark.parametrize(("link", "num_refused"), [("ipc", 2), ("tcp", 8)])  # the control message, and 1 or 7 chunks
def test_messages_of_another_generation_are_refused_and_counted(
    server: EchoServer, connect: Connect, link: str, num_refused: int
):
    client = connect(server.addresses if link == "ipc" else server.tcp_addresses)
    client.generation = 7
    client.send_control(1, {})
    client.push(Header(kind=1, generation=7), payload=np.zeros(7 * SEALED.chunk_bytes, dtype=np.uint8))
    server.wait_for(lambda: server.endpoint.refused == {Refusal.FOREIGN_GENERATION: num_refused})
    assert server.seen == []
    server.endpoint.generation = 7
    assert still_serves(client)


def test_a_client_is_told_the_generation_it_joins(server: EchoServer, connect: Connect):
    server.endpoint.generation = 3
    client = connect(server.addresses)
    assert client.generation == 3
    assert still_serves(client)


def test_a_client_of_another_job_does_not_even_connect(server: EchoServer, context: zmq.Context):
    with pytest.raises(TransportError, match='runs job "test job", not "mine"'):
        ControlClient(server.addresses, identity=b"w0", job="mine", keys=KEYS, context=context, timeout_s=PATIENCE_S)


def test_messages_of_another_job_under_the_same_key_are_refused_and_counted(
    server: EchoServer, connect: Connect, context: zmq.Context
):
    addresses = KEYS.sealed({**server.addresses, "job": "mine"})
    with pytest.raises(TransportError, match="did not welcome"):
        ControlClient(addresses, identity=b"w0", job="mine", keys=KEYS, context=context, timeout_s=1.0)
    server.wait_for(lambda: server.endpoint.refused == {Refusal.FOREIGN_JOB: 1})
    client = connect(server.addresses)
    foreign = encode_chunk(Header(kind=1, generation=0), job=job_digest("mine"), total_bytes=1, offset=0, meta=None)
    client._data.socket.send_multipart([foreign, b"x"])
    server.wait_for(lambda: server.endpoint.refused == {Refusal.FOREIGN_JOB: 2})
    assert still_serves(client)


def test_a_payload_beyond_the_limit_is_refused_once_before_memory_is_taken(start_server: StartServer, connect: Connect):
    server = start_server(max_bulk_bytes=2**20)
    client = connect(server.addresses)
    assert still_serves(client)
    num_allocated = server.endpoint._memory.pool.num_allocated
    client.push(Header(kind=1, generation=0, request=99), payload=np.zeros(5 * 2**20, dtype=np.uint8))
    assert still_serves(client)
    assert server.endpoint.refused == {Refusal.OVERSIZE: 1}
    assert server.endpoint._memory.pool.num_allocated == num_allocated


def chunk(*, total_bytes: int, offset: int, request: int = 0, form: Form = Form.PART) -> bytes:
    header = Header(kind=1, generation=0, request=request)
    return encode_chunk(header, job=job_digest(JOB), total_bytes=total_bytes, offset=offset, meta=None, form=form)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([[b"short", b"x"]], Refusal.MALFORMED),
        ([[b"\x80\x04" + bytes(70), b"x"]], Refusal.MALFORMED),
        ([[chunk(total_bytes=4, offset=0)]], Refusal.MALFORMED),
        ([[chunk(total_bytes=4, offset=0), b"12345"]], Refusal.MALFORMED),
        ([[chunk(total_bytes=4, offset=0), b""]], Refusal.MALFORMED),
        ([[chunk(total_bytes=0, offset=0), b"1"]], Refusal.MALFORMED),
        ([[chunk(total_bytes=4, offset=0), b"12", b"34"]], Refusal.MALFORMED),
        ([[chunk(total_bytes=4, offset=0) + b"[1]", b"1234"]], Refusal.MALFORMED),
        ([[chunk(total_bytes=4, offset=0) + b"[" * 100_000, b"1234"]], Refusal.MALFORMED),
        ([[chunk(total_bytes=4, offset=0, form=Form.WHOLE), b"123"]], Refusal.MALFORMED),
        ([[chunk(total_bytes=4, offset=0, form=Form.WHOLE), b"1234", b"5"]], Refusal.MALFORMED),
        ([[chunk(total_bytes=2**60, offset=0), b"1234"]], Refusal.OVERSIZE),
        ([[chunk(total_bytes=2**60, offset=0, form=Form.WHOLE), b"1234"]], Refusal.OVERSIZE),
        ([[chunk(total_bytes=4, offset=0) + b'{"a":"%s"}' % (b"x" * MAX_META_BYTES), b"1234"]], Refusal.OVERSIZE),
        ([[chunk(total_bytes=4, offset=2), b"34"]], Refusal.OUT_OF_ORDER),
        ([[chunk(total_bytes=6, offset=0), b"12"], [chunk(total_bytes=6, offset=4), b"56"]], Refusal.OUT_OF_ORDER),
        ([[chunk(total_bytes=6, offset=0), b"12"], [chunk(total_bytes=9, offset=2), b"34"]], Refusal.OUT_OF_ORDER),
    ],
)
def test_chunks_that_make_no_sense_are_refused_and_counted(
    server: EchoServer, connect: Connect, messages: list[list[bytes]], reason: Refusal
):
    client = connect(server.addresses)
    for message in messages:
        client._data.socket.send_multipart(message)
    server.wait_for(lambda: server.endpoint.refused == {reason: 1})
    assert len(server.endpoint._memory.assembler._open) == 0
    assert still_serves(client)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\x80\x04\x95" + bytes(40)],
        [b"one", b"two"],
        [encode_control(1, {}, job=job_digest(JOB), generation=0)[:-2] + b"[]"],
        [encode_control(1, {}, job=job_digest(JOB), generation=0)[:-2] + b'{"a":' * 3_000],
    ],
)
def test_control_messages_that_make_no_sense_are_refused_and_counted(
    server: EchoServer, connect: Connect, frames: list[bytes]
):
    client = connect(server.addresses)
    client._control._channel.socket.send_multipart(frames)
    server.wait_for(lambda: server.endpoint.refused == {Refusal.MALFORMED: 1})
    assert still_serves(client)


def test_what_a_sender_may_not_send_is_its_own_error(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    with pytest.raises(ValueError, match="bytes of JSON"):
        client.send_control(1, {"text": "x" * 5_000_000})
    with pytest.raises(ValueError, match="bytes of JSON"):
        client.push(Header(kind=1, generation=0), meta={"text": "x" * 300_000})
    with pytest.raises(ValueError, match="out of range"):
        client.push(Header(kind=1, generation=-1))


def test_a_server_that_has_ended_is_not_waited_for(server: EchoServer, context: zmq.Context):
    server.close()
    with pytest.raises(TransportError, match=r"no server answers at tcp://\S+: it has ended"):
        control_to(server, context)
