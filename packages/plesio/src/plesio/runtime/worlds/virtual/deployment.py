"""The common ground of a simulation's workers: time, network, servers, and the cores of their hosts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.collectives import gloo_framing_bytes
from plesio.cost.host_costs import HostCosts
from plesio.cost.link_changes import seconds_through_changes
from plesio.cost.placement import all_reduce_on, broadcast_on, bucket_all_reduce_on
from plesio.protocol.peers import server_identity
from plesio.runtime.server.job_server import JobServer
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worlds.virtual.board import Notes
from plesio.runtime.worlds.virtual.connections import (
    ArrayPool,
    ControlLine,
    ServerConnections,
    VirtualServer,
    WorkQueue,
)
from plesio.runtime.worlds.virtual.fabric import Fabric
from plesio.runtime.worlds.virtual.group import Meeting
from plesio.runtime.worlds.virtual.links import PostOffice
from plesio.runtime.worlds.virtual.scheduler import Scheduler, ThreadTurn
from plesio.sim.kernel import Kernel
from plesio.sim.sharing import ProcessorSharing

_OnLinks = Callable[..., float]
"""Seconds of a collective, as a function of `plesio.cost.placement`."""


@dataclass(slots=True)
class ServerClock:
    """A server's time; it never sleeps."""

    kernel: Kernel

    def now_s(self) -> float:
        return self.kernel.now_s

    def unix_s(self) -> float:
        return self.kernel.now_s

    def sleep_s(self, duration_s: float) -> None:
        """Raise an error: a server acts on events only."""
        raise AssertionError("a server in a simulation never sleeps")

    def sleep_until_s(self, deadline_s: float, *, share: float = 1.0) -> None:
        self.sleep_s(deadline_s)


@dataclass(slots=True)
class Deployment:
    """A job's hosts and servers in one simulation.

    Args:
        num_workers: Workers at the start.
        costs: Processor time of training beside the steps.
    """

    cluster: Cluster
    num_workers: int
    costs: HostCosts
    kernel: Kernel = field(default_factory=Kernel)
    scheduler: Scheduler = field(init=False)
    fabric: Fabric = field(init=False)
    office: PostOffice = field(init=False)
    notes: Notes = field(init=False)
    memory: ArrayPool = field(default_factory=ArrayPool)
    meters: dict[ThreadTurn, Meter] = field(default_factory=dict)
    """Each worker's records of the run under way."""
    results: list[RunResult] = field(default_factory=list)
    """Results of runs without a server, in their order."""
    _meetings: dict[tuple[tuple[int, ...], frozenset[tuple[int, ...]], int], Meeting] = field(default_factory=dict)
    _servers: list[VirtualServer] = field(default_factory=list)
    _cores: dict[int, ProcessorSharing] = field(default_factory=dict)
    _processors: dict[int, ProcessorSharing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster.check_workers(self.num_workers)
        self.scheduler = Scheduler(self.kernel)
        self.fabric = Fabric(self.kernel, self.cluster)
        self.office = PostOffice(self.scheduler, self.fabric, self.host_of)
        self.notes = Notes(self.scheduler)

    def meeting(self, ranks: Sequence[int], *, beside: Sequence[Sequence[int]] = (), generation: int = 0) -> Meeting:
        """Return the meeting of these ranks for collectives, while the groups ``beside`` have their own."""
        others = frozenset(tuple(group) for group in beside)
        key = (tuple(ranks), others, generation)
        if key not in self._meetings:
            cluster, (seats, *beside_seats) = self._seated(ranks, *others)

            @cache
            def all_reduce_s(num_bytes: int, since_s: float, *, on_links: _OnLinks = all_reduce_on) -> float:
                measured_s = self.costs.all_reduce(num_bytes)
                if measured_s is not None:
                    return measured_s
                on_links_s = on_links(cluster.at(since_s), seats, num_bytes, beside=beside_seats)
                return self.costs.collective_s + on_links_s

            @cache
            def broadcast_s(num_bytes: int, since_s: float) -> float:
                on_links_s = broadcast_on(cluster.at(since_s), seats, num_bytes, beside=beside_seats)
                return self.costs.collective_s + on_links_s

            self._meetings[key] = Meeting(
                len(ranks),
                scheduler=self.scheduler,
                all_reduce_s=partial(self._while_links_change, all_reduce_s),
                bucket_s=partial(self._while_links_change, partial(all_reduce_s, on_links=bucket_all_reduce_on)),
                broadcast_s=partial(self._while_links_change, broadcast_s),
                # a ring all-reduce is a reduce-scatter and an all-gather, as long as each other (Thakur et al. 2005)
                all_gather_s=partial(
                    self._while_links_change, lambda num_bytes, since_s: all_reduce_s(num_bytes, since_s) / 2
                ),
            )
        return self._meetings[key]

    def _seated(self, *groups: Sequence[int]) -> tuple[Cluster, list[Sequence[int]]]:
        """Place these groups' ranks, as ranks of a cluster that has room for those that have joined late, too."""
        last = max(rank for ranks in groups for rank in ranks)
        if last < self.num_workers:
            return self.cluster, list(groups)
        room = self.cluster.workers_per_host * (1 + last // self.num_workers)
        seated: list[Sequence[int]] = []
        for ranks in groups:
            taken: Counter[int] = Counter()
            seats = []
            for host in map(self.host_of, ranks):
                seats.append(host * room + taken[host])
                taken[host] += 1
            seated.append(seats)
        return replace(self.cluster, workers_per_host=room), seated

    def _while_links_change(self, duration_s: Callable[[int, float], float], num_bytes: int, begin_s: float) -> float:
        """Return the seconds of a collective from ``begin_s`` on; ``duration_s`` has it with the links of a moment."""
        changes_s = [change.at_s for change in self.cluster.changes]
        return seconds_through_changes(begin_s, changes_s, partial(duration_s, num_bytes))

    def abort_collectives(self, rank: int) -> None:
        """Break the collectives that ``rank`` takes part in: every worker that waits in one fails at its next turn."""
        for (ranks, *_), meeting in self._meetings.items():
            meeting.broken |= rank in ranks

    def host_of(self, rank: int) -> int:
        """Return the host of a worker; one that joins late is put where the ranks begin again."""
        return self.cluster.host_of(rank % self.num_workers)

    def count_collective(self, ranks: Sequence[int], rank: int, operation: str, num_bytes: int) -> int:
        """Return the bytes that ``rank`` sends on in the ring of ``ranks`` for a collective, with the library's own."""
        size = len(ranks)
        rounds = 2 * (size - 1) / size if operation == "all_reduce" else (size - 1) / size
        gloo = self.cluster.library == "gloo"
        own = gloo_framing_bytes(num_bytes, num_ranks=size, collective=operation) if gloo else 0.0
        sent = round(rounds * num_bytes + own)
        hosts = (self.host_of(rank), self.host_of(ranks[(ranks.index(rank) + 1) % size]))
        if self.cluster.rack_of_host(hosts[0]) != self.cluster.rack_of_host(hosts[1]):
            self.fabric.cross_rack_bytes += sent
        return sent

    def server(self, index: int) -> VirtualServer:
        """Return a server, started when it is first asked for."""
        while len(self._servers) <= index:
            self._servers.append(self._start(len(self._servers)))
        return self._servers[index]

    def _start(self, index: int) -> VirtualServer:
        host = index % (self.host_of(self.num_workers - 1) + 1)  # of the hosts that the workers need
        queue = WorkQueue(self.costs, process=partial(self.process, host))
        connections = ServerConnections(host=host, fabric=self.fabric, memory=self.memory, queue=queue)

        def make(server: VirtualServer) -> JobServer:
            first = None
            if index > 0:
                first = ControlLine(
                    server_identity(index).encode(), host=host, server=self._servers[0], on_arrival=server.obey
                )
            return JobServer(
                index,
                endpoint=connections,
                first=first,
                clock=ServerClock(self.kernel),
                world="virtual",
                cross_rack_bytes=lambda: self.fabric.cross_rack_bytes,
            )

        return VirtualServer(index, connections=connections, queue=queue, make=make)

    def process(self, host: int, work_s: float, on_done: Callable[[], None]) -> None:
        """Have a host's processors do ``work_s`` seconds of work of a server or worker; ``on_done`` follows."""
        if self.costs.cores is None:
            self.kernel.after(work_s, on_done)
            return
        if host not in self._processors:
            self._processors[host] = ProcessorSharing(self.kernel, capacity=self.costs.cores)
        self._processors[host].submit(work_s, on_done)

    def work(self, turn: ThreadTurn, *, host: int, work_s: float) -> None:
        """Let a worker do ``work_s`` seconds of work: on a core of its own, or on those that the host's work shares."""
        if self.costs.cores is None:
            self.scheduler.spend(turn, work_s)
        elif work_s > 0:
            self.scheduler.pause(turn, lambda done: self.process(host, work_s, done))

    def compute(self, turn: ThreadTurn, *, host: int, duration_s: float) -> None:
        """Let a worker compute for ``duration_s`` of a core's time; where the cluster has few cores they are shared."""
        if self.cluster.cores_per_host >= self.cluster.workers_per_host:
            self.scheduler.sleep(turn, duration_s)
            return
        if host not in self._cores:
            self._cores[host] = ProcessorSharing(self.kernel, capacity=self.cluster.cores_per_host)
        cores = self._cores[host]
        self.scheduler.pause(turn, lambda done: cores.submit(duration_s, done))
