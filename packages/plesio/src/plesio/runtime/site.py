"""The hosts that run a job's processes: this one, or hosts that others have made (`plesio.testbed`)."""

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class HostEntry(Protocol):
    """The way onto a host; can be pickled."""

    def enter(self) -> None:
        """Have this process on the host, and all that it starts from now on."""
        ...


class Site(Protocol):
    """Hosts for the workers of one job."""

    @property
    def address(self) -> str:
        """The address at which the job's key-value store listens; all workers reach it."""
        ...

    def here(self) -> AbstractContextManager[None]:
        """Put this thread, within this context, on the host of that address."""
        ...

    def environment(self, rank: int, *, num_workers: int) -> Mapping[str, str]:
        """Return the variables that tell a worker its place."""
        ...

    def entry(self, rank: int) -> HostEntry | None:
        """Return the entry of a worker that is a fork of this process; None if it is where it belongs."""
        ...

    def command(self, rank: int, argv: Sequence[str]) -> Sequence[str]:
        """Return the command line that runs ``argv`` where a worker belongs."""
        ...


class _ThisHost:
    """All workers beside this process; nothing is reached from outside."""

    address = "127.0.0.1"

    def here(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def environment(self, rank: int, *, num_workers: int) -> Mapping[str, str]:
        return {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(num_workers), "GROUP_RANK": "0"}

    def entry(self, rank: int) -> HostEntry | None:
        return None

    def command(self, rank: int, argv: Sequence[str]) -> Sequence[str]:
        return argv


THIS_HOST: Site = _ThisHost()
