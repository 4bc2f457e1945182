"""Worker processes on this machine: started together, read line by line, stopped for certain.

Each worker leads a session of its own, so that Ctrl-C reaches the supervisor alone and it decides what its workers are
told. Four things keep any process from being left behind:

- a stop escalates: the signal that asked for it, SIGTERM, SIGKILL, each `GRACE_S` after the one before (or at once when
  the user asks again);
- when a worker ends, what is left of its process group (its data loaders) is killed before its process id is free;
- when a rank of an island fails, the others are ended `ISLAND_S` later: they hold no whole replica without it;
- the kernel kills the workers if the supervisor itself is killed (``PR_SET_PDEATHSIG``).

An error that ends several workers is printed once, with the ranks that it ended: workers report it on a pipe of their
own (`plesio.core.last_words`), and one that is a user's mistake needs no traceback.

One thread and one `selectors` loop: output, ends of processes (pidfd) and signals (wake-up socket) are all file
descriptors.
"""

import ctypes
import math
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import psutil

from plesio.core.last_words import SUPERVISOR_VARIABLE, name_of_pipe
from plesio.core.units import counted, named
from plesio.runtime.worker_output import Errors, Outlet, Output, Screen, Words

GRACE_S = 10.0
"""Seconds that workers have to end after each signal."""

ISLAND_S = 1.0
"""Seconds that the other ranks of an island have to say why, when one of them has failed."""

LOOK_S = 0.25
"""How often a look is taken at a job under way."""
MISTAKE = 2
"""The exit status where a worker was ended by what its user, or the machine, has to mend."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """A process to start.

    Attributes:
        worker: The worker whose island it is a rank of: when one of them fails, the others are ended too. None where
            the process is a worker by itself.
    """

    rank: int
    argv: Sequence[str]
    environment: Mapping[str, str]
    worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnding:
    """How a worker ended.

    Attributes:
        returncode: Its exit status, or minus the signal that ended it.
        mistake: Whether a `PlesioError` ended it.
        error: The error that ended it, in one line, if it has told of one.
        chosen: The script's own choices, for each session that it joined, if it has told of them.
    """

    rank: int
    returncode: int
    at_unix_s: float
    mistake: bool = False
    error: str | None = None
    chosen: tuple[Mapping[str, Any], ...] = ()

    @property
    def status(self) -> int:
        """The exit status as a shell counts it: 128 + the signal's number."""
        if self.mistake:
            return MISTAKE
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    def __str__(self) -> str:
        if self.returncode < 0:
            names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
            return f"rank {self.rank} was killed by {names.get(-self.returncode, f'signal {-self.returncode}')}"
        return f"rank {self.rank} ended with status {self.returncode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        status: 0 if every worker succeeded that was not excused; 128 + the signal's number when a signal stopped the
            job; else the status of the worker that failed first.
        stopped: Whether a signal to the supervisor stopped it.
        endings: Of its workers, in their order.
        joined: The ranks that have told of having joined.
    """

    status: int
    stopped: bool
    endings: tuple[WorkerEnding, ...]
    joined: frozenset[int] = frozenset()


def supervise(
    commands: Sequence[WorkerCommand],
    *,
    prepare: Callable[[], None],
    excused: Callable[[], Collection[int]] = tuple,
    ended: Callable[[int], None] = lambda rank: None,
    again: Callable[[int], Sequence[WorkerCommand]] = lambda worker: (),
    grace_s: float = GRACE_S,
    outlet: Outlet | None = None,
    look: Callable[[], None] | None = None,
) -> JobOutcome:
    """Run the workers until all have ended; one that fails does not end the others.

    Must be called from the main thread (it handles SIGINT, SIGTERM and SIGHUP meanwhile).

    Args:
        commands: The workers.
        prepare: Called once when the workers are on their way; should it raise, they are killed.
        excused: Called when all have ended: the ranks that the others have done without.
        ended: Called with the rank of each worker that has ended.
        again: Called with the worker of an island that has failed while others go on: the processes in its place.
        grace_s: Seconds that workers have to end after each signal.
        outlet: Takes all output; None is this process's own.
        look: Called about every `LOOK_S` while workers are there.

    Returns:
        How they ended.
    """
    with (
        _signals_as_bytes() as signals,
        _Supervisor(
            signals=signals,
            excused=excused,
            ended=ended,
            again=again,
            grace_s=grace_s,
            outlet=outlet or Outlet.standard(),
            look=look,
        ) as supervisor,
    ):
        supervisor.start(commands)
        prepare()
        return supervisor.run()


@contextmanager
def _signals_as_bytes() -> Iterator[socket.socket]:
    """Turn each stop signal within this context into a byte on the socket, instead of its usual effect."""

    def arrived(number: int, frame: FrameType | None) -> None:
        pass  # the wake-up socket has its number

    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    old_fd = signal.set_wakeup_fd(writer.fileno())
    old_handlers = {number: signal.signal(number, arrived) for number in _STOP_SIGNALS}
    try:
        yield reader
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_fd)
        reader.close()
        writer.close()


@dataclass(slots=True)
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    pidfd: int
    words: Words
    worker: int | None = None
    outputs: list[Output] = field(default_factory=list)

    def signal_group(self, number: int) -> None:
        """Send a signal to the worker and its children; safe until the worker is reaped."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def is_stopped(self) -> bool:
        """Tell whether somebody has stopped it; a debugger that holds it is no stop."""
        try:
            return bool(psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False


@dataclass(slots=True, kw_only=True)
class _Supervisor:
    signals: socket.socket
    excused: Callable[[], Collection[int]]
    ended: Callable[[int], None]
    again: Callable[[int], Sequence[WorkerCommand]]
    grace_s: float
    outlet: Outlet
    look: Callable[[], None] | None
    _errors: Errors = field(init=False)
    _broken: dict[int, float] = field(default_factory=dict)
    """Islands of which a rank has failed, and when the others are ended."""
    _screen: Screen = field(default_factory=Screen)
    _next_look_s: float = 0.0
    _joined: set[int] = field(default_factory=set)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _live: list[_Worker] = field(default_factory=list)
    _endings: list[WorkerEnding] = field(default_factory=list)
    _num_all: int = 0
    """Processes at the start: others take the places of some of them."""
    _stopped_by: int | None = None
    _next_signals: deque[int] = field(default_factory=deque)
    _next_signal_s: float = 0.0
    _look_s: float = math.inf
    """When those that are left are looked at: processes that are stopped would never end."""
    _all_stopped: bool = False
    """True if all were at the last look; they may have been stopped with this process, and go on in a moment."""

    def __post_init__(self) -> None:
        self._errors = Errors(self.outlet)
        self._selector.register(self.signals, selectors.EVENT_READ)

    def __enter__(self) -> "_Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._live:
            worker.signal_group(signal.SIGKILL)
        for worker in self._live:
            self._close(worker)
        self._live.clear()
        self._selector.close()

    def start(self, commands: Sequence[WorkerCommand]) -> None:
        self._num_all = self._num_all or len(commands)
        width = max((len(str(command.rank)) for command in commands), default=0)
        for command in commands:
            words, told = os.pipe()
            try:
                process = subprocess.Popen(
                    command.argv,
                    env={**command.environment, SUPERVISOR_VARIABLE: name_of_pipe(told)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    pass_fds=[told],
                    preexec_fn=_end_with_parent(os.getpid()),
                )
            finally:
                os.close(told)
            told_by, pidfd = Words(os.fdopen(words, "rb", 0)), os.pidfd_open(process.pid)
            worker = _Worker(command.rank, process, pidfd, told_by, command.worker)
            self._live.append(worker)
            self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
            os.set_blocking(words, False)
            self._selector.register(worker.words.pipe, selectors.EVENT_READ, worker.words)
            prefix = f"[{command.rank:>{width}}] ".encode()
            for pipe, sink in ((process.stdout, self.outlet.out), (process.stderr, self.outlet.err)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                output = Output(pipe, prefix, sink, self._screen)
                worker.outputs.append(output)
                self._selector.register(pipe, selectors.EVENT_READ, output)

    def run(self) -> JobOutcome:
        while self._live:
            now_s = time.monotonic()
            if self._next_signals and self._next_signal_s <= now_s:
                self._send_next_signal()
                continue
            if self._errors.due_s <= now_s:
                self._errors.print(num_live=len(self._live), num_all=self._num_all)
            if self._look_s <= now_s:
                self._end_stopped(now_s)
            self._end_broken(now_s)
            signal_s = self._next_signal_s if self._next_signals else math.inf
            next_s = min(signal_s, self._errors.due_s, self._look_s, *self._broken.values())
            left_s = None if math.isinf(next_s) else max(0.0, next_s - now_s)
            if self.look is not None:
                left_s = LOOK_S if left_s is None else min(LOOK_S, left_s)
            ready = [key for key, _ in self._selector.select(left_s)]
            for key in ready:
                if isinstance(key.data, Output | Words) and not key.data.forward():
                    self._selector.unregister(key.fileobj)
            for key in ready:  # after the outputs, because this closes them
                if isinstance(key.data, _Worker):
                    self._reap(key.data)
                elif key.fileobj is self.signals:
                    for number in self.signals.recv(64):
                        self._stop(number)
            if self.look is not None and time.monotonic() >= self._next_look_s:
                self._next_look_s = time.monotonic() + LOOK_S
                self.look()
        stopped = self._stopped_by is not None
        self._errors.print(num_live=0, num_all=self._num_all)
        status = self._status() if self._stopped_by is None else 128 + self._stopped_by
        if stopped:
            self.outlet.say("all workers have ended")
        return JobOutcome(status=status, stopped=stopped, endings=tuple(self._endings), joined=frozenset(self._joined))

    def _status(self) -> int:
        """Return the status of the worker that failed first, or 0 if the others finished without all failed ones."""
        failed = [ending for ending in self._endings if ending.status]
        excused = self.excused() if 0 < len(failed) < len(self._endings) else ()
        if failed and all(ending.rank in excused for ending in failed):
            names = named("rank", sorted(ending.rank for ending in failed))
            self.outlet.say(f"the others have finished the run without {names}")
            return 0
        return next((ending.status for ending in failed), 0)

    def _stop(self, number: int) -> None:
        if number not in _STOP_SIGNALS:
            return
        self._screen.stopping = True
        if self._stopped_by is None:
            self._stopped_by = number
            self._next_signals.extend(dict.fromkeys((number, signal.SIGTERM, signal.SIGKILL)))
            self.outlet.say(
                f"{signal.Signals(number).name}: {counted(len(self._live), 'worker')} to stop; once more does not wait"
            )
        if self._next_signals:
            self._send_next_signal()

    def _send_next_signal(self) -> None:
        number = self._next_signals.popleft()
        self._next_signal_s = time.monotonic() + self.grace_s
        for worker in self._live:
            if number == signal.SIGKILL:
                self.outlet.say(f"rank {worker.rank} did not stop and is killed")
            worker.signal_group(number)

    def _end_stopped(self, now_s: float) -> None:
        """Kill the workers that are left if all were stopped (SIGSTOP) at two looks: nobody would wake them."""
        self._look_s = now_s + self.grace_s
        before, self._all_stopped = self._all_stopped, all(worker.is_stopped() for worker in self._live)
        if before and self._all_stopped:
            for worker in self._live:
                self.outlet.say(f"rank {worker.rank} is stopped (SIGSTOP) and the others have ended: it is killed")
                worker.signal_group(signal.SIGKILL)

    def _end_broken(self, now_s: float) -> None:
        """End the ranks that are left of islands of which one has failed, and start others in their place."""
        for island in [island for island, end_s in self._broken.items() if end_s <= now_s]:
            left = [worker for worker in self._live if worker.worker == island]
            for worker in left:
                worker.signal_group(signal.SIGKILL)
            if left:
                self._broken[island] = now_s + self.grace_s
                continue
            del self._broken[island]
            if self._live and self._stopped_by is None:
                self.start(self.again(island))

    def _reap(self, worker: _Worker) -> None:
        # The worker is a zombie: its process id, and so its group's, cannot be another's before it is waited for.
        worker.signal_group(signal.SIGKILL)
        self._live.remove(worker)
        self._look_s, self._all_stopped = time.monotonic() + self.grace_s if self._live else math.inf, False
        self._close(worker)
        returncode, words = worker.process.returncode, worker.words
        # the ranks of a broken island are killed when they have said why they end
        mistake = words.mistake and (returncode > 0 or worker.worker in self._broken)
        ending = WorkerEnding(
            rank=worker.rank,
            returncode=returncode,
            at_unix_s=time.time(),
            mistake=mistake,
            error=words.brief,
            chosen=tuple(words.chosen),
        )
        self._endings.append(ending)
        self._joined |= {worker.rank} if words.joined else set()
        self.ended(worker.rank)
        island, is_first = worker.worker, worker.worker not in self._broken
        if island is not None and ending.status:
            left = any(one.worker == island for one in self._live)
            self._broken[island] = (
                time.monotonic() + ISLAND_S if left and is_first else 0.0 if not left else self._broken[island]
            )
        if words.error is not None and not (mistake and self._stopped_by is not None):
            self._errors.add(worker.rank, words.error, mistake=mistake)
        elif ending.status and self._stopped_by is None and (island is None or is_first):
            others = f"; {len(self._live)} of {self._num_all} go on" if self._live else ""
            self.outlet.say(f"{ending}{others}")

    def _close(self, worker: _Worker) -> None:
        """Pass on the worker's last lines, wait for it (it is dead), and let go of its file descriptors."""
        worker.process.wait()
        self._selector.unregister(worker.pidfd)
        os.close(worker.pidfd)
        streams: list[Output | Words] = [worker.words, *worker.outputs]
        for stream in streams:
            if stream.pipe in self._selector.get_map():
                self._selector.unregister(stream.pipe)
                with suppress(BrokenPipeError):
                    stream.forward()
                    if isinstance(stream, Output):
                        stream.finish()
            stream.pipe.close()


def _end_with_parent(parent_pid: int) -> Callable[[], None]:
    """Make the function that a worker runs before Python: it asks the kernel to kill it when the supervisor dies."""

    def in_child() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # it died before we asked
            os._exit(1)

    return in_child
