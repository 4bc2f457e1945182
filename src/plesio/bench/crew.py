"""The worker processes of a comparison: started once, used for every run, replaced when one is lost.

The comparison hosts the job's key-value store itself, as a launcher does, and looks at the runs through an `Observer`.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

from plesio.bench.recipe import Recipe
from plesio.bench.trainer import Assignment, serve_runs
from plesio.core.errors import ConfigError
from plesio.runtime.launcher import listen, serve_store, worker_environment
from plesio.runtime.observer import Observer, RunFigures

__all__ = ["Crew", "CrewRun"]

LOOK_S = 0.25
"""How often the run's figures are asked for."""
STOP_S = 15.0
"""How long workers get to close their sessions before they are killed."""


@dataclass(frozen=True, slots=True)
class CrewRun:
    """How a run ended: rank 0's result if it gave one, and what went wrong, by rank."""

    result: dict[str, Any] | None
    problems: dict[int, str]


class Crew:
    """Starts the recipe's workers and waits until they are ready.

    Args:
        recipe: What they train.

    Raises:
        ConfigError: The recipe's task cannot be trained.
    """

    def __init__(self, recipe: Recipe) -> None:
        count = recipe.workers.count
        spawn = multiprocessing.get_context("spawn")
        with listen(0) as listener:
            master = ("127.0.0.1", listener.getsockname()[1])
            self._pipes: list[Connection] = []
            self._processes = []
            for rank in range(count):
                ours, theirs = spawn.Pipe()
                environment = worker_environment({}, rank=rank, world_size=count, master=master)
                process = spawn.Process(
                    target=serve_runs, args=(recipe, environment, theirs), name=f"plesio-worker-{rank}", daemon=True
                )
                with _one_thread():
                    process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
            self._store = serve_store(listener, num_workers=count)
        self._observer = Observer(self._store)
        self.usable = True
        """False when a worker was lost or failed; a new crew is needed then."""
        try:
            self.samples_per_epoch = self._await_ready()
            """Samples of the task's training set."""
        except BaseException:
            self.close()
            raise

    def _await_ready(self) -> int:
        sizes = []
        for rank, pipe in enumerate(self._pipes):
            try:
                kind, value = pipe.recv()
            except EOFError:
                raise ConfigError(f"worker {rank} ended while it was starting; see its output above") from None
            if kind != "ready":
                raise ConfigError(value)
            sizes.append(value)
        return int(sizes[0])

    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> CrewRun:
        """Do one run with all workers; ``on_figures`` is called a few times a second."""
        for pipe in self._pipes:
            pipe.send(assignment)
        open_pipes = dict(enumerate(self._pipes))
        result: dict[str, Any] | None = None
        problems: dict[int, str] = {}
        while open_pipes:
            by_pipe = {pipe: rank for rank, pipe in open_pipes.items()}
            for ready in wait(list(by_pipe), timeout=LOOK_S):
                assert isinstance(ready, Connection)
                rank = by_pipe[ready]
                del open_pipes[rank]
                try:
                    kind, value = ready.recv()
                except EOFError:
                    kind, value = "failed", f"the process ended with {self._status(rank)}"
                if kind == "failed":
                    problems[rank] = value
                elif value is not None:
                    result = value
            if open_pipes:
                figures = self._observer.figures(timeout_s=LOOK_S)
                if figures is not None:
                    on_figures(figures)
        self._observer.next_run()
        self.usable = not problems
        return CrewRun(result, problems)

    def _status(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(STOP_S)
        code = process.exitcode
        return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"status {code}"

    def close(self) -> None:
        """Stop the workers: idle ones at once, busy ones after they have closed their sessions."""
        self._observer.close()
        for pipe, process in zip(self._pipes, self._processes, strict=True):
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
        for pipe in self._pipes:
            pipe.close()

    def _idle(self) -> bool:
        """Whether all workers end by themselves soon, because they were waiting for the next run."""
        for process in self._processes:
            process.join(1.0)
        return not any(process.is_alive() for process in self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _one_thread:  # noqa: N801 - reads as a statement
    """While workers are started, their libraries are told to use one thread: N processes share the cores."""

    def __enter__(self) -> None:
        self._before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = self._before
