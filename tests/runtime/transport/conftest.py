import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from plesio.runtime.exchange.transport import Bulk, ClientEndpoint, Control, Gone, Incoming, JobKeys, ServerEndpoint

JOB = "test job"
KEYS = JobKeys.derive("the job's secret")
LIMIT_BYTES = 32 * 2**20
PATIENCE_S = 20.0

Connect = Callable[..., ClientEndpoint]


class EchoServer:
    """A server in a thread that sends back whatever it gets, and can be asked to wait for something."""

    def __init__(self, ipc_dir: Path, *, max_bulk_bytes: int = LIMIT_BYTES) -> None:
        self.endpoint = ServerEndpoint(
            job=JOB, keys=KEYS, host="127.0.0.1", ipc_dir=ipc_dir, max_bulk_bytes=max_bulk_bytes
        )
        self.gone: list[bytes] = []
        self.seen: list[Bulk | Control] = []
        self._actions: queue.SimpleQueue[tuple[Callable[[ServerEndpoint], object], Future]] = queue.SimpleQueue()
        self._round = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def addresses(self) -> dict[str, str]:
        return self.endpoint.addresses

    @property
    def tcp_addresses(self) -> dict[str, str]:
        return {**self.addresses, "data_ipc": ""}

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
                self.endpoint.send_copy(peer, header, meta=meta, payload=payload)
                self.endpoint.release(incoming)
            case Control(peer=peer, kind=kind, body=body):
                self.seen.append(incoming)
                self.endpoint.send_control(peer, kind, body)
            case Gone(peer=peer):
                self.gone.append(peer)

    def run(self, action: Callable[[ServerEndpoint], object]) -> object:
        """Have the server's own thread call ``action``: an endpoint belongs to one thread."""
        future: Future = Future()
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


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    with ExitStack() as stack:

        def start(**settings: int) -> EchoServer:
            server = EchoServer(tmp_path, **settings)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def server(start_server: StartServer) -> EchoServer:
    return start_server()


@pytest.fixture
def connect(context: zmq.Context) -> Iterator[Connect]:
    with ExitStack() as stack:

        def connect(addresses: dict[str, str], identity: bytes = b"w0", keys: JobKeys = KEYS) -> ClientEndpoint:
            client = ClientEndpoint(
                addresses,
                identity=identity,
                job=JOB,
                keys=keys,
                context=context,
                timeout_s=PATIENCE_S,
                max_bulk_bytes=LIMIT_BYTES,
            )
            return stack.enter_context(client)

        yield connect
