"""Testbeds that are held: by a process in the background (`hold`), or by a command that is running; and what is left.

The holder of a testbed removes it, however it ends. Should that fail too (the machine lost power, say), the names
of namespaces and control groups say whose they were, and `remove_leftovers` clears them away.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from plesio.core.errors import ConfigError, PlesioError, nearest
from plesio.cost.cluster import parse_cluster
from plesio.testbed.control_groups import group_names, remove_groups
from plesio.testbed.testbed import FOLDER, Testbed, TestbedRecord, check_machine

_NAME = re.compile(r"plesio-(\d+)-.+")
_REMOVE_S = 30.0
_READY = "ready"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A testbed that is to be held.

    Attributes:
        cluster: Name or file of its cluster.
        cores_per_host: Cores of this machine that a host may use; None for all that are free.
        jitter_s: Standard deviation of the latency of links that have one.
    """

    name: str
    cluster: str
    cores_per_host: float | None = None
    jitter_s: float = 0.0


def held() -> list[TestbedRecord]:
    """Return the testbeds that are held, the oldest first."""
    records = []
    for path in FOLDER.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # let go of just now
            record = msgspec.json.decode(path.read_bytes(), type=TestbedRecord)
            if psutil.pid_exists(record.owner_pid):
                records.append(record)
    return sorted(records, key=lambda record: record.created_unix_s)


def named(name: str) -> TestbedRecord:
    """Find the held testbed of this name, or raise `ConfigError`."""
    by_name = {record.name: record for record in held()}
    if name not in by_name:
        known = nearest(name, by_name) if by_name else "none is held: make one with plesio lab testbed up CLUSTER"
        raise ConfigError(f'there is no testbed "{name}"; {known}')
    return by_name[name]


def hold(wish: Wish) -> TestbedRecord:
    """Have a process in the background make a testbed and hold it, until `let_go`.

    Raises `ConfigError` if the name is taken, or the testbed cannot be made.
    """
    check_machine()
    if any(record.name == wish.name for record in held()):
        raise ConfigError(f'there is a testbed "{wish.name}" already; plesio lab testbed clean {wish.name} removes it')
    keeper = (sys.executable, "-m", "plesio.testbed.held", msgspec.json.encode(wish).decode())
    # by a shell that is gone at once, so that the keeper is nobody's child
    command = ["sh", "-c", '"$@" &', "plesio", *keeper]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as shell:
        assert shell.stdout is not None
        answer = shell.stdout.readline().strip()
    if answer != _READY:
        raise ConfigError(answer or "the testbed cannot be made; why is said above")
    return named(wish.name)


def let_go(record: TestbedRecord) -> None:
    """Have the holder of a testbed remove it; raise `PlesioError` if it is still there after half a minute."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.owner_pid, signal.SIGTERM)
    deadline_s = time.monotonic() + _REMOVE_S
    while any(one.name == record.name for one in held()):
        if time.monotonic() > deadline_s:
            raise PlesioError(f'testbed "{record.name}" is still there; process {record.owner_pid} holds it')
        time.sleep(0.05)


def remove_leftovers() -> list[str]:
    """Remove the namespaces and control groups of testbeds that nobody holds any more; returns their names."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout.splitlines()
    names = {line.split()[0] for line in listed if line.strip()} | set(group_names("plesio-"))
    left = sorted(name for name in names if (owner := _NAME.fullmatch(name)) and not psutil.pid_exists(int(owner[1])))
    for name in left:
        inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for pid in inside.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)  # a group alone has none
        remove_groups(name)
    for path in FOLDER.glob("*.json"):
        if (owner := _NAME.fullmatch(path.stem)) and not psutil.pid_exists(int(owner[1])):
            path.unlink(missing_ok=True)
    return left


def _keep(text: str) -> None:
    """Make a testbed, say so, and hold it until this process is told to end."""
    wish = msgspec.json.decode(text, type=Wish)
    ended = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ended)
    try:
        cluster = parse_cluster(wish.cluster)
        testbed = Testbed.of(cluster, cores_per_host=wish.cores_per_host, jitter_s=wish.jitter_s, name=wish.name)
    except PlesioError as error:
        print(error, flush=True)
        return
    with testbed:
        print(_READY, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody listens from here on
        signal.sigwait(ended)


if __name__ == "__main__":
    os.chdir(Path("/"))
    _keep(sys.argv[1])
