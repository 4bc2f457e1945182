"""One fault in one run of real processes: what is drawn, done and asked afterwards. See stress_processes.py."""

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from plesio.core.errors import DataError, PlesioError
from plesio.policies import parse_policy
from plesio.runtime.coordinator.members import FIRST_LEASE_S
from plesio.runtime.site import THIS_HOST, Site
from plesio.testbed.testbed import Testbed
from plesio.testing import LocalJob
from process_truth import Run, problem
from runtime import counting_worker

POLICIES = (
    "bsp", "bsp,exchange=store", "bsp,backup=1", "ssp:2", "asp", "local_sgd:4", "local_sgd:4,delay=2", "delayed:2",
    "switch:bsp/asp@20", "adaptive",
)  # fmt: skip
KINDS = {
    "kill worker": 6.0,
    "kill worker while all join": 0.5,
    "stop worker": 3.0,
    "stop worker a moment": 3.0,
    "stop worker past its lease": 2.0,
    "kill server": 4.0,
    "kill server with a backup": 4.0,
    "kill backup": 2.0,
    "stop server a moment": 3.0,
    "full disk of results": 2.0,
    "full disk of checkpoints": 2.0,
    "cut link a moment": 1.5,
    "cut link": 0.4,
    "slow link": 1.0,
}
"""How often each is drawn, as a share of all."""
ENDINGS = {
    "stop worker past the end": 5.0,
    "stop worker at its end": 2.0,
    "stop worker at its end past the end": 4.0,
    "kill worker at its end": 5.0,
    "kill worker in a save": 2.0,
}
"""Weights of the faults of stress_endings.py."""
WEIGHTS = {**KINDS, **ENDINGS}
PRIMARY = 0.6
"""How often it is rank 0 whom an ending befalls, beside its share of the others."""
LONGEST_S = {"while all join": 0.5, "at its end": 0.2, "in a save": 0.03}
"""How late it may come; other kinds within a second."""
OF_LINKS = ("cut link a moment", "cut link", "slow link")
WITH_BACKUP = ("kill server with a backup", "kill backup")
GONE = (
    "kill worker", "kill worker while all join", "stop worker", "stop worker past its lease", "cut link",
    "stop worker past the end", "stop worker at its end past the end", "kill worker at its end",
    "kill worker in a save",
)  # fmt: skip
"""Kinds after which a worker is counted lost."""
IN_RACKS = "hier:bsp/local_sgd:4"
"""Two racks, where there are saves in the campaign of endings."""
LEASE_S, MEET_S, CONNECTION_S, A_FEW_S = 2.0, 60.0, 35.0, 6.0
SMALL_DISK = "24k"
SLOW_BYTES_PER_S = 2e5
START_S = 60.0
"""That workers and servers may take to start, on a machine that does other things too."""
START_SPREAD_S = 20.0
"""By how much later than the fault a worker may begin to wait for the others, when the machine is busy."""
RUN_S = 60.0
HANG_S = FIRST_LEASE_S + 10.0
"""How long the others may take to end, all in all, and the one that wakes up."""

Outcome = Literal["survived", "ended", "FAILED"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fault.

    Attributes:
        victim: Which of them, or whose host.
        at_s: When, after all have made a step (or begun, for what comes while they join; or the victim's loops are
            over, or a checkpoint is begun).
    """

    kind: str
    policy: str
    num_workers: int
    victim: int
    at_s: float

    @property
    def needs_links(self) -> bool:
        """True if it takes hosts of their own."""
        return self.kind in OF_LINKS

    @property
    def changes(self) -> bool:
        """True if the policy decides while it runs, on server 0."""
        return parse_policy(self.policy).adapts

    @property
    def wakes(self) -> bool:
        """True if the stopped worker goes on while the others train."""
        return self.kind in ("stop worker a moment", "stop worker past its lease", "stop worker at its end")

    @property
    def culprit(self) -> str | None:
        """The pattern of an error that may end the run; None where nothing must end it."""
        if self.kind == "kill worker while all join":  # without a launcher nobody knows who will never come
            return r"worker \d was (gone|lost)|have not come|has not answered within .*start|is worker 0 running"
        if self.kind == "kill server" and (self.changes or parse_policy(self.policy).exchange == "store"):
            return "server"
        if self.kind == "full disk of results":
            return "could not be written to .*small"
        if self.kind == "cut link" and self.victim == 0:
            return "server|cut off|worker 0"
        return None

    @property
    def awaited(self) -> list[str]:
        """Files in the run's folder that must be there before the fault."""
        if self.kind == "kill worker in a save":
            return ["checkpoints/*.part"]
        if "at its end" in self.kind:
            return [f"end-{self.victim}"]
        noted = "pid" if self.kind == "kill worker while all join" else "steps"
        return [f"{noted}-{rank}" for rank in range(self.num_workers)]

    @property
    def victims(self) -> tuple[int, ...]:
        """The workers that may be counted lost: where it is the server's host that is cut off, all the others."""
        if self.kind == "cut link" and self.victim == 0:
            return tuple(range(1, self.num_workers))
        return (self.victim,) if self.kind in GONE else ()

    @property
    def patience_s(self) -> float:
        """How long after the fault everyone who ends for it must have ended."""
        if self.kind == "cut link":
            return CONNECTION_S + A_FEW_S
        if self.kind == "kill worker while all join":
            return MEET_S + START_SPREAD_S
        return HANG_S if self.kind in ENDINGS else LEASE_S + A_FEW_S


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a case."""

    outcome: Outcome
    text: str = ""


@dataclass(frozen=True)
class Links:
    """Hosts of their own."""

    testbed: Testbed

    def befall(self, case: Case) -> None:
        """Cut a host's link or slow it down, and heal it if that is what is to happen."""
        network = self.testbed.network
        if case.kind == "slow link":
            network.set_rate(network.nics[case.victim], SLOW_BYTES_PER_S)
            time.sleep(1.0)
            self.heal(case)
            return
        network.cut(case.victim)
        if case.kind == "cut link a moment":
            time.sleep(0.6)
            self.heal(case)

    def heal(self, case: Case) -> None:
        """All links are as they were."""
        network = self.testbed.network
        network.cut(case.victim, heal=True)
        network.set_rate(network.nics[case.victim], network.nics[case.victim].link.bytes_per_s)


def random_case(number: int, *, seed: int, policies: Sequence[str], kinds: Sequence[str]) -> Case:
    """Fault ``number``: always the same."""
    rng = random.Random(f"{seed}/{number}")
    policy = rng.choice(policies)
    [kind] = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])
    if kind in WITH_BACKUP and parse_policy(policy).pushes is None:
        kind = "kill server"
    num_workers = 3 if kind in OF_LINKS else rng.choice((2, 3, 3, 4))
    victim = rng.randrange(num_workers)
    if kind in ENDINGS and rng.random() < PRIMARY:
        victim = 0
    longest_s = next((one for what, one in LONGEST_S.items() if what in kind), 1.0)
    return Case(kind=kind, policy=policy, num_workers=num_workers, victim=victim, at_s=rng.uniform(0.0, longest_s))


def try_case(case: Case, folder: Path, *, links: Links | None, keep: bool = False) -> Verdict:
    folder.mkdir()
    before = _belongings()
    try:
        with ExitStack() as stack:
            run = run_with(case, folder, stack, links=links)
        verdict = _judge(case, run)
    except (TimeoutError, PlesioError) as error:
        verdict = Verdict(outcome="FAILED", text=f"{type(error).__name__}: {error}")
    left = _left_behind(before)
    if left:
        verdict = Verdict(outcome="FAILED", text=f"{verdict.text}; left behind: {', '.join(left)}")
    if keep and verdict.outcome == "FAILED":
        return Verdict(
            outcome="FAILED", text=f"{verdict.text} (in {shutil.copytree(folder, Path.cwd() / folder.name)})"
        )
    shutil.rmtree(folder)
    return verdict


def run_with(case: Case, folder: Path, stack: ExitStack, *, links: Links | None) -> Run:
    """Have it befall a run; what is known of that afterwards.

    Raises:
        TimeoutError: Some are still running.
        DataError: There can be no full disk here.
    """
    small = stack.enter_context(_small_disk(folder / "small")) if case.kind.startswith("full disk") else None
    site: Site = THIS_HOST
    if case.needs_links:
        assert links is not None, "asked for before"
        site = links.testbed.record
        stack.callback(links.heal, case)
    job = stack.enter_context(LocalJob(case.num_workers, site=site))
    long = case.kind in ("stop worker past its lease", "stop worker", "cut link")
    epochs, step_s = (16 if long else 3 if case.kind in ENDINGS else 6), 0.01
    checkpoint = folder / "checkpoints" if case.kind == "kill worker in a save" else None
    everyone = range(case.num_workers)
    for rank in range(case.num_workers):
        job.start(
            rank,
            Path(counting_worker.__file__),
            "count_samples",
            policy=case.policy,
            folder=folder,
            epochs=epochs,
            step_s=step_s,
            replicas=2 if case.kind in WITH_BACKUP else 1,
            trace=small if case.kind == "full disk of results" else None,
            checkpoint=small if case.kind == "full disk of checkpoints" else checkpoint,
            racks=[rank * 2 // case.num_workers for rank in everyone] if case.policy == IN_RACKS else None,
        )
    _await_files(folder, case.awaited)
    time.sleep(case.at_s)
    fault_s = time.monotonic()
    happened = _befall(case, folder, links=links)
    sleeps = case.kind.startswith("stop worker") and not case.wakes and happened
    others = [rank for rank in everyone if not sleeps or rank != case.victim]
    endings = job.wait(timeout_s=RUN_S + case.patience_s, ranks=others)
    ended_s = time.monotonic() - fault_s
    if sleeps and case.kind.endswith("past the end"):
        with suppress(ProcessLookupError):  # it had ended
            os.kill(int((folder / f"pid-{case.victim}").read_text()), signal.SIGCONT)
        endings |= job.wait(timeout_s=HANG_S)
    trace = small if case.kind == "full disk of results" and small is not None else folder / "trace"
    if not any(ending.error for ending in endings.values()) and case.kind != "full disk of results":
        _await_files(trace, ["results.json"])
    return Run(
        policy=case.policy,
        folder=folder,
        trace=trace,
        epochs=epochs,
        num_workers=case.num_workers,
        endings=endings,
        ended_s=ended_s,
        victims=case.victims if happened else (),
    )


def _await_files(folder: Path, names: Sequence[str]) -> None:
    deadline_s = time.monotonic() + START_S
    while not all(any(path.stat().st_size for path in folder.glob(name)) for name in names):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no {', '.join(names)} after {START_S:g} s")
        time.sleep(0.001)


def _befall(case: Case, folder: Path, *, links: Links | None) -> bool:
    """Let it happen; whether there was still something that it could happen to."""
    if case.needs_links:
        assert links is not None, "asked for before"
        links.befall(case)
        return True
    if case.kind.startswith("full disk"):
        return True
    pid = int((folder / f"pid-{case.victim}").read_text())
    if "server" in case.kind or case.kind == "kill backup":
        servers = _servers()
        if not servers:
            return False
        pid = (servers[0] if case.kind == "kill backup" else servers[-1]).pid
    try:
        if case.kind.startswith("kill"):
            os.kill(pid, signal.SIGKILL)
            return True
        os.kill(pid, signal.SIGSTOP)
        if case.wakes:
            time.sleep(LEASE_S + 1.5 if case.kind == "stop worker past its lease" else 0.5)
            os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return False
    return True


def _servers() -> list[psutil.Process]:
    """Return the servers of the run that is under way: the backup, if there is one, and the server."""
    found = [one for one, line in _descendants() if "plesio.runtime.server.process" in line]
    return sorted(found, key=lambda one: one.create_time())


def _judge(case: Case, run: Run) -> Verdict:
    wrong = problem(run)
    if wrong is not None:
        return Verdict(outcome="FAILED", text=wrong)
    woken = run.endings.get(case.victim) if case.kind.endswith("past the end") else None
    if woken is not None and woken.error not in (None, "WorkerLostError"):
        return Verdict(outcome="FAILED", text=f"the one that woke up ended with {woken.error}: {woken.message}")
    if case.kind in ENDINGS and run.ended_s > case.patience_s:
        return Verdict(outcome="FAILED", text=f"the others ended {run.ended_s:.1f} s after the fault")
    errors = {rank: one for rank, one in run.endings.items() if one.error is not None and rank not in run.victims}
    if not errors:
        return Verdict(outcome="survived", text=f"after {run.ended_s:.1f} s")
    told = "; ".join(f"{rank}: {one.error}: {one.message}" for rank, one in errors.items())
    if case.culprit is None:
        return Verdict(outcome="FAILED", text=f"this must not end a run, and it ended with {told}")
    silent = [rank for rank, one in errors.items() if not re.search(case.culprit, one.message)]
    if silent:
        return Verdict(outcome="FAILED", text=f"workers {silent} do not name {case.culprit}: {told}")
    if case.kind != "full disk of results" and run.ended_s > case.patience_s:
        return Verdict(outcome="FAILED", text=f"ended {run.ended_s:.1f} s after the fault: {told}")
    return Verdict(outcome="ended", text=told)


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk that is full at once."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "plesio-campaign", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DataError(f"no small disk can be mounted here (as root it can): {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# What is left behind


def _descendants() -> list[tuple[psutil.Process, str]]:
    """Return our processes and their command lines, but for those that serve multiprocessing and the testbed's own."""
    found = []
    for one in psutil.Process().children(recursive=True):
        try:
            line = " ".join(one.cmdline())
            if one.status() == psutil.STATUS_ZOMBIE:
                _reap(one.pid)
            elif "multiprocessing" not in line and "trap '' INT TERM HUP" not in line and "ip -b" not in line:
                found.append((one, line))
        except psutil.ZombieProcess:
            _reap(one.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # somebody else's child


def _belongings() -> set[str]:
    folders = [*Path(tempfile.gettempdir()).glob("plesio-*"), *Path("/dev/shm").glob("*plesio*")]
    return {f"process {one.pid}: {line}" for one, line in _descendants()} | {str(path) for path in folders}


def _left_behind(before: set[str]) -> list[str]:
    """Return what is there that was not before; a moment is given to what is on its way out."""
    deadline_s = time.monotonic() + 30.0  # a server without its starter ends after 5 s, on a machine that is busy
    while left := _belongings() - before:
        if time.monotonic() > deadline_s:
            for one, _ in _descendants():
                one.kill()
            return sorted(left)
        time.sleep(0.05)
    return []
