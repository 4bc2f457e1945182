"""A server to send to, and what its clients know of it."""

import itertools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from plesio.runtime.transport import (
    Bulk,
    ClientEndpoint,
    Control,
    ControlClient,
    Gone,
    Header,
    Incoming,
    JobKeys,
    ServerEndpoint,
)

JOB = "test job"
SECRET = "the job's secret"
KEYS = JobKeys.derive(SECRET)
NAMES = lambda number: (b"w%d" % number, b"w%d/beat" % number, b"observer-%d" % number)  # noqa: E731 - a value like the others
LIMIT_BYTES = 32 * 2**20
PATIENCE_S = 60.0
_NUMBERS = itertools.count(1)
"""Numbers of requests."""

Connect = Callable[..., ClientEndpoint]
Action = Callable[[ServerEndpoint], object]


class EchoServer:
    """A server in a thread that sends back whatever it gets, and can be asked to wait for something."""

    def __init__(self, ipc_dir: Path, *, max_bulk_bytes: int = LIMIT_BYTES, encrypt: bool = True) -> None:
        self.endpoint = ServerEndpoint(
            job=JOB,
            keys=KEYS,
            names=NAMES,
            host="127.0.0.1",
            ipc_dir=ipc_dir,
            max_bulk_bytes=max_bulk_bytes,
            encrypt=encrypt,
        )
        self.gone: list[bytes] = []
        self.seen: list[Bulk | Control] = []
        self._actions: queue.SimpleQueue[tuple[Action, Future[object]]] = queue.SimpleQueue()
        self._round = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def addresses(self) -> dict[str, str]:
        return self.endpoint.addresses

    @property
    def tcp_addresses(self) -> dict[str, str]:
        return KEYS.sealed({**self.addresses, "data_ipc": ""})

    def _serve(self) -> None:
        while not self._stop.is_set():
            self._answer_all(self.endpoint.poll(0.02))
            while not self._actions.empty():
                action, future = self._actions.get()
                future.set_result(action(self.endpoint))
            with self._round:
                self._round.notify_all()

    def _answer_all(self, arrived: list[Incoming]) -> None:
        for incoming in arrived:
            self._answer(incoming)

    def _answer(self, incoming: Incoming) -> None:
        match incoming:
            case Bulk(peer=peer, header=header, meta=meta, payload=payload):
                self.seen.append(incoming)
                copy = self.endpoint.stage(payload.nbytes, peer=peer)
                np.copyto(copy, payload)
                self.endpoint.send(peer, header, meta=meta, payload=copy)
                self.endpoint.release(incoming)
            case Control(peer=peer, kind=kind, body=body):
                self.seen.append(incoming)
                self.endpoint.send_control(peer, kind, body)
            case Gone(peer=peer):
                self.gone.append(peer)

    def run(self, action: Action) -> object:
        """Have the server's own thread call ``action``: an endpoint belongs to one thread."""
        future: Future[object] = Future()
        self._actions.put((action, future))
        return future.result(PATIENCE_S)

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self._round:
            assert self._round.wait_for(condition, PATIENCE_S), f"never came true; refused: {self.endpoint.refused}"

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.endpoint.close()


StartServer = Callable[..., EchoServer]


def control_to(
    server: EchoServer, context: zmq.Context, *, identity: bytes = b"w0", hello: dict[str, Any] | None = None
) -> closing[ControlClient]:
    """Connect for control messages alone."""
    return closing(
        ControlClient(
            server.addresses, identity=identity, job=JOB, keys=KEYS, context=context, timeout_s=PATIENCE_S, hello=hello
        )
    )


def random_bytes(num_bytes: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """Something to send."""
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


def header_of(client: ClientEndpoint, **fields: int) -> Header:
    """Make the header of a new request of this client."""
    return Header(kind=7, generation=client.generation, request=next(_NUMBERS), **fields)


def answer_to(client: ClientEndpoint, header: Header) -> Bulk:
    """Wait for the bulk message with this request's number."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        for incoming in client.poll(PATIENCE_S):
            if isinstance(incoming, Bulk) and incoming.header.request == header.request:
                return incoming
    raise TimeoutError(f"no answer to {header}")


def request(client: ClientEndpoint, payload: NDArray[Any], *, header: Header | None = None, **settings: Any) -> Bulk:
    """Push a payload, and wait for the answer."""
    header = header or header_of(client)
    client.push(header, payload=payload, **settings)
    return answer_to(client, header)
