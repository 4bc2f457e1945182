"""Hosts, racks and the links between them.

A worker's rank says where it is: hosts are filled one after the other, and racks with hosts. Between two hosts a message
leaves by the sender's interface, goes up and down the racks' uplinks if they are in different racks, and enters by the
receiver's interface. Each direction of an interface or an uplink is a link of its own, shared by all that goes over it.
"""

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from plesio.core.errors import ConfigError, nearest
from plesio.core.units import parse_bandwidth, parse_seconds

__all__ = ["Cluster", "Link", "LinkKind", "parse_cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkKind:
    """What a kind of link can do.

    Attributes:
        latency_s: Seconds that the first byte takes.
        bytes_per_s: Bandwidth of one direction.
    """

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and self.bytes_per_s > 0):
            raise ConfigError(f"a link of {self.latency_s} s and {self.bytes_per_s} bytes per second is impossible")


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of one link; links of equal name are the same."""

    name: str
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hosts alike, in racks alike.

    Attributes:
        name: What people call it.
        hosts: How many there are.
        workers_per_host: Workers that a host has room for.
        cores_per_host: Workers that compute at full speed at the same time; more share them.
        racks: Racks, with equally many hosts (the last may have fewer).
        local: Between workers and servers of one host.
        nic: A host's network interface.
        uplink: From a rack to the others; needed if there is more than one.

    >>> two = Cluster(name="two", hosts=2, workers_per_host=4, cores_per_host=4)
    >>> two.host_of(5), [link.name for link in two.path(0, 1)]
    (1, ['nic:0:out', 'nic:1:in'])
    """

    name: str
    hosts: int
    workers_per_host: int
    cores_per_host: int
    racks: int = 1
    local: LinkKind = LinkKind(latency_s=20e-6, bytes_per_s=4e9)
    nic: LinkKind = LinkKind(latency_s=50e-6, bytes_per_s=125e6)
    uplink: LinkKind | None = None

    def __post_init__(self) -> None:
        for what in ("hosts", "workers_per_host", "cores_per_host", "racks"):
            if getattr(self, what) < 1:
                raise ConfigError(f"cluster {self.name}: {what} is {getattr(self, what)}; write 1 or more")
        if self.racks > self.hosts:
            raise ConfigError(
                f"cluster {self.name}: {self.racks} racks for {self.hosts} hosts; write {self.hosts} or less"
            )
        if self.racks > 1 and self.uplink is None:
            raise ConfigError(f"cluster {self.name}: {self.racks} racks need an [uplink] with latency and bandwidth")

    @property
    def hosts_per_rack(self) -> int:
        """Hosts in a full rack."""
        return -(-self.hosts // self.racks)

    def check_workers(self, num_workers: int) -> None:
        """Raise ConfigError if there is no room for so many workers."""
        room = self.hosts * self.workers_per_host
        if num_workers > room:
            raise ConfigError(
                f"cluster {self.name} has room for {room} workers ({self.hosts} hosts of {self.workers_per_host}), "
                f"not for {num_workers}; use fewer, or a larger cluster"
            )

    def host_of(self, rank: int) -> int:
        """The host of a worker."""
        return rank // self.workers_per_host

    def rack_of_host(self, host: int) -> int:
        """The rack of a host."""
        return host // self.hosts_per_rack

    def rack_of(self, rank: int) -> int:
        """The rack of a worker."""
        return self.rack_of_host(self.host_of(rank))

    def path(self, source: int, target: int) -> tuple[Link, ...]:
        """The links from host ``source`` to host ``target``; the interfaces' latency counts once."""
        if source == target:
            return (Link(f"local:{source}", self.local.latency_s, self.local.bytes_per_s),)
        out = Link(f"nic:{source}:out", self.nic.latency_s, self.nic.bytes_per_s)
        into = Link(f"nic:{target}:in", 0.0, self.nic.bytes_per_s)
        up, down = self.rack_of_host(source), self.rack_of_host(target)
        if up == down:
            return (out, into)
        assert self.uplink is not None
        return (
            out,
            Link(f"uplink:{up}:up", self.uplink.latency_s, self.uplink.bytes_per_s),
            Link(f"uplink:{down}:down", 0.0, self.uplink.bytes_per_s),
            into,
        )

    def for_workers(self, num_workers: int) -> "Cluster":
        """As many of its hosts as ``num_workers`` fill; a single host is given room for all."""
        if self.hosts == 1:
            most = max(num_workers, self.workers_per_host)
            return replace(self, workers_per_host=most)
        self.check_workers(num_workers)
        return self

    @classmethod
    def one_host(cls, num_workers: int, *, cores: int | None = None) -> "Cluster":
        """All workers on one host, each with a core of its own unless ``cores`` are fewer."""
        return cls(name="one host", hosts=1, workers_per_host=num_workers, cores_per_host=cores or num_workers)

    @classmethod
    def read(cls, path: Path) -> "Cluster":
        """The cluster that a TOML file describes.

        Raises:
            ConfigError: The file cannot be read, or describes no possible cluster.
        """
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the cluster {path}: {error}") from error
        return _from_table(table, name=path.stem, where=str(path))


_COUNTS = ("hosts", "workers_per_host", "cores_per_host", "racks")
_LINKS = ("local", "nic", "uplink")


def _from_table(table: dict[str, Any], *, name: str, where: str) -> Cluster:
    known = [field.name for field in fields(Cluster)]
    values: dict[str, Any] = {"name": name, "workers_per_host": 1}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f'{where}: unknown key "{key}"; {nearest(key, known)}')
        if key in _LINKS:
            value = _link(value, where=f"{where}: [{key}]")
        elif key in _COUNTS and (not isinstance(value, int) or isinstance(value, bool)):
            raise ConfigError(f"{where}: {key} = {value!r} is not a whole number")
        values[key] = value
    if "hosts" not in values:
        raise ConfigError(f"{where}: hosts is missing; write how many there are, as in: hosts = 4")
    values.setdefault("cores_per_host", values["workers_per_host"])
    return Cluster(**values)


def _link(table: Any, *, where: str) -> LinkKind:
    if not isinstance(table, dict):
        raise ConfigError(f'{where} is not a table; write bandwidth = "1 Gbit/s" and latency = "50 us" under it')
    for key, value in table.items():
        if key not in ("bandwidth", "latency"):
            raise ConfigError(f'{where}: unknown key "{key}"; {nearest(key, ["bandwidth", "latency"])}')
        if not isinstance(value, str):
            raise ConfigError(f'{where}: {key} = {value!r} has no unit; write it as in "1 Gbit/s" or "50 us"')
    if "bandwidth" not in table:
        raise ConfigError(f'{where}: bandwidth is missing; write it as in bandwidth = "1 Gbit/s"')
    return LinkKind(
        latency_s=parse_seconds(table.get("latency", "0 s")), bytes_per_s=parse_bandwidth(table["bandwidth"])
    )


def _named() -> dict[str, Cluster]:
    def cluster(name: str, **values: Any) -> Cluster:
        return Cluster(name=name, **values)

    gigabit = LinkKind(latency_s=50e-6, bytes_per_s=parse_bandwidth("1 Gbit/s"))
    ten = LinkKind(latency_s=30e-6, bytes_per_s=parse_bandwidth("10 Gbit/s"))
    # NVLink 3 and NDR InfiniBand: measured bus bandwidths, published.md (A100 x8: 227 GB/s; 400 Gbit/s a GPU)
    nvlink = LinkKind(latency_s=5e-6, bytes_per_s=227e9)
    infiniband = LinkKind(latency_s=5e-6, bytes_per_s=8 * parse_bandwidth("400 Gbit/s"))
    clusters = (
        cluster("laptop", hosts=1, workers_per_host=2, cores_per_host=2),
        cluster("4x1gbe", hosts=4, workers_per_host=1, cores_per_host=1, nic=gigabit),
        cluster("16x1gbe", hosts=16, workers_per_host=1, cores_per_host=1, nic=gigabit),
        cluster("64x1gbe", hosts=64, workers_per_host=1, cores_per_host=1, nic=gigabit),
        cluster("16x10gbe", hosts=16, workers_per_host=1, cores_per_host=1, nic=ten),
        cluster(
            "2-racks",
            hosts=16,
            workers_per_host=1,
            cores_per_host=1,
            racks=2,
            nic=ten,
            uplink=LinkKind(latency_s=20e-6, bytes_per_s=parse_bandwidth("20 Gbit/s")),  # 4:1 oversubscribed
        ),
        cluster("8xa100", hosts=1, workers_per_host=8, cores_per_host=8, local=nvlink),
        cluster("16x8h100", hosts=16, workers_per_host=8, cores_per_host=8, local=nvlink, nic=infiniband),
    )
    return {one.name: one for one in clusters}


NAMED_CLUSTERS = _named()
"""Clusters to begin with, by name."""


def parse_cluster(text: str) -> Cluster:
    """A cluster by its name or its TOML file.

    Raises:
        ConfigError: No such name or file, or no possible cluster.
    """
    if text in NAMED_CLUSTERS:
        return NAMED_CLUSTERS[text]
    if text.endswith(".toml"):
        return Cluster.read(Path(text))
    raise ConfigError(
        f'unknown cluster "{text}"; {nearest(text, NAMED_CLUSTERS)} '
        "(a description of your own is a file whose name ends in .toml)"
    )
