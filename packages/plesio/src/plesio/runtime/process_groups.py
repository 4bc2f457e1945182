"""The process groups of torch that the workers of a job form, one after the other."""

import contextlib
import datetime
import json
from collections.abc import Callable, Iterator, Sequence

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore, distributed_c10d  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import GroupName

from plesio.core.errors import ConfigError, TransportError
from plesio.runtime.island_watch import IslandWatch
from plesio.runtime.job_store import reach
from plesio.runtime.meeting import REGROUP_TIMEOUT, gloo_interface, gpu_of, meet, meeting_store, process_group
from plesio.runtime.rendezvous import Rendezvous
from plesio.runtime.transport import TcpTraffic
from plesio.runtime.transport.tcp_traffic import present_ends
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.group import CutOffError, TorchGroup, connect


class ProcessGroups:
    """One process's groups."""

    def __init__(self, place: WorkerPlace, rendezvous: Rendezvous) -> None:
        self.members: Sequence[int] = range(place.num_workers)
        """Members of the group, by rank in the job."""
        self.generation = 0
        """Generation of the group."""
        self.shares_gpus = False
        """True if two workers of the first group compute on one GPU."""
        self.traffic = TcpTraffic()
        """Connections of the group."""
        self._place = place
        self._rendezvous = rendezvous
        self._group: TorchGroup | None = None
        self._watch: IslandWatch | None = None
        """By which an island's leader wakes its other ranks."""
        self._meeting: TCPStore | None = None
        """Store at which the present group's members met, if this worker is the first of them."""
        self._num_groups = self._run = self._agreed_run = 0
        self._made = False
        """True if torch's default group is this job's, and not the user's."""
        self._whole = True
        """True while the group is that of all workers, and none has called it off."""

    def _rail(self, *, rack: int) -> TorchGroup:
        """Make the group of this rank of an island and those of its number in all others, which hold alike parts.

        torch's default group is the island's, so this is one beside it, on Gloo.

        Raises:
            ConfigError: The islands are not equally large.
            TransportError: Not all have come in time.
        """
        place, meeting, at = self._place, self._rendezvous, f"rail/{self._num_groups}"
        self._num_groups += 1
        assert place.island is not None
        if place.leads:
            meeting.store.set(f"{at}/size/{place.rank}", str(place.island.size))
        sizes = [meeting.get(f"{at}/size/{worker}") for worker in range(place.num_workers)]
        if len(set(sizes)) > 1:
            raise ConfigError(f"islands of {', '.join(sizes)} ranks cannot average their parts; use exchange=store")
        timeout = datetime.timedelta(seconds=meeting.meet_s)
        try:
            own = PrefixStore(f"{at}/{place.island.rank}", meeting.store)
            return self._form_rail(own, self.members, name=at, timeout=timeout, rack=rack)
        except RuntimeError as error:
            raise TransportError(f"another island has not come ({str(error).splitlines()[0]})") from error

    def _form_rail(
        self, store: Store, members: Sequence[int], *, name: str, timeout: datetime.timedelta, rack: int
    ) -> TorchGroup:
        """Form the group of this rank of an island and those of its number in the others.

        Raises:
            RuntimeError: It cannot be formed.
        """
        place, world = self._place, distributed_c10d._world
        assert place.island is not None
        rank = members.index(place.rank)
        with self._connecting():
            ranks, _ = distributed_c10d._new_process_group_helper(
                len(members),
                rank,
                [],
                "gloo",
                store,
                group_name=GroupName(f"{self._rendezvous.job}/{name}"),
                timeout=timeout,
            )
            world.pg_group_ranks[ranks] = {place.island.rank: rank}
            connect(ranks)
        self._watch = IslandWatch(place, self._rendezvous.job, generation=self.generation, on_cut=self._wake)
        return TorchGroup(ranks, rack=rack, tells_late=True)

    def group(self, device_type: str, *, rack: int) -> TorchGroup:
        """Return the group of all ranks that the job began with, made at the first call (all of them call it).

        For an island's rank it is the group of its number in all islands.
        """
        if self._place.island is not None:
            self._group = self._group or self._rail(rack=rack)
            return self._group
        if self._agreed_run < self._run:
            self._agree_on_group()
        if self._group is None or not dist.is_initialized():
            if not dist.is_initialized():
                self._make_group(device_type)
                self._made = True
            elif not self._made:
                self._adopt_group()
            assert dist.group.WORLD is not None
            self._group = TorchGroup(dist.group.WORLD, rack=rack, connecting=self._connecting)
        return self._group

    def renew(self) -> None:
        """Have `group` make its object anew, on the same connections; all workers call it."""
        self._group = None

    def next_run(self) -> None:
        """Prepare for the next run, which begins with a group of all workers."""
        self._run += 1

    def _agree_on_group(self) -> None:
        """Keep the group of the run before, if all workers have it whole."""
        self._agreed_run, at = self._run, f"whole/{self._run}"
        self._rendezvous.store.set(f"{at}/{self._place.rank}", "whole" if self._whole else "broken")
        if {self._rendezvous.get(f"{at}/{rank}") for rank in range(self._place.num_workers)} != {"whole"}:
            self._destroy_process_group()
            self._group, self._whole = None, True
            self.members, self.generation = range(self._place.num_workers), 0

    def _make_group(self, device_type: str) -> None:
        """Make torch's group when all have come: it would wait half an hour for one that has stopped.

        Raises:
            TransportError: Not all have come in time.
            CutOffError: One of them was lost.
        """
        place, at = self._place, f"group/{self._num_groups}"
        self._num_groups += 1
        here = [f"{at}/here/{rank}" for rank in range(place.num_workers)]

        def wanted() -> str:
            missing = [f"worker {rank}" for rank, key in enumerate(here) if not self._rendezvous.has([key])]
            return f"{' and '.join(missing)} to form the group of all workers: stopped, or in another join?"

        self._rendezvous.store.set(here[place.rank], gpu_of(device_type))
        self._rendezvous.wait_for(here, wanted=wanted)
        gpus = [self._rendezvous.get(key) for key in here]
        self.shares_gpus = any(gpus) and len(set(gpus)) < len(gpus)
        timeout = datetime.timedelta(seconds=self._rendezvous.meet_s)
        with self._connecting():
            process_group(PrefixStore(at, self._rendezvous.store), rank=place.rank, gpus=gpus, timeout=timeout)

    def _adopt_group(self) -> None:
        """Find the connections of a group that the script has made, whose bytes are counted from now on."""
        at = f"group/{self._num_groups}/adopted"
        self._num_groups += 1
        dist.barrier()  # connections are made at the first use
        self._rendezvous.store.set(f"{at}/{self._place.rank}", json.dumps(present_ends()))
        ends = (self._rendezvous.get(f"{at}/{rank}") for rank in range(self._place.num_workers))
        self.traffic.adopt({end for one in ends for end in json.loads(one)})

    def meeting(self) -> str:
        """Host a key-value store at which others could meet this worker to form a new group, and return its address.

        An island's leader does; the others return nothing.
        """
        if not self._place.leads:
            return ""
        self._meeting = meeting_store(host := self._place.own_address())
        return f"{host}:{self._meeting.port}"

    def regroup(
        self,
        members: Sequence[int],
        *,
        at: str,
        generation: int,
        device_type: str,
        called_off: Callable[[], bool],
        rack: int,
    ) -> TorchGroup:
        """Form a new group in place of the present one; all its members call it. See `JobHandle.regroup`."""
        rank, island = members.index(self._place.rank), self._place.island
        self.members, self.generation, self._whole = members, generation, False
        self._leave_group()
        self._made = island is None
        host, _, port = at.rpartition(":")
        store: Store | None = self._meeting
        if rank > 0 or store is None:
            self._meeting = None
            store = reach(host, int(port), timeout_s=REGROUP_TIMEOUT.total_seconds())
        if island is not None:
            name, own = f"rail/{generation}", PrefixStore(f"rail/{generation}/{island.rank}", store)
            meet(own, rank=rank, size=len(members), gpu="", called_off=called_off)
            self._group = self._form_rail(own, members, name=name, timeout=REGROUP_TIMEOUT, rack=rack)
            if called_off():
                raise CutOffError("the group was called off")
            return self._group
        gpus = meet(store, rank=rank, size=len(members), gpu=gpu_of(device_type), called_off=called_off)
        with self._connecting():
            world = process_group(PrefixStore(f"group/{generation}", store), rank=rank, gpus=gpus)
        self._group = TorchGroup(world, rack=rack, connecting=self._connecting)
        if called_off():  # what would have woken this worker came before its connections were known
            raise CutOffError("the group was called off")
        return self._group

    def abort(self) -> None:
        """Wake every thread that is blocked in a collective, with an error; on all ranks of an island."""
        if self._watch is not None:
            self._watch.cut()
        self._wake()

    def _wake(self) -> None:
        self._whole = False
        if self._group is not None:
            self._group.abort()
        self.traffic.shut()  # Gloo's own abort wakes nobody

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[None]:
        """Open connections of a process group in this context."""
        with gloo_interface(self._place), self.traffic.recording():
            yield

    def _leave_group(self) -> None:
        """Destroy the present group; of an island's rank its rail alone."""
        if self._place.island is None:
            self._destroy_process_group()
        elif self._group is not None and dist.is_initialized():
            self.traffic.clear()
            dist.destroy_process_group(self._group.process_group)
        if self._watch is not None:
            self._watch.end()
        self._group = self._watch = None

    def _destroy_process_group(self) -> None:
        self.traffic.clear()
        if dist.is_initialized():
            dist.destroy_process_group()

    def close(self) -> None:
        """Leave the group; may be called twice."""
        if self._place.island is not None:
            self._leave_group()
        elif self._made:
            self._destroy_process_group()
        self._group, self._made = None, False
