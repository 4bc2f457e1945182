"""How a member of a job connects to its servers, and to the backup of a server that has one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from plesio.runtime.transport.client import ClientEndpoint
from plesio.runtime.transport.control_client import CONNECT_S, ControlClient
from plesio.runtime.transport.failover import FailoverConnection, FailoverControl
from plesio.runtime.transport.security import JobKeys
from plesio.runtime.transport.sockets import Context

REDIAL_S = 2.0
"""How long a worker that has lost its server waits for the backup to let it in, before it tries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialler:
    """Connects."""

    job: str
    keys: JobKeys
    context: Context
    max_bulk_bytes: int
    encrypt: bool

    def connection(
        self, addresses: Mapping[str, str], *, identity: str, backup: Mapping[str, str] | None
    ) -> ClientEndpoint | FailoverConnection:
        """Connect for control and bulk messages.

        ``backup`` are the addresses of the server's backup, if it has one.

        Raises:
            TransportError: The server cannot be reached.
        """
        first = self._endpoint(addresses, identity, CONNECT_S)
        if backup is None:
            return first
        return FailoverConnection(first, dial=partial(self._endpoint, backup, identity, REDIAL_S))

    def control(
        self,
        addresses: Mapping[str, str],
        *,
        identity: str,
        backup: Mapping[str, str] | None,
        wanted: Callable[[], bool],
    ) -> ControlClient | FailoverControl:
        """Connect for control messages alone; ``wanted`` tells whether to go on with the backup."""
        first = self._control(addresses, identity, CONNECT_S)
        if backup is None:
            return first
        return FailoverControl(first, dial=partial(self._control, backup, identity, REDIAL_S), wanted=wanted)

    def _endpoint(self, addresses: Mapping[str, str], identity: str, timeout_s: float) -> ClientEndpoint:
        return ClientEndpoint(
            addresses,
            identity=identity.encode(),
            job=self.job,
            keys=self.keys,
            context=self.context,
            timeout_s=timeout_s,
            max_bulk_bytes=self.max_bulk_bytes,
            encrypt=self.encrypt,
        )

    def _control(self, addresses: Mapping[str, str], identity: str, timeout_s: float) -> ControlClient:
        return ControlClient(
            addresses,
            identity=identity.encode(),
            job=self.job,
            keys=self.keys,
            context=self.context,
            timeout_s=timeout_s,
        )
