"""The client's end: a control connection to one server, and a data connection beside it."""

import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from plesio.core.errors import TransportError
from plesio.core.records import to_values
from plesio.runtime.transport.assembly import Assembler, BufferPool
from plesio.runtime.transport.channels import DATA_HELLO, SERVER
from plesio.runtime.transport.control_client import ControlClient, connect
from plesio.runtime.transport.data_channel import DataChannel
from plesio.runtime.transport.mappings import Mappings
from plesio.runtime.transport.outbox import Outbox, Sending
from plesio.runtime.transport.seal import Seal
from plesio.runtime.transport.security import JobKeys
from plesio.runtime.transport.segments import MemoryOffer, make_pool
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
from plesio.runtime.transport.wire import Bulk, Control, Header

__all__ = ["ClientEndpoint", "wait_readable"]

_EMPTY = np.empty(0, dtype=np.uint8)


class ClientEndpoint:
    """Pushes to one server and pulls from it. To be used by one thread.

    Args:
        addresses: `ServerEndpoint.addresses` of the server.
        identity: Names this client to the server; no two live ones may share it.
        job: Name of the job.
        keys: The job's keys.
        context: The process's context; threads may share it.
        timeout_s: How long to wait for the server.
        max_bulk_bytes: Largest bulk payload that is accepted.
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
        segments = make_pool(max_free_bytes=4 * max_bulk_bytes) if self.link == "ipc" else None
        self._outbox = Outbox(segments=segments, max_free_bytes=4 * max_bulk_bytes)
        self._mappings = Mappings(max_bytes=max_bulk_bytes)
        hello = {"data": self.link, "encrypt": encrypt, "memory": to_values(segments.offer) if segments else None}
        try:
            self._control = ControlClient(
                addresses, identity=identity, job=job, keys=keys, context=context, timeout_s=timeout_s, hello=hello
            )
        except BaseException:
            self._outbox.close()
            raise
        key = self._control.welcome.get("seal")
        seal = None if key is None else Seal(str(key), at_server=False)
        pieces = PLAIN if self._control.welcome.get("encrypt") is False else SEALED
        self.refused = self._control.refused
        """Messages turned away, by reason."""
        self.traffic = self._control.traffic
        """Bytes sent and received, by class of link."""
        self._address = f"ipc://{addresses['data_ipc']}" if self.link == "ipc" else addresses["data_tcp"]
        self._pool = BufferPool(max_free_bytes=4 * max_bulk_bytes)
        self._destinations: dict[int, NDArray[np.uint8]] = {}
        self._backlog: list[Control | Bulk] = []
        self._num_requests = 0
        socket = context.socket(zmq.DEALER)
        configure(socket, pieces=pieces)
        socket.routing_id = identity
        socket.plain_username = identity
        socket.plain_password = str(self._control.welcome["ticket"]).encode()
        self._watch = ClientWatch(socket)
        self._data = DataChannel(
            socket,
            membership=self._control.membership,
            traffic=self.traffic,
            link_of=lambda _: self.link,
            seal_of=lambda _: seal,
            pieces=pieces,
            assembler=Assembler(
                max_bytes=max_bulk_bytes,
                allocate=self._allocate,
                discard=lambda _, payload: self._pool.give_back(payload),
            ),
            outbox=self._outbox,
            mappings=self._mappings,
            destination=self._destination,
            on_refused=self._control.note_refused,
            on_abandoned=lambda: None,  # a server that is gone is an error anyhow
            on_heard=lambda *_: None,
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
        opens = self._mappings.admit(SERVER, MemoryOffer.read(welcome.get("memory")))
        if welcome.get("opens") is True:
            self._outbox.allow(SERVER)
        self.push(Header(kind=DATA_HELLO, generation=self.generation), meta={"opens": opens})

    @property
    def shares_memory(self) -> bool:
        """True if payloads to the server go through shared memory; if not, in chunks over the link's socket."""
        return self._outbox.shares(SERVER)

    @property
    def num_unshared(self) -> int:
        """Payloads that did not, because this machine had no memory for one more segment."""
        return self._outbox.num_unshared

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

    def new_request(self) -> int:
        """Return a number for `Header.request` that this endpoint has not used yet."""
        self._num_requests += 1
        return self._num_requests

    def push(self, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = _EMPTY) -> Sending:
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
        return self._outbox.stage(num_bytes)

    def _read_freed(self) -> None:
        if self._outbox.num_lent:
            bulks, _ = self._data.receive()
            self._backlog += bulks

    def expect(self, request: int, *, into: NDArray[Any]) -> None:
        """Have the payload of the answer to ``request`` received straight into ``into``.

        Args:
            request: `Header.request` of question and answer.
            into: Contiguous and writable. An answer that is larger does not go there but to a buffer of the pool;
                look at ``bulk.payload.size``.
        """
        if not (into.flags.c_contiguous and into.flags.writeable):
            raise ValueError("a destination must be contiguous and writable")
        self._destinations[request] = into.reshape(-1).view(np.uint8)

    def request(
        self,
        header: Header,
        *,
        meta: Mapping[str, Any] | None = None,
        payload: NDArray[Any] = _EMPTY,
        into: NDArray[Any] | None = None,
        timeout_s: float,
    ) -> Bulk:
        """Push, and wait for the bulk message that answers: the one with the same ``header.request``.

        What else arrives meanwhile comes out of the next `poll`.

        Raises:
            TransportError: No answer in time, or the connection is lost.
        """
        if into is not None:
            self.expect(header.request, into=into)
        self.push(header, meta=meta, payload=payload)
        return self.answer(header.request, timeout_s=timeout_s)

    def answer(self, request: int, *, timeout_s: float) -> Bulk:
        """Wait for the bulk message that answers ``request``; see `request`.

        Raises:
            TransportError: No answer in time, or the connection is lost.
        """
        deadline_s = time.monotonic() + timeout_s
        aside, self._backlog = self._backlog, []
        try:
            while True:
                for position, incoming in enumerate(aside):
                    if isinstance(incoming, Bulk) and incoming.header.request == request:
                        del aside[position]
                        return incoming
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TransportError(f"the server at {self._address} did not answer in {timeout_s:g} s")
                aside += self.poll(left_s)
        finally:
            self._destinations.pop(request, None)
            self._backlog = aside

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

    @property
    def has_backlog(self) -> bool:
        """True if `poll` has something to return already."""
        return bool(self._backlog)

    def release(self, bulk: Bulk) -> None:
        """Hand back a payload out of the pool; it must not be used any more. A named destination is left alone."""
        if not self._data.release(bulk.payload):
            self._pool.give_back(bulk.payload)

    def _destination(self, header: Header, num_bytes: int) -> NDArray[np.uint8] | None:
        into = self._destinations.get(header.request)
        return into[:num_bytes] if into is not None and num_bytes <= into.size else None

    def _allocate(self, header: Header, num_bytes: int) -> NDArray[np.uint8]:
        into = self._destination(header, num_bytes)
        return self._pool.take(num_bytes) if into is None else into

    def close(self) -> None:
        """Close both connections; may be called twice. What the server has not got yet is lost."""
        self._control.close()
        if not self._data.socket.closed:
            self._watch.close()
            self._data.socket.close()
        self._mappings.close()
        self._outbox.close()

    def __enter__(self) -> "ClientEndpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wait_readable(clients: Sequence[ClientEndpoint], *, timeout_s: float) -> list[ClientEndpoint]:
    """Return the clients whose `ClientEndpoint.poll` may have something; wait for the first at most ``timeout_s``."""
    ready = [client for client in clients if client.has_backlog]
    if ready:
        return ready
    poller = zmq.Poller()
    for client in clients:
        for socket in client.sockets:
            poller.register(socket, zmq.POLLIN)
    readable = {socket for socket, _ in poller.poll(math.ceil(timeout_s * 1e3))}
    return [client for client in clients if not readable.isdisjoint(client.sockets)]
