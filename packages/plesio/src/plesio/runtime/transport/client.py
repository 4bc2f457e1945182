"""The client's end: a control connection to one server, and a data connection beside it."""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from plesio.runtime.transport.bulk_memory import BulkMemory
from plesio.runtime.transport.channels import DATA_HELLO, SERVER
from plesio.runtime.transport.control_client import ControlClient, connect
from plesio.runtime.transport.data_channel import DataChannel, PeerLink
from plesio.runtime.transport.outbox import Sending
from plesio.runtime.transport.seal import Seal
from plesio.runtime.transport.security import JobKeys
from plesio.runtime.transport.sockets import (
    PLAIN,
    SEALED,
    Context,
    Link,
    Socket,
    choose_link,
    configure,
    keep_received_memory,
)
from plesio.runtime.transport.watch import ClientWatch
from plesio.runtime.transport.wire import EMPTY, Bulk, Control, Header


class ClientEndpoint:
    """Pushes to one server and pulls from it. To be used by one thread.

    Args:
        identity: Names this client to the server; no two live ones may share it.
        encrypt: Whether bulk data are encrypted between hosts; they are, too, if the server is to.

    Raises:
        TransportError: The server is of another job, cannot be reached, or refuses the key.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        *,
        identity: bytes,
        job: str,
        keys: JobKeys,
        context: Context,
        timeout_s: float,
        max_bulk_bytes: int,
        encrypt: bool = True,
    ) -> None:
        keep_received_memory()
        self.link: Link = choose_link(addresses)
        """How bulk data travels: ``ipc`` when the server is on this host."""
        self._memory = BulkMemory(max_bytes=max_bulk_bytes, shared=self.link == "ipc")
        hello = {"data": self.link, "encrypt": encrypt, "memory": self._memory.offer}
        try:
            self._control = ControlClient(
                addresses, identity=identity, job=job, keys=keys, context=context, timeout_s=timeout_s, hello=hello
            )
        except BaseException:
            self._memory.close()
            raise
        # the server's welcome decides on encryption; both ends cut payloads alike
        key = self._control.welcome.get("seal")
        to_server = PeerLink(
            link=self.link,
            pieces=PLAIN if self._control.welcome.get("encrypt") is False else SEALED,
            seal=None if key is None else Seal(str(key), at_server=False),
        )
        self.refused = self._control.refused
        """Messages turned away, by reason."""
        self.traffic = self._control.traffic
        """Bytes sent and received, by class of link."""
        self._address = f"ipc://{addresses['data_ipc']}" if self.link == "ipc" else addresses["data_tcp"]
        self._backlog: list[Control | Bulk] = []
        # the data connection is let in by the ticket that came over the control connection
        socket = context.socket(zmq.DEALER)
        configure(socket, pieces=to_server.pieces)
        socket.routing_id = identity
        socket.plain_username = identity
        socket.plain_password = str(self._control.welcome["ticket"]).encode()
        self._watch = ClientWatch(socket)
        self._data = DataChannel(
            socket,
            membership=self._control.membership,
            traffic=self.traffic,
            link_to=lambda _: to_server,
            memory=self._memory,
            on_refused=self._control.note_refused,
            on_received=lambda *_: None,
            routed=False,
        )
        self._poller = zmq.Poller()
        for readable in self.sockets:
            self._poller.register(readable, zmq.POLLIN)
        try:
            connect(socket, self._address, watch=self._watch, timeout_s=timeout_s)
            self._share_memory()
        except BaseException:
            self.close()
            raise

    def _share_memory(self) -> None:
        welcome = self._control.welcome
        opens = self._memory.admit(SERVER, welcome.get("memory"))
        if welcome.get("opens") is True:
            self._memory.outbox.allow(SERVER)
        self.push(Header(kind=DATA_HELLO, generation=self.generation), meta={"opens": opens})

    @property
    def generation(self) -> int:
        """Generation that messages are sent in: the server's when it welcomed this client, until set to another."""
        return self._control.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self._control.generation = generation

    def send_control(self, kind: int, body: Mapping[str, Any]) -> None:
        """Queue a control message.

        Raises:
            ValueError: The body is too large.
        """
        self._control.send(kind, body)

    def push(self, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = EMPTY) -> Sending:
        """Queue a bulk message, and return at once.

        Args:
            header: Its generation should be this endpoint's.
            meta: A JSON object beside the payload.
            payload: A contiguous array, which must not change before `Sending.done`. Copied once when it goes through
                shared memory, and not at all otherwise. An array from `stage`, or the beginning of one, is never
                copied, and must not be used any more.

        Raises:
            ValueError: ``meta`` is too large, or the payload is not contiguous.
        """
        self._read_freed()
        sending = self._data.send(SERVER, header, meta=meta, payload=payload)
        assert sending is not None, "a DEALER queues"
        return sending

    def stage(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return a contiguous writable array with arbitrary content: fill it and `push` it, and it is never copied.

        It is memory that the server can read in place where that is possible, and used again later. Each one is to be
        pushed, once; then it belongs to the endpoint again.
        """
        self._read_freed()
        return self._memory.outbox.stage(num_bytes, peer=SERVER)

    def _read_freed(self) -> None:
        if self._memory.outbox.num_lent:
            bulks, _ = self._data.receive()
            self._backlog += bulks

    def poll(self, timeout_s: float) -> list[Control | Bulk]:
        """Return the messages that have arrived complete; wait for the first at most ``timeout_s``.

        Raises:
            TransportError: The connection is lost.
        """
        if self._backlog:
            backlog, self._backlog = self._backlog, []
            return backlog
        deadline_s = time.monotonic() + timeout_s
        while True:
            bulks, all_read = self._data.receive()
            incoming: list[Control | Bulk] = [*bulks] if bulks else [*self._control.poll(0.0)]
            if not incoming and all_read:
                self._watch.check(self._address)
            left_s = deadline_s - time.monotonic()
            if incoming or left_s <= 0:
                return incoming
            self._poller.poll(math.ceil(left_s * 1e3))

    def check(self) -> None:
        """Raise when the connection is lost, though nothing is waited for from it.

        Raises:
            TransportError: It is.
        """
        self._watch.check(self._address)

    @property
    def sockets(self) -> tuple[Socket, ...]:
        """The sockets that become readable when `poll` has something to return."""
        return (*self._control.sockets, self._data.socket, self._watch.socket)

    def release(self, bulk: Bulk) -> None:
        """Hand back the payload of a message that came out of `poll`; it must not be used any more."""
        self._data.release(bulk.payload)

    def close(self) -> None:
        """Close both connections; may be called twice. What the server has not got yet is lost."""
        self._control.close()
        if not self._data.socket.closed:
            self._watch.close()
            self._data.socket.close()
        self._memory.close()
