"""A policy's log on its way to the disk: a run keeps none of it in memory, and no more than a limit there.

    events.jsonl       a header and the first entries, `PLAIN_BYTES` of them
    events.jsonl.gz    the entries after these, compressed; long runs alone have it

A machine can only be replayed from its beginning, so nothing is removed from the front when the limit is reached. From
there on the entries on the course of the run are written (reviews, changes, joins and departures), and the answers to
updates are left out: the line ``{"left_out": "updates"}`` marks the place. `plesio.policies.read_log` reads both files.
"""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from plesio.policies.events import Apply, Arrived, Grant, Refuse
from plesio.policies.policy import Policy
from plesio.policies.replay import LEFT_OUT, LogEntry, encode_entry, header_of, rest_of

LIMIT_BYTES = 2**28
"""Limit for a log on the disk: at some 20 bytes an update, a log of 10 million updates is whole."""
PLAIN_BYTES = 2**24
BATCH = 512
"""Entries that are encoded and written together; the most that a crash loses."""
_OF_UPDATES = (Apply, Grant, Refuse)


class LogWriter:
    """Writes the entries of one machine's log as they come; a disk that fills up ends the log, not the training.

    Args:
        path: The file to write; an earlier run's is replaced. None is nowhere.
        limit_bytes: Limit of both files together; rare entries are written beyond it.
        on_failure: Called once, with a sentence, when the log cannot be written any more.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        policy: Policy,
        limit_bytes: int = LIMIT_BYTES,
        on_failure: Callable[[str], object],
    ) -> None:
        self._path = path
        self._policy = policy
        self._limit_bytes = limit_bytes
        self._on_failure = on_failure
        self._pending: list[LogEntry] = []
        self._file: IO[bytes] | None = None
        self._compressor: Any = None
        """The compressor of the second file; None while the first is written."""
        self._num_bytes = 0
        self._thins = False

    def begin(self, clock: int) -> None:
        self._pending.clear()
        self.close()
        self._compressor, self._thins = None, False
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._rest = rest_of(self._path)
            self._rest.unlink(missing_ok=True)
            self._file = self._path.open("wb")
            header = json.dumps(header_of(self._policy, clock=clock)) + "\n"
            self._num_bytes = self._file.write(header.encode())
        except OSError as error:
            self._fail(error)

    def add(self, entry: LogEntry) -> None:
        if self._file is None or (self._thins and _is_update(entry)):
            return
        self._pending.append(entry)
        if len(self._pending) >= BATCH:
            self.flush()

    def flush(self) -> None:
        if self._file is None:
            return
        data = b"".join(json.dumps(encode_entry(entry)).encode() + b"\n" for entry in self._pending)
        self._pending.clear()
        if self._num_bytes >= self._limit_bytes and not self._thins:
            self._thins = True
            data += json.dumps(LEFT_OUT).encode() + b"\n"
        try:
            if self._compressor is None and self._num_bytes >= min(PLAIN_BYTES, self._limit_bytes):
                self._file.close()
                self._file = self._rest.open("wb")
                self._compressor = zlib.compressobj(wbits=31)  # gzip's
            if self._compressor is not None:
                data = self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
            self._num_bytes += self._file.write(data)
            self._file.flush()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Write the pending entries and close the file; harmless when repeated."""
        self.flush()
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if self._compressor is not None:
                file.write(self._compressor.flush())
            file.close()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._file = None
        self._pending.clear()
        self._on_failure(f"the policy's log stopped, training goes on: {error}")


def _is_update(entry: LogEntry) -> bool:
    return isinstance(entry.event, Arrived) and all(isinstance(action, _OF_UPDATES) for action in entry.actions)
