"""Where workers meet that form a new group, when the store at which they met at first may be gone with its host."""

import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from plesio.runtime.worker.exchange.group import CutOffError

__all__ = ["meet", "meeting_store"]

POLL_S = 0.002


def meeting_store(host: str) -> TCPStore:
    """A key-value store on a free port of one interface; on its own torch would listen on all of them."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def meet(store: Store, *, rank: int, size: int, called_off: Callable[[], bool], timeout: timedelta) -> None:
    """Return when all are there: Gloo itself would wait for one that is lost meanwhile.

    Raises:
        CutOffError: There is to be another group, or somebody did not come in time.
    """
    store.set(f"here/{rank}", "")
    deadline_s = time.monotonic() + timeout.total_seconds()
    while not store.check([f"here/{other}" for other in range(size)]):
        if called_off() or time.monotonic() > deadline_s:
            raise CutOffError("the group was called off, or not all of its members came")
        time.sleep(POLL_S)
