"""A process's membership in a job: the key-value store it meets the others at, the servers, and the process group.

A job outlives its runs: a session joins and closes, another one may follow in the same processes, and the servers that
the primary one started serve it too. Without a job of its own (`plesio.join`'s ``job``) a session makes and closes one.
"""

import contextlib
import datetime
import itertools
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from plesio.core.arguments import checked
from plesio.core.clock import Clock, MonotonicClock
from plesio.core.errors import ConfigError, TransportError
from plesio.core.records import from_values, to_values
from plesio.runtime.coordinator.ledger import World
from plesio.runtime.job_servers import JobServers
from plesio.runtime.meeting import (
    REGROUP_TIMEOUT,
    StoreBoard,
    gloo_interface,
    gpu_of,
    meet,
    meeting_store,
    process_group,
)
from plesio.runtime.transport import ClientEndpoint, JobKeys, TcpTraffic
from plesio.runtime.transport.failover import FailoverConnection
from plesio.runtime.transport.job_secret import (
    SECRET_VARIABLE,
    given_secret,
    may_publish,
    new_job_secret,
    secret_of_user,
    signed,
)
from plesio.runtime.worker.environment import BEGUN_KEY, ENDED_KEY, FINISHED_WITHOUT_KEY, NAME_KEY, WorkerPlace
from plesio.runtime.worker.exchange.group import CutOffError, TorchGroup
from plesio.runtime.worker.exchange.host_racks import HostRacks, find_host_racks
from plesio.runtime.worker.exchange.links import TorchLinks
from plesio.runtime.worker.heartbeat import HeartbeatSender
from plesio.runtime.worker.peer_watch import PeerWatch
from plesio.runtime.worker.rack_choice import RackChoice, RackWish, said_by_first

__all__ = ["Job"]

MEET_S = 60.0
"""How long processes wait for each other at the start."""
_LOOK_S = 0.01
"""How often a process looks for a key that it waits for."""
_NUMBERS = itertools.count()
"""Numbers of the jobs that this process has been in."""


class Job:
    """One process's membership.

    Args:
        place: Where this process stands.
        meet_s: How long the processes wait for each other at the start.

    Raises:
        TransportError: The key-value store cannot be reached, or its port is in use.
        ConfigError: The processes have no secret in common.
    """

    world: World = "process"

    @checked
    def __init__(self, place: WorkerPlace, *, meet_s: float = MEET_S) -> None:
        self.place = place
        self.rack = place.rank - place.local_rank if place.rack is None else place.rack
        self.clock: Clock = MonotonicClock()
        self.meet_s = meet_s
        self.shares_gpus = False
        self._exit = contextlib.ExitStack()
        self._job_servers: JobServers | None = None
        self._group: TorchGroup | None = None
        self._members: Sequence[int] = range(place.num_workers)
        """Members of the group, by rank in the job."""
        self._generation = 0
        """Generation of the group."""
        self._heartbeat: HeartbeatSender | None = None
        self._meeting: TCPStore | None = None
        """Store at which the present group's members met, if this worker is the first of them."""
        self._num_groups = self._num_choices = self._run = self._agreed_run = 0
        self._whole = True
        """True while the group is that of all workers, and none has called it off."""
        self._num_watches: Counter[int] = Counter()
        """By generation of the group: one run after the other is watched."""
        self._found: HostRacks | None = None
        self._group_traffic = TcpTraffic()
        try:
            given = given_secret(num_hosts=place.num_hosts)
            self._base, self._store = self._meet()
            if place.rank == 0:
                self._store.set("job", uuid.uuid4().hex)
            self._job = self._get("job")
            secret = self._secret = given or self._agree_on_secret()
            self._check_secret(secret)
            self._job_servers = JobServers(place, store=self._store, get=self._get, job=self._job, secret=secret)
        except BaseException:
            self.close()
            raise

    def _meet(self) -> tuple[Store, Store]:
        """Connect to the store of the workers' starter, and return it with this job's part of it."""
        place = self.place
        hosts_store = place.rank == 0 and not place.agent_hosts_store
        try:
            store = TCPStore(
                place.address,
                place.port,
                is_master=hosts_store,
                wait_for_workers=False,
                timeout=datetime.timedelta(seconds=self.meet_s),
                multi_tenant=True,
            )
        except (RuntimeError, ValueError) as error:
            what = f"port {place.port} of {place.address} is in use" if hosts_store else "nobody answers there"
            raise TransportError(
                f"cannot meet the other workers at {place.address}:{place.port}: {what} "
                f"(MASTER_ADDR, MASTER_PORT; {str(error).splitlines()[0]})"
            ) from error
        prefix = f"plesio/{place.restart}"
        # Jobs follow each other on one store when sessions do: each has its number, the same in all its processes.
        try:
            number = int(store.get(f"{prefix}/current")) if place.late else next(_NUMBERS)
        except RuntimeError as error:
            raise TransportError(f"no job is running at {place.address}:{place.port} that could be joined") from error
        if place.rank == 0:
            store.set(f"{prefix}/current", str(number))
        meeting = PrefixStore(f"{prefix}/{number}", store)
        meeting.set(f"here/{place.rank}", "")
        return store, meeting

    def _agree_on_secret(self) -> str:
        if not may_publish():
            return secret_of_user(self._job)
        if self.place.rank == 0:
            self._store.set("secret", new_job_secret())
        return self._get("secret")

    def _check_secret(self, secret: str) -> None:
        public = JobKeys.derive(secret).server.public.decode()
        if self.place.rank == 0:
            self._store.set("server_key", public)
        elif self._get("server_key") != public:
            raise ConfigError(
                f"worker {self.place.rank} has another secret than worker 0: it is on another host, or another user's; "
                f"set {SECRET_VARIABLE} to the same text for all workers (openssl rand -hex 32)"
            )

    def missing(self) -> list[int]:
        """List the workers that the job should begin with and that have not come."""
        return [rank for rank in range(self.place.num_workers) if not self._store.check([f"here/{rank}"])]

    def assure_all_come(self) -> None:
        """Raise if a worker has ended that the others still wait for.

        Raises:
            TransportError: A worker that the job should begin with has ended before it joined.
        """
        if self.place.agent_hosts_store and self._base.check([ENDED_KEY]):
            ended = {int(rank) for rank in self._base.get(ENDED_KEY).decode().split(",") if rank}
            if gone := sorted(ended & set(self.missing())) if ended else []:
                raise TransportError(f"worker {' and worker '.join(map(str, gone))} ended before it joined")

    def _get(self, key: str) -> str:
        def wanted() -> str:
            missing = self.missing()
            come = f"of the job's workers {missing} have not come; " if missing else ""
            return f"{key}; {come}is worker 0 running, and under the same MASTER_PORT?"

        self._await([key], wanted=wanted)
        return str(self._store.get(key), encoding="utf-8")

    def _await(self, keys: list[str], *, wanted: Callable[[], str]) -> None:
        """Return when all these keys are there; ``wanted`` tells, in an error, what this worker waits for."""
        deadline_s = self.clock.now_s() + self.meet_s
        while not self._has(keys):
            self.assure_all_come()
            if self._heartbeat is not None and self._heartbeat.failure is not None:
                raise self._heartbeat.failure
            if self._heartbeat is not None and self._heartbeat.generation > self._generation:
                raise CutOffError("the group was called off")
            if self.clock.now_s() > deadline_s:
                raise TransportError(f"worker {self.place.rank} waited {self.meet_s:g} s for {wanted()}")
            self.clock.sleep_s(_LOOK_S)

    def _has(self, keys: list[str]) -> bool:
        try:
            return bool(self._store.check(keys))
        except RuntimeError as error:
            waiting = f"worker {self.place.rank} waited for {keys[0]}"
            raise TransportError(f"the job's store is gone, while {waiting}") from error

    @property
    def _servers(self) -> JobServers:
        assert self._job_servers is not None, "a job has servers once its processes have met"
        return self._job_servers

    def servers(
        self, count: int, *, folder: Path | None, replicas: int = 1
    ) -> Sequence[ClientEndpoint | FailoverConnection]:
        """Connect to the primary ``count`` servers; see `JobServers.connect`."""
        return self._servers.connect(count, folder=folder, replicas=replicas)

    def let_servers_go_on(self) -> None:
        """Leave the run to the others: the servers that this process started end when no worker needs them."""
        self._servers.let_go_on()

    def heartbeat(self) -> HeartbeatSender:
        """Start the thread that shows server 0 that this worker lives."""
        if self._heartbeat is None:
            client = self._servers.control(wanted=lambda: self._heartbeat is None or self._heartbeat.goes_on())
            meeting_place = (self.place.address, self.place.port)
            self._heartbeat = HeartbeatSender(client, rank=self.place.rank, meeting_place=meeting_place)
        return self._heartbeat

    def group(self, device_type: str) -> TorchGroup:
        """Return the group of all ranks that the job began with, made at the first call (all of them call it)."""
        if self._agreed_run < self._run:
            self._agree_on_group()
        if self._group is None or not dist.is_initialized():
            if not dist.is_initialized():
                self._make_group(device_type)
                self._exit.callback(self._destroy_process_group)
            assert dist.group.WORLD is not None
            self._group = TorchGroup(dist.group.WORLD, rack=self.rack, connecting=self._connecting)
        return self._group

    def _agree_on_group(self) -> None:
        """Keep the group of the run before, if all workers have it whole."""
        self._agreed_run, at = self._run, f"whole/{self._run}"
        self._store.set(f"{at}/{self.place.rank}", "whole" if self._whole else "broken")
        if {self._get(f"{at}/{rank}") for rank in range(self.place.num_workers)} != {"whole"}:
            self._destroy_process_group()
            self._group, self._whole = None, True
            self._members, self._generation = range(self.place.num_workers), 0

    def _make_group(self, device_type: str) -> None:
        """Make torch's group when all have come: it would wait half an hour for one that has stopped.

        Raises:
            TransportError: Not all have come in time.
            CutOffError: One of them was lost.
        """
        place, at = self.place, f"group/{self._num_groups}"
        self._num_groups += 1
        here = [f"{at}/here/{rank}" for rank in range(place.num_workers)]

        def wanted() -> str:
            missing = [f"worker {rank}" for rank, key in enumerate(here) if not self._has([key])]
            return f"{' and '.join(missing)} to form the group of all workers: stopped, or in another join?"

        self._store.set(here[place.rank], gpu_of(device_type))
        self._await(here, wanted=wanted)
        gpus = [self._get(key) for key in here]
        self.shares_gpus = any(gpus) and len(set(gpus)) < len(gpus)
        timeout = datetime.timedelta(seconds=self.meet_s)
        with self._connecting():
            process_group(PrefixStore(at, self._store), rank=place.rank, gpus=gpus, timeout=timeout)

    def links(self, device: torch.device) -> TorchLinks:
        """Make the links for messages to any worker of the group, by its rank in the job."""
        return TorchLinks(self.group(device.type), device=device, workers=self._members)

    def board(self) -> StoreBoard:
        """Return the board with notes for all workers of the job."""
        return StoreBoard(self._store)

    def watch_peers(self, step_s: Callable[[], float]) -> PeerWatch:
        """Begin to notice workers of the group that have stopped, where no server does; all of them call it.

        Args:
            step_s: Tells the mean seconds of a step so far.

        Raises:
            TransportError: The job's store does not answer.
        """
        place, at = self.place, f"watch/{self._generation}/{self._num_watches[self._generation]}"
        self._num_watches[self._generation] += 1
        patience = datetime.timedelta(seconds=self.meet_s)
        try:
            store = TCPStore(place.address, place.port, is_master=False, timeout=patience)
            self._store.set(f"{at}/ends/{place.rank}", json.dumps(self._group_traffic.own_ends()))
        except RuntimeError as error:
            raise TransportError(f"the job's store at {place.address}:{place.port} does not answer") from error
        others = [rank for rank in self._members if rank != place.rank]
        ends = {rank: json.loads(self._get(f"{at}/ends/{rank}")) for rank in others}
        return PeerWatch(
            PrefixStore(f"plesio/{self._job}/{at}", store),
            rank=place.rank,
            others=others,
            step_s=step_s,
            give_up=lambda rank: self._group_traffic.shut(towards=ends[rank]),
            store_host=None if place.agent_hosts_store else 0,
        )

    def meeting(self) -> str:
        """Host a key-value store at which others could meet this worker to form a new group, and return its address."""
        self._meeting = meeting_store(host := self.place.own_address())
        return f"{host}:{self._meeting.port}"

    def regroup(
        self, members: Sequence[int], *, at: str, generation: int, device_type: str, called_off: Callable[[], bool]
    ) -> TorchGroup:
        """Form a new group in place of the present one; all its members call it. See `JobHandle.regroup`."""
        rank = members.index(self.place.rank)
        self._members, self._generation, self._whole = members, generation, False
        self._destroy_process_group()
        self._exit.callback(self._destroy_process_group)
        self._group = None
        host, _, port = at.rpartition(":")
        store: Store | None = self._meeting
        if rank > 0 or store is None:
            self._meeting = None
            store = TCPStore(host, int(port), is_master=False, timeout=REGROUP_TIMEOUT)
        gpus = meet(store, rank=rank, size=len(members), gpu=gpu_of(device_type), called_off=called_off)
        with self._connecting():
            world = process_group(PrefixStore(f"group/{generation}", store), rank=rank, gpus=gpus)
        self._group = TorchGroup(world, rack=self.rack, connecting=self._connecting)
        if called_off():  # what would have woken this worker came before its connections were known
            raise CutOffError("the group was called off")
        return self._group

    def settle_racks(self, wish: RackWish, *, device_type: str) -> RackChoice | None:
        """Agree with the other workers on the racks; all workers that the job began with call it.

        Raises:
            ConfigError: The workers ask for different racks.
            TransportError: A worker did not come, or was lost while hosts were probed.
        """
        at = f"racks/{self._num_choices}"
        self._num_choices += 1
        self._store.set(f"{at}/{self.place.rank}", json.dumps(to_values(wish)))
        if self.place.rank == 0:
            self._store.set(f"{at}/said", json.dumps(self._decide(at) if wish.by_racks else {}))
        if not wish.by_racks:
            return None
        said = json.loads(self._get(f"{at}/said"))
        if "error" in said:
            raise ConfigError(said["error"])
        if not said:
            return None  # worker 0 has another policy, which the run will say
        found = self._probe(said["probe"], at, device_type) if "probe" in said else said["choice"]
        choice: RackChoice = from_values(found, RackChoice)
        self.rack = choice.racks[self.place.rank]
        self._group = None  # made anew, for this rack, on the same connections
        return choice

    def _decide(self, at: str) -> dict[str, Any]:
        """Encode rank 0's answer to all: a choice, the hosts to be probed, or the reason for neither."""
        return said_by_first([self._get(f"{at}/{rank}") for rank in range(self.place.num_workers)])

    def _probe(self, hosts: list[int], at: str, device_type: str) -> dict[str, Any]:
        """Probe the ways between the first workers of the hosts, and share the result, which worker 0 publishes."""
        try:
            leaders = self.group(device_type).split([sorted(set(hosts))])
            if self._found is None and leaders is not None:
                self._found = find_host_racks(leaders)
        except RuntimeError as error:  # Gloo's, which has no class of its own
            reason = str(error).splitlines()[0]
            raise TransportError(f"racks cannot be found: a host was lost, or is too slow ({reason})") from error
        if self.place.rank == 0:
            assert self._found is not None, "worker 0 is the first of its host"
            self._store.set(f"{at}/found", json.dumps(to_values(RackChoice.probed(hosts, self._found))))
        return dict(json.loads(self._get(f"{at}/found")))

    def abort_collectives(self) -> None:
        """Wake every thread that is blocked in a collective, with an error."""
        self._whole = False
        if self._group is not None:
            self._group.abort()
        self._group_traffic.shut()  # Gloo's own abort wakes nobody

    def bytes_sent(self) -> Counter[str]:
        """Count the bytes this process has sent in this job, by class of link."""
        sent: Counter[str] = Counter(collective=self._group_traffic.bytes_sent())
        for endpoint in self._servers.connections:
            sent.update(ipc=endpoint.traffic.ipc.sent, tcp=endpoint.traffic.tcp.sent)
        return sent

    def bytes_sent_since(self, before: Counter[str]) -> Callable[[], dict[str, int]]:
        """Return a function that counts the bytes sent since ``before``."""
        return lambda: dict(self.bytes_sent() - before)

    def memory_bytes(self) -> None:
        """Return None: the process is this worker's own."""

    def begun(self) -> None:
        """Tell the starter of the workers that a run has begun, so it was not refused."""
        if self.place.rank == 0 and not self._base.check([BEGUN_KEY]):
            self._base.set(BEGUN_KEY, str(time.time()))

    def finished_without(self, lost: Sequence[int]) -> None:
        """Tell the launcher that others finished the run of these workers: it exits as if all had."""
        if self.place.agent_hosts_store:
            job = self._base.get(NAME_KEY).decode() if self._base.check([NAME_KEY]) else ""
            self._base.set(FINISHED_WITHOUT_KEY, signed(",".join(map(str, lost)), secret=self._secret, job=job))

    def next_run(self) -> None:
        """Prepare for the next run: messages from now on belong to it."""
        self._run += 1
        for endpoint in self._servers.connections:
            endpoint.generation += 1
        if self._heartbeat is not None:
            self._heartbeat.next_run()

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[None]:
        """Open connections of a process group in this context."""
        with gloo_interface(self.place), self._group_traffic.recording():
            yield

    def _destroy_process_group(self) -> None:
        self._group_traffic.clear()
        if dist.is_initialized():
            dist.destroy_process_group()

    def close(self) -> None:
        """Leave the job; the servers that this process started end. Harmless when repeated."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        if self._job_servers is not None:
            self._job_servers.close()
        self._exit.close()
        self._group = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
