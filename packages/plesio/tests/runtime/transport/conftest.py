from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq

from plesio.runtime.transport import ClientEndpoint, JobKeys
from support.transport import JOB, KEYS, LIMIT_BYTES, PATIENCE_S, Connect, EchoServer, StartServer


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

        def connect(
            addresses: dict[str, str], identity: bytes = b"w0", keys: JobKeys = KEYS, *, encrypt: bool = True
        ) -> ClientEndpoint:
            client = ClientEndpoint(
                addresses,
                identity=identity,
                job=JOB,
                keys=keys,
                context=context,
                timeout_s=PATIENCE_S,
                max_bulk_bytes=LIMIT_BYTES,
                encrypt=encrypt,
            )
            return stack.enter_context(closing(client))

        yield connect
