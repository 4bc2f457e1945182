"""Hosts on this machine: they reach each other, take the time and use the cores they should, and leave nothing."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.testbed.control_groups import group_names, why_no_groups
from plesio.testbed.held import Wish, held, hold, let_go, named, remove_leftovers
from plesio.testbed.host import Host
from plesio.testbed.namespaces import in_namespace, why_no_namespaces
from plesio.testbed.testbed import FOLDER, Testbed

NO_NAMESPACES = why_no_namespaces()
pytestmark = pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))
LATENCY_S = 0.02


def cluster(*, hosts: int = 2, racks: int = 1, latency_s: float = 0.0, bytes_per_s: float = 125e6) -> Cluster:
    link = Link(latency_s=latency_s, bytes_per_s=bytes_per_s)
    return Cluster(name="test", hosts=hosts, racks=racks, workers_per_host=1, cores_per_host=1, nic=link, uplink=link)


@pytest.fixture(scope="module")
def racks() -> Iterator[Testbed]:
    with Testbed.of(cluster(hosts=3, racks=2)) as testbed:
        yield testbed


def listening(host: Host) -> socket.socket:
    with in_namespace(host.namespace):
        return socket.create_server((host.address, 0))


def connected(host: Host, listener: socket.socket) -> socket.socket:
    with in_namespace(host.namespace):
        return socket.create_connection(listener.getsockname(), timeout=20)


def left_of(testbed: Testbed) -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    names = set(testbed.network.namespaces)
    files = {path.name for path in FOLDER.glob("*.json")} & {f"{testbed.network.prefix}.json"}
    return ({line.split()[0] for line in listed.splitlines()} & names) | (group_names("plesio-") & names) | files


def test_hosts_of_all_racks_reach_each_other(racks: Testbed):
    assert [host.rack for host in racks.hosts] == [0, 0, 1]
    for source, target in ((0, 1), (0, 2), (2, 1)):
        with listening(racks.hosts[target]) as listener, connected(racks.hosts[source], listener) as sender:
            receiver, _ = listener.accept()
            with receiver:
                sender.sendall(b"hello")
                assert receiver.recv(5) == b"hello"


def test_this_thread_is_back_where_it_was(racks: Testbed):
    before = os.stat("/proc/thread-self/ns/net").st_ino
    with in_namespace(racks.hosts[0].namespace):
        assert os.stat("/proc/thread-self/ns/net").st_ino != before
    assert os.stat("/proc/thread-self/ns/net").st_ino == before


def test_a_command_runs_on_its_host(racks: Testbed):
    script = "import os; print(os.stat('/proc/self/ns/net').st_ino)"
    outputs = {
        subprocess.run(host.command([sys.executable, "-c", script]), capture_output=True, text=True, check=True).stdout
        for host in racks.hosts
    }
    assert len(outputs) == 3


def test_interfaces_count_what_is_sent(racks: Testbed):
    source, target = racks.hosts[0], racks.hosts[2]
    sent, received = source.traffic().sent, target.traffic().received
    number = 3_000_000
    with listening(target) as listener, connected(source, listener) as sender, ThreadPoolExecutor() as other:
        receiver, _ = listener.accept()
        with receiver:
            arrived = other.submit(lambda: sum(iter(lambda: len(receiver.recv(1 << 16)), 0)))
            sender.sendall(bytes(number))
            sender.shutdown(socket.SHUT_WR)
            assert arrived.result() == number
    assert number < source.traffic().sent - sent < 1.08 * number  # headers of 66 bytes for each 1,448
    assert number < target.traffic().received - received < 1.08 * number


@pytest.mark.parametrize("jitter_s", [pytest.param(0.0, marks=pytest.mark.slow), 0.002])
def test_latency_is_charged_once_each_way(jitter_s: float):
    with Testbed.of(cluster(latency_s=LATENCY_S), jitter_s=jitter_s) as testbed:
        source, target = testbed.hosts
        with listening(target) as listener, connected(source, listener) as sender:
            receiver, _ = listener.accept()
            with receiver:
                times_s, order = [], b""
                for number in range(8):
                    begun_s = time.monotonic()
                    sender.sendall(bytes([number]))
                    order += receiver.recv(1)
                    receiver.sendall(b".")
                    assert sender.recv(1) == b"."
                    times_s.append(time.monotonic() - begun_s)
        assert order == bytes(range(8))
        assert min(times_s) > 2 * (LATENCY_S - 3 * jitter_s)  # never less, whatever else this machine does


def test_much_comes_through_a_link_with_latency_as_it_was_sent():
    with Testbed.of(cluster(latency_s=0.005, bytes_per_s=12.5e6)) as testbed:
        source, target = testbed.hosts
        text = os.urandom(1 << 20)
        with listening(target) as listener, connected(source, listener) as sender, ThreadPoolExecutor() as other:
            receiver, _ = listener.accept()
            with receiver:
                arrived = other.submit(lambda: b"".join(iter(lambda: receiver.recv(1 << 16), b"")))
                sender.sendall(text)
                sender.shutdown(socket.SHUT_WR)
                assert arrived.result() == text


@pytest.mark.skipif(why_no_groups() is not None, reason=str(why_no_groups()))
class TestLimits:
    def test_a_host_uses_no_more_cores_than_it_has(self):
        burn = "import time; s = time.monotonic()\nwhile time.monotonic() < s + 1: pass\nprint(time.process_time())"
        with Testbed.of(cluster(), cores_per_host=0.3) as testbed:
            command = testbed.hosts[0].command([sys.executable, "-c", burn])
            used_s = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert used_s < 0.6  # what it takes to start is in it

    def test_who_takes_more_memory_than_the_host_has_is_killed(self):
        take = "data = bytearray(1 << 28); data[::4096] = bytes(len(data[::4096]))"
        small = Cluster(
            name="small",
            hosts=1,
            workers_per_host=1,
            cores_per_host=1,
            memory_bytes=1 << 26,
            nic=Link(latency_s=0.0, bytes_per_s=1e8),
        )
        with Testbed.of(small) as testbed:
            done = subprocess.run(testbed.hosts[0].command([sys.executable, "-c", take]), check=False)
        assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


def asleep_on(host: Host) -> subprocess.Popen[str]:
    """A process that sleeps on `host` and has arrived there: before that, an end of the host is an error of `ip`."""
    command = host.command(["sh", "-c", "echo here; exec sleep 60"])
    sleeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert sleeper.stdout is not None
    with sleeper.stdout:
        assert sleeper.stdout.readline() == "here\n"
    return sleeper


def test_nothing_is_left_when_it_is_closed():
    with Testbed.of(cluster(latency_s=LATENCY_S), cores_per_host=1.0) as testbed:
        sleeper = asleep_on(testbed.hosts[0])
        assert left_of(testbed)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not left_of(testbed)


def test_nothing_is_left_when_it_cannot_be_made(monkeypatch: pytest.MonkeyPatch):
    made: list[Testbed] = []

    def fail(testbed: Testbed) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("plesio.testbed.network.Network.set_rate", lambda self, *_, **__: fail(made[0]))
    monkeypatch.setattr(Testbed, "_start_reaper", lambda self: made.append(self) or START(self))
    with pytest.raises(KeyboardInterrupt):
        Testbed.of(cluster())
    assert not left_of(made[0])


START = Testbed._start_reaper


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_nothing_is_left_of_one_whose_owner_is_killed(signal_number: int):
    hold(Wish(name="doomed", cluster="name = 'doomed'\nhosts = 2\n[nic]\nlatency = '5 ms'\nbandwidth = '1 Gbit/s'"))
    record = named("doomed")
    sleeper = asleep_on(record.hosts[1])
    os.kill(record.owner_pid, signal_number)
    assert sleeper.wait(20) == -signal.SIGKILL
    deadline_s = time.monotonic() + 20
    while any(host.namespace in names() for host in record.hosts) or "doomed" in {one.name for one in held()}:
        assert time.monotonic() < deadline_s, names()
        time.sleep(0.05)


def names() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines()]


def test_one_that_is_held_is_found_by_its_name_until_it_is_let_go():
    record = hold(Wish(name="mine", cluster="4x1gbe"))
    try:
        assert (record.num_slots, record.workers_per_host) == (4, 1)
        with pytest.raises(ConfigError, match='there is a testbed "mine" already'):
            hold(Wish(name="mine", cluster="4x1gbe"))
        with pytest.raises(ConfigError, match='there is no testbed "mien"'):
            named("mien")
    finally:
        let_go(record)
    with pytest.raises(ConfigError, match='there is no testbed "mine"'):
        named("mine")


def test_what_nobody_holds_is_a_leftover_and_what_somebody_does_is_none():
    gone = subprocess.Popen(["true"])
    gone.wait()
    name = f"plesio-{gone.pid}-0-net"
    subprocess.run(["ip", "netns", "add", name], check=True)
    with Testbed.of(cluster()) as testbed:
        assert name in remove_leftovers()
        assert left_of(testbed)
    assert name not in names()
