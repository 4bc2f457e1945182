"""A job under way and the key-value store that its launcher hosts, as `plesio.runtime.supervisor` asks for them."""

import shlex
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plesio.policies import parse_policy
from plesio.runtime.checkpoints.setting import VARIABLE as CHECKPOINT_VARIABLE
from plesio.runtime.job_store import ALONE_KEY, GRID_KEY, NEXT_PROCESS_KEY, serve_store
from plesio.runtime.site import THIS_HOST
from plesio.runtime.started_islands import StartedIslands
from plesio.runtime.supervisor import WorkerCommand
from plesio.runtime.transport.job_secret import unsigned
from plesio.runtime.worker.environment import (
    BEGUN_KEY,
    ENDED_KEY,
    FINISHED_WITHOUT_KEY,
    GRID_VARIABLE,
    ISLAND_VARIABLE,
    NAME_KEY,
    POLICY_VARIABLE,
    REPLICAS_VARIABLE,
)
from plesio.runtime.worker_commands import MeetingPlace, Program, late_island_commands
from plesio.runtime.worker_output import Outlet

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_SHARED_OPTIONS = {
    "--policy": POLICY_VARIABLE,
    "--replicas": REPLICAS_VARIABLE,
    "--checkpoint": CHECKPOINT_VARIABLE,
    "--every": f"{CHECKPOINT_VARIABLE}_EVERY",
}
"""Options that must be the same for all workers of a job, by the variables that carry them."""


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
        alone = num_processes == 1 and ISLAND_VARIABLE not in program.environment
        if alone:  # it has no servers
            store.set(ALONE_KEY, "")
        store.set(GRID_KEY, program.environment.get(GRID_VARIABLE, ""))  # the last: a launcher that joins waits for it
        at = f"{site.address}:{self._meet.port}"
        line = None if alone else _join_line(program, address=at, sizes=self._islands.sizes)
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


def _join_line(program: Program, *, address: str, sizes: tuple[int, ...]) -> str | None:
    """Return the command that a newcomer's shell needs, for workers of ``sizes`` ranks; None if none can join."""
    environment = program.environment
    policy = parse_policy(environment[POLICY_VARIABLE]) if POLICY_VARIABLE in environment else None
    islands = ISLAND_VARIABLE in environment
    if policy is not None and (policy.racks_share_store or (islands and policy.exchange == "collective")):
        return None
    if islands and CHECKPOINT_VARIABLE in environment:
        return None
    options = [
        part for option, name in _SHARED_OPTIONS.items() if name in environment for part in (option, environment[name])
    ]
    if islands:
        options += ["--workers", str(sizes[0]), "--island", str(sizes[0])]
    return shlex.join(["plesio", "run", "--join", address, *options, str(program.script), *program.args])
