"""Seconds that devices exchange, by which of them take part.

The devices of a group are ``stride`` ranks apart. Devices of one host reach each other over its NVLink; between hosts
all groups that have a member in a host share its adapters, so a group of k members a host gets k shares of them
(`plesio_planning.estimate.layout` has the order of ranks). Where groups do not divide hosts, as six devices of eight,
some lie across two of them; all wait for the one that is spread the most.
"""

import functools
from dataclasses import dataclass
from typing import Literal

from plesio.cost.all_reduce import nccl_all_reduce_s
from plesio.cost.link import Link
from plesio_planning.estimate.constants import Constants
from plesio_planning.estimate.hardware import Machine


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that exchange with each other.

    Attributes:
        num_hosts: Hosts of the group that is spread over the most.
        per_host: Fewest members in a host.
        adapter_bytes_per_s: A device's share of its host's adapters.
        link: Link between hosts; its bandwidth is what each of them sends and receives in a ring.
        driven: Share of a host's adapters that a ring of the group drives at a time; 1 inside a host.
    """

    size: int
    num_hosts: int
    per_host: int
    local: Link
    adapter_bytes_per_s: float
    link: Link
    driven: float

    @classmethod
    def of(
        cls, machine: Machine, *, size: int, stride: int, constants: Constants, one_adapter: bool = False
    ) -> "DeviceGroup":
        """Make groups of this size with members ``stride`` ranks apart; with ``one_adapter`` each has one of a host."""
        num_hosts, per_host = _most_spread(size, stride, machine.devices_per_host, machine.num_devices)
        adapter = machine.nic.bytes_per_s * constants.network_efficiency / machine.devices_per_host
        bytes_per_s, adapters = machine.local.bytes_per_s, 1 if one_adapter else per_host
        if num_hosts > 1:
            bytes_per_s = min(bytes_per_s, adapter * adapters)
        link = Link(latency_s=machine.nic.latency_s, bytes_per_s=bytes_per_s)
        driven = adapters / machine.devices_per_host if num_hosts > 1 else 1.0
        return cls(size, num_hosts, per_host, machine.local, adapter, link, driven)

    def all_reduce_s(self, num_bytes: float) -> float:
        """Return the seconds of an all-reduce, by a ring or a tree as NCCL chooses."""
        if self.size == 1:
            return 0.0
        return min(self._nccl_all_reduce_s(num_bytes, "ring"), self._nccl_all_reduce_s(num_bytes, "tree"))

    def all_gather_s(self, num_bytes: float) -> float:
        """Return seconds of an all-gather of so many bytes in all, or of a reduce-scatter: half a ring's all-reduce."""
        return 0.0 if self.size == 1 else self._nccl_all_reduce_s(num_bytes, "ring") / 2

    def _nccl_all_reduce_s(self, num_bytes: float, algorithm: Literal["ring", "tree"]) -> float:
        return nccl_all_reduce_s(
            num_bytes,
            num_hosts=self.num_hosts,
            ranks_per_host=self.per_host,
            algorithm=algorithm,
            local_latency_s=self.local.latency_s,
            link=self.link,
        )

    def send_s(self, num_bytes: float) -> float:
        """Return the seconds until everyone has sent so many bytes to the next, by an adapter of its own."""
        if self.num_hosts == 1:
            return self.local.latency_s + num_bytes / self.local.bytes_per_s
        return self.link.latency_s + num_bytes / self.adapter_bytes_per_s

    def spread_s(self, *, local_bytes: float, other_bytes: float) -> float:
        """Return the seconds of an all-to-all in which everyone sends so many bytes inside its host and to others.

        Those for other hosts leave by a device's share of the adapters, those for its own by NVLink, at the same time.
        """
        local_s = local_bytes / self.local.bytes_per_s + (self.per_host - 1) * self.local.latency_s
        if self.num_hosts == 1:
            return local_s
        return max(local_s, other_bytes / self.adapter_bytes_per_s + self.num_hosts * self.link.latency_s)


@functools.cache
def _most_spread(size: int, stride: int, host: int, num_devices: int) -> tuple[int, int]:
    """Return the most hosts of a group, and the fewest members in one of its hosts, of all groups of a machine.

    >>> _most_spread(8, 1, 8, 64), _most_spread(6, 1, 8, 96), _most_spread(4, 8, 8, 64)
    ((1, 8), (2, 2), (4, 1))
    """
    if stride >= host:
        return size, 1
    most_hosts, fewest = 1, size
    starts = {start % host for start in range(0, num_devices, size * stride)}
    for first in {(start + member) % host for start in starts for member in range(stride)}:
        last = first + (size - 1) * stride
        hosts = last // host + 1
        most_hosts = max(most_hosts, hosts)
        if hosts > 1:
            fewest = min(fewest, -(-(host - first) // stride), last % host // stride + 1)
        if hosts > 2:
            fewest = min(fewest, host // stride)
    return most_hosts, fewest


def exposed_in_parts_s(exchange_s: float, *, beside_s: float, parts: int) -> float:
    """Seconds exposed of an exchange in parts beside a product in parts: the first part, and what takes longer.

    >>> exposed_in_parts_s(0.8, beside_s=1.0, parts=8)
    0.1
    """
    return exchange_s / parts + max(exchange_s - beside_s, 0.0) * (parts - 1) / parts


def exposed_in_turn_s(exchange_s: float, *, beside_s: float, parts: int) -> float:
    """Seconds exposed of equal exchanges on one link, each ready when a part has been computed: at least the last's.

    Part i of L is ready at ``i b`` and takes r: the link is done at ``max(L b + r, b + L r)``, computing at ``L b``.

    >>> exposed_in_turn_s(0.8, beside_s=0.2, parts=8)
    0.1

    Args:
        exchange_s: ``L r``, of all exchanges.
        beside_s: b, seconds to compute a part.
        parts: L.
    """
    once_s = exchange_s / parts
    return once_s + max((parts - 1) * (once_s - beside_s), 0.0)
