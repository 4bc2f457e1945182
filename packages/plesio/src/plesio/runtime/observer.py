"""Looks at a running job from outside: the figures of the run under way, for a display.

It asks server 0, and only when it is asked itself: a job that nobody looks at spends nothing on it.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import zmq

from plesio.core.errors import TransportError
from plesio.core.results import RunResult
from plesio.protocol.figures import RunFigures
from plesio.protocol.message import Message, decode, encode, kind_of
from plesio.protocol.peers import observer_identity
from plesio.protocol.to_server import ProgressRequest, ResultRequest
from plesio.protocol.to_worker import Progress, Result
from plesio.runtime.transport import CONNECT_S, ControlClient, JobKeys

_MOST_OBSERVERS = 64

Answer = TypeVar("Answer", bound=Message)


class Observed(NamedTuple):
    """Server 0 of a job, as an observer finds it."""

    addresses: Mapping[str, str]
    job: str


def server_in(store: Any) -> Observed | None:
    """Find server 0 in a job's part of its key-value store, if it has been started."""
    if not store.check(["server/0", "job"]):
        return None
    return Observed(json.loads(store.get("server/0")), store.get("job").decode())


class Observer:
    """Asks server 0 of a job; connects when there is a server.

    Args:
        find: Finds the server, if there is one by now.
    """

    def __init__(self, find: Callable[[], Observed | None], *, secret: str) -> None:
        self._keys = JobKeys.derive(secret)
        self._find = find
        self._context: zmq.Context[Any] = zmq.Context()
        self._client: ControlClient | None = None
        self.server_gone = False
        """True once the server has gone: the job is over."""

    @classmethod
    def of_first_job(cls, store: Any, *, secret: str) -> "Observer":
        """Make one of the only job of processes that meet at this key-value store."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        return cls(partial(server_in, PrefixStore("plesio/0/0", store)), secret=secret)

    def figures(self, *, timeout_s: float) -> RunFigures | None:
        """Fetch the figures of the run under way; None if there is none, no answer in time, or no server any more."""
        progress = self._ask(ProgressRequest(), Progress, timeout_s=timeout_s)
        return None if progress is None else progress.figures

    def result(self, *, timeout_s: float) -> RunResult | None:
        """Fetch all that the server has of the run under way, as `Session.report` does; None as of `figures`."""
        answer = self._ask(ResultRequest(), Result, timeout_s=timeout_s)
        result = None if answer is None else answer.result
        return replace(result, status="running") if result is not None and result.status == "finished" else result

    def _ask(self, request: Message, expected: type[Answer], *, timeout_s: float) -> Answer | None:
        if self.server_gone:
            return None
        try:
            if self._client is None:
                self._client = self._connect()
            if self._client is None:
                return None
            self._client.send(*encode(request))
            answers = [one for one in self._client.poll(timeout_s) if one.kind == kind_of(expected)]
        except TransportError:  # workers that fail end the job; what they have to say does not come through here
            self.server_gone = True
            return None
        if not answers:
            return None
        answer: Answer = decode(answers[-1].kind, answers[-1].body, expected, peer="server 0")
        return answer

    def _connect(self) -> ControlClient | None:
        found = self._find()
        if found is None:
            return None
        return ControlClient(
            found.addresses,
            identity=observer_identity(random.randrange(_MOST_OBSERVERS)).encode(),
            job=found.job,
            keys=self._keys,
            context=self._context,
            timeout_s=CONNECT_S,
        )

    def next_run(self) -> None:
        """Ask about the next run from now on."""
        if self._client is not None:
            self._client.generation += 1

    def reconnect(self) -> None:
        """Ask about the run that is under way at the server then, whichever it is."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        """Close the connection."""
        self.reconnect()
        self._context.term()
