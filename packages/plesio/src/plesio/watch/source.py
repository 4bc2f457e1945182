"""Finds the run to watch, and looks at it: at server 0 while it is under way, then in the files that it has left.

Which runs are under way on this machine their servers have noted (`plesio.runtime.transport.running_jobs`). A job on
other machines is found by the address of its key-value store.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from plesio.core.errors import ConfigError, DataError, TransportError
from plesio.core.results import read_results
from plesio.runtime.observer import Observed, Observer
from plesio.runtime.transport import RunningJob
from plesio.watch.view import Glimpse, RunView, view_of

ANSWER_S = 2.0
"""How long an answer is waited for; a server that loads torch or a large model takes longer, and is asked again."""
WINDOW_S = 10.0
"""Shares of time are of the last so many seconds."""
RECONNECT_AFTER = 3
"""So many looks without figures, and the connection is made anew: the job's next run has another generation."""
_EVERY_S = 0.2
"""How often a run that is waited for is looked for."""
_RESULTS = "results.json"


class NoRunYetError(ConfigError):
    """No run is there that could be watched; one may be about to come up."""


class Watched(Protocol):
    """A run that is watched."""

    @property
    def over(self) -> bool:
        """True once nothing will change any more."""
        ...

    def look(self) -> RunView | None:
        """Return what there is to see now; None before there is anything."""
        ...

    def close(self) -> None: ...


class FinishedRun:
    """A run of which there are files: its last state."""

    over = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def look(self) -> RunView:
        return last_state(self._folder)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def last_state(folder: Path) -> RunView:
    """Return the last state of the run whose files are in ``folder``."""
    path = folder / _RESULTS
    runs = read_results(path)
    if not runs:
        raise DataError(f"{path} has no run in it")
    note = f"this run is over: its last state, from {path}"
    if len(runs) > 1:
        note = f"the last of {len(runs)} runs in {path}, which are over; plesio report {folder} has all"
    return view_of(Glimpse(runs[-1], None, 0.0), note=note)


class LiveRun:
    """A run that is under way: each look asks its server.

    Args:
        folder: Tells where the run's files are, if there are any; asked at each look, for a job may have several runs.
    """

    def __init__(
        self,
        find: Callable[[], Observed | None],
        *,
        secret: str,
        folder: Callable[[], Path | None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer = Observer(find, secret=secret)
        self._find_folder = folder
        self._folder: Path | None = None
        self._now_s = now_s
        self._looks: deque[Glimpse] = deque()
        self._last: RunView | None = None
        self._num_without = 0
        self.over = False

    def look(self) -> RunView | None:
        figures = self._observer.figures(timeout_s=ANSWER_S)
        result = None if figures is None else self._observer.result(timeout_s=ANSWER_S)
        if self._observer.server_gone:
            return self._end()
        if result is None:
            self._num_without += 1
            if self._num_without >= RECONNECT_AFTER:
                self._observer.reconnect()
            return self._last
        self._num_without, now_s = 0, self._now_s()
        self._folder = self._find_folder() or self._folder
        if self._looks and result.steps < self._looks[-1].result.steps:  # the job's next run
            self._looks.clear()
        self._looks.append(Glimpse(result, figures, now_s))
        while len(self._looks) > 2 and self._looks[1].at_s <= now_s - WINDOW_S:
            self._looks.popleft()
        earlier = self._looks[0] if len(self._looks) > 1 else None
        self._last = view_of(self._looks[-1], earlier)
        return self._last

    def _end(self) -> RunView | None:
        self.over = True
        if self._folder is not None and (self._folder / _RESULTS).is_file():
            self._last = last_state(self._folder)
        elif self._looks:
            seen = view_of(self._looks[-1], note="this run is over: its state when it was last seen")
            self._last = replace(seen, status="over")
        return self._last

    def close(self) -> None:
        self._observer.close()


def await_run(where: str | None, *, patience_s: float, tell: Callable[[str], None]) -> Watched:
    """Find the run as `find_run` does, or wait for it to come up; ``tell`` is called with a line before a wait.

    Raises:
        ConfigError, TransportError: As of `find_run`; after ``patience_s`` where there is no run yet.
    """
    until_s, told = time.monotonic() + patience_s, False
    while True:
        try:
            return find_run(where)
        except (NoRunYetError, TransportError) as error:
            if time.monotonic() >= until_s:
                raise
            if not told:
                tell(f"{error}. Waiting {patience_s:.0f} s for one to come up (Ctrl-C ends the wait)")
            told = True
        time.sleep(_EVERY_S)


def find_run(where: str | None) -> Watched:
    """Find the run: the only one under way here, one by its folder of traces, or one by ``HOST:PORT`` of its job.

    Raises:
        NoRunYetError: There is none on this machine.
        ConfigError: There are several; the line says what to write.
        TransportError: Nothing answers at that address.
    """
    jobs = RunningJob.all()
    if where is None:
        return _live(_only(jobs))
    host, _, port = where.rpartition(":")
    if host and port.isdecimal() and not Path(where).exists():
        here = [job for job in jobs if job.meeting == where]
        return _live(here[0]) if here else _elsewhere(host, int(port))
    folder = Path(where).absolute()
    inside = [job for job in jobs if job.folder is not None and folder in (Path(job.folder), *Path(job.folder).parents)]
    if inside:
        return _live(inside[0])
    if (folder / _RESULTS).is_file():
        return FinishedRun(Path(where))
    if where.isdecimal() and not folder.exists():
        raise ConfigError(
            f"{where} is neither a folder nor HOST:PORT; for a port of this machine write 127.0.0.1:{where}"
        )
    raise NoRunYetError(f"no run of this machine writes to {where}; {_what_to_write(Path(where))}")


def _what_to_write(folder: Path) -> str:
    if any(folder.glob("trace-*.jsonl")):
        return "it has traces alone, of a run that was cut off before its results; its last state is not known"
    over = sorted(path.parent for way in ("*", "*/*") for path in folder.glob(f"{way}/{_RESULTS}"))
    if over:
        return f"for the last state of one that is over write {over[0]}" + (
            f" (there are {len(over)})" if over[1:] else ""
        )
    return "write the folder given as trace=, or HOST:PORT as `plesio run` printed it"


def _only(jobs: Sequence[RunningJob]) -> RunningJob:
    if not jobs:
        raise NoRunYetError(
            "no run whose workers have joined is under way on this machine; write the folder of one that is over, or "
            "HOST:PORT of one elsewhere"
        )
    if len(jobs) > 1:
        names = ", ".join(job.meeting if job.folder is None else f"{job.meeting} ({job.folder})" for job in jobs)
        raise ConfigError(f"{len(jobs)} runs are under way on this machine: name one of {names}")
    return jobs[0]


def _live(job: RunningJob) -> LiveRun:
    secret = job.secret()
    assert secret is not None, "only those are listed that can be asked"

    find = partial(_folder, job.meeting)
    return LiveRun(lambda: Observed(job.addresses, job.job), secret=secret, folder=find)


def _folder(meeting: str) -> Path | None:
    """Return where the job's present run writes, if it is on this machine."""
    return next((Path(one.folder) for one in RunningJob.all() if one.meeting == meeting and one.folder), None)


def _elsewhere(host: str, port: int) -> LiveRun:
    """Find a job by its key-value store."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    from plesio.runtime.job_store import connect
    from plesio.runtime.observer import server_in
    from plesio.runtime.transport.job_secret import given_secret, secret_of_user
    from plesio.runtime.worker.environment import CURRENT_JOB, NAME_KEY

    store, restart = connect(host, port, key=CURRENT_JOB.format(restart=0), to="watch"), 0
    while store.check([CURRENT_JOB.format(restart=restart + 1)]):
        restart += 1
    part = PrefixStore(f"plesio/{restart}/{store.get(CURRENT_JOB.format(restart=restart)).decode()}", store)
    name = store.get(NAME_KEY).decode() if store.check([NAME_KEY]) else part.get("job").decode()
    published = part.get("secret").decode() if part.check(["secret"]) else None

    def find() -> Observed | None:
        try:
            return server_in(part)
        except RuntimeError as error:
            raise TransportError(f"the job's store at {host}:{port} is gone") from error

    return LiveRun(
        find, secret=given_secret() or published or secret_of_user(name), folder=partial(_folder, f"{host}:{port}")
    )
