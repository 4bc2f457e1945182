"""Bulk data between hosts: what a stranger on the way can read, change, repeat or leave out."""

import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import TransportError
from plesio.runtime.transport import Refusal
from plesio.runtime.transport.seal import SEAL_BYTES, Seal, new_seal_key, wants_encryption
from plesio.runtime.transport.wire import WireError
from support.transport import (
    KEYS,
    PATIENCE_S,
    Connect,
    EchoServer,
    StartServer,
    header_of,
    request,
)

MARK = np.frombuffer(b"the parameters of the model" * 1000, dtype=np.uint8)


class Wire:
    """Passes on what goes between a client and a server, remembers it, and changes it when told to."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.seen = bytearray()
        self.change: Callable[[bytes], bytes] = lambda data: data
        self._end_here, self._end_there = socket.socketpair()
        self._thread = threading.Thread(target=self._pass_on)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def _pass_on(self) -> None:
        partner: dict[socket.socket, socket.socket] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._end_there, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    source = key.fileobj
                    if source is self._end_there:
                        for one in partner:
                            one.close()
                        return
                    if source is self._listener:
                        client, server = self._listener.accept()[0], socket.create_connection(self._to)
                        partner |= {client: server, server: client}
                        selector.register(client, selectors.EVENT_READ, True)
                        selector.register(server, selectors.EVENT_READ, False)
                        continue
                    data = self._read(source)
                    if data:
                        self.seen += data
                        partner[source].sendall(self.change(data) if key.data else data)
                    else:
                        selector.unregister(source)
                        with suppress(OSError):  # it has ended too
                            partner[source].shutdown(socket.SHUT_WR)

    def _read(self, source: socket.socket) -> bytes:
        try:
            return source.recv(2**16)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._end_here.send(b"!")
        self._thread.join()
        for one in (self._end_here, self._end_there, self._listener):
            one.close()


@pytest.fixture
def wire(server: EchoServer) -> Iterator[Wire]:
    wire = Wire(server.addresses["data_tcp"])
    yield wire
    wire.close()


def over(wire: Wire, server: EchoServer) -> dict[str, str]:
    return KEYS.sealed({**server.tcp_addresses, "data_tcp": wire.address})


def test_who_listens_on_the_way_reads_nothing(server: EchoServer, wire: Wire, connect: Connect):
    client = connect(over(wire, server))
    meta = {"secret": "of the model"}
    answer = request(client, MARK, meta=meta)
    np.testing.assert_array_equal(answer.payload, MARK)
    assert answer.meta == meta
    assert len(wire.seen) > 2 * MARK.size
    assert b"parameters" not in wire.seen
    assert b"of the model" not in wire.seen


def test_unencrypted_means_that_and_only_if_both_ends_say_so(start_server: StartServer, connect: Connect):
    for at_server, at_client in [(False, False), (True, False), (False, True)]:
        server = start_server(encrypt=at_server)
        wire = Wire(server.addresses["data_tcp"])
        try:
            client = connect(over(wire, server), b"w%d" % (2 * at_server + at_client), encrypt=at_client)
            request(client, MARK)
            assert (b"parameters" in wire.seen) == (not at_server and not at_client)
            client.close()
        finally:
            wire.close()
    assert not wants_encryption({"PLESIO_UNENCRYPTED": "1"})
    assert wants_encryption({})


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_what_is_changed_on_the_way_is_refused_and_ends_the_connection(
    server: EchoServer, wire: Wire, connect: Connect
):
    client, other = connect(over(wire, server)), connect(server.tcp_addresses, b"w1")
    wire.change = flip
    client.push(header_of(client), payload=MARK[:1000])
    server.wait_for(lambda: server.endpoint.refused[Refusal.SEAL] == 1)
    with pytest.raises(TransportError, match="ended the connection"):
        client.poll(PATIENCE_S)
    assert server.seen == []
    request(other, MARK)


@given(st.binary(max_size=100), st.binary(max_size=300), st.data())
def test_a_chunk_opens_once_in_its_place_and_unchanged(head: bytes, body: bytes, data: st.DataObject):
    key = new_seal_key()
    sender, receiver = Seal(key, at_server=False), Seal(key, at_server=True)
    for _ in range(2):
        sealed_head, sealed = sender.close_chunk(head, memoryview(body))
        assert len(sealed_head) - len(head) == sealed.size - len(body) == SEAL_BYTES
        assert receiver.open_head(sealed_head) == head
        place = np.zeros(len(body) + 5, dtype=np.uint8)
        assert receiver.open_body(sealed.data, into=place).tobytes() == body
    with pytest.raises(WireError):  # again
        receiver.open_head(sealed_head)
    sender, receiver = Seal(key, at_server=False), Seal(key, at_server=True)
    first, second = (sender.close_chunk(head, memoryview(body)) for _ in range(2))
    with pytest.raises(WireError):  # the first left out
        receiver.open_head(second[0])
    receiver = Seal(key, at_server=True)
    with pytest.raises(WireError):  # sent back to where it came from
        Seal(key, at_server=False).open_head(first[0])
    receiver.open_head(first[0])
    changed = bytearray(first[1].tobytes())
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(changed), second[1].tobytes(), first[1].tobytes()[:-1], b"", os.urandom(SEAL_BYTES)):
        with pytest.raises(WireError):
            receiver.open_body(memoryview(wrong), into=np.zeros(len(body), dtype=np.uint8))


def test_a_chunk_larger_than_its_place_is_refused_before_it_is_opened():
    key = new_seal_key()
    sender, receiver = Seal(key, at_server=True), Seal(key, at_server=False)
    head, body = sender.close_chunk(b"", memoryview(bytes(10)))
    receiver.open_head(head)
    with pytest.raises(WireError) as raised:
        receiver.open_body(body.data, into=np.zeros(9, dtype=np.uint8))
    assert raised.value.reason is Refusal.MALFORMED
