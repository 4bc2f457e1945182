"""A job under way and the key-value store that its launcher hosts, as `plesio.runtime.supervisor` asks for them."""

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plesio.runtime.job_store import ALONE_KEY, GRID_KEY, NEXT_PROCESS_KEY, serve_store
from plesio.runtime.join_line import join_line, trains_alone
from plesio.runtime.site import THIS_HOST
from plesio.runtime.started_islands import StartedIslands
from plesio.runtime.supervisor import WorkerCommand
from plesio.runtime.transport.job_secret import unsigned
from plesio.runtime.worker.environment import BEGUN_KEY, ENDED_KEY, FINISHED_WITHOUT_KEY, GRID_VARIABLE, NAME_KEY
from plesio.runtime.worker_commands import MeetingPlace, Program, late_island_commands
from plesio.runtime.worker_output import Outlet

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


class HostedJob:
    """A job under way and its store, which is there from `begin` on and as long as this refers to it.

    Args:
        islands: The workers by the processes that are started first.
        restarts: How often another island takes the place of one that is lost.
    """

    def __init__(
        self, program: Program, *, meet: MeetingPlace, islands: StartedIslands, outlet: Outlet, restarts: int
    ) -> None:
        self._program, self._meet, self._islands, self._outlet = program, meet, islands, outlet
        self._restarts, self._num_restarted = restarts, 0
        self._stores: list[TCPStore] = []
        self._name, self._num_keys = "", 0
        self._past: list[int] = []
        """Workers of which a process has ended."""

    @property
    def store(self) -> "TCPStore":
        return self._stores[0]

    def begin(self, listener: socket.socket, *, name: str, num_processes: int) -> None:
        """Serve the store, with what those that join the job read in it."""
        program, site = self._program, self._meet.site
        with site.here():
            store = serve_store(listener, num_workers=len(self._islands.sizes))
        self._name, self._stores = name, [store]
        self._tell_ended()
        store.set(NEXT_PROCESS_KEY, str(num_processes))
        store.set(NAME_KEY, name)
        if trains_alone(program.environment, num_processes=num_processes):
            store.set(ALONE_KEY, "")
        store.set(GRID_KEY, program.environment.get(GRID_VARIABLE, ""))  # the last: a launcher that joins waits for it
        line = join_line(
            [str(program.script), *program.args],
            address=f"{site.address}:{self._meet.port}",
            environment=program.environment,
            sizes=self._islands.sizes,
        )
        self._num_keys = store.num_keys()
        others = f"; more can join with: {line}" if line and site is THIS_HOST else ""
        self._outlet.say(f"{self._islands.title}{others}")

    @property
    def store_was_used(self) -> bool:
        """True if any process has written into the store."""
        return self.store.num_keys() != self._num_keys

    @property
    def begun_unix_s(self) -> float | None:
        """When the job's first run began; None if none did."""
        return float(self.store.get(BEGUN_KEY)) if self.store.check([BEGUN_KEY]) else None

    def again(self, worker: int) -> Sequence[WorkerCommand]:
        """Return the processes of another island in the place of this one, which is lost."""
        if self._num_restarted == self._restarts or self.begun_unix_s is None:
            return ()
        self._num_restarted += 1
        size = self._islands.size_of(worker)
        commands = late_island_commands(self._program, store=self.store, sizes=(size,), meet=self._meet)
        self._islands.add(commands)
        self._outlet.say(
            f"island {worker} was lost; worker {commands[0].worker} takes its place, "
            f"restart {self._num_restarted} of {self._restarts}"
        )
        return commands

    def excused(self) -> set[int]:
        """Return the ranks without which the others have finished the run."""
        if not self.store.check([FINISHED_WITHOUT_KEY]):
            return set()
        text = self.store.get(FINISHED_WITHOUT_KEY).decode()
        lost = unsigned(text, secret=self._meet.secret, job=self._name)
        return set() if lost is None else self._islands.excused({int(worker) for worker in lost.split(",")})

    def ended(self, rank: int) -> None:
        """Tell the workers that wait at the start that the one of this process will not come."""
        self._past.append(self._islands.worker_of(rank))
        if self._stores:
            self._tell_ended()

    def _tell_ended(self) -> None:
        self.store.set(ENDED_KEY, ",".join(map(str, self._past)))
