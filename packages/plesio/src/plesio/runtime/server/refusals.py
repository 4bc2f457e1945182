"""Messages that a server cannot read or act on: all are counted, the first few are logged."""

import logging

from plesio.core.errors import PlesioError
from plesio.runtime.transport import Refusal
from plesio.runtime.transport.connection import WorkerConnections

_log = logging.getLogger(__name__)

MAX_LOGGED = 20
"""Most lines that are logged: the sender of senseless messages does not decide their number."""


class Refusals:
    """The refusals of one server."""

    def __init__(self, endpoint: WorkerConnections, *, index: int) -> None:
        self._endpoint = endpoint
        self._index = index

    def refuse(self, error: PlesioError) -> None:
        """Log in one line what cannot be read, and count it; what its sender was promised is not touched."""
        self._endpoint.refused[Refusal.MALFORMED] += 1
        count = self._endpoint.refused[Refusal.MALFORMED]
        if count <= MAX_LOGGED:
            _log.warning("server %d: %s", self._index, error)
        elif count == MAX_LOGGED + 1:
            _log.warning("server %d: more messages that make no sense; they are only counted from here on", self._index)
