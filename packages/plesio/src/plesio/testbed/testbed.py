"""The testbed: the hosts of a cluster on this machine, for as long as somebody holds them.

Nothing stays behind. A process of its own, which no signal to the others reaches, waits until the one that holds the
testbed has let go of it or is gone, whatever became of it; then it kills what still runs on the hosts and removes them.
"""

import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec.structs import replace

from plesio.core.errors import ConfigError
from plesio.core.files import write_whole
from plesio.cost.cluster import Cluster
from plesio.testbed.control_groups import ControlGroup, why_no_groups
from plesio.testbed.host import INTERFACE, Host
from plesio.testbed.namespaces import in_namespace, why_no_namespaces
from plesio.testbed.network import Network

FOLDER = Path("/run/plesio-testbeds")
"""A file for each testbed that is held."""
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""For whoever loads torch to use hosts: it warns at each connection that their addresses have no names."""
_REMOVE_S = 30.0
_REAPER = """
trap '' INT TERM HUP
cat > /dev/null
rm -f $RECORD
for namespace in $NAMESPACES; do
    pids=$(ip netns pids $namespace 2> /dev/null) && [ -n "$pids" ] && kill -KILL $pids 2> /dev/null
done
for try in 1 2 3 4 5 6 7 8 9 10; do
    left=
    for folder in $GROUPS_OF_HOSTS; do
        [ ! -d $folder ] || rmdir $folder 2> /dev/null || left=1
    done
    [ -z "$left" ] && break
    sleep 0.1
done
for namespace in $NAMESPACES; do ip netns del $namespace 2> /dev/null; done
"""


def check_machine() -> None:
    """Raise `ConfigError`, which says what is missing, unless there can be hosts on this machine."""
    if (reason := why_no_namespaces()) is not None:
        raise ConfigError(f"no testbed on this machine: {reason}")


class TestbedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The public record of a testbed that is held, and its hosts as the site of a job (`plesio.runtime.site.Site`).

    A job's key-value store is on host 0, as torchrun's is.

    Attributes:
        cluster: Name of the cluster.
        owner_pid: Process that holds it.
        by_racks: Whether workers are told their racks.
    """

    name: str
    cluster: str
    owner_pid: int
    created_unix_s: float
    workers_per_host: int
    by_racks: bool
    hosts: tuple[Host, ...]

    @property
    def num_slots(self) -> int:
        return len(self.hosts) * self.workers_per_host

    @property
    def address(self) -> str:
        return self.hosts[0].address

    def here(self) -> AbstractContextManager[None]:
        return in_namespace(self.hosts[0].namespace)

    def environment(self, rank: int, *, num_workers: int) -> Mapping[str, str]:
        each = min(self.workers_per_host, num_workers)
        racks = {"PLESIO_RACK": str(self.entry(rank).rack)} if self.by_racks else {}
        return {
            **QUIET,
            "GLOO_SOCKET_IFNAME": INTERFACE,  # its own way of choosing is by the host's name, which is the machine's
            "LOCAL_RANK": str(rank % each),
            "LOCAL_WORLD_SIZE": str(each),
            "GROUP_RANK": str(rank // each),
            **racks,
        }

    def entry(self, rank: int) -> Host:
        return self.hosts[rank // self.workers_per_host]

    def command(self, rank: int, argv: Sequence[str]) -> Sequence[str]:
        return self.entry(rank).command(argv)


class Testbed:
    """Hosts on this machine, until it is closed.

    Args:
        name: To be known by; None for one of its own.
        cluster: Name of the cluster that it stands for.
        cores_per_host: Cores of this machine that a host may use, parts of one too; None for all that are free.
        memory_bytes: Memory that a host may use; None for all that is free.

    Raises:
        ConfigError: This machine cannot make hosts; what is missing.
        PlesioError: They cannot be made; why, as ``ip`` or ``tc`` says it.
    """

    def __init__(
        self,
        network: Network,
        *,
        name: str | None = None,
        cluster: str = "",
        workers_per_host: int = 1,
        by_racks: bool = False,
        cores_per_host: float | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        check_machine()
        if (cores_per_host, memory_bytes) != (None, None) and (reason := why_no_groups()) is not None:
            raise ConfigError(f"no limits for the hosts of a testbed: {reason}")
        groups = [
            ControlGroup(name=host.namespace, cores=cores_per_host, memory_bytes=memory_bytes) for host in network.hosts
        ]
        self.network = network
        self.hosts = tuple(
            replace(host, groups=tuple(map(str, group.folders)))
            for host, group in zip(network.hosts, groups, strict=True)
        )
        self.record = TestbedRecord(
            name=name or network.prefix,
            cluster=cluster,
            owner_pid=os.getpid(),
            created_unix_s=time.time(),
            workers_per_host=workers_per_host,
            by_racks=by_racks,
            hosts=self.hosts,
        )
        self._path = FOLDER / f"{network.prefix}.json"
        # before anything is made, so that a killed process leaves nothing behind
        self._reaper = self._start_reaper()
        try:
            for group in groups:
                group.make()
            network.make()
            FOLDER.mkdir(exist_ok=True)
            write_whole(self._path, msgspec.json.encode(self.record))
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        *,
        num_workers: int | None = None,
        cores_per_host: float | None = None,
        jitter_s: float = 0.0,
        name: str | None = None,
    ) -> Self:
        """Make the hosts of ``cluster`` that so many workers need, or all; links within hosts are the machine's.

        The memory of a host is limited where the cluster gives its size, and this machine has more.

        Raises:
            ConfigError: Hosts of the cluster come and go.
        """
        if cluster.churn:
            raise ConfigError(
                f"cluster {cluster.name}: hosts that come and go are for the virtual world; leave "
                f"[{cluster.churn[0].kind}] out for a testbed"
            )
        cluster = cluster if num_workers is None else cluster.for_workers(num_workers)
        num_hosts = cluster.host_of((num_workers or cluster.num_slots) - 1) + 1
        racks = Counter(cluster.rack_of_host(host) for host in range(num_hosts))
        memory_bytes = None if cluster.memory_bytes is None else cluster.memory_bytes * cluster.workers_per_host
        network = Network(
            list(racks.values()),
            nics=[cluster.link("nic", host) for host in range(num_hosts)],
            uplinks=[cluster.link("uplink", rack) for rack in racks] if len(racks) > 1 else (),
            jitter_s=jitter_s,
        )
        return cls(
            network,
            name=name,
            cluster=cluster.name,
            workers_per_host=cluster.workers_per_host,
            by_racks=len(racks) > 1,
            cores_per_host=cores_per_host,
            memory_bytes=memory_bytes if memory_bytes is None or memory_bytes < _machine_bytes() else None,
        )

    def _start_reaper(self) -> "subprocess.Popen[bytes]":
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "NAMESPACES": " ".join(self.network.namespaces),
            "GROUPS_OF_HOSTS": " ".join(folder for host in self.hosts for folder in host.groups),
            "RECORD": str(self._path),
        }
        return subprocess.Popen(
            ["sh", "-c", _REAPER], stdin=subprocess.PIPE, env=environment, start_new_session=True, cwd="/"
        )

    def close(self) -> None:
        """Remove the hosts, and kill what still runs on them."""
        self.network.close()
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()
        self._reaper.wait(_REMOVE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
