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
import queue
import shlex
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from plesio.core.errors import ConfigError, DataError, TransportError
from plesio.core.files import check_script
from plesio.core.units import counted, format_seconds
from plesio.policies.grid import GridSetting
from plesio.runtime.checkpoints.claim import FolderClaim
from plesio.runtime.checkpoints.folder import Folder, Manifest, read_manifest
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.site import THIS_HOST, Site
from plesio.runtime.supervisor import JobOutcome, WorkerCommand, supervise
from plesio.runtime.transport.job_secret import SECRET_VARIABLE, given_secret, secret_of_user, unsigned
from plesio.runtime.worker.environment import (
    BEGUN_KEY,
    ENDED_KEY,
    FINISHED_WITHOUT_KEY,
    GRID_VARIABLE,
    NAME_KEY,
    POLICY_VARIABLE,
    REPLICAS_VARIABLE,
    launcher_policy,
)
from plesio.runtime.worker_output import Outlet

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

__all__ = [
    "NEXT_RANK_KEY",
    "WORLD_SIZE_KEY",
    "JoinDefaults",
    "Program",
    "connect",
    "host_job",
    "launch",
    "listen",
    "serve_store",
    "worker_environment",
]

NEXT_RANK_KEY = "plesio/next_rank"
"""In the job's store: the rank that the next worker to join is given."""

WORLD_SIZE_KEY = "plesio/world_size"
"""In the job's store: the workers it started with; ranks from there on have joined later."""

_GRID_KEY = "plesio/grid"
"""In the job's store: the grid that its workers have from the command line; empty if none."""

_JOIN_TIMEOUT_S = 5.0
_LOOK_S = 0.02
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
    """

    checkpoints: CheckpointSetting | None = None
    replicas: int | None = None
    policy: str | None = None
    grid: GridSetting | None = None

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
        restarts: How often a run that fails is started again from its last checkpoint.
        site: Where the processes run.

    Returns:
        0 if all succeeded, or the others have finished the run without those that did not; 128 + the signal's number
        if a signal stopped the job; else the status of the worker that failed first.

    Raises:
        ConfigError: No such script, no workers, ``join`` is no address, there can be no secret, or no checkpoints, or
            another job takes some in that folder.
        TransportError: The port is taken, or there is no job at ``join``.
    """
    check_script(script)
    if num_workers is not None and num_workers < 1:
        raise ConfigError(f"--workers {num_workers}: write 1 or more")
    if num_workers is not None and num_workers > _MOST_WORKERS:
        raise ConfigError(f"{num_workers:,} workers are too many for one machine; {_MOST_WORKERS:,} are the most")
    checkpoints = defaults.checkpoints
    if restarts and checkpoints is None:
        raise ConfigError(
            f"--restarts {restarts}: a run that is started again goes on from a checkpoint; add --checkpoint DIR"
        )
    if restarts and join is not None:
        raise ConfigError(f"--restarts {restarts} is for a whole job; leave it out with --join")
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
        outcome, begun_unix_s = host_job(program, num_workers=num_workers or 1, port=port, site=site)
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
) -> tuple[JobOutcome, float | None]:
    """Do a job; returns how it ended, and when its first run began, if it did.

    ``look`` is called a few times a second with the job's store and its secret; ``outlet`` takes all output.

    The workers are started first and wait in the backlog of the bound socket while torch is imported here: it takes
    them as long. So too there is no thread yet when they are forked.
    """
    stores: list[TCPStore] = []  # the store lives as long as somebody refers to it
    name, outlet = uuid.uuid4().hex, outlet or Outlet.standard()
    secret = given_secret() or secret_of_user(name)
    with contextlib.ExitStack() as undo:
        with site.here():
            listener = undo.enter_context(listen(port, address=site.address))
        master_port = listener.getsockname()[1]

        past: list[int] = []
        known: list[int] = []

        def host_store() -> None:
            with site.here():
                stores.append(serve_store(listener, num_workers=num_workers))
            stores[0].set(NAME_KEY, name)
            stores[0].set(ENDED_KEY, ",".join(map(str, past)))
            stores[0].set(_GRID_KEY, program.environment.get(GRID_VARIABLE, ""))
            line = shlex.join([str(program.script), *program.args])
            join = f"; more can join with: plesio run --join {site.address}:{master_port} {line}"
            known.append(stores[0].num_keys())
            outlet.say(f"{counted(num_workers, 'worker')}{join if site is THIS_HOST else ''}")

        ranks = range(num_workers)
        meet = _Meeting(site, master_port, secret)
        commands = _commands(program, ranks=ranks, world_size=num_workers, meet=meet)

        def excused() -> set[int]:
            """Return the workers without which the others have finished the run."""
            if not stores[0].check([FINISHED_WITHOUT_KEY]):
                return set()
            ranks = unsigned(stores[0].get(FINISHED_WITHOUT_KEY).decode(), secret=secret, job=name)
            return set() if ranks is None else {int(rank) for rank in ranks.split(",")}

        def ended(rank: int) -> None:
            """Tell the workers that wait at the start that this one will not come."""
            past.append(rank)
            for store in stores:
                store.set(ENDED_KEY, ",".join(map(str, past)))

        watch = None if look is None else lambda: look(stores[0], secret)
        outcome = supervise(commands, prepare=host_store, excused=excused, ended=ended, outlet=outlet, look=watch)
    if not outcome.status and not outcome.joined and num_workers > 1 and stores[0].num_keys() == known[0]:
        outlet.say(
            f"{program.script} called no plesio.join (nor torch.distributed): {num_workers} copies of it have run, "
            "each on its own"
        )
    begun = float(stores[0].get(BEGUN_KEY)) if stores[0].check([BEGUN_KEY]) else None
    return outcome, begun


def _join(program: Program, *, num_workers: int | None, address: str) -> int:
    host, master_port = _parse_address(address)
    store = connect(host, master_port, key=NEXT_RANK_KEY, to="join")
    grid = str(store.get(_GRID_KEY), encoding="utf-8")
    if grid:
        program = replace(program, environment={**program.environment, GRID_VARIABLE: grid})
    if num_workers is None:
        num_workers = GridSetting.parse(grid).stages if grid else 1
    secret = given_secret() or secret_of_user(str(store.get(NAME_KEY), encoding="utf-8"))
    world_size = int(store.get(WORLD_SIZE_KEY))
    past = store.add(NEXT_RANK_KEY, num_workers)
    ranks = range(past - num_workers, past)
    meet = _Meeting(THIS_HOST, master_port, secret, host=host)
    commands = _commands(program, ranks=ranks, world_size=world_size, meet=meet)

    def announce() -> None:
        names = f"rank {ranks[0]}" if num_workers == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        print(f"plesio: joined {address} as {names}", file=sys.stderr, flush=True)

    return supervise(commands, prepare=announce).status


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


def listen(port: int, *, address: str = THIS_HOST.address) -> socket.socket:
    """Open a socket for the job's store.

    Raises:
        TransportError: The port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "ports are 0 to 65535"
        raise TransportError(f"cannot listen on port {port}: {reason}; leave --port out to take a free one") from None
    return listener


def serve_store(listener: socket.socket, *, num_workers: int) -> "TCPStore":
    """Serve the job's store by threads of this process for as long as it is referred to."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = listener.getsockname()
    # The store is given a bound socket because on its own it would listen on every network interface.
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    store.set(WORLD_SIZE_KEY, str(num_workers))
    store.set(NEXT_RANK_KEY, str(num_workers))
    return store


def _parse_address(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f'--join "{address}": write HOST:PORT, as the running job printed it when it started')
    return host, int(port)


def connect(host: str, port: int, *, key: str, to: str) -> "TCPStore":
    """Connect to the store of a running job, which has this ``key``, ``to`` join it or to watch it.

    This happens in a thread, because torch waits for ever for a listener that is no store and cannot be interrupted
    meanwhile.
    """
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

    connected: queue.SimpleQueue[TCPStore | Exception] = queue.SimpleQueue()

    def try_to() -> None:
        try:
            socket.create_connection((host, port), timeout=_JOIN_TIMEOUT_S).close()
            store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_JOIN_TIMEOUT_S))
            until_s = time.monotonic() + _JOIN_TIMEOUT_S
            while not store.check([key]):  # torch's wait complains on standard error when it is in vain
                if time.monotonic() > until_s:
                    raise TimeoutError
                time.sleep(_LOOK_S)
            connected.put(store)
        except (OSError, DistError) as error:
            connected.put(error)

    threading.Thread(target=try_to, name="plesio-join", daemon=True).start()
    try:
        found = connected.get(timeout=2 * _JOIN_TIMEOUT_S)
    except queue.Empty:
        found = TimeoutError()
    if isinstance(found, Exception):
        reason = (found.strerror if isinstance(found, OSError) else None) or "no job of Plesio answers there"
        raise TransportError(f"cannot {to} {host}:{port}: {reason}") from None
    return found
