"""The work of `plesio run`: N local processes of a script, with torchrun's variables and no others.

Like torchrun's agent, the launcher itself hosts the job's key-value store on ``MASTER_PORT``, so the loss of any
worker, rank 0 included, leaves the store standing. Unlike torchrun it lets the others go on when one worker fails, and
a running job takes more workers: a second launcher (``--join``) draws ranks from a counter in the store.

The store has no authentication, so the job's secret is not in it. Workers have it in their environment; a second
launcher derives it as the first one did, which only the same user can, or is given it
(`plesio.runtime.transport.job_secret`).

A run whose workers have all failed is started again from its last checkpoint, as often as it was asked for. One that
was stopped is not, nor one that never began: a run that was refused once would be refused again.
"""

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plesio.core.errors import ConfigError, DataError
from plesio.core.files import check_script
from plesio.core.units import format_seconds
from plesio.policies.grid import GridSetting
from plesio.runtime.checkpoints.claim import FolderClaim
from plesio.runtime.checkpoints.folder import Folder, Manifest, read_manifest
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.job_store import (
    NEXT_PROCESS_KEY,
    NEXT_RANK_KEY,
    WORLD_SIZE_KEY,
    connect,
    listen,
    parse_address,
    serve_store,
)
from plesio.runtime.join_line import join_line, trains_alone
from plesio.runtime.site import THIS_HOST, Site
from plesio.runtime.started_islands import StartedIslands
from plesio.runtime.supervisor import JobOutcome, WorkerCommand, supervise
from plesio.runtime.transport.job_secret import SECRET_VARIABLE, given_secret, secret_of_user, unsigned
from plesio.runtime.worker.environment import (
    BEGUN_KEY,
    ENDED_KEY,
    FINISHED_WITHOUT_KEY,
    GRID_VARIABLE,
    ISLAND_VARIABLE,
    NAME_KEY,
    POLICY_VARIABLE,
    REPLICAS_VARIABLE,
    island_sizes,
    late_island,
    launcher_policy,
)
from plesio.runtime.worker_output import Outlet

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

__all__ = ["JoinDefaults", "Program", "host_job", "launch", "listen", "serve_store", "worker_environment"]

_GRID_KEY = "plesio/grid"
"""In the job's store: the grid that its workers have from the command line; empty if none."""

_ALONE_KEY = "plesio/alone"
"""In the job's store, where its only worker trains alone."""

_MOST_WORKERS = 4096
"""Far more than a machine has cores for, and few enough to be started at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinDefaults:
    """The command line's settings for what a script's ``plesio.join`` and ``plesio.grid`` leave open.

    Attributes:
        checkpoints: Checkpoints of the run; None for none.
        replicas: How often server 0 is there; None leaves it to the script.
        policy: The policy's text; None leaves it to the script.
        grid: The grid; None leaves it to the script.
        island: Ranks of each island; None for workers of one process.
    """

    checkpoints: CheckpointSetting | None = None
    replicas: int | None = None
    policy: str | None = None
    grid: GridSetting | None = None
    island: str | None = None

    def environment(self) -> dict[str, str]:
        """Return this process's environment with the variables that workers read."""
        variables = {} if self.checkpoints is None else self.checkpoints.environment()
        if self.replicas is not None:
            variables[REPLICAS_VARIABLE] = str(self.replicas)
        policy = launcher_policy(self.policy)
        if policy is not None:
            variables[POLICY_VARIABLE] = policy.spec
        if self.grid is not None:
            variables[GRID_VARIABLE] = self.grid.spec
        if self.island is not None:
            variables[ISLAND_VARIABLE] = self.island
        return {**os.environ, **variables}


_ALL_OPEN = JoinDefaults()


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


def launch(
    script: Path,
    args: Sequence[str] = (),
    *,
    num_workers: int | None = None,
    join: str | None = None,
    port: int = 0,
    defaults: JoinDefaults = _ALL_OPEN,
    restarts: int = 0,
    site: Site = THIS_HOST,
) -> int:
    """Run ``python script args...`` in ``num_workers`` processes until all have ended.

    Their output appears line by line with ``[rank]`` in front; see `plesio.runtime.supervisor` for how they are ended.

    Args:
        script: The Python file.
        args: Its arguments.
        num_workers: Processes to start; None is one, or those of a group where the job that they join runs a grid.
        join: ``HOST:PORT`` of a running job that the processes become workers of; None starts a job.
        port: Where the job's store listens; 0 is any free port.
        defaults: Settings for what the script leaves open.
        restarts: How often a run that fails is started again from its last checkpoint; of islands, how often others
            take the place of one that is lost.
        site: Where the processes run.

    Returns:
        0 if all succeeded, or the others have finished the run without those that did not; 128 + the signal's number
        if a signal stopped the job; else the status of the worker that failed first.

    Raises:
        ConfigError: No such script, no workers, ``join`` is no address, there can be no secret, or no checkpoints,
            another job takes some in that folder, or the processes do not make islands.
        TransportError: The port is taken, or there is no job at ``join``.
    """
    check_script(script)
    if num_workers is not None and num_workers < 1:
        raise ConfigError(f"--workers {num_workers}: write 1 or more")
    if num_workers is not None and num_workers > _MOST_WORKERS:
        raise ConfigError(f"{num_workers:,} workers are too many for one machine; {_MOST_WORKERS:,} are the most")
    checkpoints, islands = defaults.checkpoints, defaults.environment().get(ISLAND_VARIABLE)
    _check_together(checkpoints, islands, num_processes=num_workers or 1, restarts=restarts, joins=join is not None)
    if checkpoints is not None:
        checkpoints.prepare()
    if join is not None:
        return _join(Program(script, args, defaults.environment()), num_workers=num_workers, address=join)
    if checkpoints is not None:
        FolderClaim(checkpoints.folder).check()
    began_unix_s = time.time()
    for number in range(restarts + 1):
        setting, started_unix_s = checkpoints, time.time()
        if checkpoints is not None and _latest(checkpoints, since_unix_s=began_unix_s) is not None:
            setting = replace(checkpoints, resume="auto")  # the latest is of this run, whatever it began with
        program = Program(script, args, replace(defaults, checkpoints=setting).environment())
        outcome, begun_unix_s = host_job(
            program, num_workers=num_workers or 1, port=port, site=site, island_restarts=restarts if islands else 0
        )
        if islands is not None:
            return outcome.status
        # a run that was stopped, or that others have finished, is not started again; nor one that never began
        failed = bool(outcome.endings) and all(ending.status for ending in outcome.endings)
        if outcome.stopped or not failed or number == restarts:
            return outcome.status
        assert checkpoints is not None, "checked above"
        if begun_unix_s is None:  # one worker alone meets nobody; where it has saved something, it had begun
            if _latest(checkpoints, since_unix_s=started_unix_s) is None:
                return outcome.status
            begun_unix_s = started_unix_s
        lost = _lost(checkpoints, outcome, since_unix_s=began_unix_s, begun_unix_s=begun_unix_s)
        print(f"plesio: {lost}; restart {number + 1} of {restarts}", file=sys.stderr, flush=True)
    raise AssertionError("the last attempt returns")


def _check_together(
    checkpoints: CheckpointSetting | None, islands: str | None, *, num_processes: int, restarts: int, joins: bool
) -> None:
    """Refuse options that do not go together."""
    if islands is not None:
        island_sizes(islands, num_processes=num_processes, by="--island")
        if checkpoints is not None:
            raise ConfigError("--checkpoint: islands take no checkpoints; leave it out, or --island")
    elif restarts and checkpoints is None:
        raise ConfigError(
            f"--restarts {restarts}: a run that is started again goes on from a checkpoint; add --checkpoint DIR"
        )
    if restarts and joins:
        raise ConfigError(f"--restarts {restarts} is for a whole job; leave it out with --join")


def _latest(checkpoints: CheckpointSetting, *, since_unix_s: float) -> Manifest | None:
    """Find the latest of the checkpoints that were taken since then."""
    for path in reversed(Folder(checkpoints.folder).all()):
        try:
            manifest = read_manifest(path)
        except DataError:
            continue
        return manifest if manifest.created_unix_s >= since_unix_s else None
    return None


def _lost(checkpoints: CheckpointSetting, outcome: JobOutcome, *, since_unix_s: float, begun_unix_s: float) -> str:
    """Describe in a sentence how far a run had come that failed, and where it goes on."""
    failed_unix_s = min(ending.at_unix_s for ending in outcome.endings)
    last = _latest(checkpoints, since_unix_s=since_unix_s)
    if last is None:
        return f"the run failed {format_seconds(failed_unix_s - begun_unix_s)} after it began, all of which is lost"
    checkpoint = f"the checkpoint of step {last.clock:,}"
    if last.created_unix_s < begun_unix_s:
        return f"the run failed {format_seconds(failed_unix_s - begun_unix_s)} after it went on from {checkpoint}"
    return (
        f"the run failed {format_seconds(max(0.0, failed_unix_s - last.created_unix_s))} after {checkpoint} was written"
    )


def host_job(
    program: Program,
    *,
    num_workers: int,
    port: int = 0,
    site: Site = THIS_HOST,
    outlet: Outlet | None = None,
    look: Callable[["TCPStore", str], None] | None = None,
    island_restarts: int = 0,
) -> tuple[JobOutcome, float | None]:
    """Do a job; returns how it ended, and when its first run began, if it did.

    ``island_restarts`` is how often an island that is lost is started again, as another worker of the job.
    ``look`` is called a few times a second with the job's store and its secret; ``outlet`` takes all output.

    The workers are started first and wait in the backlog of the bound socket while torch is imported here: it takes
    them as long. So too there is no thread yet when they are forked.
    """
    stores: list[TCPStore] = []  # the store lives as long as somebody refers to it
    name, outlet = uuid.uuid4().hex, outlet or Outlet.standard()
    secret = given_secret() or secret_of_user(name)
    islands = StartedIslands.of(program.environment, num_processes=num_workers)
    with contextlib.ExitStack() as undo:
        with site.here():
            listener = undo.enter_context(listen(port, address=site.address))
        master_port = listener.getsockname()[1]

        past: list[int] = []
        known: list[int] = []

        def host_store() -> None:
            with site.here():
                stores.append(serve_store(listener, num_workers=len(islands.sizes)))
            stores[0].set(ENDED_KEY, ",".join(map(str, past)))
            _enter(program, stores[0], name=name, num_workers=num_workers)
            join = join_line(
                [str(program.script), *program.args],
                address=f"{site.address}:{master_port}",
                environment=program.environment,
                sizes=islands.sizes,
            )
            known.append(stores[0].num_keys())
            outlet.say(f"{islands.title}{f'; more can join with: {join}' if join and site is THIS_HOST else ''}")

        ranks = range(num_workers)
        meet = _Meeting(site, master_port, secret)
        commands = islands.grouped(_commands(program, ranks=ranks, world_size=num_workers, meet=meet))
        left = island_restarts

        def again(worker: int) -> Sequence[WorkerCommand]:
            """Return the processes of another island in the place of this one, which is lost."""
            nonlocal left
            if not left or not stores[0].check([BEGUN_KEY]):
                return ()
            left -= 1
            size = islands.size_of(worker)
            commands = _late_island(program, store=stores[0], sizes=(size,), meet=meet)
            islands.add(commands)
            outlet.say(
                f"island {worker} was lost; worker {commands[0].worker} takes its place, "
                f"restart {island_restarts - left} of {island_restarts}"
            )
            return commands

        def excused() -> set[int]:
            """Return the workers without which the others have finished the run."""
            if not stores[0].check([FINISHED_WITHOUT_KEY]):
                return set()
            lost = unsigned(stores[0].get(FINISHED_WITHOUT_KEY).decode(), secret=secret, job=name)
            return set() if lost is None else islands.excused({int(worker) for worker in lost.split(",")})

        def ended(rank: int) -> None:
            """Tell the workers that wait at the start that this one will not come."""
            past.append(islands.worker_of(rank))
            for store in stores:
                store.set(ENDED_KEY, ",".join(map(str, past)))

        watch = None if look is None else lambda: look(stores[0], secret)
        outcome = supervise(
            commands, prepare=host_store, excused=excused, ended=ended, again=again, outlet=outlet, look=watch
        )
    if not outcome.status and not outcome.joined and num_workers > 1 and stores[0].num_keys() == known[0]:
        outlet.say(
            f"{program.script} called no plesio.join (nor torch.distributed): {num_workers} copies of it have run, "
            "each on its own"
        )
    begun = float(stores[0].get(BEGUN_KEY)) if stores[0].check([BEGUN_KEY]) else None
    return outcome, begun


def _enter(program: Program, store: "TCPStore", *, name: str, num_workers: int) -> None:
    """Set in the job's store what those that join it read."""
    store.set(NEXT_PROCESS_KEY, str(num_workers))
    store.set(NAME_KEY, name)
    if trains_alone(program.environment, num_processes=num_workers):
        store.set(_ALONE_KEY, "")
    store.set(_GRID_KEY, program.environment.get(GRID_VARIABLE, ""))  # the last: `_join` waits for it


def _join(program: Program, *, num_workers: int | None, address: str) -> int:
    host, master_port = parse_address(address)
    store = connect(host, master_port, key=NEXT_RANK_KEY, to="join")
    grid = str(store.get(_GRID_KEY), encoding="utf-8")
    if store.check([_ALONE_KEY]):
        raise ConfigError(f"--join {address}: one worker trains there, alone; start its job with --workers 2 or more")
    if grid:
        program = replace(program, environment={**program.environment, GRID_VARIABLE: grid})
    if num_workers is None:
        num_workers = GridSetting.parse(grid).stages if grid else 1
    islands = (
        StartedIslands.of(program.environment, num_processes=num_workers)
        if ISLAND_VARIABLE in program.environment
        else None
    )
    secret = given_secret() or secret_of_user(str(store.get(NAME_KEY), encoding="utf-8"))
    meet = _Meeting(THIS_HOST, master_port, secret, host=host)
    if islands is not None:
        commands = _late_island(program, store=store, sizes=islands.sizes, meet=meet)
    else:
        past = store.add(NEXT_RANK_KEY, num_workers)
        ranks, world_size = range(past - num_workers, past), int(store.get(WORLD_SIZE_KEY))
        commands = _commands(program, ranks=ranks, world_size=world_size, meet=meet)
    ranks = range(commands[0].rank, commands[-1].rank + 1)

    def announce() -> None:
        names = f"rank {ranks[0]}" if num_workers == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        print(f"plesio: joined {address} as {names}", file=sys.stderr, flush=True)

    return supervise(commands, prepare=announce).status


def _late_island(
    program: Program, *, store: "TCPStore", sizes: tuple[int, ...], meet: "_Meeting"
) -> list[WorkerCommand]:
    """Return the processes of islands that join a running job."""
    past, past_processes = store.add(NEXT_RANK_KEY, len(sizes)), store.add(NEXT_PROCESS_KEY, sum(sizes))
    first, world_size = past - len(sizes), int(store.get(WORLD_SIZE_KEY))
    process, commands = past_processes - sum(sizes), []
    for worker, size in enumerate(sizes, first):
        for rank in range(size):
            variables = {**program.environment, ISLAND_VARIABLE: late_island(worker, rank=rank, size=size)}
            own = replace(program, environment=variables)
            [command] = _commands(own, ranks=range(process, process + 1), world_size=world_size, meet=meet)
            commands.append(replace(command, worker=worker))
            process += 1
    return commands


@dataclass(frozen=True, slots=True)
class _Meeting:
    """The place of a job's workers, and the means by which they find each other.

    Attributes:
        site: The hosts that run them.
        port: The port of the job's store.
        secret: The job's.
        host: Address of the store, if it is not the site's.
    """

    site: Site
    port: int
    secret: str
    host: str | None = None


def _commands(program: Program, *, ranks: range, world_size: int, meet: _Meeting) -> list[WorkerCommand]:
    argv = (sys.executable, *program.front, str(program.script), *program.args)
    master = (meet.host or meet.site.address, meet.port)

    def environment(rank: int) -> dict[str, str]:
        return worker_environment(
            program.environment, rank=rank, world_size=world_size, master=master, secret=meet.secret, site=meet.site
        )

    return [
        WorkerCommand(rank=rank, argv=meet.site.command(rank, argv), environment=environment(rank)) for rank in ranks
    ]


def worker_environment(
    base: Mapping[str, str],
    *,
    rank: int,
    world_size: int,
    master: tuple[str, int],
    secret: str,
    site: Site = THIS_HOST,
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
