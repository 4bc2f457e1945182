"""The process that a job's server is: one per host, started by the host's first worker (`plesio.runtime.job`).

It is independent of its starter from then on: a worker that is killed takes no parameters, no decisions and no results
with it. It ends when its starter reports that the job is over, or when its starter is gone and no worker is connected
any more.
"""

import json
import math
import os
import resource
import selectors
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import zmq

from plesio.core.clock import MonotonicClock
from plesio.core.errors import PlesioError, TransportError
from plesio.core.logs import set_up_logging, speak_as
from plesio.protocol.peers import names_of, server_identity, worker_of
from plesio.runtime.server.job_server import JobServer
from plesio.runtime.transport import CONNECT_S, ControlClient, JobKeys, RunningJob, ServerEndpoint

MAX_BULK_BYTES = 2**36
"""Largest payload between a worker and one server; members of the job may send models of any size that fits."""
POLL_S = 0.1
"""Longest nap: leases are checked this often when nothing arrives."""
_LINE_BYTES = 2**16
ORPHAN_S = 5.0
"""A server whose starter is gone ends after this long without a connection of a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The configuration of a server, from its starter, in one line of JSON on its standard input.

    Attributes:
        index: Number of the server; 0 decides.
        first: Addresses of server 0, for the others.
        encrypt: True if bulk data are encrypted between hosts.
        backup: Addresses of its backup, if it has one.
        meeting: ``HOST:PORT`` of the job's key-value store, for those who look on.
        starter: Name that the job's launcher gave it, if it did.
    """

    index: int
    host: str
    job: str
    secret: str
    first: dict[str, str] | None = None
    encrypt: bool = True
    backup: dict[str, str] | None = None
    is_backup: bool = False
    meeting: str = ""
    starter: str | None = None


class ServerProcess:
    """A `JobServer` on real sockets, from start to end."""

    def __init__(self, config: ServerConfig, *, ipc_dir: Path) -> None:
        keys = JobKeys.derive(config.secret)
        self.endpoint = ServerEndpoint(
            job=config.job,
            keys=keys,
            names=names_of,
            host=config.host,
            ipc_dir=ipc_dir,
            max_bulk_bytes=MAX_BULK_BYTES,
            encrypt=config.encrypt,
        )
        self._first: ControlClient | None = None
        if config.first is not None:
            self._first = ControlClient(
                config.first,
                identity=server_identity(config.index).encode(),
                job=config.job,
                keys=keys,
                context=zmq.Context.instance(),
                timeout_s=CONNECT_S,
            )
        self._server_0_gone = False
        self._over = False
        self._line = b""
        self._index = config.index
        self._note: RunningJob | None = None
        if config.index == 0 and not config.is_backup:
            addresses = self.endpoint.addresses
            self._note = RunningJob(job=config.job, meeting=config.meeting, starter=config.starter, addresses=addresses)
            self._note.announce()
        self._server = self._job_server()
        # what the workers send, and at once what server 0 decides about it
        self._poller = zmq.Poller()
        for readable in (*self.endpoint.sockets, *(() if self._first is None else self._first.sockets)):
            self._poller.register(readable, zmq.POLLIN)

    def _job_server(self) -> JobServer:
        return JobServer(self._index, endpoint=self.endpoint, first=self._first, clock=MonotonicClock(), folders=set())

    def serve(self, starter: int) -> None:
        """Serve until the job is over.

        Args:
            starter: File descriptor on which the starter writes, a line each, where results may be written (see
                `may_write`), and that the job is over (any other line). It ends (end of file) when the starter dies,
                and then the server goes on for the other workers.
        """
        if self._first is not None:  # beside server 0 there is one only where parameters will be held
            self._server.load()
        self._poller.register(starter, zmq.POLLIN)
        with selectors.DefaultSelector() as selector:
            selector.register(starter, selectors.EVENT_READ)
            alone_since_s: float | None = None
            starter_lives = True
            while not (self._server_0_gone or self._over):
                self.serve_once(POLL_S)
                if starter_lives:
                    if selector.select(0):
                        starter_lives = self._read_starter(os.read(starter, _LINE_BYTES))
                    if not starter_lives:
                        self._poller.unregister(starter)  # the end of a file is there to be read for ever
                elif self._needed():
                    alone_since_s = None
                elif alone_since_s is None:
                    alone_since_s = time.monotonic()
                elif time.monotonic() - alone_since_s > ORPHAN_S:
                    break
        self._end()

    def _needed(self) -> bool:
        return any(worker_of(peer) is not None for peer in self.endpoint.peers)

    def _may_write(self, folder: str) -> None:
        if self._note is not None:
            self._note = replace(self._note, folder=folder)
            self._note.announce()
        self._server.run.may_write(folder)

    def _end(self) -> None:
        self._server.run.end()

    def _read_starter(self, received: bytes) -> bool:
        """Act on the starter's lines, and tell whether it lives."""
        *lines, self._line = (self._line + received).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):
                self._may_write(json.loads(line)["folder"])
            else:
                self._over = True
        return bool(received)

    def serve_once(self, timeout_s: float) -> None:
        self._wait(timeout_s)
        arrived = self.endpoint.poll(0.0)
        begun_s = time.perf_counter()
        for incoming in arrived:
            try:
                self._server.handle([incoming])
            except Exception as error:
                self._server.distrust(incoming.peer, error)
        if self._first is not None:
            try:
                self._server.obey(self._first.poll(0.0))
            except TransportError:
                self._server_0_gone = True  # it ends last of all; nothing is left to serve
        self._server.run.check_leases(busy_s=time.perf_counter() - begun_s)

    def _wait(self, timeout_s: float) -> None:
        self._poller.poll(math.ceil(max(0.0, min(timeout_s, self._due_in_s())) * 1e3))

    def _due_in_s(self) -> float:
        """Return the seconds until a time that the policy asked for is over; infinity without one."""
        due_s = self._server.run.due_s
        return math.inf if due_s is None else due_s - self._run_s()

    def _run_s(self) -> float:
        return time.perf_counter()

    def close(self) -> None:
        if self._first is not None:
            self._first.close()
        if self._note is not None:
            self._note.withdraw()
        self.endpoint.close()


def _folder_prefix() -> str:
    """Return the prefix of the servers' folders; process ids mean something in one PID namespace only."""
    return f"plesio-{os.stat('/proc/self/ns/pid').st_ino}-"


def _sweep() -> None:
    """Remove the folders of servers that were killed, if they are still there."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_folder_prefix()}*-*"):
        process = folder.name.removeprefix(_folder_prefix()).partition("-")[0]
        if process.isdigit() and not Path("/proc", process).exists():
            shutil.rmtree(folder, ignore_errors=True)  # others' folders cannot be removed, and stay


def _server(config: ServerConfig, *, ipc_dir: Path) -> ServerProcess:
    if config.backup is None and not config.is_backup:
        return ServerProcess(config, ipc_dir=ipc_dir)
    module = import_module("plesio.runtime.server.primary_backup_process")
    make: type[ServerProcess] = module.BackupProcess if config.is_backup else module.PrimaryProcess
    return make(config, ipc_dir=ipc_dir)


def main() -> None:
    """Serve the job described by the first line of standard input; print the addresses as one line of JSON."""
    config = ServerConfig(**json.loads(sys.stdin.readline()))
    # strangers may open connections faster than the server can end them
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    set_up_logging()
    speak_as(f"{'backup of ' if config.is_backup else ''}server {config.index}")
    _sweep()
    # The server's own folder, so that it goes with the server also when the starter was killed.
    with tempfile.TemporaryDirectory(prefix=f"{_folder_prefix()}{os.getpid()}-") as ipc_dir:
        try:
            server = _server(config, ipc_dir=Path(ipc_dir))
        except PlesioError as error:
            print(json.dumps({"error": str(error)}), flush=True)
            sys.exit(2)
        print(json.dumps({"addresses": server.endpoint.addresses}), flush=True)
        try:
            server.serve(sys.stdin.fileno())
        finally:
            server.close()


if __name__ == "__main__":
    main()
