"""The servers of a job: those that this process has started, and its connections to all of them."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq
from torch.distributed import Store  # type: ignore[attr-defined]

from plesio.core.errors import ConfigError, TransportError
from plesio.protocol.peers import heartbeat_identity, part_identity, worker_identity
from plesio.runtime.coordinator.newcomers import AT_ITS_END
from plesio.runtime.server.process import MAX_BULK_BYTES, ServerConfig
from plesio.runtime.start_server import server_addresses, start_server, stop_server
from plesio.runtime.transport import ClientEndpoint, ControlClient, JobKeys
from plesio.runtime.transport.dialler import Dialler
from plesio.runtime.transport.failover import FailoverConnection, FailoverControl
from plesio.runtime.transport.seal import wants_encryption
from plesio.runtime.worker.environment import WorkerPlace

_BACKUP = "backup/0"
"""Key of the addresses of server 0's backup in the job's store."""
_OVER = "over"
"""In the job's store: no run of it is to come, and its servers end."""


class JobServers:
    """One process's part in them.

    Args:
        store: The job's own part of the key-value store.
        get: Reads from it, and waits for what is not there yet.
        starter: Name that the job's launcher gave it, if it did.
    """

    def __init__(
        self,
        place: WorkerPlace,
        *,
        store: Store,
        get: Callable[[str], str],
        job: str,
        secret: str,
        starter: str | None = None,
    ) -> None:
        self._place = place
        self._store = store
        self._get = get
        self._job = job
        self.secret = secret
        self._starter = starter
        self._keys = JobKeys.derive(secret)
        self._context: zmq.Context[Any] = zmq.Context()
        self._processes: list[subprocess.Popen[str]] = []
        self._folders: list[Path] = []
        self._backup: dict[str, str] | None = None
        """Addresses of server 0's backup: where they were read from may be lost with the server's host."""
        self.connections: list[ClientEndpoint | FailoverConnection] = []

    def _start_server(self, index: int, *, is_backup: bool = False, replicas: int = 1) -> None:
        place = self._place
        config = ServerConfig(
            index=index,
            host=place.own_address(),
            job=self._job,
            secret=self.secret,
            first=None if index == 0 else json.loads(self._get("server/0")),
            encrypt=wants_encryption(),
            backup=json.loads(self._get(_BACKUP)) if replicas > 1 and not is_backup else None,
            is_backup=is_backup,
            meeting=f"{place.address}:{place.port}",
            starter=self._starter,
        )
        process = start_server(config)
        self._processes.append(process)
        addresses = server_addresses(process)
        if addresses["data_ipc"]:
            self._folders.append(Path(addresses["data_ipc"]).parent)
        self._store.set(_BACKUP if is_backup else f"server/{index}", json.dumps(addresses))

    def connect(
        self, count: int, *, folder: Path | None, replicas: int = 1
    ) -> Sequence[ClientEndpoint | FailoverConnection]:
        """Connect to the primary ``count`` servers, after starting those that are this process's to start.

        Server i runs on host i modulo the number of hosts, started by that host's first worker.

        Args:
            count: Number of the run's servers.
            folder: Folder of the run's results; server 0 writes to no folder that its starter has not named.
            replicas: 2 has server 0 twice, the second time on the second host if there is one.

        Raises:
            TransportError: A server cannot be started or reached, or this worker joins a job that is over.
            ConfigError: Workers disagree about replicas.
        """
        place = self._place
        if place.local_rank == 0 and place.leads and not place.late:
            if replicas > 1 and place.host == 1 % place.num_hosts and not self._store.check([_BACKUP]):
                self._start_server(0, is_backup=True)
            for index in range(count):
                if index % place.num_hosts == place.host and not self._store.check([f"server/{index}"]):
                    self._start_server(index, replicas=replicas)
            if folder is not None and self._processes and (place.host == 0 or replicas > 1):
                self._let_write(folder)
        self._get("server/0")
        if self._is_over():
            raise TransportError(AT_ITS_END)
        if self._store.check([_BACKUP]):
            self._backup = json.loads(self._get(_BACKUP))
        if (self._backup is not None) != (replicas > 1):
            raise ConfigError(f"worker {place.rank} asks for replicas={replicas}, worker 0 does not; use one for all")
        while len(self.connections) < count:
            index = len(self.connections)
            addresses, name = json.loads(self._get(f"server/{index}")), worker_identity(place.rank)
            if place.island is not None and not place.leads:
                name = part_identity(place.island.process)
            try:
                self.connections.append(self._dialler().connection(addresses, identity=name, backup=self._backup))
            except TransportError as error:
                raise (TransportError(AT_ITS_END) if self._is_over() else error) from None
        return self.connections[:count]

    def _is_over(self) -> bool:
        """Tell whether this worker joins a job that has ended, its launcher perhaps, too."""
        try:
            return self._place.late and self._store.check([_OVER])
        except RuntimeError:
            return True

    def control(self, *, wanted: Callable[[], bool]) -> ControlClient | FailoverControl:
        """Connect to server 0 for this worker's sign of life, and again after a loss while it is ``wanted``."""
        return self._dialler().control(
            json.loads(self._get("server/0")),
            identity=heartbeat_identity(self._place.rank),
            backup=self._backup,
            wanted=wanted,
        )

    def _dialler(self) -> Dialler:
        return Dialler(
            job=self._job,
            keys=self._keys,
            context=self._context,
            max_bulk_bytes=MAX_BULK_BYTES,
            encrypt=wants_encryption(),
        )

    def _let_write(self, folder: Path) -> None:
        for server in self._processes:
            pipe = server.stdin
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # that it has ended is noticed where it is asked for something
                pipe.write(json.dumps({"folder": str(folder.absolute())}) + "\n")
                pipe.flush()

    def let_go_on(self) -> None:
        """Leave the run to the others: the servers that this process started end when no worker needs them."""
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):  # to the server as if this process had died
                assert pipe is not None
                pipe.close()
        self._processes.clear()
        self._folders.clear()

    def close(self) -> None:
        """Close the connections; the servers that this process started end. Harmless when repeated."""
        for connection in self.connections:
            connection.close()
        self.connections.clear()
        if self._processes and self._place.first:
            with contextlib.suppress(RuntimeError):  # torch's own, where the store is gone
                self._store.set(_OVER, "")
        for process in reversed(self._processes):  # a backup last
            stop_server(process)
        self._processes.clear()
        for folder in self._folders:  # of servers that were killed; the others have removed theirs
            shutil.rmtree(folder, ignore_errors=True)
        self._folders.clear()
        self._context.term()
