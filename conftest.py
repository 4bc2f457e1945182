"""A test leaves nothing behind: process, thread, socket, pipe, open file, environment variable or temporary folder."""

import os

# Before torch and numpy are loaded: their threads spin while they wait for a core, and two tests have two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import ctypes
import gc
import importlib
import multiprocessing.resource_tracker
import multiprocessing.util
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest
import torch
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from plesio.bench.process_pool import FOR_TRAINING
from plesio.testing import LocalJob, forked_server
from support.browser import CHROMIUM
from support.browser import browser as browser

_PATIENCE_S = 10.0
"""How long what a test has ended already may take to be gone."""
_LOOK_S = 0.02
_PR_SET_CHILD_SUBREAPER = 36
_ALONE = (
    "bench/test_probe.py::TestOnRacks",
    "bench/test_probe.py::test_every_pair_of_processes",
    "bench/test_validate.py::test_both_worlds",
    "measured/test_measured_asynchronous.py::test_staleness_weighting",
    "measured/test_measured_communication.py",
    "measured/test_measured_parallel.py::test_the_best_interval",
    "measured/test_measured_training.py::test_bounded_staleness",
    "runtime/test_hosts",
)
"""Files, or tests of a file, that measure real time and expect what an idle machine does: `make test` runs them one
after another.

Starting processes and waiting for them is no reason, nor is a socket: what was sent has no time. Nor is a measured time
that is only asked to be longer than what it cannot be shorter than.
"""
_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 4 * 2**30
_NO_BROWSER = "they need Debian's chromium; as root: apt-get install chromium"
_NO_CUDA = "they need a CUDA device"
_OWN_VARIABLES = ("PYTEST_", "KMP_", "TORCHINDUCTOR_")
"""Set by pytest itself, and by OpenMP and torch when they are loaded."""

# How long an example takes is the machine's affair.
settings.register_profile("plesio", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("plesio"), max_examples=40)


def pytest_configure(config: pytest.Config) -> None:
    # A property that does not say how many examples it takes has Hypothesis's 100 where slow tests run too.
    settings.load_profile("quick" if "not slow" in config.option.markexpr else "plesio")
    # Orphans become children of this process, so a server whose starter was killed is not overlooked.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.disable()  # collections of garbage go through all modules and tests again and again while these are collected
    # A shell ignores Ctrl-C for what it starts in the background, and so would every process that a test starts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ:  # xdist's processes have their starter's
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = _temporary_root(config)
    # A folder of its own: other Plesio jobs on this machine put theirs into the common one.
    folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="plt-")
    os.environ["XDG_RUNTIME_DIR"] = folder
    # After multiprocessing has removed its own folder from it, which it does at priority -100.
    multiprocessing.util.Finalize(
        None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=-200
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests all belong to the other run: those that are alone, and those that are not."""
    if collection_path.suffix != ".py" or not config.option.markexpr.startswith(("alone", "not alone")):
        return None
    some, all_of_it = _is_alone(collection_path.as_posix(), some=True), _is_alone(collection_path.as_posix())
    return True if (not some if config.option.markexpr.startswith("alone") else all_of_it) else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Import no file for its doctests that has none: two of three have none, and each process collects them all."""
    found = yield
    has_doctests = file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8")
    return [one for one in found if has_doctests or not isinstance(one, DoctestModule)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_alone(item.nodeid):
            item.add_marker(pytest.mark.alone)
    _mark_further_cases(items)
    # Tests of the whole take long, and one process would have them when the others are done.
    items.sort(key=lambda item: not item.nodeid.startswith("tests/"))
    for item in items:
        # Where pages must be opened (continuous integration), the test fails by itself and says what it needs.
        if "browser" in item.keywords and not CHROMIUM.exists() and not os.environ.get("CI"):
            item.add_marker(pytest.mark.skip(reason=_NO_BROWSER))
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason=_NO_CUDA))


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum(_NO_BROWSER in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"{count} TESTS OF REPORT PAGES WERE SKIPPED: {_NO_BROWSER}", red=True, bold=True)


def _temporary_root(config: pytest.Config) -> str:
    """Memory where there is enough: tests flush some thousand files to the disk, which takes a minute in all.

    What measures real time measures that of a disk.
    """
    if not config.option.markexpr.startswith("not alone") or not _MEMORY.is_dir():
        return tempfile.gettempdir()
    return str(_MEMORY) if shutil.disk_usage(_MEMORY).free > _LEAST_BYTES else tempfile.gettempdir()


def _mark_further_cases(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is marked so, the first is quick and every n-th after it; the others are slow."""
    places: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is None or "slow" in item.keywords:
            continue
        test = item.nodeid.partition("[")[0]
        if places[test] % marker.args[0]:
            item.add_marker(pytest.mark.slow)
        places[test] += 1


def _is_alone(name: str, *, some: bool = False) -> bool:
    """Tell whether a test, or all of a file's tests, are alone; or ``some`` of a file's."""
    name = name.partition("/tests/")[2]
    return name.startswith(_ALONE) or (some and any(one.startswith(name) for one in _ALONE if name))


@dataclass(frozen=True)
class Belongings:
    processes: dict[int, str]
    threads: dict[int, str]
    descriptors: dict[str, str]
    variables: dict[str, str]
    folders: dict[str, str]

    @classmethod
    def now(cls) -> "Belongings":
        return cls(
            processes=dict(_processes()),
            threads={id(thread): thread.name for thread in threading.enumerate() if not _is_collector(thread)},
            descriptors=dict(_descriptors()),
            variables={key: value for key, value in os.environ.items() if not key.startswith(_OWN_VARIABLES)},
            folders={str(path): "temporary" for path in Path(tempfile.gettempdir()).glob("plesio-*")},
        )

    def new_since(self, before: "Belongings") -> dict[str, list[str]]:
        found = {
            what: [f"{key} {value}" for key, value in now.items() if then.get(key) != value]
            for what, now, then in (
                ("processes", self.processes, before.processes),
                ("threads", self.threads, before.threads),
                ("descriptors", self.descriptors, before.descriptors),
                ("variables", self.variables, before.variables),
                ("folders", self.folders, before.folders),
            )
        }
        found["variables"] += [f"{key} is gone" for key in before.variables.keys() - self.variables.keys()]
        return {what: names for what, names in found.items() if names}


def _processes() -> Iterator[tuple[int, str]]:
    for number in _descendants(os.getpid()):
        try:
            process = psutil.Process(number)
            command = process.cmdline()
            helps = _serves_browser(command) or (
                _serves_multiprocessing(command) and process.name() != forked_server.NAME
            )
            if process.status() == psutil.STATUS_ZOMBIE or helps:
                continue
            yield process.pid, " ".join(command)
        except psutil.NoSuchProcess:
            continue


def _descendants(process: int) -> Iterator[int]:
    """As the kernel lists them: psutil reads the parent of every process of the machine, twice in each test."""
    try:
        texts = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return  # it has ended
    for child in map(int, " ".join(texts).split()):
        yield child
        yield from _descendants(child)


def _serves_browser(command: list[str]) -> bool:
    """A browser starts these when it likes, and they end with it; it is itself that must not be left behind."""
    return len(command) > 1 and "chromium" in command[0] and command[1].startswith("--type=")


def _serves_multiprocessing(command: list[str]) -> bool:
    """The fork server and the resource tracker are started once and live as long as their starter."""
    mains = ("from multiprocessing.forkserver import main", "from multiprocessing.resource_tracker import main")
    return any(argument.startswith(mains) for argument in command)


def _is_collector(thread: threading.Thread) -> bool:
    """pyzmq has one thread that tells Python which sent messages are done with; it never ends."""
    return type(thread).__name__ == "GarbageCollectorThread"


def _descriptors() -> Iterator[tuple[str, str]]:
    kept = (
        forkserver._forkserver._forkserver_alive_fd,  # type: ignore[attr-defined]
        multiprocessing.resource_tracker._resource_tracker._fd,  # type: ignore[attr-defined]
    )
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own
        if target.startswith(("socket:", "pipe:", tempfile.gettempdir())) and int(name) not in kept:
            yield target, f"(descriptor {name})"


@pytest.fixture(scope="session", autouse=True)
def _libuv() -> None:
    """Its first loop (in torch's store) opens a pipe that lives as long as the process, so no test is to blame."""
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="session", autouse=True)
def _no_width() -> None:
    """Importing readline tells all programs started from then on that lines have 80 characters, terminal or not."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")
    os.environ.pop("COLUMNS", None)
    os.unsetenv("COLUMNS")  # readline sets it where os.environ does not look


@pytest.fixture(scope="session", autouse=True)
def _servers_are_forked() -> None:
    """Most of a process test's time would be the imports of its job's servers.

    The fork server of this process has what all tests need, whichever starts it.
    """
    LocalJob.forks_servers = not torch.cuda.is_available()  # a process with CUDA bears no fork
    preloaded = [*FOR_TRAINING, "plesio.bench.trainer", "pytest"]
    forkserver.set_forkserver_preload(preloaded)
    forkserver.set_forkserver_preload = lambda modules: None


@pytest.fixture(scope="module", autouse=True)
def _modules_are_no_garbage() -> None:
    """Collections, and sessions that look for schedulers and scalers, would go through 300,000 objects of modules."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = Belongings.now()
    yield
    deadline_s = time.monotonic() + _PATIENCE_S
    left = Belongings.now().new_since(before)
    while left and time.monotonic() < deadline_s:
        gc.collect()
        time.sleep(_LOOK_S)
        left = Belongings.now().new_since(before)
    assert not left, f"left behind: {left}"
