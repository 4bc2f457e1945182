"""One job a folder of checkpoints: a lock that the system lets go of when the job's processes end, however they do.

The lock is on the file ``.lock``, which names its holder. Worker 0 takes it for itself alone (flock, which NFS has
too), writes its line, and then shares it; so another job finds it taken for as long as one of these processes lives,
and free at once when all are gone. A worker that leads after worker 0 was lost shares the lock from its first
checkpoint on, unless another job has written its line there since.

Only the user can open the file, so no other user can hold it. A process that is forked does not inherit it.
"""

import fcntl
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from plesio.core.errors import ConfigError

_log = logging.getLogger(__name__)

_NAME = ".lock"
_PATIENCE_S = 2.0
"""How long a job that is ending may take to let go."""
_LOOK_S = 0.05


class _Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Name of the lock's holder."""

    host: str
    process: int
    since_unix_s: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_unix_s).isoformat(sep=" ", timespec="seconds")
        return f"process {self.process} on host {self.host}, since {since}"


_open: "weakref.WeakSet[FolderClaim]" = weakref.WeakSet()


def _let_go() -> None:
    """Close the claims of a forked process: the parent alone holds them."""
    for claim in list(_open):
        claim.close()


os.register_at_fork(after_in_child=_let_go)


class FolderClaim:
    """A worker's hold on its job's folder; let go when it is closed, when nothing refers to it, or with the process.

    Args:
        warn: Told, in a line, if the file system has no locks.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = _log.warning) -> None:
        self._folder, self._warn = folder, warn
        self._holder: bytes | None = None
        """The line of this job, as far as it is known."""
        self._close: weakref.finalize[[int], FolderClaim] | None = None

    def take(self) -> None:
        """Take the folder for this job; worker 0 does, before anything is written.

        It raises ConfigError if another job has it, or the lock is another user's.
        """
        descriptor = self._alone()
        holder = _Holder(host=socket.gethostname(), process=os.getpid(), since_unix_s=time.time())
        self._holder = msgspec.json.encode(holder)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, self._holder, 0)
        self._share(descriptor)

    def check(self) -> None:
        """Raise what `take` would, and take nothing: the launcher refuses before it starts any worker."""
        self._alone()
        self.close()

    def confirm(self, *, leads: bool) -> None:
        """Make sure that the folder is this job's still; a worker does before it writes.

        One that ``leads`` commits the checkpoint, so it holds the folder from here on.

        Raises:
            ConfigError: Another job has it by now.
        """
        if self._holder is None:  # a run's first checkpoint comes when its worker 0 has taken the folder
            self._holder = self._written()
        if leads and self._close is None:
            self._share(self._opened())
        if self._written() != self._holder:
            raise self._taken()

    def close(self) -> None:
        """Let go; harmless when repeated."""
        if self._close is not None:
            self._close()
            self._close = None

    def _alone(self) -> int:
        """Lock the file against other jobs and return its descriptor."""
        descriptor = self._opened()
        deadline_s = time.monotonic() + _PATIENCE_S
        while not self._locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline_s:
                raise self._taken()
            time.sleep(_LOOK_S)
        return descriptor

    def _opened(self) -> int:
        path = self._folder / _NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except PermissionError:
            raise ConfigError(
                f"{path} is another user's, who takes checkpoints in this folder; use a folder of your own"
            ) from None
        except OSError as error:
            raise ConfigError(f"checkpoints cannot be written to {self._folder}: {_NAME}: {error.strerror}") from None
        self._close = weakref.finalize(self, os.close, descriptor)
        _open.add(self)
        return descriptor

    def _share(self, descriptor: int) -> None:
        """Hold the lock beside others of this job."""
        if not self._locked(descriptor, fcntl.LOCK_SH) or self._written() != self._holder:
            raise self._taken()

    def _locked(self, descriptor: int, how: int) -> bool:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            self._warn(f"{self._folder} has no locks ({error.strerror}): a second job in it would not be noticed")
        return True

    def _written(self) -> bytes:
        try:
            return (self._folder / _NAME).read_bytes()
        except OSError:
            return b""

    def _taken(self) -> ConfigError:
        self.close()
        try:
            holder = str(msgspec.json.decode(self._written(), type=_Holder))
        except msgspec.DecodeError:
            holder = "which does not say who it is"
        return ConfigError(
            f"another job takes checkpoints in {self._folder} ({holder}); end it, or use a folder of your own"
        )
