"""Clusters that have a name, as cluster files: print one, copy it, change it. Comments give the source of each number.

Ethernet is given at its line rate; TCP carries 1448 bytes of the 1538 that a full frame takes on the wire, 94.1 % of
it. Bandwidths inside a host are bus bandwidths that nccl-tests measured, not a data sheet's. Latencies are per message;
of a fitted all-reduce's latency a ring's step gets its share. Numbers that were not measured are marked as assumptions.
"""

from collections.abc import Mapping

__all__ = ["CLUSTER_TEXTS"]

_LOOPBACK = """
[local]  # tcp over loopback: docs/log.md, push and pull of 20 MB between two processes at 2.44 GB/s
latency = "50 us"  # assumption
bandwidth = "2.4 GB/s"
"""

_LAPTOP = f"""
hosts = 1
workers_per_host = 2
cores_per_host = 2
memory = "4 GiB"
{_LOOPBACK}"""


def _ethernet(*, hosts: int, bandwidth: str, latency: str) -> str:
    return f"""
hosts = {hosts}
memory = "16 GiB"
{_LOOPBACK}
[nic]
latency = "{latency}"  # assumption: TCP through one switch
bandwidth = "{bandwidth}"  # IEEE 802.3
"""


_CLOUD = f"""
hosts = 8
memory = "32 GiB"
{_LOOPBACK}
[nic]
latency = "100 us"  # assumption: virtual machines of one zone
bandwidth = "10 Gbit/s"  # EC2 documentation: most that one flow gets in a cluster placement group; 5 outside of it
"""

_TWO_RACKS = f"""
hosts = 16
racks = 2
memory = "64 GiB"
{_LOOPBACK}
[nic]
latency = "30 us"  # assumption
bandwidth = "10 Gbit/s"  # IEEE 802.3

[uplink]
latency = "20 us"  # assumption: two more switches
oversubscription = 4.0  # Al-Fares, Loukissas & Vahdat 2008, section 2.1: designs have 2.5:1 to 8:1
"""


def _nvlink(*, device: str, memory: str, bandwidth: str, latency: str, source: str) -> str:
    return f"""
hosts = 1
workers_per_host = 8
device = "{device}"
memory = "{memory}"

[local]  # {source}
latency = "{latency}"
bandwidth = "{bandwidth}"
shared = false
"""


_H100 = """
hosts = 16
workers_per_host = 8
device = "H100 SXM5 80 GB"
memory = "80 GiB"

[local]  # as 8xh200: the same NVLink and NVSwitch
latency = "5.61 us"
bandwidth = "366 GB/s"
shared = false

[nic]
latency = "10 us"  # assumption
bandwidth = "3.2 Tbit/s"  # NVIDIA's DGX H100 data sheet: eight adapters of 400 Gbit/s (InfiniBand NDR)
"""

CLUSTER_TEXTS: Mapping[str, str] = {
    "laptop": _LAPTOP,
    "4x1gbe": _ethernet(hosts=4, bandwidth="1 Gbit/s", latency="50 us"),
    "16x1gbe": _ethernet(hosts=16, bandwidth="1 Gbit/s", latency="50 us"),
    "64x1gbe": _ethernet(hosts=64, bandwidth="1 Gbit/s", latency="50 us"),
    "16x10gbe": _ethernet(hosts=16, bandwidth="10 Gbit/s", latency="30 us"),
    "8x10g-cloud": _CLOUD,
    "2-racks": _TWO_RACKS,
    "8xv100": _nvlink(
        device="V100 SXM2 32 GB",
        memory="32 GiB",
        latency="5.42 us",
        bandwidth="136 GB/s",
        source="fit of nccl-tests' all-reduce: 75.9 us in 14 steps, bus bandwidth 136 GB/s",
    ),
    "8xa100": _nvlink(
        device="A100 SXM4 80 GB",
        memory="80 GiB",
        latency="5.61 us",
        bandwidth="227 GB/s",
        source="fit of nccl-tests' all-reduce: 78.6 us in 14 steps, bus bandwidth 227 GB/s",
    ),
    "8xh200": _nvlink(
        device="H200 SXM 141 GB",
        memory="141 GB",
        latency="5.61 us",
        bandwidth="366 GB/s",
        source="nccl-tests' all-reduce of 8 GiB, bus bandwidth without reduction in the switch; latency as 8xa100",
    ),
    "16x8h100": _H100,
}
"""TOML by name.

- ``laptop``: two cores; loopback as measured here.
- ``4x1gbe``, ``16x1gbe``, ``64x1gbe``, ``16x10gbe``: one worker a host, on Ethernet with one switch (IEEE 802.3).
- ``8x10g-cloud``: eight virtual machines of one zone (EC2's documented bandwidth of a flow).
- ``2-racks``: two racks of eight hosts, uplinks oversubscribed 4:1 (Al-Fares et al. 2008).
- ``8xv100``, ``8xa100``, ``8xh200``: one host with NVLink (fits of nccl-tests).
- ``16x8h100``: sixteen DGX H100 on InfiniBand NDR (NVIDIA's data sheet; inside as ``8xh200``).
"""
