"""A client's control connection, and how any connection to a server is made."""

import math
import socket as tcp
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import zmq

from plesio.core.errors import TransportError
from plesio.runtime.transport.channels import HELLO, SERVER, WELCOME, ControlChannel, Membership
from plesio.runtime.transport.security import JobKeys
from plesio.runtime.transport.sockets import Context, Socket, Traffic, configure
from plesio.runtime.transport.watch import ClientWatch
from plesio.runtime.transport.wire import Control, Refusal, job_digest

PROBE_S = 1.0
"""How long it takes at most to learn that nothing listens at an address."""
CONNECT_S = 60.0
"""How long to wait for a server that should be there: on a busy machine it may be long in answering."""


def connect(socket: Socket, address: str, *, watch: ClientWatch, timeout_s: float) -> None:
    """Connect and wait until the server has let this socket in.

    Raises:
        TransportError: It cannot be reached in time, or refuses.
    """
    deadline_s = time.monotonic() + timeout_s
    socket.connect(address)
    while True:
        watch.read()
        if watch.established:
            return
        if watch.refused:
            raise TransportError(f"{address} refused the connection: a wrong key or ticket, or no Plesio server")
        if watch.retries and _is_refused(address):
            raise TransportError(f"no server answers at {address}: it has ended")
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TransportError(
                f"no server answers at {address} (waited {timeout_s:g} s); does it run, and is it reachable?"
            )
        watch.socket.poll(max(1, int(left_s * 1e3)))


def _is_refused(address: str) -> bool:
    """Tell whether nothing listens there: a server does before anyone knows its address."""
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    try:
        if scheme == "tcp":
            tcp.create_connection((host, int(port)), timeout=PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass  # no way there at the moment
    return False


class ControlClient:
    """A control connection of its own; for one thread, such as the one that sends a worker's heartbeats.

    Args:
        addresses: `ServerEndpoint.addresses` of the server.
        identity: Names the connection to the server; no two live ones may share it.
        context: The process's context; threads may share it.
        hello: What to tell the server about the data connection that will follow, if one will; see `HELLO`.

    Raises:
        TransportError: The server is of another job or another secret, cannot be reached, or refuses the key.
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
        hello: Mapping[str, Any] | None = None,
    ) -> None:
        keys.check_seal(addresses)
        if addresses["job"] != job:
            raise TransportError(f'the server at {addresses["control"]} runs job "{addresses["job"]}", not "{job}"')
        self.refused: Counter[Refusal] = Counter()
        """Messages turned away, by reason."""
        self.traffic = Traffic()
        """Bytes sent and received, by class of link."""
        self._address = addresses["control"]
        self.membership = Membership(job=job_digest(job), generation=0)
        """The job and generation that messages carry; see `generation`."""
        # CURVE: the key follows from the secret and the identity, so the server can compare the two
        socket = context.socket(zmq.DEALER)
        configure(socket, pieces=None)
        socket.routing_id = identity
        own = keys.of_peer(identity)
        socket.curve_publickey = own.public
        socket.curve_secretkey = own.secret
        socket.curve_serverkey = keys.server.public
        self._watch = ClientWatch(socket)
        self._channel = ControlChannel(
            socket,
            membership=self.membership,
            traffic=self.traffic,
            on_refused=self.note_refused,
            on_received=lambda *_: None,
            routed=False,
        )
        # the watch's events end a wait, too: a lost connection is noticed at once
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._watch.socket, zmq.POLLIN)
        try:
            self.welcome = self._connect(hello or {}, timeout_s=timeout_s)
            """The server's answer; see `WELCOME`."""
        except BaseException:
            self.close()
            raise

    def _connect(self, hello: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        connect(self._channel.socket, self._address, watch=self._watch, timeout_s=timeout_s)
        self._channel.send(SERVER, HELLO, hello)
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TransportError(f"the server at {self._address} did not welcome this worker in {timeout_s:g} s")
            for control in self.poll(left_s):
                if control.kind == WELCOME:
                    self.generation = int(control.body["generation"])
                    return control.body

    @property
    def generation(self) -> int:
        return self.membership.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self.membership.generation = generation

    def send(self, kind: int, body: Mapping[str, Any]) -> None:
        """Queue a control message.

        Raises:
            ValueError: The body is too large.
        """
        self._channel.send(SERVER, kind, body)

    def poll(self, timeout_s: float) -> list[Control]:
        """Return the control messages that have arrived; wait for the first at most ``timeout_s``.

        A message of any generation of this job is handed out: the server decides which one it is.

        Raises:
            TransportError: The connection is lost.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            controls, _ = self._channel.receive()
            if not controls:
                self._watch.check(self._address)
            left_s = deadline_s - time.monotonic()
            if controls or left_s <= 0:
                return controls
            self._poller.poll(math.ceil(left_s * 1e3))

    @property
    def sockets(self) -> tuple[Socket, ...]:
        return (self._channel.socket, self._watch.socket)

    def note_refused(self, reason: Refusal) -> None:
        self.refused[reason] += 1

    def close(self) -> None:
        """Close the connection; may be called twice. What the server has not got yet is lost."""
        if not self._channel.socket.closed:
            self._watch.close()
            self._channel.socket.close()
