"""Hosts, racks and the links between them.

A worker's rank says where it is: hosts are filled one after the other, and racks with hosts. Between two hosts a
message leaves by the sender's interface, goes up and down the racks' uplinks if they are in different racks, and enters
by the receiver's interface. Each direction of an interface or an uplink is a link of its own, shared by all that goes
over it:

    local:<host>                        between two workers of one host
    nic:<host>:out, nic:<host>:in       a host's interface
    uplink:<rack>:up, uplink:<rack>:down

Hops of a name are one link, so a simulation can queue transfers on them. A path's latency is the sum over its links:
that of the interface is the whole latency between two hosts of a rack, and that of the uplink what another rack adds,
so both are charged on the way out. Switches do not block.

Links may change while a run goes on (`plesio.cost.link_changes`): `Cluster.path` has them as they are at the beginning,
and `Cluster.at` gives the cluster that begins later.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from plesio.core.arguments import check_fields
from plesio.core.errors import ConfigError, nearest
from plesio.core.files import read_given
from plesio.core.within import AT_LEAST_1, SHARE, SIZE, Within
from plesio.cost.cluster_file import MOST_HOSTS, read_cluster_text
from plesio.cost.faults import Failures, InconstantHost
from plesio.cost.link import Link
from plesio.cost.link_changes import LinkChange, LinkName

Collectives = Literal["nccl", "gloo"]
_MESSAGE_LATENCIES: Mapping[Collectives, float] = {"nccl": 1.0, "gloo": 2.0}
_LOCAL = Link(latency_s=20e-6, bytes_per_s=4e9)
_NIC = Link(latency_s=50e-6, bytes_per_s=125e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop(Link):
    """One direction of one link on a path; hops of equal name are the same."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """One way in which hosts of a cluster come and go by chance, with all their workers.

    Attributes:
        kind: They fail and are repaired; are taken away for others and come back; or are lent when nobody else wants
            them, which they are not when the run begins.
        hosts: How many: the last ones, or as many besides if they are scavenged. None is all.
        failures: How long they are there, and how long they are away then.
    """

    kind: Literal["failures", "preemption", "scavenged"]
    hosts: Annotated[int, Within(1, MOST_HOSTS)] | None = None
    failures: Failures

    def __post_init__(self) -> None:
        check_fields(self, f"[{self.kind}]: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hosts alike, in racks alike.

    Attributes:
        cores_per_host: Its cores, or its accelerators if its workers compute on those: so many workers compute at full
            speed at the same time; more share them.
        racks: Racks, with equally many hosts (the last may have fewer).
        local: Link between workers and servers of one host.
        nic: A host's network interface; several count as one, as transfers are striped over them.
        uplink: Link from a rack to the others; needed if there is more than one.
        device: Name of the core or accelerator.
        memory_bytes: Memory that a worker has when there is one per core or accelerator; None is not known.
        changes: Changes of links during a run, in the order of time.
        churn: How hosts come and go.
        collectives: The library that carries collectives; None is what `library` says.
        backward_share: Share of a step's time in which DDP sends its buckets while the rest is computed. Of an
            accelerator's step the backward pass takes two thirds; 0 sends when all is computed, as where cores that
            compute also send.
        tcp_flows: TCP flows that carry a message between hosts, where links are shaped and flows lose packets
            (`plesio.cost.link.with_timeouts`); None loses nothing.
        payload_share: Share of the bandwidth between hosts that carries payload, and not packets' headers.

    >>> two = Cluster(name="two", hosts=2, workers_per_host=4, cores_per_host=4)
    >>> two.host_of(5), [link.name for link in two.path(0, 1)]
    (1, ['nic:0:out', 'nic:1:in'])
    """

    name: str
    hosts: Annotated[int, AT_LEAST_1]
    workers_per_host: Annotated[int, AT_LEAST_1]
    cores_per_host: Annotated[int, AT_LEAST_1]
    racks: Annotated[int, AT_LEAST_1] = 1
    local: Link = _LOCAL
    nic: Link = _NIC
    uplink: Link | None = None
    device: str = ""
    memory_bytes: Annotated[int, SIZE] | None = None
    changes: tuple[LinkChange, ...] = ()
    churn: tuple[Churn, ...] = ()
    collectives: Collectives | None = None
    backward_share: Annotated[float, SHARE] = 0.0
    tcp_flows: Annotated[int, AT_LEAST_1] | None = None
    payload_share: Annotated[float, Within(0, 1, without="low")] = 1.0

    def __post_init__(self) -> None:
        check_fields(self, f"cluster {self.name}: ")
        if self.racks > self.hosts:
            raise ConfigError(
                f"cluster {self.name}: {self.racks} racks for {self.hosts} hosts; write {self.hosts} or less"
            )
        if self.racks > 1 and self.uplink is None:
            raise ConfigError(f"cluster {self.name}: {self.racks} racks need an [uplink] with latency and bandwidth")
        if not (self.nic.shared and (self.uplink is None or self.uplink.shared)):
            raise ConfigError(f"cluster {self.name}: interfaces and uplinks are shared; only [local] may be not")
        self._check_changes()
        for one in self.churn:
            if one.kind != "scavenged" and one.hosts is not None and one.hosts > self.hosts:
                raise ConfigError(f"cluster {self.name}: [{one.kind}] of {one.hosts} hosts; there are {self.hosts}")

    def _check_changes(self) -> None:
        for change in self.changes:
            place, count = ("rack", self.racks) if change.link == "uplink" else ("host", self.hosts)
            if change.link == "uplink" and self.racks == 1:
                raise ConfigError(
                    f"cluster {self.name}: a change of the uplink, but there is one rack; write link = nic"
                )
            if change.number is not None and not 0 <= change.number < count:
                raise ConfigError(
                    f"cluster {self.name}: a change of {place} {change.number}; write {place} = 0 to {count - 1}"
                )
            self.link(change.link, change.number or 0, changes=(replace(change, at_s=0.0),))  # is it possible?
        if [change.at_s for change in self.changes] != sorted(change.at_s for change in self.changes):
            raise ConfigError(f"cluster {self.name}: changes are not in the order of time; sort them by at_s")

    @property
    def library(self) -> Collectives:
        """Library of the collectives: the named one, or else NCCL where a device is named, and Gloo where none is."""
        return self.collectives or ("nccl" if self.device else "gloo")

    @property
    def assumes(self) -> str | None:
        """Sentence about the library that prices assume; None where the cluster names it."""
        if self.collectives:
            return None
        name, why = ("NCCL", f"has {self.device}") if self.device else ("Gloo", "names no device")
        return (
            f'Collectives are priced as {name}\'s, since cluster {self.name} {why}; collectives = "..." says otherwise.'
        )

    @property
    def message_latencies(self) -> float:
        """How often a message of a collective takes the latency of its path.

        With Gloo the receiver says first that it is ready, and the sender waits for that: an all-reduce of four ranks
        takes 12.3 latencies of 20 ms for the ring's six messages (``benchmarks/bench_testbed.py``).
        """
        return _MESSAGE_LATENCIES[self.library]

    @property
    def num_slots(self) -> int:
        """Workers that there is room for."""
        return self.hosts * self.workers_per_host

    @property
    def hosts_per_rack(self) -> int:
        """Hosts in a full rack."""
        return -(-self.hosts // self.racks)

    def check_workers(self, num_workers: int) -> None:
        """Raise `ConfigError` unless there is room for so many workers, and there are any."""
        if num_workers < 1:
            raise ConfigError(f"{num_workers} workers on cluster {self.name}; write 1 or more")
        if num_workers > self.num_slots:
            raise ConfigError(
                f"cluster {self.name} has room for {self.num_slots} workers ({self.hosts} hosts of "
                f"{self.workers_per_host}), not for {num_workers}; use fewer, or a larger cluster "
                f"(workers_per_host = {-(-num_workers // self.hosts)})"
            )

    def host_of(self, rank: int) -> int:
        """Return the host of a worker; raise `ConfigError` if there is no room for this rank."""
        if not 0 <= rank < self.num_slots:
            raise ConfigError(f"cluster {self.name} has room for ranks 0 to {self.num_slots - 1}, not for {rank}")
        return rank // self.workers_per_host

    def rack_of_host(self, host: int) -> int:
        """Return the rack of a host; raise `ConfigError` if there is no such host."""
        if not 0 <= host < self.hosts:
            raise ConfigError(f"cluster {self.name} has hosts 0 to {self.hosts - 1}, and no host {host}")
        return host // self.hosts_per_rack

    def rack_of(self, rank: int) -> int:
        """Return the rack of a worker; raise `ConfigError` if there is no room for this rank."""
        return self.rack_of_host(self.host_of(rank))

    def path(self, source: int, target: int) -> tuple[Hop, ...]:
        """Return the links from host ``source`` to host ``target``; the interfaces' latency counts once."""
        up, down = self.rack_of_host(source), self.rack_of_host(target)
        if source == target:
            return (_hop(f"local:{source}", self.link("local", source)),)
        out = _hop(f"nic:{source}:out", self._carries("nic", source))
        into = _hop(f"nic:{target}:in", self._carries("nic", target), latency_s=0.0)
        if up == down:
            return (out, into)
        leaving = _hop(f"uplink:{up}:up", self._carries("uplink", up))
        entering = _hop(f"uplink:{down}:down", self._carries("uplink", down), latency_s=0.0)
        return (out, leaving, entering, into)

    def _carries(self, name: LinkName, number: int) -> Link:
        """Return a link between hosts as its messages find it: with packets' headers, and the flows that carry them."""
        link = self.link(name, number)
        return replace(link, bytes_per_s=self.payload_share * link.bytes_per_s, flows=self.tcp_flows or 0)

    def link(self, name: LinkName, number: int, *, changes: tuple[LinkChange, ...] | None = None) -> Link:
        """Return the link of a host (local, nic) or a rack (uplink) at the beginning, with the changes at that moment.

        ``changes`` replace the cluster's own.
        """
        kind = {"local": self.local, "nic": self.nic, "uplink": self.uplink}[name]
        assert kind is not None, f"a path over {name} in {self.name}"
        for change in self.changes if changes is None else changes:
            if change.at_s == 0 and change.befalls(name, number):
                kind = replace(
                    kind,
                    latency_s=kind.latency_s if change.latency_s is None else change.latency_s,
                    bytes_per_s=kind.bytes_per_s if change.bytes_per_s is None else change.bytes_per_s,
                )
        return kind

    def at(self, at_s: float) -> "Cluster":
        """Return the cluster that begins ``at_s`` later: changes before that moment hold from its beginning.

        >>> slower = LinkChange(at_s=30.0, link="nic", bytes_per_s=1e6)
        >>> two = Cluster(name="two", hosts=2, workers_per_host=1, cores_per_host=1, changes=(slower,))
        >>> [two.at(moment_s).path(0, 1)[0].bytes_per_s for moment_s in (0.0, 29.0, 30.0)]
        [125000000.0, 125000000.0, 1000000.0]
        """
        changes = tuple(replace(one, at_s=max(0.0, one.at_s - at_s)) for one in self.changes)
        return replace(self, changes=changes) if changes else self

    def inconstant_hosts(self, num_workers: int) -> list[InconstantHost]:
        """Return the hosts that come and go in a run of so many workers, and those that are scavenged besides.

        A host that is preempted does nothing else; [failures] is of the others.
        """
        ranks: dict[int, list[int]] = {}
        for rank in range(num_workers):
            ranks.setdefault(self.host_of(rank), []).append(rank)
        found: dict[int, InconstantHost] = {}
        for one in sorted(self.churn, key=lambda one: one.kind != "failures"):
            if one.kind == "scavenged":
                numbers = range(len(ranks), len(ranks) + (one.hosts or 0))
            else:
                numbers = range(len(ranks) - min(len(ranks), one.hosts or len(ranks)), len(ranks))
            for number in numbers:
                found[number] = InconstantHost(
                    number=number,
                    num_workers=len(ranks.get(number, range(min(self.workers_per_host, num_workers)))),
                    workers=tuple(ranks.get(number, ())),
                    stays=one.failures,
                    away_by_chance=one.kind == "scavenged",
                )
        return [found[number] for number in sorted(found)]

    def with_bandwidth(self, bytes_per_s: float) -> "Cluster":
        """Return the cluster with interfaces of this bandwidth; latencies and the oversubscription of uplinks stay.

        Links that change during a run are scaled by the same factor. A cluster of one host changes the host's own link.

        >>> parse_cluster("2-racks").with_bandwidth(125e6).uplink.bytes_per_s
        250000000.0
        """
        if self.hosts == 1:
            return replace(self, local=replace(self.local, bytes_per_s=bytes_per_s))
        factor = bytes_per_s / self.nic.bytes_per_s
        uplink = self.uplink
        if uplink is not None:
            uplink = replace(uplink, bytes_per_s=uplink.bytes_per_s * factor)
        changes = tuple(
            change
            if change.link == "local" or change.bytes_per_s is None
            else replace(change, bytes_per_s=change.bytes_per_s * factor)
            for change in self.changes
        )
        return replace(self, nic=replace(self.nic, bytes_per_s=bytes_per_s), uplink=uplink, changes=changes)

    def with_oversubscription(self, ratio: float) -> "Cluster":
        """Return the cluster whose racks have uplinks of ``1/ratio`` of their hosts' interfaces, changes as they were.

        >>> parse_cluster("2-racks").with_oversubscription(8.0).uplink.bytes_per_s
        1250000000.0

        Raises:
            ConfigError: No ratio above 0, or a cluster of one rack, which has no uplink.
        """
        if not 0 < ratio < math.inf:
            raise ConfigError(f"oversubscription is {ratio}; write more than 0, as in 4.0")
        if self.uplink is None or self.racks == 1:
            raise ConfigError(f"cluster {self.name} is one rack, and no uplink is oversubscribed; write racks = 2")
        full_rack = self.hosts_per_rack * self.nic.bytes_per_s
        return replace(self, uplink=replace(self.uplink, bytes_per_s=full_rack / ratio))

    def for_workers(self, num_workers: int) -> "Cluster":
        """Return the cluster of as many of its hosts as ``num_workers`` fill; a single host is given room for all."""
        if self.hosts == 1:
            most = max(num_workers, self.workers_per_host)
            return replace(self, workers_per_host=most)
        self.check_workers(num_workers)
        return self

    @classmethod
    def one_host(cls, num_workers: int) -> "Cluster":
        """Put all workers on one host, each with a core of its own."""
        return cls(name="one host", hosts=1, workers_per_host=num_workers, cores_per_host=num_workers)

    @classmethod
    def read(cls, path: Path) -> "Cluster":
        """Read the cluster that a TOML file describes; raise `ConfigError` if it cannot be read, or is impossible."""
        text = read_given(path, "cluster file", instead="docs/cost.md has one to start from")
        return cls.from_toml(text, name=path.stem, where=str(path))

    @classmethod
    def from_toml(cls, text: str, *, name: str, where: str = "cluster") -> "Cluster":
        """Parse the TOML of a cluster, as in docs/cost.md; ``name`` is for a text that has none.

        Raises `ConfigError`, in one line that names the text as ``where``, for no TOML or an impossible cluster.
        """
        values = {"name": name, "workers_per_host": 1, **read_cluster_text(text, where=where)}
        try:
            ratio = values["uplink"].pop("oversubscription", None) if "uplink" in values else None
            for kind in ("local", "nic"):
                if kind in values:
                    values[kind] = Link(**values[kind])
            if "uplink" in values:
                values["uplink"] = Link(**{"bytes_per_s": values["nic"].bytes_per_s, **values["uplink"]})
            changes = [LinkChange(**change) for change in values.pop("changes", ())]
            values["churn"] = tuple(
                Churn(kind=kind, hosts=fields.pop("hosts", None), failures=Failures(**fields))
                for kind, fields in values.pop("churn", {}).items()
            )
            values["changes"] = tuple(sorted(changes, key=lambda change: change.at_s))
            values.setdefault("cores_per_host", values["workers_per_host"])
            cluster = cls(**values)
            return cluster if ratio is None else cluster.with_oversubscription(ratio)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None


_NAMES = (
    *("laptop", "4x1gbe", "16x1gbe", "64x1gbe", "16x10gbe", "8x10g-cloud", "2-racks"),
    *("8xv100", "8xa100", "8xh200", "16x8h100"),
)
NAMED_CLUSTERS: Mapping[str, Cluster] = {
    name: Cluster.read(Path(__file__).parent / "clusters" / f"{name}.toml") for name in _NAMES
}
"""Clusters to begin with, by name: files to print, copy and change, whose comments give the source of each number.

Ethernet is given at its line rate; TCP carries 1448 bytes of the 1538 that a full frame takes on the wire, 94.1 % of
it. Bandwidths inside a host are bus bandwidths that nccl-tests measured, not a data sheet's. Latencies are per message;
of a fitted all-reduce's latency a ring's step gets its share. Numbers that were not measured are marked as assumptions.
"""


def _hop(name: str, link: Link, *, latency_s: float | None = None) -> Hop:
    return Hop(
        name=name,
        latency_s=link.latency_s if latency_s is None else latency_s,
        bytes_per_s=link.bytes_per_s,
        shared=link.shared,
        flows=link.flows,
    )


def parse_cluster(text: str) -> Cluster:
    """Find a cluster by its name, by its TOML file (``mine.toml``), or by the TOML itself; else raise `ConfigError`.

    >>> parse_cluster("8xa100").num_slots
    8
    """
    name = text.strip().lower()
    if name in NAMED_CLUSTERS:
        return NAMED_CLUSTERS[name]
    if "=" in text:
        return Cluster.from_toml(text, name="cluster")
    if text.endswith(".toml"):
        return Cluster.read(Path(text))
    raise ConfigError(
        f'unknown cluster "{text}"; {nearest(name, NAMED_CLUSTERS)} '
        "(a description of your own is a file whose name ends in .toml)"
    )
