"""Accelerators, and machines made of them.

``accelerators.toml`` lists the accelerators. Peaks are a data sheet's, dense and without sparsity. Prices are round
numbers for an accelerator and hour on demand, an assumption to be replaced by one's own. Links inside a host are bus
bandwidths that nccl-tests measured (`plesio/cost/clusters`), or, where nobody did, that share of the data sheet's
which they measured on the H100; those between hosts are a data sheet's, of one host with all its adapters.

A *host* is what one fast network joins: a board of eight, a rack of 72 GB200, or a slice of TPUs, whose torus takes
thousands. Devices of racks and of slices have adapters of their own, so a smaller host has fewer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from plesio.core.errors import ConfigError, nearest
from plesio.core.units import parse_bytes
from plesio.cost.cluster import NAMED_CLUSTERS
from plesio.cost.link import Link
from plesio_planning.texts import read_texts

Precision = str
"""``fp32``, ``tf32``, ``fp16``, ``bf16`` or ``fp8``: what matrices are multiplied in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device.

    Attributes:
        name: As in `find_accelerator`.
        architecture: Family that shares its efficiency: ``volta``, ``ampere``, ``hopper``, ``blackwell``, ``cdna3``,
            ``tpu``, ``trainium``.
        flops_per_s: Peak by precision.
        power_w: Most that it draws, watts.
        price_per_h: US dollars an hour.
        local: Link between the devices of a host, each to one other.
        nic: Link of a host to the others, all adapters together; with ``own_adapters`` of one device.
        devices_per_host: Most devices that the local link joins.
        own_adapters: Every device has adapters of its own, whatever the size of its host.
        exchanges_apart: Exchanges slow no computing down, since they have engines of their own.
        offered: Clouds everywhere offer it, so that a search for machines tries it without being told.
    """

    name: str
    architecture: str
    flops_per_s: Mapping[str, float]
    memory_bytes: int
    memory_bytes_per_s: float
    power_w: float
    price_per_h: float
    local: Link
    nic: Link
    devices_per_host: int = 8
    own_adapters: bool = False
    exchanges_apart: bool = False
    offered: bool = True

    def nic_of(self, num_devices: int) -> Link:
        """Return the link of a host of so many devices to the others."""
        return replace(self.nic, bytes_per_s=num_devices * self.nic.bytes_per_s) if self.own_adapters else self.nic

    def host_of(self, num_devices: int) -> int:
        """Return the devices of a host in a machine of so many: as many as there can be.

        Hosts of eight must be whole; of a rack or a slice less than half of the devices may stay without work.

        Raises:
            ConfigError: Of racks or slices more would.
        """
        size = self._largest_host(num_devices)
        if self.fills_hosts(num_devices):
            return size
        most = self.devices_per_host
        fewer = next(number for number in range(num_devices - 1, 0, -1) if self.fills_hosts(number))
        more = next(number for number in range(num_devices + 1, num_devices + most + 1) if self.fills_hosts(number))
        raise ConfigError(
            f"{num_devices} devices fill hosts of {size} alike, and a host of {self.name} has room for {most}; write "
            f"{fewer} or {more}"
        )

    def fills_hosts(self, num_devices: int) -> bool:
        """Return whether so many devices are one host, or can be divided among hosts that are more than half full."""
        single = num_devices <= self.devices_per_host
        return single or not self.own_adapters or 2 * self._largest_host(num_devices) > self.devices_per_host

    def _largest_host(self, num_devices: int) -> int:
        most = min(num_devices, self.devices_per_host)
        if not self.own_adapters:
            return most
        return next((size for size in range(most, 0, -1) if num_devices % size == 0), 1)

    def peak(self, precision: Precision) -> float:
        """Return the FLOPs per second in a precision.

        Raises:
            ConfigError: It does not compute in this precision.
        """
        if precision not in self.flops_per_s:
            raise ConfigError(f'{self.name} does not multiply in "{precision}"; {nearest(precision, self.flops_per_s)}')
        return self.flops_per_s[precision]


_NVLINK_SHARE = NAMED_CLUSTERS["16x8h100"].local.bytes_per_s / 450e9
"""Measured share of the data sheet's 450 GB/s each way on the H100; it is assumed where nothing was measured."""


def _link(written: str | dict[str, Any], kind: Literal["local", "nic"]) -> Link:
    """Make a link, of a named cluster or of the numbers that are written."""
    if isinstance(written, str):
        found: Link = getattr(NAMED_CLUSTERS[written], kind)
        return found
    numbers = dict(written)
    if "data_sheet_bytes_per_s" in numbers:
        numbers["bytes_per_s"] = _NVLINK_SHARE * numbers.pop("data_sheet_bytes_per_s")
    return Link(**numbers)


def _accelerators_of(data: dict[str, Any]) -> dict[str, Accelerator]:
    found = {}
    for name, written in data.items():
        local, nic = _link(written.pop("local"), "local"), _link(written.pop("nic"), "nic")
        memory_bytes = int(parse_bytes(written.pop("memory")))
        found[name] = Accelerator(name=name, memory_bytes=memory_bytes, local=local, nic=nic, **written)
    return found


_DATA = read_texts("accelerators", package="plesio_planning.estimate")
_SYNONYMS: Mapping[str, str] = _DATA.pop("synonyms")
ACCELERATORS: Mapping[str, Accelerator] = _accelerators_of(_DATA)
"""Accelerators by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hosts alike, full of accelerators alike.

    Attributes:
        local: Link between the devices of a host.
        nic: Link of a host to the others, all adapters together, which its devices share.
    """

    accelerator: Accelerator
    num_devices: int
    devices_per_host: int
    local: Link
    nic: Link

    def __post_init__(self) -> None:
        if self.num_devices < 1 or self.devices_per_host < 1:
            raise ConfigError("a cluster needs at least one device, and each of its hosts one; write 1 or more")
        if self.num_devices % self.devices_per_host:
            whole = max(self.num_devices // self.devices_per_host, 1) * self.devices_per_host
            raise ConfigError(
                f"{self.num_devices} devices do not fill hosts of {self.devices_per_host}; write {whole} or "
                f"{whole + self.devices_per_host}"
            )

    @property
    def num_hosts(self) -> int:
        """Hosts."""
        return self.num_devices // self.devices_per_host

    @property
    def name(self) -> str:
        """The machine's name in the form that `parse_machine` reads.

        >>> parse_machine("2048xh100").name
        '2048xh100'
        """
        return f"{self.num_devices}x{self.accelerator.name}"


def find_accelerator(name: str) -> Accelerator:
    """Find the accelerator of that name.

    >>> find_accelerator("A100-80GB").name
    'a100'

    Raises:
        ConfigError: There is none.
    """
    key = name.strip().lower().replace("_", "-")
    key = _SYNONYMS.get(key, key)
    if key not in ACCELERATORS:
        raise ConfigError(f'unknown accelerator "{name}"; {nearest(key, ACCELERATORS)}')
    return ACCELERATORS[key]


def parse_machine(text: str) -> Machine:
    """Parse devices by number and name, in hosts of eight, or hosts of another size as in ``16x4a100``.

    >>> machine = parse_machine("2048xh100")
    >>> machine.num_hosts, machine.devices_per_host
    (256, 8)
    >>> parse_machine("16x4a100").num_devices, parse_machine("4xa100").num_hosts
    (64, 1)

    Raises:
        ConfigError: Not of this form, no such accelerator, or hosts that are not full.
    """
    match = re.fullmatch(r"\s*(\d+)x(\d*)([A-Za-z][\w-]*)\s*", text)
    if match is None:
        raise ConfigError(f'"{text}" is no machine; write a number and an accelerator, as in "2048xh100"')
    accelerator = find_accelerator(match[3])
    if not match[2]:
        return machine_of(accelerator, int(match[1]))
    return machine_of(accelerator, int(match[1]) * int(match[2]), devices_per_host=int(match[2]))


def machine_of(accelerator: Accelerator, num_devices: int, *, devices_per_host: int | None = None) -> Machine:
    """Make a machine of so many devices, in hosts of the size given, or in the accelerator's own.

    >>> machine_of(find_accelerator("gb200"), 2048).devices_per_host
    64

    Raises:
        ConfigError: Hosts that are not full, or larger than any.
    """
    if devices_per_host is None:
        devices_per_host = accelerator.host_of(num_devices)
    return Machine(
        accelerator=accelerator,
        num_devices=num_devices,
        devices_per_host=devices_per_host,
        local=accelerator.local,
        nic=accelerator.nic_of(devices_per_host),
    )
