"""The work of `plesio run`: N local processes of a script, with torchrun's variables and no others.

Like torchrun's agent, the launcher itself hosts the job's key-value store on ``MASTER_PORT``, so the loss of any
worker, rank 0 included, leaves the store standing. Unlike torchrun it lets the others go on when one worker fails, and
a running job takes more workers: a second launcher (``--join``) draws ranks from a counter in the store.

Workers have the job's secret in their environment; a second launcher derives it as the first one did, which only the
same user can, or is given it (`plesio.runtime.transport.job_secret`).

A run whose workers have all failed is started again from its last checkpoint, as often as it was asked for. One that
was stopped is not, nor one that never began: a run that was refused once would be refused again.
"""

import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
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
from plesio.runtime.hosted_job import HostedJob
from plesio.runtime.job_store import (
    ALONE_KEY,
    GRID_KEY,
    NEXT_RANK_KEY,
    WORLD_SIZE_KEY,
    connect,
    listen,
    parse_address,
)
from plesio.runtime.site import THIS_HOST, Site
from plesio.runtime.started_islands import StartedIslands
from plesio.runtime.supervisor import JobOutcome, supervise
from plesio.runtime.transport.job_secret import given_secret, secret_of_user
from plesio.runtime.worker.environment import (
    GRID_VARIABLE,
    ISLAND_VARIABLE,
    NAME_KEY,
    POLICY_VARIABLE,
    REPLICAS_VARIABLE,
    island_sizes,
    launcher_policy,
)
from plesio.runtime.worker_commands import MeetingPlace, Program, commands_of, late_island_commands
from plesio.runtime.worker_output import Outlet

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

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
        restarts: How often a run that fails is started again from its last checkpoint; of islands without
            checkpoints, how often others take the place of one that is lost.
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
    began_unix_s, rejoins = time.time(), islands is not None and checkpoints is None
    for number in range(restarts + 1):
        setting, started_unix_s = checkpoints, time.time()
        if checkpoints is not None and _latest(checkpoints, since_unix_s=began_unix_s) is not None:
            setting = replace(checkpoints, resume="auto")  # the latest is of this run, whatever it began with
        program = Program(script, args, replace(defaults, checkpoints=setting).environment())
        outcome, begun_unix_s = host_job(
            program, num_workers=num_workers or 1, port=port, site=site, island_restarts=restarts if rejoins else 0
        )
        if rejoins:
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
        if checkpoints is not None and joins:
            raise ConfigError("--join: no island can join a run with checkpoints; leave out --checkpoint")
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
    name, outlet = uuid.uuid4().hex, outlet or Outlet.standard()
    secret = given_secret() or secret_of_user(name)
    islands = StartedIslands.of(program.environment, num_processes=num_workers)
    with site.here():
        listener = listen(port, address=site.address)
    with listener:
        meet = MeetingPlace(site, listener.getsockname()[1], secret)
        job = HostedJob(program, meet=meet, islands=islands, outlet=outlet, restarts=island_restarts)
        commands = commands_of(program, ranks=range(num_workers), world_size=num_workers, meet=meet)
        outcome = supervise(
            islands.grouped(commands),
            prepare=lambda: job.begin(listener, name=name, num_processes=num_workers),
            excused=job.excused,
            ended=job.ended,
            again=job.again,
            outlet=outlet,
            look=None if look is None else lambda: look(job.store, secret),
        )
    if not outcome.status and not outcome.joined and num_workers > 1 and not job.store_was_used:
        outlet.say(
            f"{program.script} called no plesio.join (nor torch.distributed): {num_workers} copies of it have run, "
            "each on its own"
        )
    return outcome, job.begun_unix_s


def _join(program: Program, *, num_workers: int | None, address: str) -> int:
    host, master_port = parse_address(address)
    store = connect(host, master_port, key=NEXT_RANK_KEY, to="join")
    grid = str(store.get(GRID_KEY), encoding="utf-8")
    if store.check([ALONE_KEY]):
        raise ConfigError(f"--join {address}: one worker trains there, alone; start its job with --workers 2 or more")
    if grid:
        program = replace(program, environment={**program.environment, GRID_VARIABLE: grid})
    if num_workers is None:
        num_workers = GridSetting.parse(grid).stages if grid else 1
    secret = given_secret() or secret_of_user(str(store.get(NAME_KEY), encoding="utf-8"))
    meet = MeetingPlace(THIS_HOST, master_port, secret, host=host)
    if ISLAND_VARIABLE in program.environment:
        sizes = StartedIslands.of(program.environment, num_processes=num_workers).sizes
        commands = late_island_commands(program, store=store, sizes=sizes, meet=meet)
    else:
        past = store.add(NEXT_RANK_KEY, num_workers)
        ranks, world_size = range(past - num_workers, past), int(store.get(WORLD_SIZE_KEY))
        commands = commands_of(program, ranks=ranks, world_size=world_size, meet=meet)
    ranks = range(commands[0].rank, commands[-1].rank + 1)

    def announce() -> None:
        names = f"rank {ranks[0]}" if num_workers == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        print(f"plesio: joined {address} as {names}", file=sys.stderr, flush=True)

    return supervise(commands, prepare=announce).status
