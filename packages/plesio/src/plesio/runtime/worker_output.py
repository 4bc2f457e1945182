"""Output of all workers on one screen: whole lines with the worker's rank in front, and progress bars as they move.

A program that moves a bar writes carriage returns and no line's end. Such a line is passed on at once, as it stands,
and is *open* until its worker ends it, or another one writes a line.
"""

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

_MAX_LINE_BYTES = 1 << 16
_BEGINS = (b"Traceback (most recent call last)", b"Exception ignored in")
_LINKS = (b"During handling of the above exception", b"The above exception was the direct cause")
_CLEAR = b"\r\x1b[K"
_TOGETHER_S = 1.0
"""How long an error of one worker waits for others that have the same."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """The streams that all output ends in, and the lines of the program that started the workers."""

    out: IO[bytes]
    err: IO[bytes]

    @classmethod
    def standard(cls) -> "Outlet":
        """Return this process's own streams."""
        return cls(sys.stdout.buffer, sys.stderr.buffer)

    def print(self, text: str) -> None:
        """Write a text and the end of its line to the second stream."""
        self.err.write(f"{text}\n".encode(errors="backslashreplace"))
        self.err.flush()

    def say(self, sentence: str) -> None:
        self.print(f"plesio: {sentence}")


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
        begins = line.startswith(_BEGINS)
        if not self._trace and not begins:
            self._linked = self._dropped and (self._linked or line.startswith(_LINKS))
            self._dropped = self._dropped and (not line or self._linked)
            return [] if self._dropped else [line]
        self._trace.append(line)
        if begins or not line or line.startswith(b" "):
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


@dataclass(slots=True)
class Words:
    """Messages from a worker to its supervisor, apart from its output."""

    pipe: IO[bytes]
    joined: bool = False
    error: str | None = None
    brief: str | None = None
    mistake: bool = False
    chosen: list[Mapping[str, Any]] = field(default_factory=list)
    _rest: bytes = b""

    def forward(self) -> bool:
        """Take in what has arrived; False at the end."""
        while True:
            try:
                data = os.read(self.pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                said = json.loads(line)
                self.joined = self.joined or "joined" in said
                self.error, self.mistake = said.get("error", self.error), said.get("mistake", self.mistake)
                self.brief = said.get("brief", self.brief)
                self.chosen += [said["chosen"]] if "chosen" in said else []


@dataclass(slots=True)
class Errors:
    """The errors that workers have ended with, each once."""

    outlet: Outlet
    due_s: float = math.inf
    """When those are printed that have come."""
    _new: dict[tuple[str, bool], list[int]] = field(default_factory=dict)
    _printed: set[str] = field(default_factory=set)

    def add(self, rank: int, text: str, *, mistake: bool) -> None:
        """Add the error with which a worker has ended."""
        self._new.setdefault((text, mistake), []).append(rank)
        self.due_s = min(self.due_s, time.monotonic() + _TOGETHER_S)

    def print(self, *, num_live: int, num_all: int) -> None:
        """Print them, with the ranks that they have ended, and how many workers go on."""
        for (text, mistake), ranks in self._new.items():
            names = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, sorted(ranks)))}"
            others = f"; {num_live} of {num_all} go on" if num_live else ""
            if text in self._printed:
                self.outlet.say(f"{names} ended with the same error{others}")
            elif mistake:
                self.outlet.say(f"error: {text} ({names}{others})")
            else:
                self.outlet.print(text.removesuffix("\n"))
                self.outlet.say(f"{names} ended with this error{others}")
            self._printed.add(text)
        self._new.clear()
        self.due_s = math.inf
