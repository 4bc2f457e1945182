"""The server's end: two ROUTER sockets, the handler that admits connections, and one poll loop over all of it."""

import math
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from plesio.core.errors import TransportError
from plesio.runtime.transport.bulk_memory import BulkMemory
from plesio.runtime.transport.channels import HELLO, WELCOME, ControlChannel, Membership
from plesio.runtime.transport.data_channel import DataChannel, PeerLink
from plesio.runtime.transport.outbox import Sending
from plesio.runtime.transport.seal import Seal, new_seal_key
from plesio.runtime.transport.security import JobKeys, KeyRing, Names, Tickets, ZapHandler
from plesio.runtime.transport.sockets import (
    PLAIN,
    SEALED,
    Context,
    Pieces,
    Socket,
    Traffic,
    bind,
    configure,
    host_identity,
    keep_received_memory,
)
from plesio.runtime.transport.watch import ServerWatch
from plesio.runtime.transport.wire import EMPTY, Bulk, Control, Gone, Header, Incoming, Refusal, job_digest

_MAX_PATH_BYTES = 107  # sun_path of unix(7), without its final zero
_MAX_WAITING = 128
_MAX_WAITING_DATA = 64
"""Less: each can take the memory of the largest piece of a payload."""


class ServerEndpoint:
    """Receives from any number of workers, and answers them. To be used by one thread.

    Args:
        job: Name of the job; workers of another are refused.
        host: Address to listen on, which workers connect to.
        ipc_dir: Existing directory, best one that only this user may enter, for the socket that workers on this host
            use; None for tcp alone. The socket's file is removed on close.
        encrypt: Whether bulk data are encrypted between hosts; a client can ask for it all the same.

    Raises:
        TransportError: ``host`` is not of this machine, or ``ipc_dir`` cannot be used.
    """

    def __init__(
        self,
        *,
        job: str,
        keys: JobKeys,
        names: Names,
        host: str,
        ipc_dir: Path | None,
        max_bulk_bytes: int,
        encrypt: bool = True,
    ) -> None:
        keep_received_memory()
        self.refused: Counter[Refusal] = Counter()
        """Connections and messages turned away, by reason."""
        self.traffic = Traffic()
        """Bytes sent and received, by class of link."""
        self._early: list[Incoming] = []
        """Arrived while `let_in` was called."""
        self.peers: set[bytes] = set()
        """Identities whose control connections are open."""
        self._membership = Membership(job=job_digest(job), generation=0)
        self._tickets = Tickets()
        self._encrypt = encrypt
        self._no_link = PeerLink(link="tcp", pieces=SEALED if encrypt else PLAIN)
        """Link to a peer that has not announced any."""
        self._links: dict[bytes, PeerLink] = {}
        self._memory = BulkMemory(max_bytes=max_bulk_bytes, shared=ipc_dir is not None)
        # A context of its own, because a context holds one ZAP handler, and a process may hold several servers.
        self._context: Context = zmq.Context()
        self._ipc_path: Path | None = None
        try:
            self._open_sockets(keys, names=names)
            self.addresses = self._bind(job=job, keys=keys, host=host, ipc_dir=ipc_dir)
            """Addresses and keys by which a worker connects: texts, to be published as they are."""
        except BaseException:
            self._context.destroy(linger=0)
            self._memory.close()
            raise

    def _open_sockets(self, keys: JobKeys, *, names: Names) -> None:
        self._zap = ZapHandler(
            self._context, key_ring=KeyRing(keys, names=names), tickets=self._tickets, on_refused=self._note_denied
        )
        # control: CURVE keys are checked by the handler; data: the handler checks tickets, and messages are sealed
        control, data = self._router(pieces=None), self._router(pieces=self._no_link.pieces)
        control.curve_server = True
        control.curve_secretkey = keys.server.secret
        control.zap_domain = b"control"
        data.plain_server = True
        data.zap_domain = b"data"
        # before the sockets are bound, so that no connection is missed
        refuse = self._note_failed_handshake
        self._control_watch = ServerWatch(control, max_waiting=_MAX_WAITING, on_failed_handshake=refuse)
        self._data_watch = ServerWatch(data, max_waiting=_MAX_WAITING_DATA, on_failed_handshake=refuse)
        self._control = ControlChannel(
            control,
            membership=self._membership,
            traffic=self.traffic,
            on_refused=self._note_refused,
            on_received=self._control_watch.note_received,
            routed=True,
        )
        self._data = DataChannel(
            data,
            membership=self._membership,
            traffic=self.traffic,
            link_to=lambda peer: self._links.get(peer, self._no_link),
            memory=self._memory,
            on_refused=self._note_refused,
            on_received=self._data_watch.note_received,
            routed=True,
        )
        self._poller = zmq.Poller()
        for readable in self.sockets:
            self._poller.register(readable, zmq.POLLIN)

    def _router(self, *, pieces: Pieces | None) -> Socket:
        socket = self._context.socket(zmq.ROUTER)
        configure(socket, pieces=pieces)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a peer that is gone is an error
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a worker that comes back takes its identity over
        return socket

    def _bind(self, *, job: str, keys: JobKeys, host: str, ipc_dir: Path | None) -> dict[str, str]:
        control_port, data_port = bind(self._control.socket, host=host), bind(self._data.socket, host=host)
        if ipc_dir is not None:
            self._ipc_path = self._bind_ipc(ipc_dir / f"{data_port}.sock")
        return keys.sealed(
            {
                "job": job,
                "control": f"tcp://{host}:{control_port}",
                "data_tcp": f"tcp://{host}:{data_port}",
                "data_ipc": str(self._ipc_path or ""),
                "host": host_identity(),
            }
        )

    def _bind_ipc(self, path: Path) -> Path:
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise TransportError(
                f'"{path}" is too long for a socket ({_MAX_PATH_BYTES} bytes); set TMPDIR to a shorter folder'
            )
        try:
            self._data.socket.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            raise TransportError(
                f'cannot make a socket in "{path.parent}" ({error}); use a writable directory'
            ) from error
        return path

    @property
    def sockets(self) -> tuple[Socket, ...]:
        watches = (self._control_watch.socket, self._data_watch.socket)
        return (self._control.socket, self._data.socket, self._zap.socket, *watches)

    @property
    def generation(self) -> int:
        """Generation of the membership. Messages of another are refused; set it to move on."""
        return self._membership.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self._membership.generation = generation

    def poll(self, timeout_s: float) -> list[Incoming]:
        """Return what has arrived complete: control messages, bulk messages, and the ends of connections.

        Returns as soon as there is something, or an empty list after ``timeout_s``. No message of a peer makes it
        raise; refused ones are counted in `refused`.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            incoming, self._early = [*self._early, *self._take()], []
            if incoming:
                return incoming
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return []
            self._poller.poll(math.ceil(left_s * 1e3))

    def let_in(self) -> None:
        """Let in the peers that are connecting; what has arrived is returned by the next `poll`."""
        self._early += self._take()

    def _take(self) -> list[Incoming]:
        self._zap.answer_all()
        self._control_watch.read()
        self._data_watch.read()
        num_control_ended, num_data_ended = self._control_watch.num_ended, self._data_watch.num_ended
        controls, all_control_read = self._control.receive()
        bulks, all_data_read = self._data.receive()
        self.peers.update(control.peer for control in controls)
        incoming: list[Incoming] = [control for control in controls if not self._welcome(control)]
        incoming += bulks
        if all_control_read and all_data_read:
            for peer in self._data_watch.take_gone(num_ended=num_data_ended):
                self._memory.assembler.drop(peer)
            for peer in self._control_watch.take_gone(num_ended=num_control_ended):
                self._memory.forget(peer)
                if peer in self._links:
                    self._links[peer] = replace(self._links[peer], seal=None)
                self.peers.discard(peer)
                incoming.append(Gone(peer=peer))
            self._control_watch.thin_out()
            self._data_watch.thin_out()
        return incoming

    def _welcome(self, control: Control) -> bool:
        if control.kind != HELLO:
            return False
        welcome: dict[str, Any] = {"generation": self.generation, "encrypt": self._encrypt}
        link = control.body.get("data")
        if link in ("ipc", "tcp"):
            self._memory.forget(control.peer)
            seal: Seal | None = None
            if link == "tcp" and (self._encrypt or control.body.get("encrypt") is not False):
                welcome["seal"] = new_seal_key()
                seal = Seal(welcome["seal"], at_server=True)
            self._links[control.peer] = replace(self._no_link, link=link, seal=seal)
            welcome["ticket"] = self._tickets.issue(control.peer)
            if link == "ipc" and (offer := self._memory.offer) is not None:
                welcome["memory"] = offer
                welcome["opens"] = self._memory.admit(control.peer, control.body.get("memory"))
        self._control.send(control.peer, WELCOME, welcome)
        return True

    def send_control(self, peer: bytes, kind: int, body: Mapping[str, Any]) -> bool:
        """Send a control message; returns False when the peer is not connected.

        Raises:
            ValueError: The body is too large, or no JSON object.
        """
        return self._control.send(peer, kind, body)

    def send(
        self, peer: bytes, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = EMPTY
    ) -> Sending | None:
        """Send a bulk message; None when the peer is not connected.

        The payload must not change before `Sending.done`; it is copied as in `ClientEndpoint.push`.

        Raises:
            ValueError: ``meta`` is too large, or the payload is not contiguous.
        """
        return self._data.send(peer, header, meta=meta, payload=payload)

    def stage(self, num_bytes: int, *, peer: bytes) -> NDArray[np.uint8]:
        """Return a contiguous writable array with arbitrary content: fill it and `send` it, and it is never copied.

        It is memory that peers on this host can read in place where there are any, and used again later. Each one is to
        be sent, once and to this peer; then it belongs to the endpoint again.
        """
        return self._memory.outbox.stage(num_bytes, peer=peer)

    def release(self, bulk: Bulk) -> None:
        self._data.release(bulk.payload)

    def _note_refused(self, reason: Refusal) -> None:
        self.refused[reason] += 1

    def _note_failed_handshake(self) -> None:
        self.refused[Refusal.HANDSHAKE] += 1

    def _note_denied(self, reason: Refusal) -> None:
        self.refused[reason] += 1
        watch = self._control_watch if reason is Refusal.KEY else self._data_watch
        watch.note_denied()

    def close(self) -> None:
        """Close all sockets and remove the ipc file; may be called twice."""
        if self._context.closed:
            return
        self._control_watch.close()
        self._data_watch.close()
        self._context.destroy(linger=0)
        self._memory.close()
        if self._ipc_path is not None:
            self._ipc_path.unlink(missing_ok=True)
