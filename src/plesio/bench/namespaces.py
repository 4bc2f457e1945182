"""Hosts in racks on one machine: network namespaces, joined by switches whose links have a set bandwidth.

    host --- rack's switch --- core switch --- rack's switch --- host
         nic               uplink          uplink            nic

Every host is a namespace with a veth pair to its rack's bridge, and every rack's bridge has one to the core's. Both
ends of each pair are limited by a token bucket (``tc tbf``), so each direction has its bandwidth for itself, as in
`plesio.cost.cluster`. A bucket holds what its link carries in a millisecond, so that what goes through at once after a
pause is little. The bridges are in a namespace of their own: nothing is changed in the one this process is in. Latency
is that of the machine (veth pairs have none to speak of), and all hosts share its cores.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plesio.core.errors import ConfigError, PlesioError

__all__ = ["INTERFACE", "NetworkHost", "networked_racks", "why_no_namespaces"]

INTERFACE = "nic"
"""A host's interface, in its namespace."""
BUCKET_S = 1e-3
FEWEST_BUCKET_BYTES = 16_384
QUEUE_S = 0.02
"""How long a packet may wait for a link; what would wait longer is dropped, as a switch does."""
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkHost:
    """One host.

    Attributes:
        namespace: Its network namespace.
        address: Its address; the hosts of all racks reach each other.
        rack: Number of its rack.
    """

    namespace: str
    address: str
    rack: int

    def command(self, *argv: str) -> list[str]:
        """The command line that runs ``argv`` on this host."""
        return ["ip", "netns", "exec", self.namespace, *argv]


def why_no_namespaces() -> str | None:
    """What keeps this process from making such hosts, in words; None if nothing does."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "ip and tc are needed (Debian's package iproute2)"
    name = _name("try")
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", name, "link", "add", "one", "type", "veth", "peer", "name", "other")
        _limit(name, "one", bytes_per_s=1e6)
    except PlesioError as error:
        return str(error)
    finally:
        _remove(name)
    return None


@contextlib.contextmanager
def networked_racks(
    sizes: Sequence[int], *, nic_bytes_per_s: Sequence[float] | float, uplink_bytes_per_s: float
) -> Iterator[tuple[NetworkHost, ...]]:
    """Hosts in racks, which are gone after the context, whatever happens in it.

    Processes that were started on a host must have ended by then.

    Args:
        sizes: Hosts of each rack.
        nic_bytes_per_s: Bandwidth of each direction of a host's interface: of all, or host by host.
        uplink_bytes_per_s: Bandwidth of each direction of a rack's link to the others.

    Yields:
        The hosts, rack by rack.

    Raises:
        ConfigError: No hosts, more than 250 in a rack, or not a bandwidth for each.
        PlesioError: The namespaces cannot be made; why, as ``ip`` or ``tc`` says it.
    """
    if not sizes or not all(0 < size <= 250 for size in sizes):
        raise ConfigError(f"racks of {list(sizes)} hosts; write 1 to 250 for each rack")
    total = sum(sizes)
    nics = list(nic_bytes_per_s) if isinstance(nic_bytes_per_s, Sequence) else [nic_bytes_per_s] * total
    if len(nics) != total or min(*nics, uplink_bytes_per_s) <= 0:
        raise ConfigError(f"bandwidths {nics} and {uplink_bytes_per_s} for {total} hosts; write one each, more than 0")
    run = next(_NUMBERS)
    switches = _name(f"{run}-net")
    hosts = tuple(
        NetworkHost(namespace=_name(f"{run}-{rack}-{number}"), address=f"10.77.{rack}.{number + 1}", rack=rack)
        for rack, size in enumerate(sizes)
        for number in range(size)
    )
    try:
        _run("ip", "netns", "add", switches)
        _add_bridge(switches, "core")
        for rack in range(len(sizes)):
            _add_bridge(switches, f"rack{rack}")
            _wire((switches, f"up{rack}"), (switches, f"down{rack}"), bytes_per_s=uplink_bytes_per_s)
            _plug(switches, f"up{rack}", bridge=f"rack{rack}")
            _plug(switches, f"down{rack}", bridge="core")
        for number, (host, nic) in enumerate(zip(hosts, nics, strict=True)):
            _run("ip", "netns", "add", host.namespace)
            _wire((host.namespace, INTERFACE), (switches, f"port{number}"), bytes_per_s=nic)
            _run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/16", "dev", INTERFACE)
            _run("ip", "-n", host.namespace, "link", "set", "lo", "up")
            _plug(switches, f"port{number}", bridge=f"rack{host.rack}")
        yield hosts
    finally:
        for name in (*(host.namespace for host in hosts), switches):
            _remove(name)


def _name(what: str) -> str:
    return f"plesio-{os.getpid()}-{what}"


def _add_bridge(namespace: str, name: str) -> None:
    _run("ip", "-n", namespace, "link", "add", name, "type", "bridge")
    _run("ip", "-n", namespace, "link", "set", name, "up")


def _wire(one: tuple[str, str], other: tuple[str, str], *, bytes_per_s: float) -> None:
    """Connect two interfaces, each in its namespace; each sends at this bandwidth."""
    peer = ("peer", "name", other[1], "netns", other[0])
    _run("ip", "link", "add", one[1], "netns", one[0], "type", "veth", *peer)
    for namespace, name in (one, other):
        _limit(namespace, name, bytes_per_s=bytes_per_s)
        _run("ip", "-n", namespace, "link", "set", name, "up")


def _plug(namespace: str, name: str, *, bridge: str) -> None:
    _run("ip", "-n", namespace, "link", "set", name, "master", bridge)


def _limit(namespace: str, name: str, *, bytes_per_s: float) -> None:
    bucket = max(FEWEST_BUCKET_BYTES, round(BUCKET_S * bytes_per_s))
    queue = bucket + round(QUEUE_S * bytes_per_s)
    rate = ("rate", f"{round(8 * bytes_per_s)}bit", "burst", str(bucket), "limit", str(queue))
    _run("tc", "-n", namespace, "qdisc", "add", "dev", name, "root", "tbf", *rate)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or f"status {done.returncode}"
        raise PlesioError(f"cannot make test hosts: {' '.join(command)}: {reason}")


def _remove(namespace: str) -> None:
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)  # not there if never made
