"""The processes of a server that has a backup, and of the backup: `plesio.runtime.server.primary_backup` on sockets."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from plesio.core.errors import DataError, TransportError
from plesio.core.records import from_values, to_values
from plesio.protocol.message import decode
from plesio.protocol.replication import EntryAcknowledged, ReplicationEntry
from plesio.runtime.server.job_server import JobServer
from plesio.runtime.server.primary_backup import PRIMARY, BackupServer, PrimaryServer
from plesio.runtime.server.process import MAX_BULK_BYTES, POLL_S, ServerConfig, ServerProcess
from plesio.runtime.transport import CONNECT_S, Bulk, ClientEndpoint, Control, Header, Incoming, JobKeys

TEXT_ENTRY = 10
"""Kind of a message between the two whose payload is an entry, as JSON."""
BULK_ENTRY = 11
"""Kind of one whose payload is the worker's, and the entry beside it."""
FAREWELL_S = 1.0
"""How long a server that ends waits for its backup to confirm it."""


class PrimaryProcess(ServerProcess):
    """The server that the workers speak to."""

    def __init__(self, config: ServerConfig, *, ipc_dir: Path) -> None:
        super().__init__(config, ipc_dir=ipc_dir)
        assert config.backup is not None
        self._ticked_s = 0.0
        self._link: ClientEndpoint | None = ClientEndpoint(
            config.backup,
            identity=PRIMARY,
            job=config.job,
            keys=JobKeys.derive(config.secret),
            context=zmq.Context.instance(),
            timeout_s=CONNECT_S,
            max_bulk_bytes=MAX_BULK_BYTES,
            encrypt=config.encrypt,
        )
        for readable in self._link.sockets:
            self._poller.register(readable, zmq.POLLIN)

    def _job_server(self) -> JobServer:
        self._primary = PrimaryServer(self.endpoint, pass_on=self._pass_on)
        return self._primary.server

    def _pass_on(self, entry: ReplicationEntry, payload: NDArray[np.uint8] | None) -> None:
        assert self._link is not None
        values: dict[str, Any] = to_values(entry)
        meta: Mapping[str, Any] | None = values
        if payload is None:
            meta, payload = None, np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)
        staged = self._link.stage(payload.nbytes)
        staged[:] = payload
        kind = TEXT_ENTRY if meta is None else BULK_ENTRY
        self._link.push(Header(kind=kind, generation=self._link.generation), meta=meta, payload=staged)

    def _may_write(self, folder: str) -> None:
        self._primary.may_write(folder, now_s=time.perf_counter())

    def serve_once(self, timeout_s: float) -> None:
        self._wait(timeout_s)
        for incoming in self.endpoint.poll(0.0):
            self._primary.take(incoming, now_s=time.perf_counter())
        now_s = time.perf_counter()
        if now_s - self._ticked_s >= POLL_S or self._due_in_s() <= 0:
            self._ticked_s = now_s
            self._primary.tick(now_s=now_s)
        self._read_acknowledgements(0.0)

    def _read_acknowledgements(self, timeout_s: float) -> None:
        if self._link is None:
            return
        try:
            for incoming in self._link.poll(timeout_s):
                if isinstance(incoming, Control):
                    last: EntryAcknowledged = decode(incoming.kind, incoming.body, EntryAcknowledged, peer="the backup")
                    self._primary.acknowledge(last.number)
        except TransportError:
            for readable in self._link.sockets:
                self._poller.unregister(readable)
            self._link.close()
            self._link = None
            self._over = self._over or not self._primary.go_on_alone()

    def _end(self) -> None:
        self._primary.end(now_s=time.perf_counter())
        deadline_s = time.monotonic() + FAREWELL_S
        while not self._primary.safe and time.monotonic() < deadline_s:
            self._read_acknowledgements(0.05)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        super().close()


class BackupProcess(ServerProcess):
    """The server that takes over."""

    def __init__(self, config: ServerConfig, *, ipc_dir: Path) -> None:
        super().__init__(config, ipc_dir=ipc_dir)
        self._ticked_s = 0.0

    def _job_server(self) -> JobServer:
        self._backup = BackupServer(self.endpoint)
        return self._backup.server

    def _may_write(self, folder: str) -> None:
        self._backup.may_write(folder)
        self._backup.follow([])

    def _needed(self) -> bool:
        return (self._backup.follows and PRIMARY in self.endpoint.peers) or super()._needed()

    def serve_once(self, timeout_s: float) -> None:
        self._wait(timeout_s)
        arrived = self.endpoint.poll(0.0)
        entries: list[tuple[ReplicationEntry, Bulk]] = []
        others: list[Incoming] = []
        for incoming in arrived:
            if not (isinstance(incoming, Bulk) and incoming.peer == PRIMARY):
                others.append(incoming)
                continue
            try:
                entries.append((_entry(incoming), incoming))
            except (DataError, ValueError) as error:
                self._backup.refuse(incoming, error)
        self._backup.follow(entries)
        for incoming in others:
            try:
                self._backup.take_in(incoming, now_s=time.perf_counter())
            except (TypeError, ValueError) as error:
                self._backup.refuse(incoming, error)
        now_s = time.perf_counter()
        if self._backup.serves and (now_s - self._ticked_s >= POLL_S or self._due_in_s() <= 0):
            self._ticked_s = now_s
            self._backup.tick(now_s=self._backup.time_s(now_s))

    def _due_in_s(self) -> float:
        return super()._due_in_s() if self._backup.serves else math.inf  # until then it acts on the primary's entries

    def _run_s(self) -> float:
        return self._backup.time_s(time.perf_counter())

    def _end(self) -> None:
        if self._backup.serves:
            self._server.run.end()
        else:
            self._server.run.discard()


def _entry(bulk: Bulk) -> ReplicationEntry:
    values = bulk.meta if bulk.header.kind == BULK_ENTRY else json.loads(bulk.payload.tobytes())
    entry: ReplicationEntry = from_values(values, ReplicationEntry)
    return entry
