"""Strangers who open connections and say nothing, or much: the server stays what it was for its members."""

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil
import pytest

from plesio.runtime.transport import Refusal
from support.server_process import ServerUnderTest
from support.transport import PATIENCE_S, Connect, EchoServer

NUM_DESCRIPTORS = 256
FRAME_BYTES = 24 * 2**20


def port_of(address: str) -> tuple[str, int]:
    host, port = address.removeprefix("tcp://").split(":")
    return host, int(port)


@contextmanager
def crowd(address: str, *, num: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """So many connections of strangers."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(port_of(address), source_address=(source, 0)))
            for _ in range(num)
        ]


def num_connections(server: ServerUnderTest) -> int:
    return len(psutil.Process(server.process.pid).net_connections("tcp"))


@pytest.mark.parametrize("channel", ["control", "data_tcp"])
def test_more_idle_connections_than_descriptors_are_in_nobody_s_way(channel: str):
    with ServerUnderTest(num_descriptors=NUM_DESCRIPTORS) as server:
        with crowd(server.addresses[channel], num=2 * NUM_DESCRIPTORS):
            assert server.answers()
            before = server.memory_bytes
            for _ in range(3):
                assert server.answers()
            assert server.memory_bytes - before < 2**23
            assert num_connections(server) < NUM_DESCRIPTORS // 2
        assert server.answers()
        process = psutil.Process(server.process.pid)
        busy_s = sum(process.cpu_times()[:2])
        time.sleep(1.0)  # what is measured: how busy it is when nothing happens
        assert sum(process.cpu_times()[:2]) - busy_s < 0.5


def test_unauthenticated_frames_take_next_to_no_memory():
    with ServerUnderTest() as server:
        assert server.answers()
        before = server.memory_bytes
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(15) + b"\x00" + bytes(31)
        frame = b"\x02" + FRAME_BYTES.to_bytes(8, "big") + bytes(FRAME_BYTES - 1)  # all but the end
        with crowd(server.addresses["data_tcp"], num=40) as strangers:
            for stranger in strangers:
                stranger.settimeout(PATIENCE_S)
                with suppress(ConnectionError):  # it is not let finish
                    stranger.sendall(greeting + frame)
            assert server.answers()
            assert server.memory_bytes - before < 2**26


def test_a_crowd_from_one_address_leaves_those_from_another_alone(server: EchoServer, connect: Connect):
    client = connect(server.addresses)
    with crowd(server.addresses["control"], num=3, source="127.0.0.2") as others:
        for _ in range(4):
            with crowd(server.addresses["control"], num=100):
                server.wait_for(lambda: len(server.endpoint._control_watch._live) > 64)
        server.wait_for(lambda: server.endpoint.refused[Refusal.HANDSHAKE] >= 400)
        for other in others:
            other.setblocking(False)
            assert other.recv(10)[:1] == b"\xff"  # the greeting
            with pytest.raises(BlockingIOError):  # and then nothing, not the end
                other.recv(100)
    assert connect(server.addresses, b"w1")
    client.send_control(1, {})
    assert client.poll(PATIENCE_S)


def test_the_limits_follow_from_the_descriptors_that_there_are(server: EchoServer):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert server.endpoint._control_watch._max_waiting == min(128, soft // 8)
