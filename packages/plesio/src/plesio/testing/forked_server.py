"""A job's server that is forked off the worker that starts it: it need not import what the worker has."""

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from typing import NoReturn, TextIO

from plesio.runtime.server.process import ServerConfig, main

NAME = "plesio-server"
"""Name of the process, of at most 15 characters."""

_WAIT_S = 0.01
_SET_NAME, _SET_CHILD_SUBREAPER = 15, 36
"""Options of Linux's ``prctl``."""
_MOST_BYTES = 2**17
"""The largest environment."""


class Nursery:
    """Forks servers for the process that makes it while that has one thread, also when it has more.

    A fork keeps the locks that other threads hold, and no thread to release them: torch's threads of an earlier session
    would stop such a server for ever. So it is forked off a process that was forked when there were none. A server is
    a child of the maker, whose environment it has.
    """

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
        if os.fork() == 0:
            _tend(theirs)
        theirs.close()

    def start(self, config: ServerConfig) -> "ForkedServer":
        """Fork a server, which listens soon."""
        (their_in, our_in), (our_out, their_out) = os.pipe(), os.pipe()
        if len(os.listdir("/proc/self/task")) == 1:  # as the maker is now, with what a test has changed
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                _serve(their_in, their_out)
        else:
            socket.send_fds(self._requests, [json.dumps(dict(os.environ)).encode()], [their_in, their_out])
            pid = int(self._requests.recv(_MOST_BYTES))
        os.close(their_in)
        os.close(their_out)
        server = ForkedServer(pid, os.fdopen(our_in, "w"), os.fdopen(our_out))
        server.stdin.write(json.dumps(asdict(config)) + "\n")
        server.stdin.flush()
        return server


class ForkedServer:
    """The part of `subprocess.Popen` that starters of servers use.

    A server of this kind is for tests alone.
    """

    def __init__(self, pid: int, stdin: TextIO, stdout: TextIO) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._ended: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status when it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not within ``timeout`` seconds.

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


def _tend(requests: socket.socket) -> NoReturn:
    try:
        os.setsid()  # Ctrl-C is for the maker
        os.dup2(requests.fileno(), 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))  # the maker's pipes tell of the maker's end
        requests = socket.socket(fileno=3)
        while True:
            environment, fds, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
            if not environment:  # the maker has ended
                break
            between = os.fork()
            if between == 0:  # a server whose parent is gone becomes the maker's child
                server = os.fork()
                if server == 0:
                    os.environ.update(json.loads(environment))
                    _serve(*fds)
                requests.send(str(server).encode())
                break
            os.waitpid(between, 0)
            for each in fds:
                os.close(each)
    finally:
        os._exit(0)


def _serve(stdin: int, stdout: int) -> NoReturn:
    status = 1
    gc.freeze()  # sockets of the starter's earlier jobs would be closed by numbers that are the server's now
    try:
        os.setsid()  # as a started server
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
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
