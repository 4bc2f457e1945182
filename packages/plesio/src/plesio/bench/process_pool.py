"""Worker processes that are started together and told what to do through pipes.

Their starter hosts the job's key-value store itself, as a launcher does.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from plesio.core.errors import ConfigError
from plesio.runtime.job_store import listen, serve_store
from plesio.runtime.site import THIS_HOST, HostEntry, Site
from plesio.runtime.transport.job_secret import new_job_secret
from plesio.runtime.worker_commands import worker_environment
from plesio.tasks.load import TASKS

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

FOR_TRAINING = ("torch._dynamo", *(origin.partition(":")[0] for origin in TASKS.values()))
"""Modules to preload where tasks are trained. The first optimizer of a process imports ``torch._dynamo``, which takes
almost as long as torch itself."""
_LONGEST_FOLDER_BYTES = 60
"""The remainder of a socket path's 107 bytes after the parts of multiprocessing and of servers."""
STOP_S = 15.0
"""How long workers get to close their sessions before they are killed."""


class ProcessPool:
    """Starts ``count`` processes.

    Args:
        main: Called in each as ``main(*arguments, environment, commands)`` with torchrun's variables and a pipe. It
            sends ``("ready", value)`` when it can be told what to do, or ``("unusable", sentence)``, and ends when it
            is sent None.
        arguments: Arguments of ``main``; pickled.
        preload: Modules that all will need beside that of ``main``.

    Attributes:
        pipes: Pipes to the processes, by rank.
        store: The job's key-value store; None once closed.
    """

    def __init__(
        self,
        count: int,
        main: Callable[..., None],
        *arguments: Any,
        preload: Sequence[str] = (),
        site: Site = THIS_HOST,
    ) -> None:
        if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER_BYTES:
            raise ConfigError(
                f'the temporary folder "{tempfile.gettempdir()}" is too long for the sockets in it '
                f"({_LONGEST_FOLDER_BYTES} bytes); set TMPDIR to a shorter one"
            )
        # importing torch takes seconds: one process does it, and the workers are forked off that
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([main.__module__, *preload])
        self.pipes: list[Connection] = []
        self._processes: list[Any] = []
        self.store: TCPStore | None = None
        self.secret = new_job_secret()
        try:
            with contextlib.ExitStack() as undo:
                with site.here():
                    listener = undo.enter_context(listen(0, address=site.address))
                for rank in range(count):
                    ours, theirs = context.Pipe()
                    environment = worker_environment(
                        {},
                        rank=rank,
                        world_size=count,
                        master=listener.getsockname(),
                        secret=self.secret,
                        site=site,
                    )
                    process = context.Process(
                        target=_enter,
                        args=(site.entry(rank), main, *arguments, environment, theirs),
                        name=f"plesio-worker-{rank}",
                        daemon=True,
                    )
                    with _one_thread_without_ctrl_c():
                        process.start()
                    theirs.close()
                    self.pipes.append(ours)
                    self._processes.append(process)
                with site.here():
                    self.store = serve_store(listener, num_workers=count)
        except BaseException:
            self.close()
            raise

    def await_ready(self) -> list[Any]:
        """Return the values that the workers send when they are ready, by rank.

        Raises:
            ConfigError: A worker ended, or cannot be used.
        """
        values = []
        for rank, pipe in enumerate(self.pipes):
            try:
                kind, value = pipe.recv()
            except EOFError:
                raise ConfigError(f"worker {rank} ended while it was starting; see its output above") from None
            if kind != "ready":
                raise ConfigError(value)
            values.append(value)
        return values

    def ask(
        self, command: Any, *, meanwhile: Callable[[], None] = lambda: None, every_s: float | None = None
    ) -> Iterator[tuple[int, str, Any]]:
        """Give all processes a command, and yield (rank, kind, value) as they answer; "done" and "failed" are final.

        Of a process that ends, the kind is "ended" and the value is how. ``meanwhile`` is called about every so often.
        """
        for pipe in self.pipes:
            pipe.send(command)
        asked = {pipe: rank for rank, pipe in enumerate(self.pipes)}
        while asked:
            for ready in wait(list(asked), timeout=every_s):
                assert isinstance(ready, Connection)
                rank = asked[ready]
                try:
                    kind, value = ready.recv()
                except EOFError:
                    kind, value = "ended", self.status(rank)
                if kind in ("done", "failed", "ended"):
                    del asked[ready]
                yield rank, kind, value
            if asked:
                meanwhile()

    def kill(self, rank: int) -> None:
        self._processes[rank].kill()

    def status(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(STOP_S)
        code = process.exitcode
        return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"status {code}"

    def close(self) -> None:
        """Stop the workers: idle ones at once, busy ones after they have closed their sessions."""
        for pipe, process in zip(self.pipes, self._processes, strict=True):
            if process.is_alive():
                try:
                    pipe.send(None)
                except BrokenPipeError:
                    continue
        deadline_s = time.monotonic() + STOP_S
        if not self._idle():
            for process in self._processes:
                if process.is_alive():
                    process.terminate()
        for process in self._processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in self.pipes:
            pipe.close()
        self.store = None  # its sockets go with it, whoever still refers to this processes (a traceback, say)

    def _idle(self) -> bool:
        """Return True if all workers end by themselves soon, because they were waiting for an assignment."""
        for process in self._processes:
            process.join(1.0)
        return not any(process.is_alive() for process in self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _enter(entry: HostEntry | None, main: Callable[..., None], *arguments: Any) -> None:
    if entry is not None:
        entry.enter()
    main(*arguments)


@contextmanager
def _one_thread_without_ctrl_c() -> Iterator[None]:
    """Have processes started here take one thread, for N of them share the cores, and leave Ctrl-C to this one.

    Ctrl-C waits; what is started meanwhile never hears of it, or it would print where it was interrupted.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def enlisted(environment: Mapping[str, str]) -> Iterator[None]:
    """Give this process its variables; it leaves Ctrl-C to its starter, whose SIGTERM interrupts it."""
    gc.freeze()  # collections would go through, and so copy, all that the fork server has imported
    os.environ.update(environment)
    # as in any other process: a child of a fork server would use that for its own children (data loaders) too
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is on its way out already


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
