"""Network namespaces of this machine: how they are entered, and how ``ip`` and ``tc`` are told what to do in them."""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator

from plesio.core.errors import PlesioError

_CLONE_NEWNET = 0x40000000
"""A constant of Linux's sched.h; Python has `os.setns` from 3.12 on."""


_ANY_RATE = ("rate", "8mbit", "burst", "16384", "limit", "65536")


def why_no_namespaces() -> str | None:
    """Return the reason why this process cannot make hosts of them, in words; None if it can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "ip and tc are needed (Debian's package iproute2)"
    name = f"plesio-{os.getpid()}-try"
    try:
        run_command("ip", "netns", "add", name)
        run_command("ip", "-n", name, "link", "add", "bridge", "type", "bridge")
        run_command("ip", "-n", name, "link", "add", "one", "type", "veth", "peer", "name", "other")
        run_command("tc", "-n", name, "qdisc", "add", "dev", "one", "root", "tbf", *_ANY_RATE)
    except PlesioError as error:
        return str(error)
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)  # not there if never made
    return None


def run_command(*command: str) -> None:
    """Run ``ip`` or ``tc``; raise `PlesioError` with what it says if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or f"status {done.returncode}"
        raise PlesioError(f"cannot make test hosts: {' '.join(command)}: {reason}")


@contextlib.contextmanager
def in_namespace(namespace: str) -> Iterator[None]:
    """Put this thread, and whatever it starts or opens, into a network namespace, or raise `PlesioError`."""
    with open("/proc/thread-self/ns/net", "rb") as before:
        enter_namespace(namespace)
        try:
            yield
        finally:
            _enter(before.fileno(), "the namespace of before")


def enter_namespace(namespace: str) -> None:
    """Move this thread, and those that it starts from now on, into a network namespace, or raise `PlesioError`."""
    try:
        with open(f"/run/netns/{namespace}", "rb") as file:
            _enter(file.fileno(), namespace)
    except OSError as error:
        raise PlesioError(f"cannot enter {namespace}: {error.strerror}") from None


def _enter(descriptor: int, name: str) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise PlesioError(f"cannot enter {name}: {os.strerror(ctypes.get_errno())}")
