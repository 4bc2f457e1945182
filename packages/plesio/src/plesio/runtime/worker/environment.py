"""A process's place in its job, from torchrun's variables (Slurm, Kubernetes and Ray Train set the same).

They describe hosts and no racks. ``PLESIO_RACK`` may have the number of a worker's rack, for all workers or none; else
`plesio.runtime.worker.rack_choice` finds out.

``PLESIO_ISLAND`` makes islands of the processes: each is one worker, whose first process leads it.
"""

import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from plesio.core.errors import ConfigError, PolicySpecError
from plesio.core.units import listed, named
from plesio.policies import Policy, parse_policy

POLICY_VARIABLE = "PLESIO_POLICY"
"""A policy's text, where a program does not set it: launchers set it."""
REPLICAS_VARIABLE = "PLESIO_REPLICAS"
"""How often servers are there, where a program does not set it."""
GRID_VARIABLE = "PLESIO_GRID"
"""A grid's text, where a program does not set it: ``plesio run --grid`` sets it."""
ISLAND_VARIABLE = "PLESIO_ISLAND"
"""Ranks of each island, ``2``, or of one after the other, ``2,2,1``: ``plesio run --island`` sets it."""
BEGUN_KEY = "plesio/begun"
"""In the job's store: when its first run began, by the clock on the wall. A process that ends before was refused."""
FINISHED_WITHOUT_KEY = "plesio/finished_without"
"""In the store of a launcher: the ranks that the others have finished a run without, and the proof that a member says
so (`plesio.runtime.transport.job_secret.signed`)."""
CURRENT_JOB = "plesio/{restart}/current"
"""In the job's store: the number of the session's job under way, whose keys are at ``plesio/RESTART/NUMBER``."""
ENDED_KEY = "plesio/ended"
"""In the store of a launcher: the ranks, with commas between, whose processes have ended."""
NAME_KEY = "plesio/name"
"""In the store of a launcher: a name that no other job has."""


def launcher_policy(option: str | None = None) -> Policy | None:
    """Return the policy of ``--policy`` or of ``PLESIO_POLICY``; None where neither is there.

    Raises:
        ConfigError: One cannot be read, or they differ.
    """
    told = os.environ.get(POLICY_VARIABLE)
    try:
        named = None if told is None else parse_policy(told)
    except PolicySpecError as error:
        raise ConfigError(f"{POLICY_VARIABLE}={told}: {error}") from None
    given = named if option is None else parse_policy(option)
    if named not in (None, given):
        raise ConfigError(f"--policy says {option}, and {POLICY_VARIABLE} says {told}; leave one of them out")
    return given


_LATE_ISLAND = re.compile(r"(\d+):(\d+)/(\d+)")


def island_sizes(text: str, *, num_processes: int, by: str) -> tuple[int, ...]:
    """Return the ranks of each island, in order; ConfigError if it is no such text, or they do not add up to all ranks.

    Args:
        text: One number for all islands, or one for each.
        num_processes: Ranks of all of them.
        by: What gave the text, for errors.

    >>> island_sizes("2", num_processes=4, by="--island"), island_sizes("2,1", num_processes=3, by="--island")
    ((2, 2), (2, 1))
    """
    sizes: list[int] = []
    with suppress(ValueError):
        sizes = [int(size) for size in text.split(",")]
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"{by} {text}: write the ranks of an island, as in 2, or of each, as in 2,2,1")
    if len(sizes) == 1 and num_processes % sizes[0]:
        fit = [size for size in range(1, num_processes + 1) if num_processes % size == 0]
        if sizes[0] > num_processes:
            there = "there is 1" if num_processes == 1 else f"there are {num_processes}"
            raise ConfigError(
                f"{by} {text}: each island has {text} ranks, and {there}; start {text}, or a multiple of that, "
                f"or write {listed(fit, last='or')}"
            )
        each = [sizes[0]] * (num_processes // sizes[0]) + [num_processes % sizes[0]]
        raise ConfigError(
            f"{by} {text}: {num_processes} ranks do not divide into islands of {text}; write "
            f"{listed(fit, last='or')}, or the ranks of each island, as in {','.join(map(str, each))}"
        )
    if len(sizes) == 1:
        return (sizes[0],) * (num_processes // sizes[0])
    if sum(sizes) != num_processes:
        raise ConfigError(f"{by} {text}: these are {sum(sizes)} ranks, and there are {num_processes}")
    return tuple(sizes)


def late_island(worker: int, *, rank: int, size: int) -> str:
    """Return the text of a process that joins a running job as a rank of an island.

    >>> late_island(2, rank=0, size=4)
    '2:0/4'
    """
    return f"{worker}:{rank}/{size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandPlace:
    """One process's place in its island.

    Attributes:
        rank: Its number there; 0 leads.
        process: Its number among the processes of the job.
        sizes: Ranks of each island at the start; none for one that joins later.
    """

    rank: int
    size: int
    process: int
    sizes: tuple[int, ...] = ()

    def named(self, workers: Sequence[int]) -> str:
        """Name islands by their numbers, with their ranks.

        >>> IslandPlace(rank=0, size=2, process=0, sizes=(2, 2)).named([1])
        'island 1 (ranks 2 and 3)'
        """
        names = []
        for worker in workers:
            first = sum(self.sizes[:worker])
            ranks = range(first, first + self.sizes[worker]) if worker < len(self.sizes) else ()
            names.append(f"island {worker} ({named('rank', ranks)})" if ranks else f"island {worker}")
        return listed(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """One process of a job.

    Attributes:
        rank: Its worker's number; ``num_workers`` or more for a worker that joins a running job.
        local_workers: Workers on its host at the start.
        agent_hosts_store: Whether the launcher runs that store (torchrun and ``plesio run`` do); else rank 0 does.
        restart: How often torchrun has started the job over.
        island: Its place in its island; None for a worker of one process.
    """

    rank: int
    num_workers: int
    local_rank: int
    local_workers: int
    address: str
    port: int
    agent_hosts_store: bool
    restart: int = 0
    rack: int | None = None
    island: IslandPlace | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "WorkerPlace | None":
        """Read the place that the variables describe; None for a process on its own.

        Raises:
            ConfigError: Some of torchrun's variables are there and others are missing or impossible, the rack is no
                number, or the ranks do not make islands.
        """
        if "RANK" not in environ and "WORLD_SIZE" not in environ:
            return None
        needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in needed if not environ.get(name)]
        if missing:
            raise ConfigError(
                f"{' and '.join(missing)} not set although {' and '.join(n for n in needed if environ.get(n))} is; "
                "start workers with `plesio run` or torchrun, or set all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
            )
        num_workers = _number(environ, "WORLD_SIZE", least=1)
        rank = _number(environ, "RANK")
        if num_workers == 1 and rank == 0 and ISLAND_VARIABLE not in environ:
            return None
        # a launcher's agent has the store of a job that others may join, and newcomers' ranks follow the first ones
        agent_hosts_store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if rank >= num_workers and not agent_hosts_store:
            raise ConfigError(
                f"RANK={rank} with WORLD_SIZE={num_workers}: ranks are 0 to {num_workers - 1}; "
                "a worker joins a running job by plesio run --join"
            )
        # one host, unless the launcher says otherwise
        local_rank = _number(environ, "LOCAL_RANK", default=rank)
        local_workers = _number(environ, "LOCAL_WORLD_SIZE", default=num_workers, least=1)
        if local_rank >= local_workers and rank < num_workers:
            raise ConfigError(
                f"LOCAL_RANK={local_rank} with {local_workers} workers on the host (LOCAL_WORLD_SIZE): "
                f"local ranks are 0 to {local_workers - 1}"
            )
        island = None
        if (sizes := environ.get(ISLAND_VARIABLE)) is not None and (late := _LATE_ISLAND.fullmatch(sizes)) is not None:
            worker, own, size = map(int, late.groups())
            rank, island = worker, IslandPlace(rank=own, size=size, process=rank)
        elif sizes is not None:
            each = island_sizes(sizes, num_processes=num_workers, by=ISLAND_VARIABLE)
            worker, island = _in_island(each, rank)
            local_rank, local_workers = _on_host(each, worker, local_processes=local_workers)
            rank, num_workers = worker, len(each)
        return cls(
            rank=rank,
            num_workers=num_workers,
            local_rank=local_rank,
            local_workers=local_workers,
            island=island,
            address=environ["MASTER_ADDR"],
            port=_number(environ, "MASTER_PORT", least=1, most=65_535),
            agent_hosts_store=agent_hosts_store,
            restart=_number(environ, "TORCHELASTIC_RESTART_COUNT", default=0),
            rack=_number(environ, "PLESIO_RACK") if "PLESIO_RACK" in environ else None,
        )

    @classmethod
    def alone(cls) -> "WorkerPlace":
        """Return the place of a process on its own."""
        return cls(
            rank=0, num_workers=1, local_rank=0, local_workers=1, address="127.0.0.1", port=0, agent_hosts_store=False
        )

    def as_island(self) -> "WorkerPlace":
        """Return the place of a process whose script has asked for its island: one of one rank if no launcher did."""
        if self.island is not None:
            return self
        sizes = (1,) * self.num_workers
        return replace(self, island=IslandPlace(rank=0, size=1, process=self.rank, sizes=sizes))

    @property
    def leads(self) -> bool:
        """True if this process speaks for its worker: it leads its island, or has none."""
        return self.island is None or self.island.rank == 0

    @property
    def first(self) -> bool:
        """True if this process speaks for worker 0."""
        return self.rank == 0 and self.leads

    @property
    def late(self) -> bool:
        """True if this worker joins a job that is running already."""
        return self.rank >= self.num_workers

    @property
    def num_hosts(self) -> int:
        """Hosts at the start, of ``local_workers`` workers each."""
        return -(-self.num_workers // self.local_workers)

    @property
    def host(self) -> int:
        """Number of this process's host, by rank."""
        return self.rank // self.local_workers

    def own_address(self) -> str:
        """Return the address of this host on its way to the key-value store: loopback when all is on one host."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.address, self.port))  # a datagram socket: chooses a route, sends nothing
            return str(probe.getsockname()[0])

    def own_interface(self) -> str | None:
        """Find the network interface that has `own_address`."""
        own = self.own_address()
        for name, addresses in psutil.net_if_addrs().items():
            if any(address.address == own for address in addresses):
                return str(name)
        return None


def _in_island(sizes: tuple[int, ...], process: int) -> tuple[int, IslandPlace]:
    """Return the worker that this process is a rank of, and its place there."""
    worker, before = 0, 0
    while process >= before + sizes[worker]:
        before += sizes[worker]
        worker += 1
    return worker, IslandPlace(rank=process - before, size=sizes[worker], process=process, sizes=sizes)


def _on_host(sizes: tuple[int, ...], worker: int, *, local_processes: int) -> tuple[int, int]:
    """Return the worker's number on the host of its first rank, and the workers of a host."""
    if local_processes >= sum(sizes):
        return worker, len(sizes)
    if len(set(sizes)) > 1:
        raise ConfigError(f"{ISLAND_VARIABLE}: islands of unequal sizes are for one host; write one size for all")
    if math.gcd(sizes[0], local_processes) != min(sizes[0], local_processes):
        raise ConfigError(
            f"{ISLAND_VARIABLE}={sizes[0]}: hosts of {local_processes} ranks do not divide into islands of that, nor "
            "islands into hosts"
        )
    per_host = max(1, local_processes // sizes[0])
    return worker % per_host, per_host


def _number(
    environ: Mapping[str, str], name: str, *, default: int | None = None, least: int = 0, most: int | None = None
) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        number = int(text or "")
    except ValueError:
        raise ConfigError(f'{name}="{text}" is not a whole number') from None
    if number < least or (most is not None and number > most):
        raise ConfigError(f"{name}={number}: write {least} " + ("or more" if most is None else f"to {most}"))
    return number
