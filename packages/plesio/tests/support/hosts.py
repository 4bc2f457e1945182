"""Hosts on this machine that no cluster describes."""

from collections.abc import Sequence

from plesio.cost.link import Link
from plesio.testbed.network import Network
from plesio.testbed.testbed import Testbed


def racks_of_hosts(sizes: Sequence[int], *, nic_bytes_per_s: float, uplink_bytes_per_s: float) -> Testbed:
    """Make racks of so many hosts, over links without latency; their workers have to find out what is a rack."""
    nic, uplink = (Link(latency_s=0.0, bytes_per_s=one) for one in (nic_bytes_per_s, uplink_bytes_per_s))
    uplinks = [uplink] * len(sizes) if len(sizes) > 1 else ()
    return Testbed(Network(sizes, nics=[nic] * sum(sizes), uplinks=uplinks))
