"""Accelerators, and machines made of them.

Peaks are a data sheet's, dense and without sparsity. Prices are round numbers for an accelerator and hour on demand, an
assumption to be replaced by one's own. Links inside a host are bus bandwidths that nccl-tests measured
(`plesio.cost.named_clusters`), or, where nobody did, that share of the data sheet's which they measured on the H100;
those between hosts are a data sheet's, of one host with all its adapters.

A *host* is what one fast network joins: a board of eight, a rack of 72 GB200, or a slice of TPUs, whose torus takes
thousands. Devices of racks and of slices have adapters of their own, so a smaller host has fewer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from plesio.core.errors import ConfigError, nearest
from plesio.cost.cluster import NAMED_CLUSTERS
from plesio.cost.link import Link

__all__ = [
    "ACCELERATORS",
    "Accelerator",
    "Machine",
    "Precision",
    "find_accelerator",
    "machine_of",
    "parse_machine",
]

Precision = str
"""``fp32``, ``tf32``, ``fp16``, ``bf16`` or ``fp8``: what matrices are multiplied in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device.

    Attributes:
        name: As in `find_accelerator`.
        architecture: Family that shares its efficiency: ``volta``, ``ampere``, ``hopper``, ``blackwell``, ``cdna3``,
            ``tpu``.
        flops_per_s: Peak by precision.
        memory_bytes: Its memory.
        memory_bytes_per_s: That memory's bandwidth.
        power_w: Most that it draws, watts.
        price_per_h: US dollars an hour.
        local: Link between the devices of a host, each to one other.
        nic: Link of a host to the others, all adapters together; with ``own_adapters`` of one device.
        devices_per_host: Most devices that the local link joins.
        own_adapters: Every device has adapters of its own, whatever the size of its host.
        exchanges_apart: Exchanges slow no computing down, since they have engines of their own.
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

    def nic_of(self, num_devices: int) -> Link:
        """Return the link of a host of so many devices to the others."""
        return replace(self.nic, bytes_per_s=num_devices * self.nic.bytes_per_s) if self.own_adapters else self.nic

    def host_of(self, num_devices: int) -> int:
        """Return the devices of a host in a machine of so many: as many as there can be.

        Hosts of eight must be whole; of a rack or a slice some devices may stay without work.
        """
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


_GIB = 2**30
_A100_PEAKS = {"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12}
_HOPPER_PEAKS = {"fp32": 67e12, "tf32": 494.7e12, "fp16": 989.4e12, "bf16": 989.4e12, "fp8": 1978.9e12}
_BLACKWELL_PEAKS = {"fp32": 80e12, "tf32": 1125e12, "fp16": 2250e12, "bf16": 2250e12, "fp8": 4500e12}
_HDR = Link(latency_s=10e-6, bytes_per_s=200e9)  # DGX A100 data sheet: eight adapters of 200 Gbit/s
_NDR = NAMED_CLUSTERS["16x8h100"].nic
_EDR = Link(latency_s=10e-6, bytes_per_s=50e9)  # DGX-1 data sheet: four adapters of 100 Gbit/s
_DCN = Link(latency_s=20e-6, bytes_per_s=6.25e9)  # a TPU's share of its host's adapters
_B200_NVLINK = Link(latency_s=5.61e-6, bytes_per_s=723e9, shared=False)  # nccl-tests, all-reduce of 1 GiB
_NVLINK_SHARE = NAMED_CLUSTERS["16x8h100"].local.bytes_per_s / 450e9
"""Measured share of the data sheet's 450 GB/s each way on the H100; it is assumed where nothing was measured."""


def _local(bytes_per_s: float) -> Link:
    """Make a link inside a host by its data sheet, each way."""
    return Link(latency_s=5.61e-6, bytes_per_s=_NVLINK_SHARE * bytes_per_s, shared=False)


ACCELERATORS: Mapping[str, Accelerator] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(
            name="v100",  # NVIDIA V100 data sheet, SXM2 32 GB
            architecture="volta",
            flops_per_s={"fp32": 15.7e12, "fp16": 125e12},
            memory_bytes=32 * _GIB,
            memory_bytes_per_s=900e9,
            power_w=300,
            price_per_h=1.0,  # assumption
            local=NAMED_CLUSTERS["8xv100"].local,
            nic=_EDR,
        ),
        Accelerator(
            name="a100-40gb",  # NVIDIA A100 data sheet, SXM
            architecture="ampere",
            flops_per_s=_A100_PEAKS,
            memory_bytes=40 * _GIB,
            memory_bytes_per_s=1555e9,
            power_w=400,
            price_per_h=1.5,  # assumption
            local=NAMED_CLUSTERS["8xa100"].local,
            nic=_HDR,
        ),
        Accelerator(
            name="a100",  # NVIDIA A100 data sheet, SXM 80 GB
            architecture="ampere",
            flops_per_s=_A100_PEAKS,
            memory_bytes=80 * _GIB,
            memory_bytes_per_s=2039e9,
            power_w=400,
            price_per_h=2.0,  # assumption
            local=NAMED_CLUSTERS["8xa100"].local,
            nic=_HDR,
        ),
        Accelerator(
            name="h100",  # NVIDIA H100 data sheet, SXM5 80 GB
            architecture="hopper",
            flops_per_s=_HOPPER_PEAKS,
            memory_bytes=80 * _GIB,
            memory_bytes_per_s=3350e9,
            power_w=700,
            price_per_h=3.0,  # assumption
            local=NAMED_CLUSTERS["16x8h100"].local,
            nic=_NDR,
        ),
        Accelerator(
            name="h200",  # NVIDIA H200 data sheet, SXM 141 GB
            architecture="hopper",
            flops_per_s=_HOPPER_PEAKS,
            memory_bytes=141 * 10**9,
            memory_bytes_per_s=4800e9,
            power_w=700,
            price_per_h=3.5,  # assumption
            local=NAMED_CLUSTERS["8xh200"].local,
            nic=_NDR,
        ),
        Accelerator(
            name="b200",  # NVIDIA DGX B200 data sheet, an eighth of it
            architecture="blackwell",
            flops_per_s=_BLACKWELL_PEAKS,
            memory_bytes=180 * 10**9,
            memory_bytes_per_s=8000e9,
            power_w=1000,
            price_per_h=5.0,  # assumption
            local=_B200_NVLINK,
            nic=_NDR,  # DGX B200 data sheet: eight adapters of 400 Gbit/s
        ),
        Accelerator(
            name="h800",  # an H100 with half the NVLink: 160 GB/s reached, eight adapters (DeepSeek-V3, section 3.1)
            architecture="hopper",
            flops_per_s=_HOPPER_PEAKS,
            memory_bytes=80 * _GIB,
            memory_bytes_per_s=3350e9,
            power_w=700,
            price_per_h=2.0,  # DeepSeek-V3, table 1
            local=Link(latency_s=5.61e-6, bytes_per_s=160e9, shared=False),
            nic=_NDR,
        ),
        Accelerator(
            name="h20",  # NVIDIA H20 data sheet: 148 TFLOP/s in BF16, 96 GB, 4.0 TB/s, NVLink of 900 GB/s both ways
            architecture="hopper",
            flops_per_s={"fp32": 44e12, "tf32": 74e12, "fp16": 148e12, "bf16": 148e12, "fp8": 296e12},
            memory_bytes=96 * 10**9,
            memory_bytes_per_s=4000e9,
            power_w=400,
            price_per_h=1.5,  # assumption
            local=NAMED_CLUSTERS["16x8h100"].local,
            nic=_NDR,  # assumption: as H100
        ),
        Accelerator(
            name="gb200",  # NVIDIA GB200 NVL72 data sheet, a 72nd of it: 360 PFLOP/s sparse in BF16, 13.4 TB of HBM3e
            architecture="blackwell",
            flops_per_s={"fp32": 80e12, "tf32": 1250e12, "fp16": 2500e12, "bf16": 2500e12, "fp8": 5000e12},
            memory_bytes=186 * 10**9,
            memory_bytes_per_s=8000e9,
            power_w=1200,
            price_per_h=6.0,  # assumption
            local=_B200_NVLINK,  # assumption: as a board of eight B200, whose NVLink is the same
            nic=Link(latency_s=10e-6, bytes_per_s=50e9),  # DGX GB200: an adapter of 400 Gbit/s a device
            devices_per_host=72,
            own_adapters=True,
        ),
        Accelerator(
            name="mi300x",  # AMD Instinct MI300X data sheet; Infinity Fabric: seven links of 64 GB/s each way
            architecture="cdna3",
            flops_per_s={"fp32": 163.4e12, "tf32": 653.7e12, "fp16": 1307.4e12, "bf16": 1307.4e12, "fp8": 2614.9e12},
            memory_bytes=192 * 10**9,
            memory_bytes_per_s=5300e9,
            power_w=750,
            price_per_h=2.5,  # assumption
            local=_local(7 * 64e9),
            nic=_NDR,  # AMD Instinct MI300X platform: eight adapters of 400 Gbit/s
        ),
        # Torus of TPUs: a ring along one of its axes, both ways; adapters to other slices
        # (Austin et al. 2025, "How to Scale Your Model", the table of TPU specs)
        Accelerator(
            name="tpu-v4",  # Jouppi et al. 2023, table 4: 275 TFLOP/s, 32 GiB at 1200 GB/s, slices of up to 4096
            architecture="tpu",
            flops_per_s={"bf16": 275e12},
            memory_bytes=32 * _GIB,
            memory_bytes_per_s=1200e9,
            power_w=192,
            price_per_h=3.2,  # Google Cloud, on demand, 2025
            local=Link(latency_s=1e-6, bytes_per_s=2 * 45e9, shared=False),
            nic=_DCN,
            devices_per_host=4096,
            own_adapters=True,
            exchanges_apart=True,
        ),
        Accelerator(
            name="tpu-v5p",  # Google Cloud TPU v5p: 459 TFLOP/s, 95 GB at 2765 GB/s, slices of up to 8960
            architecture="tpu",
            flops_per_s={"bf16": 459e12},
            memory_bytes=95 * 10**9,
            memory_bytes_per_s=2765e9,
            power_w=500,  # assumption: Google publishes none
            price_per_h=4.2,  # Google Cloud, on demand, 2025
            local=Link(latency_s=1e-6, bytes_per_s=2 * 90e9, shared=False),
            nic=_DCN,
            devices_per_host=8960,
            own_adapters=True,
            exchanges_apart=True,
        ),
        Accelerator(
            name="tpu-v6e",  # Google Cloud TPU v6e: 918 TFLOP/s, 32 GB at 1638 GB/s, slices of up to 256
            architecture="tpu",
            flops_per_s={"bf16": 918e12},
            memory_bytes=32 * 10**9,
            memory_bytes_per_s=1638e9,
            power_w=300,  # assumption: Google publishes none
            price_per_h=2.7,  # Google Cloud, on demand, 2025
            local=Link(latency_s=1e-6, bytes_per_s=2 * 90e9, shared=False),
            nic=replace(_DCN, bytes_per_s=12.5e9),
            devices_per_host=256,
            own_adapters=True,
            exchanges_apart=True,
        ),
    )
}
"""Accelerators by name."""

_SYNONYMS = {
    "a100-80gb": "a100",
    "a100-80g": "a100",
    "a100-40g": "a100-40gb",
    "h100-sxm": "h100",
    "tpuv4": "tpu-v4",
    "tpuv5p": "tpu-v5p",
    "tpuv6e": "tpu-v6e",
    "trillium": "tpu-v6e",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hosts alike, full of accelerators alike.

    Attributes:
        accelerator: Each of them.
        num_devices: All of them.
        devices_per_host: Devices of one host.
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
            raise ConfigError(
                f"a machine of {self.num_devices} devices, {self.devices_per_host} a host; write 1 or more of both"
            )
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
