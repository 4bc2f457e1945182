"""Latency and jitter on a link, where the kernel has no netem: packets are held in user space.

    host's interface <-> one end of the line | the other end <-> switch

Both ends are TAP devices of one process (`plesio.testbed.delay_loop`), which reads what a host sends, keeps it for the
latency, and writes it to the other end; what comes back goes through at once, so a path is charged once, by its sender,
as in `plesio.cost.cluster`. Packets keep their order under jitter. TAPs hand over what TCP would have the hardware cut
up in one piece of up to 64 KiB, so a few thousand system calls a second carry a gigabit.

The process ends when its standard input does, whatever became of the one that started it. How exact it is, and how
much it carries, is measured by ``benchmarks/bench_testbed.py`` (docs/testbed.md).
"""

import contextlib
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from plesio.core.errors import PlesioError
from plesio.core.extras import require

READY = b"ready\n"
"""The process's message when the lines are there."""
_STOP_S = 5.0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One link, with its two ends.

    Attributes:
        near: Namespace and name of the interface whose sending is delayed.
        far: Counterparts at the other end.
        latency_s: How long a packet from ``near`` is held.
        jitter_s: Standard deviation of that; a packet never overtakes one before it.
        bytes_per_s: Bandwidth of the link, for the memory that the line needs.
    """

    near: tuple[str, str]
    far: tuple[str, str]
    latency_s: float
    jitter_s: float = 0.0
    bytes_per_s: float


class DelayLines:
    """The process that carries packets over some lines; both ends of each are there once this has been made.

    Raises:
        PlesioError: The lines cannot be made.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        # not by -m: code compiled in a module of the name __main__ is not found again where it is kept
        require("sim", "A link with latency")
        command = [sys.executable, "-c", "from plesio.testbed.delay_loop import main; main()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(lines) + b"\n")
            self._process.stdin.flush()
            said = self._process.stdout.readline()
        except BaseException:
            self.close()
            raise
        if said != READY:
            self.close()
            raise PlesioError("cannot make lines with latency; why is said above")

    def close(self) -> None:
        """Let go of the lines, and with them of their interfaces."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
