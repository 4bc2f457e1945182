"""Hosts in racks on one machine: network namespaces, joined by switches whose links have a set bandwidth and latency.

    host --- rack's switch --- core switch --- rack's switch --- host
         nic               uplink          uplink            nic

Every host is a namespace whose interface is connected to its rack's bridge, and every rack's bridge is connected to the
core's. Both ends of each link are limited by a token bucket (``tc tbf``), so each direction has its bandwidth for
itself, as in `plesio.cost.cluster`. A bucket holds what its link carries in a millisecond, so that what goes through at
once after a pause is little. The bridges are in a namespace of their own: nothing is changed in the one this process is
in.

Connections between hosts are controlled by CUBIC, Linux's own, whatever this machine has set for itself: BBR, for one,
spreads a message of 40 kB over a whole latency if nothing larger went before.

A link is a veth pair, whose latency is the machine's, a few hundredths of a millisecond. If a link has
`LEAST_LATENCY_S` or more, or jitter, it is charged on the way out: by the kernel's netem where there is one, and else
by a delay line (`plesio.testbed.delay_line`). All hosts share the machine's cores.
"""

import itertools
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from plesio.core.errors import ConfigError, PlesioError
from plesio.cost.link import Link
from plesio.testbed.delay_line import DelayLines, Line
from plesio.testbed.host import INTERFACE, Host
from plesio.testbed.namespaces import run_command

LEAST_LATENCY_S = 0.2e-3
"""Less is the machine's own."""
SUBNET = "10.77.0.0/16"
"""The addresses of all hosts."""
CONGESTION_CONTROL = "cubic"
BUCKET_S = 1e-3
FEWEST_BUCKET_BYTES = 16_384
QUEUE_S = 0.02
"""How long a packet may wait for a link; what would wait longer is dropped, as a switch does."""
_SMALL_PACKET_BYTES = 100
"""Netem's queue is counted in packets."""
_NUMBERS = itertools.count()
_DISABLED, _FORWARDING = "0", "3"
"""States of a port of a bridge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One link with its two ends, each a namespace and the name of an interface there.

    Attributes:
        near: The end that charges latency for what it sends.
        link: Bandwidth of each direction, and latency.
    """

    near: tuple[str, str]
    far: tuple[str, str]
    link: Link

    @property
    def delayed(self) -> bool:
        """True if its latency has to be made."""
        return self.link.latency_s >= LEAST_LATENCY_S

    def delay(self, *, jitter_s: float) -> None:
        """Have the kernel charge the latency; to be called before `shape`."""
        namespace, name = self.near
        held = round((self.link.latency_s + 6 * jitter_s + QUEUE_S) * self.link.bytes_per_s / _SMALL_PACKET_BYTES)
        latency = ("delay", f"{1e6 * self.link.latency_s:.0f}us", f"{1e6 * jitter_s:.0f}us", "limit", str(held + 1000))
        run_command("tc", "-n", namespace, "qdisc", "add", "dev", name, "root", "handle", "1:", "netem", *latency)

    def shape(self, bytes_per_s: float, *, below_netem: bool = False, verb: str = "add") -> None:
        """Give both directions a bandwidth; ``verb`` is change if they have one."""
        bucket = max(FEWEST_BUCKET_BYTES, round(BUCKET_S * bytes_per_s))
        queue = bucket + round(QUEUE_S * bytes_per_s)
        rate = ("rate", f"{round(8 * bytes_per_s)}bit", "burst", str(bucket), "limit", str(queue))
        for end in (self.near, self.far):
            place = ("parent", "1:1", "handle", "10:") if below_netem and end == self.near else ("root",)
            run_command("tc", "-n", end[0], "qdisc", verb, "dev", end[1], *place, "tbf", *rate)


class Network:
    """Hosts and their links; `make` makes them, and whoever made it removes its namespaces.

    Args:
        sizes: Hosts of each rack.
        nics: Interface of each host, rack by rack.
        uplinks: Link of each rack to the others; none if there is one rack.
        jitter_s: Standard deviation of the latency of links that have one.

    Raises:
        ConfigError: More than 250 hosts in a rack, or racks.
    """

    def __init__(
        self, sizes: Sequence[int], *, nics: Sequence[Link], uplinks: Sequence[Link] = (), jitter_s: float = 0.0
    ) -> None:
        assert len(nics) == sum(sizes), "one for each host"
        assert len(uplinks) == (len(sizes) if len(sizes) > 1 else 0), "one for each rack"
        if max(*sizes, len(sizes)) > 250:
            raise ConfigError(f"{len(sizes)} racks of up to {max(sizes)} hosts; a testbed has at most 250 of each")
        self.prefix = prefix = f"plesio-{os.getpid()}-{next(_NUMBERS)}"
        self.switches = f"{prefix}-net"
        self.hosts = tuple(
            Host(namespace=f"{prefix}-{rack}-{number}", address=f"10.77.{rack}.{number + 1}", rack=rack)
            for rack, size in enumerate(sizes)
            for number in range(size)
        )
        self.nics = tuple(
            Wire(near=(host.namespace, INTERFACE), far=(self.switches, f"port{number}"), link=link)
            for number, (host, link) in enumerate(zip(self.hosts, nics, strict=True))
        )
        self.uplinks = tuple(
            Wire(near=(self.switches, f"up{rack}"), far=(self.switches, f"down{rack}"), link=link)
            for rack, link in enumerate(uplinks)
        )
        self._jitter_s = jitter_s
        self._netem = False
        self._delays: DelayLines | None = None

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All that it needs, whether they are there or not."""
        return (*(host.namespace for host in self.hosts), self.switches)

    def make(self) -> None:
        for namespace in self.namespaces:
            run_command("ip", "netns", "add", namespace)
        self._connect([*self.uplinks, *self.nics])
        racks = {host.rack for host in self.hosts}
        for name in ("core", *(f"rack{rack}" for rack in racks)):
            run_command("ip", "-n", self.switches, "link", "add", name, "type", "bridge")
            run_command("ip", "-n", self.switches, "link", "set", name, "up")
        for rack, wire in enumerate(self.uplinks):
            self._plug(wire.near, bridge=f"rack{rack}")
            self._plug(wire.far, bridge="core")
        for host, wire in zip(self.hosts, self.nics, strict=True):
            self._plug(wire.far, bridge=f"rack{host.rack}")
            run_command("ip", "-n", host.namespace, "addr", "add", f"{host.address}/16", "dev", INTERFACE)
            run_command("ip", "-n", host.namespace, "link", "set", "lo", "up")
        for wire in (*self.uplinks, *self.nics):
            for namespace, name in (wire.near, wire.far):
                run_command("ip", "-n", namespace, "link", "set", name, "up")
            if self._netem and wire.delayed:
                wire.delay(jitter_s=self._jitter_s)
            self.set_rate(wire, wire.link.bytes_per_s, verb="add")
        for host in self.hosts:
            way = (SUBNET, "dev", INTERFACE, "src", host.address, "congctl", CONGESTION_CONTROL)
            run_command("ip", "-n", host.namespace, "route", "replace", *way, "proto", "kernel", "scope", "link")

    def set_rate(self, wire: Wire, bytes_per_s: float, *, verb: str = "change") -> None:
        wire.shape(bytes_per_s, below_netem=self._netem and wire.delayed, verb=verb)

    def cut(self, host: int, *, heal: bool = False) -> None:
        """Have nothing come or go over a host's interface, though its link stays up; or all again."""
        state = _FORWARDING if heal else _DISABLED
        run_command("bridge", "-n", self.switches, "link", "set", "dev", self.nics[host].far[1], "state", state)

    def rate(self, wire: Wire) -> float:
        """Return the bandwidth of one of the links as the kernel has it, in bytes/s."""
        namespace, name = wire.far
        command = ["tc", "-j", "-n", namespace, "qdisc", "show", "dev", name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        [bucket] = [one for one in json.loads(shown) if one["kind"] == "tbf"]
        return float(bucket["options"]["rate"])

    def _connect(self, wires: Sequence[Wire]) -> None:
        delayed = [wire for wire in wires if wire.delayed]
        self._netem = bool(delayed) and has_netem()
        if delayed and not self._netem:
            self._delays = DelayLines([self._line(wire) for wire in delayed])
        for wire in wires:
            if self._netem or not wire.delayed:
                peer = ("peer", "name", wire.far[1], "netns", wire.far[0])
                run_command("ip", "-n", wire.near[0], "link", "add", wire.near[1], "type", "veth", *peer)

    def _line(self, wire: Wire) -> Line:
        return Line(
            near=wire.near,
            far=wire.far,
            latency_s=wire.link.latency_s,
            jitter_s=self._jitter_s,
            bytes_per_s=wire.link.bytes_per_s,
        )

    def _plug(self, end: tuple[str, str], *, bridge: str) -> None:
        namespace, name = end
        run_command("ip", "-n", namespace, "link", "set", name, "master", bridge)

    def close(self) -> None:
        """Let go of the delay lines; the namespaces are the testbed's to remove."""
        if self._delays is not None:
            self._delays.close()
            self._delays = None


def has_netem() -> bool:
    """Return True if this kernel can delay packets by itself."""
    name = f"plesio-{os.getpid()}-netem"
    try:
        run_command("ip", "netns", "add", name)
        run_command("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except PlesioError:
        return False
    finally:
        run_command("ip", "netns", "del", name)
    return True
