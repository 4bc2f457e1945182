"""Looks at a running job from outside: the figures of the run under way, for a display."""

import json
from typing import Any

import zmq
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from plesio.core.errors import TransportError
from plesio.protocol.figures import RunFigures
from plesio.protocol.message import decode, encode, kind_of
from plesio.protocol.peers import observer_identity
from plesio.protocol.to_server import ProgressRequest
from plesio.protocol.to_worker import Progress
from plesio.runtime.transport import CONNECT_S, ControlClient, JobKeys

__all__ = ["Observer"]


class Observer:
    """Asks server 0 of the job whose key-value store is ``store``; connects when there is a server.

    Args:
        store: The job's store, as the launcher hosts it.
        secret: The job's secret.
    """

    def __init__(self, store: Store, *, secret: str) -> None:
        self._keys = JobKeys.derive(secret)
        self._store = PrefixStore("plesio/0/0", store)  # the only job of its processes
        self._context: zmq.Context[Any] = zmq.Context()
        self._client: ControlClient | None = None
        self._server_gone = False

    def figures(self, *, timeout_s: float) -> RunFigures | None:
        """Fetch the figures of the run under way; None if there is none, no answer in time, or no server any more."""
        if self._server_gone:
            return None
        try:
            if self._client is None:
                self._client = self._connect()
            if self._client is None:
                return None
            self._client.send(*encode(ProgressRequest()))
            answers = [one for one in self._client.poll(timeout_s) if one.kind == kind_of(Progress)]
            if not answers:
                return None
            progress: Progress = decode(answers[-1].kind, answers[-1].body, Progress, peer="server 0")
        except TransportError:  # workers that fail end the job; what they have to say does not come through here
            self._server_gone = True
            return None
        return progress.figures

    def _connect(self) -> ControlClient | None:
        if not self._store.check(["server/0", "job"]):
            return None
        return ControlClient(
            json.loads(self._store.get("server/0")),
            identity=observer_identity().encode(),
            job=self._store.get("job").decode(),
            keys=self._keys,
            context=self._context,
            timeout_s=CONNECT_S,
        )

    def next_run(self) -> None:
        """Ask about the next run from now on."""
        if self._client is not None:
            self._client.generation += 1

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
        self._context.term()
