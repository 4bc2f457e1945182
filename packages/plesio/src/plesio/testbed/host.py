"""One host of a testbed, as a process knows it that has nothing else of the testbed."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from plesio.core.errors import PlesioError
from plesio.cost.cluster import Cluster
from plesio.testbed.namespaces import enter_namespace, in_namespace

INTERFACE = "nic"
"""A host's interface, in its namespace."""
HEADER_BYTES = 66
"""Headers of a TCP packet: Ethernet 14, IPv4 20, TCP with its timestamps 32."""
_SEGMENT_BYTES = 1448


def on_hosts_of_testbed(cluster: Cluster) -> Cluster:
    """Return the cluster as messages find it on a testbed, whose token buckets count headers and drop packets."""
    return replace(cluster, payload_share=_SEGMENT_BYTES / (_SEGMENT_BYTES + HEADER_BYTES), tcp_flows=1)


class InterfaceTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of an interface.

    Attributes:
        sent: Bytes, with the headers of packets.
        received: Bytes, with the headers of packets.
        sent_packets: Packets; what the interface was given in one piece counts once.
    """

    sent: int
    received: int
    sent_packets: int

    @property
    def sent_payload(self) -> int:
        """Bytes without headers, if all was TCP."""
        return self.sent - HEADER_BYTES * self.sent_packets


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One host.

    Attributes:
        address: Its address; the hosts of all racks reach each other.
        groups: Folders of its control groups.
    """

    namespace: str
    address: str
    rack: int
    groups: tuple[str, ...] = ()

    def enter(self) -> None:
        """Have this process on the host, and all that it starts from now on."""
        for folder in self.groups:
            (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
        enter_namespace(self.namespace)

    def command(self, argv: Sequence[str]) -> list[str]:
        on_host = ["ip", "netns", "exec", self.namespace, *argv]
        if not self.groups:
            return on_host
        script = f'for folder in {" ".join(self.groups)}; do echo $$ > $folder/cgroup.procs; done; exec "$@"'
        return ["sh", "-c", script, "plesio", *on_host]

    def traffic(self) -> InterfaceTraffic:
        """Return the traffic of its interface since it was made; raise `PlesioError` if that is gone."""
        with in_namespace(self.namespace), open("/proc/thread-self/net/dev", encoding="ascii") as file:
            line = next((line for line in file if line.strip().startswith(f"{INTERFACE}:")), None)
        if line is None:
            raise PlesioError(f"{self.namespace} has no interface {INTERFACE}: its testbed is being removed")
        fields = line.replace(":", " ").split()
        received, sent, sent_packets = (int(fields[place]) for place in (1, 9, 10))
        return InterfaceTraffic(sent=sent, received=received, sent_packets=sent_packets)
