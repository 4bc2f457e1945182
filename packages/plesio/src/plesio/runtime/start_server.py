"""Starts a server as a process of its own, and ends it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from plesio.core.errors import TransportError
from plesio.runtime.server.process import ServerConfig

SERVER_STOP_S = 10.0
START_S = 60.0
"""A server that does not listen by then is given up, and shows where it is."""


def start_server(config: ServerConfig) -> subprocess.Popen[str]:
    """Start the server's process, which listens soon; see `server_addresses`.

    It has a session of its own: Ctrl-C is for the workers, which then take leave of a server that still listens.
    """
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "plesio.runtime.server.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(config)) + "\n")
    process.stdin.flush()
    return process


def server_addresses(process: subprocess.Popen[str]) -> dict[str, str]:
    """Wait until a server that was started listens, and return its addresses.

    Raises:
        TransportError: It cannot listen, or does not in `START_S`.
    """
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], START_S)[0]:
        os.kill(process.pid, signal.SIGABRT)
        raise TransportError(f"a server does not listen after {START_S:g} s; where it stands is on standard error")
    line = process.stdout.readline()
    answer: dict[str, Any] = json.loads(line) if line else {"error": f"a server ended with status {process.wait()}"}
    if "error" in answer:
        raise TransportError(answer["error"])
    addresses: dict[str, str] = answer["addresses"]
    return addresses


def stop_server(process: subprocess.Popen[str]) -> None:
    """Ask it to end, and kill it when it does not."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended by itself
        process.stdin.write("over\n")
        process.stdin.close()
    try:
        process.wait(SERVER_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
