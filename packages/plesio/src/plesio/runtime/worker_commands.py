"""The processes that a launcher starts: a script with torchrun's variables, and an island's for its ranks."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plesio.runtime.job_store import NEXT_PROCESS_KEY, NEXT_RANK_KEY, WORLD_SIZE_KEY
from plesio.runtime.site import THIS_HOST, Site
from plesio.runtime.supervisor import WorkerCommand
from plesio.runtime.transport.job_secret import SECRET_VARIABLE
from plesio.runtime.worker.environment import ISLAND_VARIABLE, late_island

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Program:
    """A script that workers run, with its arguments and the environment that they have in common.

    Attributes:
        front: Arguments of Python in front of the script.
    """

    script: Path
    args: Sequence[str]
    environment: Mapping[str, str]
    front: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """The place of a job's workers, and the means by which they find each other.

    Attributes:
        site: The hosts that run them.
        host: Address of the store, if it is not the site's.
    """

    site: Site
    port: int
    secret: str
    host: str | None = None


def commands_of(program: Program, *, ranks: range, world_size: int, meet: MeetingPlace) -> list[WorkerCommand]:
    argv = (sys.executable, *program.front, str(program.script), *program.args)
    master = (meet.host or meet.site.address, meet.port)

    def environment(rank: int) -> dict[str, str]:
        return worker_environment(
            program.environment, rank=rank, world_size=world_size, master=master, secret=meet.secret, site=meet.site
        )

    return [
        WorkerCommand(rank=rank, argv=meet.site.command(rank, argv), environment=environment(rank)) for rank in ranks
    ]


def late_island_commands(
    program: Program, *, store: "TCPStore", sizes: tuple[int, ...], meet: MeetingPlace
) -> list[WorkerCommand]:
    """Return the processes of islands that join a running job."""
    past, past_processes = store.add(NEXT_RANK_KEY, len(sizes)), store.add(NEXT_PROCESS_KEY, sum(sizes))
    first, world_size = past - len(sizes), int(store.get(WORLD_SIZE_KEY))
    process, commands = past_processes - sum(sizes), []
    for worker, size in enumerate(sizes, first):
        for rank in range(size):
            variables = {**program.environment, ISLAND_VARIABLE: late_island(worker, rank=rank, size=size)}
            own = replace(program, environment=variables)
            [command] = commands_of(own, ranks=range(process, process + 1), world_size=world_size, meet=meet)
            commands.append(replace(command, worker=worker))
            process += 1
    return commands


def worker_environment(
    base: Mapping[str, str], *, rank: int, world_size: int, master: tuple[str, int], secret: str, site: Site = THIS_HOST
) -> dict[str, str]:
    """Extend ``base`` by torchrun's variables and the secret for one worker; the job's store listens at ``master``."""
    host, master_port = master
    return {
        "OMP_NUM_THREADS": "1",  # as torchrun: N processes with all cores each would fight for them
        "PYTHONUNBUFFERED": "1",  # a pipe is no terminal: lines would arrive in blocks
        **base,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        **site.environment(rank, num_workers=world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(master_port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        SECRET_VARIABLE: secret,
    }
