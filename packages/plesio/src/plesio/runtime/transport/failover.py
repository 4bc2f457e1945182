"""A worker's connections to a server that has a backup: when the server is lost they go on with the backup.

Their users notice a pause and nothing else; see `plesio.runtime.transport.numbered`. When the backup is lost too, or
does not take over, the connection is lost as any other is.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from plesio.core.errors import TransportError
from plesio.runtime.transport.client import ClientEndpoint
from plesio.runtime.transport.control_client import ControlClient
from plesio.runtime.transport.numbered import RESUME, RESUMED, Kept, Received, numbered, unnumbered
from plesio.runtime.transport.sockets import Traffic
from plesio.runtime.transport.wire import EMPTY, Bulk, Control, Header

TAKEOVER_S = 40.0
"""Seconds that a worker waits for the backup, which notices the loss after a silence of 30 s at the latest."""
DIAL_S = 8.0
"""Seconds in which a worker tries to reach the backup."""
SLICE_S = 0.1
"""Seconds between two checks of a wait whether it is still wanted."""

L = TypeVar("L", ClientEndpoint, ControlClient)


class _Failover(Generic[L]):
    """The common part of both kinds of connection: control messages, and the way to the backup.

    Args:
        wanted: Tells whether it is worth while to go on with the backup.
    """

    def __init__(self, first: L, *, dial: Callable[[], L], wanted: Callable[[], bool] = lambda: True) -> None:
        self._link: L = first
        self._lost: L | None = None
        self._dial: Callable[[], L] = dial
        self._wanted = wanted
        self._controls: Kept[tuple[int, int, Mapping[str, Any]]] = Kept()
        self._received = Received()
        self._early: list[Control | Bulk] = []
        """Messages that the backup has sent right after taking over."""

    @property
    def generation(self) -> int:
        return self._link.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self._link.generation = generation

    def _tell(self, kind: int, body: Mapping[str, Any]) -> None:
        number = self._controls.add((self.generation, kind, body))
        self._send(kind, numbered(body, number=number, received=self._received.last))

    def _send(self, kind: int, body: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _arrived(self, timeout_s: float) -> list[Control | Bulk]:
        """Return what has come by the present connection; nothing if that was lost, and the backup has taken over."""
        if self._early:
            early, self._early = self._early, []
            return early
        try:
            return [*self._link.poll(timeout_s)]
        except TransportError as error:
            self._fail_over(error)
            return []

    def _control(self, control: Control) -> Control | None:
        number, received, body = unnumbered(control.body)
        self._controls.acknowledge(received)
        return replace(control, body=body) if self._received.is_next(number) else None

    def _fail_over(self, error: TransportError) -> None:
        if self._lost is not None or not self._wanted():
            raise error
        generation = self.generation
        self._lost, self._link = self._link, self._dialled(error)
        self.generation = generation
        self._ask()
        deadline_s = time.monotonic() + TAKEOVER_S
        while (resumed := self._resumed()) is None:
            if time.monotonic() > deadline_s or not self._wanted():
                raise TransportError(f"the server's backup has not taken over: {error}")
        if resumed.get("over"):
            raise error
        self._resume(resumed)

    def _dialled(self, lost: TransportError) -> L:
        deadline_s = time.monotonic() + DIAL_S
        while True:
            try:
                link: L = self._dial()
                return link
            except TransportError:
                if time.monotonic() > deadline_s or not self._wanted():
                    raise lost from None  # there is no backup either
                time.sleep(SLICE_S)

    def _resumed(self) -> Mapping[str, Any] | None:
        answer = None
        arrived: list[Control | Bulk] = [*self._link.poll(SLICE_S)]
        for incoming in arrived:
            if isinstance(incoming, Control) and incoming.kind == RESUMED:
                answer = incoming.body
            else:
                self._early.append(incoming)
        return answer

    def _ask(self) -> None:
        self._send(RESUME, {"control": self._received.last})

    def _resume(self, resumed: Mapping[str, Any]) -> None:
        """Send again what the backup has not received, except messages of earlier runs."""
        self._controls.acknowledge(int(resumed["control"]))
        for number, (generation, kind, body) in self._controls:
            if generation == self.generation:
                self._send(kind, numbered(body, number=number, received=self._received.last))

    def close(self) -> None:
        self._link.close()
        if self._lost is not None:
            self._lost.close()


class FailoverControl(_Failover[ControlClient]):
    """A `ControlClient` that goes on with the backup."""

    def _send(self, kind: int, body: Mapping[str, Any]) -> None:
        self._link.send(kind, body)

    def send(self, kind: int, body: Mapping[str, Any]) -> None:
        self._tell(kind, body)

    def poll(self, timeout_s: float) -> list[Control]:
        """Return the control messages that have arrived; wait for the first at most ``timeout_s``.

        Raises:
            TransportError: The connections to the server and to its backup are lost.
        """
        controls = [one for one in self._arrived(timeout_s) if isinstance(one, Control)]
        return [one for one in map(self._control, controls) if one is not None]


class FailoverConnection(_Failover[ClientEndpoint]):
    """A `ClientEndpoint` that goes on with the backup."""

    def __init__(self, first: ClientEndpoint, *, dial: Callable[[], ClientEndpoint]) -> None:
        super().__init__(first, dial=dial)
        self._bulks: Kept[tuple[Header, Mapping[str, Any] | None, NDArray[Any]]] = Kept()
        self._received_bulk = Received()
        self._lent: dict[int, ClientEndpoint] = {}
        """The connection of each payload that is with the user, by the payload's identity."""

    def _send(self, kind: int, body: Mapping[str, Any]) -> None:
        self._link.send_control(kind, body)

    def send_control(self, kind: int, body: Mapping[str, Any]) -> None:
        self._tell(kind, body)

    def stage(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory to fill and `push`: its own, since it may have to be sent again."""
        return np.empty(num_bytes, dtype=np.uint8)

    def push(self, header: Header, *, meta: Mapping[str, Any] | None = None, payload: NDArray[Any] = EMPTY) -> None:
        """Queue a bulk message; the payload must not be changed any more."""
        number = self._bulks.add((header, meta, payload))
        self._link.push(header, meta=numbered(meta, number=number, received=self._received_bulk.last), payload=payload)

    def poll(self, timeout_s: float) -> list[Control | Bulk]:
        """Return the messages that have arrived complete; wait for the first at most ``timeout_s``.

        Raises:
            TransportError: The connections to the server and to its backup are lost.
        """
        taken: list[Control | Bulk] = []
        for incoming in self._arrived(timeout_s):
            new = self._control(incoming) if isinstance(incoming, Control) else self._bulk(incoming)
            if new is not None:
                taken.append(new)
        return taken

    def check(self) -> None:
        """Do nothing: `poll` notices, and connects to the backup."""

    def _bulk(self, bulk: Bulk) -> Bulk | None:
        number, received, meta = unnumbered(bulk.meta)
        self._bulks.acknowledge(received)
        if not self._received_bulk.is_next(number):
            self._link.release(bulk)
            return None
        self._lent[id(bulk.payload)] = self._link
        return replace(bulk, meta=meta)

    def release(self, bulk: Bulk) -> None:
        self._lent.pop(id(bulk.payload), self._link).release(bulk)

    def _ask(self) -> None:
        received = {"control": self._received.last, "bulk": self._received_bulk.last}
        self._link.push(Header(kind=RESUME, generation=self.generation), meta=received)

    def _resume(self, resumed: Mapping[str, Any]) -> None:
        super()._resume(resumed)
        self._bulks.acknowledge(int(resumed["bulk"]))
        for number, (header, meta, payload) in self._bulks:
            if header.generation == self.generation:
                received = self._received_bulk.last
                self._link.push(header, meta=numbered(meta, number=number, received=received), payload=payload)

    @property
    def traffic(self) -> Traffic:
        """Bytes sent and received, by class of link, on both connections."""
        total = Traffic()
        for link in (self._link, *(() if self._lost is None else (self._lost,))):
            for of, counted in ((total.ipc, link.traffic.ipc), (total.tcp, link.traffic.tcp)):
                of.sent_payload += counted.sent_payload
                of.sent_framing += counted.sent_framing
                of.received_payload += counted.received_payload
                of.received_framing += counted.received_framing
        return total
