"""A job's server that is forked off the worker that starts it: it need not import what the worker has."""

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from typing import NoReturn

from plesio.runtime.server.process import ServerConfig, main
from plesio.runtime.start_server import start_server

__all__ = ["NAME", "ForkedServer", "fork_server"]

NAME = "plesio-server"
"""Name of the process, of at most 15 characters."""

_WAIT_S = 0.01
_SET_NAME = 15
"""``PR_SET_NAME`` of Linux's ``prctl``."""


def fork_server(config: ServerConfig) -> "ForkedServer | subprocess.Popen[str]":
    """Fork a server where this process has one thread, and start one where it has more.

    A fork keeps the locks that other threads hold, and no thread to release them: torch's threads of an earlier
    session would stop such a server for ever.
    """
    return ForkedServer(config) if len(os.listdir("/proc/self/task")) == 1 else start_server(config)


class ForkedServer:
    """The part of `subprocess.Popen` that starters of servers use.

    A server of this kind is for tests alone. It is forked while its starter joins, before that has threads.

    Args:
        config: The server's configuration.
    """

    def __init__(self, config: ServerConfig) -> None:
        (their_in, our_in), (our_out, their_out) = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _serve(their_in, their_out)
        os.close(their_in)
        os.close(their_out)
        self.stdin, self.stdout = os.fdopen(our_in, "w"), os.fdopen(our_out)
        self._ended: int | None = None
        self.stdin.write(json.dumps(asdict(config)) + "\n")
        self.stdin.flush()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status when it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not within ``timeout`` seconds.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while self._ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = os.waitstatus_to_exitcode(status)
            elif deadline_s is not None and time.monotonic() > deadline_s:
                assert timeout is not None
                raise subprocess.TimeoutExpired(NAME, timeout)
            else:
                time.sleep(_WAIT_S)
        return self._ended

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)


def _serve(stdin: int, stdout: int) -> NoReturn:
    status = 1
    gc.freeze()  # sockets of the starter's earlier jobs would be closed by numbers that are the server's now
    try:
        os.setsid()  # as a started server
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the starter's pipes tell of the starter's end
        ctypes.CDLL(None).prctl(_SET_NAME, NAME.encode())
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
