"""A process's membership in a job: where its processes meet, the servers, the sign of life, and the process groups.

A job outlives its runs: a session joins and closes, another one may follow in the same processes, and the servers that
the primary one started serve it too. Without a job of its own (`plesio.join`'s ``job``) a session makes and closes one.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from plesio.core.arguments import checked
from plesio.core.clock import Clock, MonotonicClock
from plesio.core.errors import TransportError
from plesio.runtime.coordinator.ledger import World
from plesio.runtime.job_servers import JobServers
from plesio.runtime.job_store import reach
from plesio.runtime.meeting import StoreBoard
from plesio.runtime.process_groups import ProcessGroups
from plesio.runtime.rack_agreement import RackAgreement
from plesio.runtime.rendezvous import Rendezvous
from plesio.runtime.transport import ClientEndpoint
from plesio.runtime.transport.failover import FailoverConnection
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.group import CutOffError, TorchGroup
from plesio.runtime.worker.exchange.links import TorchLinks
from plesio.runtime.worker.heartbeat import HeartbeatSender
from plesio.runtime.worker.peer_watch import PeerWatch
from plesio.runtime.worker.rack_choice import RackChoice, RackWish

MEET_S = 60.0
"""How long processes wait for each other at the start."""


class Job:
    """One process's membership.

    Args:
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
        self._heartbeat: HeartbeatSender | None = None
        self.start = Rendezvous(place, meet_s=meet_s, check=self._check_heartbeat)
        self._groups = ProcessGroups(place, self.start)
        self._racks = RackAgreement(place, self.start, group=self.group)
        self._num_watches: Counter[int] = Counter()
        """Watches of peers by generation of the group: one run after the other is watched."""
        self._servers = JobServers(
            place,
            store=self.start.store,
            get=self.start.get,
            job=self.start.job,
            secret=self.start.secret,
            starter=self.start.starter,
        )

    def _check_heartbeat(self) -> None:
        if self._heartbeat is None:
            return
        if self._heartbeat.failure is not None:
            raise self._heartbeat.failure
        if self._heartbeat.generation > self._groups.generation:
            raise CutOffError("the group was called off")

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
            self._heartbeat = HeartbeatSender(
                client, rank=self.place.rank, meeting_place=meeting_place, island=self.place.island
            )
        return self._heartbeat

    @property
    def shares_gpus(self) -> bool:
        """True if two workers of `group` compute on one GPU."""
        return self._groups.shares_gpus

    def group(self, device_type: str) -> TorchGroup:
        """Return the group of all ranks that the job began with, made at the first call (all of them call it)."""
        return self._groups.group(device_type, rack=self.rack)

    def links(self, device: torch.device) -> TorchLinks:
        """Make the links for messages to any worker of the group, by its rank in the job."""
        return TorchLinks(self.group(device.type), device=device, workers=self._groups.members)

    def board(self) -> StoreBoard:
        """Return the board with notes for all workers of the job."""
        return StoreBoard(self.start.store)

    def watch_peers(self, step_s: Callable[[], float]) -> PeerWatch:
        """Begin to notice workers of the group that have stopped, where no server does; all of them call it.

        Args:
            step_s: Tells the mean seconds of a step so far.

        Raises:
            TransportError: The job's store does not answer.
        """
        place, at = self.place, f"watch/{self._groups.generation}/{self._num_watches[self._groups.generation]}"
        self._num_watches[self._groups.generation] += 1
        try:
            store = reach(place.address, place.port, timeout_s=self.meet_s)
            self.start.store.set(f"{at}/ends/{place.rank}", json.dumps(self._groups.traffic.own_ends()))
        except RuntimeError as error:
            raise TransportError(f"the job's store at {place.address}:{place.port} does not answer") from error
        others = [rank for rank in self._groups.members if rank != place.rank]
        ends = {rank: json.loads(self.start.get(f"{at}/ends/{rank}")) for rank in others}
        return PeerWatch(
            PrefixStore(f"plesio/{self.start.job}/{at}", store),
            rank=place.rank,
            others=others,
            step_s=step_s,
            give_up=lambda rank: self._groups.traffic.shut(towards=ends[rank]),
            store_host=None if place.agent_hosts_store else 0,
        )

    def meeting(self) -> str:
        """Host a key-value store at which others could meet this worker to form a new group, and return its address."""
        return self._groups.meeting()

    def regroup(
        self, members: Sequence[int], *, at: str, generation: int, device_type: str, called_off: Callable[[], bool]
    ) -> TorchGroup:
        """Form a new group in place of the present one; all its members call it. See `JobHandle.regroup`."""
        return self._groups.regroup(
            members, at=at, generation=generation, device_type=device_type, called_off=called_off, rack=self.rack
        )

    def settle_racks(self, wish: RackWish, *, device_type: str) -> RackChoice | None:
        """Agree with the other workers on the racks; all workers that the job began with call it.

        Raises:
            ConfigError: The workers ask for different racks.
            TransportError: A worker did not come, or was lost while hosts were probed.
        """
        choice = self._racks.settle(wish, device_type=device_type)
        if choice is not None:
            self.rack = choice.racks[self.place.rank]
            self._groups.renew()  # for this rack
        return choice

    def abort_collectives(self) -> None:
        """Wake every thread that is blocked in a collective, with an error."""
        self._groups.abort()

    def bytes_sent(self) -> Counter[str]:
        """Count the bytes this process has sent in this job, by class of link."""
        sent: Counter[str] = Counter(collective=self._groups.traffic.bytes_sent())
        for endpoint in self._servers.connections:
            sent.update(ipc=endpoint.traffic.ipc.sent, tcp=endpoint.traffic.tcp.sent)
        return sent

    def bytes_sent_since(self, before: Counter[str]) -> Callable[[], dict[str, int]]:
        """Return a function that counts the bytes sent since ``before``."""
        return lambda: dict(self.bytes_sent() - before)

    def memory_bytes(self) -> None:
        """Return None: the process is this worker's own."""

    def next_run(self) -> None:
        """Prepare for the next run: messages from now on belong to it."""
        self._groups.next_run()
        for endpoint in self._servers.connections:
            endpoint.generation += 1
        if self._heartbeat is not None:
            self._heartbeat.next_run()

    def close(self) -> None:
        """Leave the job; the servers that this process started end. Harmless when repeated."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        self._servers.close()
        self._groups.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
