"""Worker processes on this machine: started together, heard line by line, stopped for certain.

Each worker leads a session of its own, so that Ctrl-C reaches the supervisor alone and it decides what its workers are
told. Three things keep any process from being left behind:

- a stop escalates: the signal that asked for it, SIGTERM, SIGKILL, each `GRACE_S` after the one before (or at once when
  the user asks again);
- when a worker ends, what is left of its process group (its data loaders) is killed before its process id is free;
- the kernel kills the workers if the supervisor itself is killed (``PR_SET_PDEATHSIG``).

One thread and one `selectors` loop: output, ends of processes (pidfd) and signals (wake-up socket) are all file
descriptors.
"""

import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

__all__ = ["GRACE_S", "Ending", "Outcome", "WorkerCommand", "supervise"]

GRACE_S = 10.0
"""Seconds that workers have to end after each signal."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAX_LINE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """A worker to start."""

    rank: int
    argv: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a worker ended.

    Attributes:
        rank: Which worker.
        returncode: Its exit status, or minus the signal that ended it.
        at_unix_s: When.
    """

    rank: int
    returncode: int
    at_unix_s: float

    @property
    def status(self) -> int:
        """The exit status as a shell counts it: 128 + the signal's number."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    def __str__(self) -> str:
        if self.returncode < 0:
            names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
            return f"rank {self.rank} was killed by {names.get(-self.returncode, f'signal {-self.returncode}')}"
        return f"rank {self.rank} ended with status {self.returncode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: 0 if every worker succeeded that was not excused; 128 + the signal's number when a signal stopped the
            job; else the status of the worker that failed first.
        stopped: Whether a signal to the supervisor stopped it.
        endings: Of its workers, in their order.
    """

    status: int
    stopped: bool
    endings: tuple[Ending, ...]


def supervise(
    commands: Sequence[WorkerCommand],
    *,
    prepare: Callable[[], None],
    excused: Callable[[], Collection[int]] = tuple,
    grace_s: float = GRACE_S,
) -> Outcome:
    """Run the workers until all have ended; one that fails does not end the others.

    Must be called from the main thread (it handles SIGINT, SIGTERM and SIGHUP meanwhile).

    Args:
        commands: The workers.
        prepare: Called once when the workers are on their way; should it raise, they are killed.
        excused: Called when all have ended: the ranks that the others have done without.
        grace_s: Seconds that workers have to end after each signal.

    Returns:
        How they ended.
    """
    with _signals_as_bytes() as signals, _Supervisor(signals, excused=excused, grace_s=grace_s) as supervisor:
        supervisor.start(commands)
        prepare()
        return supervisor.run()


@contextmanager
def _signals_as_bytes() -> Iterator[socket.socket]:
    """While inside, each stop signal arrives as a byte on the socket instead of its usual effect."""

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
class _Output:
    """One stream of a worker: whole lines go on with the worker's rank in front."""

    pipe: IO[bytes]
    prefix: bytes
    sink: IO[bytes]
    _rest: bytes = b""

    def forward(self) -> bool:
        """Pass on what has arrived; False at the end of the stream."""
        while True:
            try:
                data = os.read(self.pipe.fileno(), _MAX_LINE_BYTES)
            except BlockingIOError:
                return True
            if not data:
                self.finish()
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > _MAX_LINE_BYTES:
                lines, self._rest = [*lines, self._rest], b""
            self._write(lines)

    def finish(self) -> None:
        """Pass on a last line that has no end."""
        if self._rest:
            self._write([self._rest])
            self._rest = b""

    def _write(self, lines: Sequence[bytes]) -> None:
        self.sink.write(b"".join(b"%s%s\n" % (self.prefix, line) for line in lines))
        self.sink.flush()


@dataclass(slots=True)
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    pidfd: int
    outputs: list[_Output] = field(default_factory=list)

    def signal_group(self, number: int) -> None:
        """Send a signal to the worker and its children; safe until the worker is reaped."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class _Supervisor:
    def __init__(self, signals: socket.socket, *, excused: Callable[[], Collection[int]], grace_s: float) -> None:
        self._signals = signals
        self._excused = excused
        self._grace_s = grace_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals, selectors.EVENT_READ)
        self._live: list[_Worker] = []
        self._endings: list[Ending] = []
        self._stopped_by: int | None = None
        self._next_signals: deque[int] = deque()
        self._next_signal_s = 0.0

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
        width = max(len(str(command.rank)) for command in commands)
        for command in commands:
            process = subprocess.Popen(
                command.argv,
                env=dict(command.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_end_with_parent(os.getpid()),
            )
            worker = _Worker(command.rank, process, os.pidfd_open(process.pid))
            self._live.append(worker)
            self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
            prefix = f"[{command.rank:>{width}}] ".encode()
            for pipe, sink in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                output = _Output(pipe, prefix, sink)
                worker.outputs.append(output)
                self._selector.register(pipe, selectors.EVENT_READ, output)

    def run(self) -> Outcome:
        while self._live:
            left_s = self._next_signal_s - time.monotonic() if self._next_signals else None
            if left_s is not None and left_s <= 0:
                self._send_next_signal()
                continue
            ready = [key for key, _ in self._selector.select(left_s)]
            for key in ready:
                if isinstance(key.data, _Output) and not key.data.forward():
                    self._selector.unregister(key.fileobj)
            for key in ready:  # after the outputs, because this closes them
                if isinstance(key.data, _Worker):
                    self._reap(key.data)
                elif key.fileobj is self._signals:
                    for number in self._signals.recv(64):
                        self._stop(number)
        stopped = self._stopped_by is not None
        status = self._status() if self._stopped_by is None else 128 + self._stopped_by
        return Outcome(status=status, stopped=stopped, endings=tuple(self._endings))

    def _status(self) -> int:
        """That of the worker that failed first, unless the others have finished the run without all that failed."""
        failed = [ending for ending in self._endings if ending.status]
        excused = self._excused() if 0 < len(failed) < len(self._endings) else ()
        if failed and all(ending.rank in excused for ending in failed):
            names = " and ".join(f"rank {ending.rank}" for ending in failed)
            _say(f"the others have finished the run without {names}")
            return 0
        return next((ending.status for ending in failed), 0)

    def _stop(self, number: int) -> None:
        if number not in _STOP_SIGNALS:
            return
        if self._stopped_by is None:
            self._stopped_by = number
            self._next_signals.extend(dict.fromkeys((number, signal.SIGTERM, signal.SIGKILL)))
        if self._next_signals:
            self._send_next_signal()

    def _send_next_signal(self) -> None:
        number = self._next_signals.popleft()
        self._next_signal_s = time.monotonic() + self._grace_s
        for worker in self._live:
            if number == signal.SIGKILL:
                _say(f"rank {worker.rank} did not stop and is killed")
            worker.signal_group(number)

    def _reap(self, worker: _Worker) -> None:
        # The worker is a zombie: its process id, and so its group's, cannot be another's before it is waited for.
        worker.signal_group(signal.SIGKILL)
        self._live.remove(worker)
        self._close(worker)
        ending = Ending(rank=worker.rank, returncode=worker.process.returncode, at_unix_s=time.time())
        self._endings.append(ending)
        if ending.status and self._stopped_by is None:
            others = f"; {len(self._live)} of {len(self._live) + len(self._endings)} go on" if self._live else ""
            _say(f"{ending}{others}")

    def _close(self, worker: _Worker) -> None:
        """Pass on the worker's last words, wait for it (it is dead), and let go of its file descriptors."""
        worker.process.wait()
        self._selector.unregister(worker.pidfd)
        os.close(worker.pidfd)
        for output in worker.outputs:
            if output.pipe in self._selector.get_map():
                self._selector.unregister(output.pipe)
                with suppress(BrokenPipeError):
                    output.forward()
                    output.finish()
            output.pipe.close()


def _end_with_parent(parent_pid: int) -> Callable[[], None]:
    """What a worker does before it becomes Python: ask the kernel to kill it when the supervisor dies."""

    def in_child() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # it died before we asked
            os._exit(1)

    return in_child


def _say(sentence: str) -> None:
    print(f"plesio: {sentence}", file=sys.stderr, flush=True)
