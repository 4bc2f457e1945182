"""A job of real worker processes on this machine, for tests: real sockets, real signals, hard time limits.

Importing torch takes seconds, so one process imports it and the workers are forked off that (a *fork server*): a fresh
process each, in milliseconds, with nothing of the test runner's state in it.
"""

import contextlib
import faulthandler
import gc
import importlib.util
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from plesio.runtime import job_servers
from plesio.runtime.job_store import listen, serve_store
from plesio.runtime.site import THIS_HOST, HostEntry, Site
from plesio.runtime.transport.job_secret import new_job_secret
from plesio.runtime.worker_commands import worker_environment
from plesio.testing.forked_server import Nursery

_PRELOADED = ["torch", "torch._dynamo", "torch.utils.data", "plesio.runtime.join"]
"""The first optimizer of a process imports ``torch._dynamo``, which takes almost as long as torch itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a worker ended.

    Attributes:
        exit_status: 0, or minus the signal that ended it.
        value: Its function's result.
        error: Name of the class of the exception that it raised instead.
    """

    rank: int
    exit_status: int
    value: Any = None
    error: str | None = None
    message: str = ""
    trace: str = ""


class LocalJob:
    """Hosts a job's key-value store, as a launcher does, and starts workers of it.

    Args:
        num_workers: Workers that the job begins with; ranks from there on join later.
        site: Site of the processes.
    """

    forks_servers: ClassVar[bool] = False
    """True if the job's servers are forked off the workers that start them, which saves their imports.

    A forked server has the command line of its starter, so by default servers are started as in any other job.
    """

    def __init__(self, num_workers: int, *, site: Site = THIS_HOST) -> None:
        self._num_workers = num_workers
        self._site = site
        with site.here(), listen(0, address=site.address) as listener:
            self._master = (site.address, listener.getsockname()[1])
            self._store = serve_store(listener, num_workers=num_workers)
        self._secret = new_job_secret()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._running: dict[int, tuple[ForkServerProcess, Connection]] = {}

    def start(self, rank: int, program: Path, function: str, /, **arguments: Any) -> None:
        """Start a worker that calls ``function`` of the Python file ``program`` with ``arguments``.

        Arguments and result are pickled. The call returns at once.
        """
        environment = worker_environment(
            {},
            rank=rank,
            world_size=self._num_workers,
            master=self._master,
            secret=self._secret,
            site=self._site,
        )
        ours, theirs = self._context.Pipe(duplex=False)
        entry = self._site.entry(rank)
        process = self._context.Process(
            target=_work, args=(entry, program, function, arguments, environment, theirs, self.forks_servers)
        )
        process.start()
        theirs.close()
        self._running[rank] = (process, ours)

    def wait(self, *, timeout_s: float, ranks: Collection[int] | None = None) -> dict[int, Ending]:
        """Wait for workers that were started: all, or those of these ``ranks``; by rank.

        Raises:
            TimeoutError: Some are still running after ``timeout_s``; where, is on their standard error.
        """
        deadline_s = time.monotonic() + timeout_s
        endings: dict[int, Ending] = {}
        for rank, (process, pipe) in list(self._running.items()):
            if ranks is not None and rank not in ranks:
                continue
            outcome: Mapping[str, Any] = {}
            if pipe.poll(max(0.0, deadline_s - time.monotonic())):
                with contextlib.suppress(EOFError):  # killed: the exit status says how
                    outcome = pipe.recv()
                process.join(max(0.0, deadline_s - time.monotonic()))
            if process.exitcode is None:
                self._show_stacks()
                raise TimeoutError(f"worker {rank} is still running after {timeout_s:g} s; others: {endings}")
            endings[rank] = Ending(rank=rank, exit_status=process.exitcode, **outcome)
            self._forget(rank)
        return endings

    def _show_stacks(self) -> None:
        for process, _ in self._running.values():
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, signal.SIGUSR1)

    def run(self, program: Path, function: str, /, *, timeout_s: float, **arguments: Any) -> dict[int, Ending]:
        """Start all workers of the job with the same arguments and wait for them."""
        for rank in range(self._num_workers):
            self.start(rank, program, function, **arguments)
        return self.wait(timeout_s=timeout_s)

    def _forget(self, rank: int) -> None:
        process, pipe = self._running.pop(rank)
        pipe.close()
        process.close()

    def close(self) -> None:
        """Kill what is still running and end the store."""
        for rank, (process, _) in list(self._running.items()):
            process.kill()
            process.join()
            self._forget(rank)
        del self._store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _work(
    entry: HostEntry | None,
    program: Path,
    function: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    pipe: Connection,
    forks_servers: bool,
) -> None:
    gc.freeze()  # collections would go through, and so copy, all that the fork server has imported
    if entry is not None:
        entry.enter()
    os.environ.update(environment)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # as in any other process; a child of a fork server would use that for its own children (data loaders) too
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    if forks_servers:
        job_servers.start_server = Nursery().start  # type: ignore[assignment, attr-defined]
    try:
        spec = importlib.util.spec_from_file_location(program.stem, program)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        outcome = {"value": getattr(module, function)(**arguments)}
    except Exception as error:
        outcome = {"error": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
    pipe.send(outcome)
    pipe.close()
