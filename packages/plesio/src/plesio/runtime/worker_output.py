"""Output of all workers on one screen: whole lines with the worker's rank in front, and progress bars as they move.

A program that moves a bar writes carriage returns and no line's end. Such a line is passed on at once, as it stands,
and is *open* until its worker ends it, or another one writes a line.
"""

import os
from dataclasses import dataclass, field
from typing import IO

__all__ = ["Output", "Screen"]

_MAX_LINE_BYTES = 1 << 16
_LINKS = (b"During handling of the above exception", b"The above exception was the direct cause")
_CLEAR = b"\r\x1b[K"


@dataclass(slots=True)
class Screen:
    """The screen that all workers' streams end on."""

    open: "Output | None" = None
    """The stream whose line is not ended."""
    stopping: bool = False
    """True once workers were asked to stop: tracebacks of a bare KeyboardInterrupt are then not shown."""

    def write(self, output: "Output", data: bytes, *, ends: bool) -> None:
        """Write a stream's lines, or a line of it that does not end yet."""
        if self.open is not None and self.open is not output:
            self.open.sink.write(_CLEAR if self.open.sink.isatty() else b"\n")
            self.open.sink.flush()
        self.open = None if ends else output
        output.sink.write(data)
        output.sink.flush()


@dataclass(slots=True)
class Output:
    """One stream of a worker."""

    pipe: IO[bytes]
    prefix: bytes
    sink: IO[bytes]
    screen: Screen = field(default_factory=Screen)
    _rest: bytes = b""
    _trace: list[bytes] = field(default_factory=list)
    _dropped: bool = False
    """True after a traceback that was dropped, until another line comes."""
    _linked: bool = False
    """True where the next traceback is the rest of one that was dropped."""

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
            if lines:
                self._write(lines)
            if b"\r" in self._rest:
                self._update()

    def finish(self) -> None:
        """Pass on a last line that has no end."""
        if self._rest.strip(b"\r"):
            self._write([self._rest])
        self._rest = b""
        if self._trace:
            trace, self._trace = self._trace, []
            self.screen.write(self, b"".join(self._shown(line) + b"\n" for line in trace), ends=True)

    def _write(self, lines: list[bytes]) -> None:
        if self.screen.stopping:
            lines = [shown for line in lines for shown in self._but_interrupts(line)]
        self.screen.write(self, b"".join(self._shown(line) + b"\n" for line in lines), ends=True)

    def _but_interrupts(self, line: bytes) -> list[bytes]:
        """Hold a traceback back until its error, and drop it if that is Ctrl-C, which met the script in its imports."""
        if not self._trace and not line.startswith(b"Traceback (most recent call last)"):
            self._linked = self._dropped and (self._linked or line.startswith(_LINKS))
            self._dropped = self._dropped and (not line or self._linked)
            return [] if self._dropped else [line]
        self._trace.append(line)
        if len(self._trace) == 1 or not line or line.startswith(b" "):
            return []
        trace, self._trace = self._trace, []
        self._dropped = self._linked or line.startswith(b"KeyboardInterrupt")
        self._linked = False
        return [] if self._dropped else trace

    def _update(self) -> None:
        """Show a line that goes on; only what comes after its last return can still change."""
        if self._rest.strip(b"\r"):
            self.screen.write(self, self._shown(self._rest), ends=False)
        self._rest = b"\r" + self._rest.rpartition(b"\r")[2]

    def _shown(self, line: bytes) -> bytes:
        """Put the rank in front of a line, also behind each of its returns."""
        first, *others = line.removesuffix(b"\r").split(b"\r")
        others = [part for part in others if part]
        if not (first or others) and self.screen.open is self:
            return b""  # the end of a line that stands there
        shown = [self.prefix + first] if first or not others else [b""]
        return b"\r".join([*shown, *(self.prefix + part for part in others)])
