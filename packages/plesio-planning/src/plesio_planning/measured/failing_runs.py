"""Runs that are killed now and then and go on from their last state: a process, SIGKILL, a new process.

A run does some work, step by step, and writes its state (`torch.save`, fsync, a new name) every few steps. The times of
states and returns are in a file that outlives the process. Times between failures are exponential: quantiles of equal
probability in an order drawn by chance, so that few of them have the right mean.
"""

import contextlib
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from plesio.core.errors import PlesioError

_STATE, _LOG = "state", "log"
_NUM_GAPS = 8
_MOST_FAILURES = 200
"""So that a run on a machine that is too busy to get from one state to the next ends at all."""


class ResumableWork(Protocol):
    """The work of a run, made in its process: it goes on from a state that it loads."""

    def step(self, number: int) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingRun:
    """The times of a run.

    Attributes:
        restarts_s: From each failure until the state was back.
    """

    total_s: float
    num_failures: int
    writes_s: tuple[float, ...]
    restarts_s: tuple[float, ...]


def failure_gaps_s(mtbf_s: float, *, number: int = _NUM_GAPS, seed: int) -> list[float]:
    """Return times between failures: exponential quantiles in a drawn order; their mean is ``mtbf_s``.

    >>> gaps_s = failure_gaps_s(2.0, number=16, seed=0)
    >>> round(sum(gaps_s) / len(gaps_s), 6), min(gaps_s) < 0.1, max(gaps_s) > 6
    (2.0, True, True)
    """
    quantiles = -np.log1p(-(np.arange(number) + 0.5) / number)
    gaps_s: list[float] = (mtbf_s * np.random.default_rng(seed).permutation(quantiles / quantiles.mean())).tolist()
    return gaps_s


def run_with_failures(
    make_work: Callable[..., ResumableWork],
    *,
    arguments: Sequence[Any] = (),
    num_steps: int,
    steps_per_state: int,
    gaps_s: Sequence[float],
    folder: Path,
) -> FailingRun:
    """Do the work to its end, however often it fails.

    Args:
        make_work: Class or function of a module; makes the work in each process.
        arguments: Its arguments.
        num_steps: Steps of the work.
        steps_per_state: Steps between two states; there is none after the last step.
        gaps_s: Times from the beginning, and from each failure, to the next one; over and over. None for no failure.
        folder: Place of the states: empty, or made here.

    Raises:
        PlesioError: A process ended with an error, or the run was killed so often that it would hardly ever end.
    """
    folder.mkdir(exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    arguments_of_all = (make_work, tuple(arguments), num_steps, steps_per_state, folder)
    nursery = context.Process(target=_nurse, args=(theirs, tuple(gaps_s), *arguments_of_all))
    nursery.start()
    theirs.close()
    try:
        kind, value = ours.recv()
    except EOFError:
        nursery.join()
        kind, value = "failed", f"ended with status {nursery.exitcode}"
    finally:
        nursery.terminate()
        nursery.join()
        ours.close()
    if kind == "failed":
        raise PlesioError(f"cannot measure: the process of a run {value}")
    found: FailingRun = value
    return found


def _nurse(pipe: Connection, gaps_s: tuple[float, ...], *work: Any) -> None:
    """Start the others, as the entry of a process: forked off it, they are there at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its starter ends it
    signal.signal(signal.SIGTERM, _interrupt)
    torch.set_num_threads(1)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            pipe.send(("done", _run(gaps_s, *work)))
        except PlesioError as error:
            pipe.send(("failed", str(error)))


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _run(
    gaps_s: tuple[float, ...],
    make_work: Callable[..., ResumableWork],
    arguments: tuple[Any, ...],
    num_steps: int,
    steps_per_state: int,
    folder: Path,
) -> FailingRun:
    make_work(*arguments)  # here once, so that what it imports and reads is there in those that are forked off
    with _Process(make_work, arguments, num_steps, steps_per_state, folder) as process:
        begun_s = failed_s = process.await_begin()
        num_failures = 0
        for gap_s in _endless(gaps_s):
            if process.ends_within(failed_s + gap_s - time.monotonic()):
                break
            process.kill()
            failed_s = time.monotonic()
            num_failures += 1
            if num_failures == _MOST_FAILURES:
                raise PlesioError(f"was killed {num_failures} times and is not done; let nothing else run meanwhile")
            process.start(failed_s=failed_s)
        ended_s = time.monotonic()
    log = folder / _LOG
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return FailingRun(
        total_s=ended_s - begun_s,
        num_failures=num_failures,
        writes_s=tuple(one["write_s"] for one in records if "write_s" in one),
        restarts_s=tuple(one["restart_s"] for one in records if "restart_s" in one),
    )


def _endless(gaps_s: Sequence[float]) -> Iterator[float]:
    while gaps_s:
        yield from gaps_s
    yield math.inf


class _Process:
    """The process that does the work now."""

    def __init__(self, *work: Any) -> None:
        self._context, self._arguments = multiprocessing.get_context("fork"), work

    def __enter__(self) -> "_Process":
        self.start(failed_s=None)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *, failed_s: float | None) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_work, args=(theirs, failed_s, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()

    def await_begin(self) -> float:
        """Return when the first process began to work; that it starts is no part of the run."""
        kind, value = self._received()
        assert kind == "begun"
        return float(value)

    def ends_within(self, seconds: float) -> bool:
        deadline_s = time.monotonic() + seconds
        while wait([self._pipe], timeout=None if math.isinf(seconds) else max(0.0, deadline_s - time.monotonic())):
            if self._received()[0] == "done":
                return True
        return False

    def _received(self) -> tuple[str, Any]:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise PlesioError(f"ended with status {self._process.exitcode}") from None
        return kind, value

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


def _work(
    pipe: Connection,
    failed_s: float | None,
    make_work: Callable[..., ResumableWork],
    arguments: tuple[Any, ...],
    num_steps: int,
    steps_per_state: int,
    folder: Path,
) -> None:
    """Go on from the last state, if there is one, until the work is done, as the entry of a process."""
    torch.set_num_threads(1)
    work, done = make_work(*arguments), 0
    if (folder / _STATE).exists():
        saved = torch.load(folder / _STATE, weights_only=True)
        work.load(saved["work"])
        done = saved["done"]
    with (folder / _LOG).open("a") as log:
        pipe.send(("begun", time.monotonic()))
        if failed_s is not None:
            print(json.dumps({"restart_s": time.monotonic() - failed_s}), file=log, flush=True)
        for number in range(done, num_steps):
            work.step(number)
            if (number + 1) % steps_per_state == 0 and number + 1 < num_steps:
                begun_s = time.monotonic()
                write_state({"work": work.state(), "done": number + 1}, folder / _STATE)
                print(json.dumps({"write_s": time.monotonic() - begun_s}), file=log, flush=True)
    pipe.send(("done", None))
    pipe.recv()  # until it is killed


def write_state(state: dict[str, Any], path: Path) -> None:
    """Have it on the disk under a name that always holds a whole state."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
