"""The key-value store of a job, which its launcher hosts and another one finds.

The store has no authentication, so the job's secret is not in it.
"""

import queue
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from plesio.core.errors import ConfigError, TransportError
from plesio.runtime.site import THIS_HOST
from plesio.runtime.worker.environment import WorkerPlace

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

NEXT_RANK_KEY = "plesio/next_rank"
"""In the job's store: the rank that the next worker to join is given."""

NEXT_PROCESS_KEY = "plesio/next_process"
"""In the job's store: the number that the next process to join as a rank of an island is given."""

WORLD_SIZE_KEY = "plesio/world_size"
"""In the job's store: the workers it started with; ranks from there on have joined later."""

ALONE_KEY = "plesio/alone"
"""In the job's store, where its only worker trains alone."""

GRID_KEY = "plesio/grid"
"""In the job's store: the grid that its workers have from the command line; empty if none."""

_JOIN_TIMEOUT_S = 5.0
_LOOK_S = 0.02
_NO_JOB = "no job of Plesio answers there"
_MARGIN_S = 1.0
"""How much longer than torch's own timeout a connection is waited for."""


def listen(port: int, *, address: str = THIS_HOST.address) -> socket.socket:
    """Open a socket for the job's store.

    Raises:
        TransportError: The port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "ports are 0 to 65535"
        raise TransportError(f"cannot listen on port {port}: {reason}; leave --port out to take a free one") from None
    return listener


def serve_store(listener: socket.socket, *, num_workers: int) -> "TCPStore":
    """Serve the job's store by threads of this process for as long as it is referred to."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = listener.getsockname()
    # The store is given a bound socket because on its own it would listen on every network interface.
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    store.set(WORLD_SIZE_KEY, str(num_workers))
    store.set(NEXT_RANK_KEY, str(num_workers))
    return store


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of a job's store, as ``--join`` has them."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f'--join "{address}": write HOST:PORT, as the running job printed it when it started')
    return host, int(port)


def reach(host: str, port: int, *, timeout_s: float, listens: bool = True) -> "TCPStore":
    """Connect to a store; where one ``listens`` already, a refusal is final.

    This happens in a thread, because torch waits for ever for a listener that is no store and cannot be interrupted
    meanwhile.

    Raises:
        RuntimeError: None answers in time.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    connected: queue.SimpleQueue[TCPStore | Exception] = queue.SimpleQueue()

    def try_to() -> None:
        try:
            if listens:
                socket.create_connection((host, port), timeout=timeout_s).close()
            connected.put(TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s)))
        except (OSError, RuntimeError, ValueError) as error:
            connected.put(error)

    threading.Thread(target=try_to, name="plesio-store", daemon=True).start()
    try:
        found = connected.get(timeout=timeout_s + _MARGIN_S)
    except queue.Empty:
        found = RuntimeError(_NO_JOB)
    if isinstance(found, Exception):
        cause = found if isinstance(found, OSError) else None
        raise RuntimeError((cause and cause.strerror) or str(found).splitlines()[0]) from cause
    return found


def meeting_store_of(place: WorkerPlace, *, timeout_s: float, whom: str) -> "TCPStore":
    """Return the store at which a worker meets ``whom``: made by the first one, where its starter hosts none.

    Raises:
        TransportError: It cannot be reached, or its port is in use.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    hosts = place.first and not place.agent_hosts_store
    try:
        if not hosts:
            return reach(place.address, place.port, timeout_s=timeout_s, listens=place.late)
        timeout = timedelta(seconds=timeout_s)
        return TCPStore(
            place.address, place.port, is_master=True, wait_for_workers=False, timeout=timeout, multi_tenant=True
        )
    except (RuntimeError, ValueError) as error:
        what = f"port {place.port} of {place.address} is in use" if hosts else "nobody answers there"
        raise TransportError(
            f"cannot meet {whom} at {place.address}:{place.port}: {what} "
            f"(MASTER_ADDR, MASTER_PORT; {str(error).splitlines()[0]})"
        ) from error


def connect(host: str, port: int, *, key: str, to: str) -> "TCPStore":
    """Connect to the store of a running job, which has this ``key``, ``to`` join it or to watch it."""
    try:
        store = reach(host, port, timeout_s=_JOIN_TIMEOUT_S)
        until_s = time.monotonic() + _JOIN_TIMEOUT_S
        while not store.check([key]):  # torch's wait complains on standard error when it is in vain
            if time.monotonic() > until_s:
                raise RuntimeError(_NO_JOB)
            time.sleep(_LOOK_S)
    except RuntimeError as error:
        reason = error if isinstance(error.__cause__, OSError) else _NO_JOB
        raise TransportError(f"cannot {to} {host}:{port}: {reason}") from None
    return store
