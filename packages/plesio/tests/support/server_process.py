"""A job's server as a process of its own, as workers start it, and connections of members to it."""

import json
import resource
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import psutil
import zmq

from plesio.protocol.message import decode, encode
from plesio.protocol.to_server import ProgressRequest
from plesio.protocol.to_worker import Progress
from plesio.runtime.server.process import ServerConfig
from plesio.runtime.transport import ClientEndpoint, ControlClient, JobKeys
from support.transport import JOB, PATIENCE_S, SECRET


class ServerUnderTest:
    """Server 0 of a job.

    Args:
        num_descriptors: Files that it may have open; None for as many as this process.
        variables: Of its environment.
    """

    def __init__(self, *, num_descriptors: int | None = None, **variables: str) -> None:
        def limit() -> None:
            if num_descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (num_descriptors, num_descriptors))

        self.process = subprocess.Popen(
            [sys.executable, "-m", "plesio.runtime.server.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
            **({"env": variables} if variables else {}),
        )
        self.tell(asdict(ServerConfig(index=0, host="127.0.0.1", job=JOB, secret=SECRET)))
        self.answer = json.loads(self.process.stdout.readline())
        self.context = zmq.Context()

    @property
    def addresses(self) -> dict[str, str]:
        assert "addresses" in self.answer, self.answer
        return self.answer["addresses"]

    @property
    def memory_bytes(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def tell(self, value: object) -> None:
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def member(self, identity: bytes, *, addresses: dict[str, str] | None = None) -> closing[ClientEndpoint]:
        return closing(
            ClientEndpoint(
                addresses or self.addresses,
                identity=identity,
                job=JOB,
                keys=JobKeys.derive(SECRET),
                context=self.context,
                timeout_s=PATIENCE_S,
                max_bulk_bytes=2**26,
            )
        )

    def control(self, identity: bytes) -> closing[ControlClient]:
        return closing(
            ControlClient(
                self.addresses,
                identity=identity,
                job=JOB,
                keys=JobKeys.derive(SECRET),
                context=self.context,
                timeout_s=PATIENCE_S,
            )
        )

    def answers(self) -> bool:
        """Return True if it answers a request on a new connection."""
        with self.control(b"observer-1") as observer:
            observer.send(*encode(ProgressRequest()))
            [answer] = observer.poll(PATIENCE_S)
            decode(answer.kind, answer.body, Progress, peer="server 0")
            return self.process.poll() is None

    def close(self) -> str:
        """End it; returns what it has said on its standard error. Harmless when repeated."""
        self.context.destroy(linger=0)
        if self.process.stdin.closed:  # closed already
            return ""
        try:
            _, said = self.process.communicate("over\n", timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        self.close()
