"""The meeting of workers that form a new group, and the store in which they leave notes for late ones."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from plesio.core.errors import TransportError
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.group import CutOffError, connect

REGROUP_TIMEOUT = timedelta(seconds=10)
"""How long workers that are known to live wait for each other when they form a new group."""
POLL_S = 0.002
_LOOK_S = 0.02
"""How often a worker looks for a note that it waits for."""


def meeting_store(host: str) -> TCPStore:
    """Make a key-value store on a free port of one interface; on its own torch would listen on all of them."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def meet(store: Store, *, rank: int, size: int, gpu: str, called_off: Callable[[], bool]) -> list[str]:
    """Return every member's GPU when all are there: Gloo itself would wait for one that is lost meanwhile.

    Raises:
        CutOffError: There is to be another group, or a worker did not come in time.
    """
    store.set(f"here/{rank}", gpu)
    deadline_s = time.monotonic() + REGROUP_TIMEOUT.total_seconds()
    while not store.check([f"here/{other}" for other in range(size)]):
        if called_off() or time.monotonic() > deadline_s:
            raise CutOffError("the group was called off, or not all of its members came")
        time.sleep(POLL_S)
    return [str(store.get(f"here/{other}"), "utf-8") for other in range(size)]


def gpu_of(device_type: str) -> str:
    """Return what tells this process's GPU from all others, on whatever host; nothing where it computes on the CPU."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if device_type == "cuda" else ""


def process_group(
    store: Store, *, rank: int, gpus: Sequence[str], timeout: timedelta = REGROUP_TIMEOUT
) -> dist.ProcessGroup:
    """Form a new default group of torch.distributed.

    Args:
        store: For this group alone.
        rank: This process's in the group.
        gpus: By rank, as `gpu_of` gave them. NCCL refuses two ranks on one GPU, so that Gloo serves such a group.
        timeout: How long the members wait for each other.
    """
    on_nccl = all(gpus) and len(set(gpus)) == len(gpus)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_nccl else "gloo", store=store, rank=rank, world_size=len(gpus), timeout=timeout
    )
    world = dist.group.WORLD
    assert world is not None
    connect(world)
    return world


@contextlib.contextmanager
def gloo_interface(place: WorkerPlace) -> Iterator[None]:
    """Let Gloo use the interface that leads to the others (the host name may not), unless the user chose one."""
    interface = place.own_interface()
    if interface is None or "GLOO_SOCKET_IFNAME" in os.environ:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


class StoreBoard:
    """Notes in a job's store.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, key: str, text: str) -> None:
        """Put up a note."""
        with self._answering():
            self._store.set(f"note/{key}", text)

    def read(self, key: str) -> str | None:
        """Return the note of this key, or None if it is not there."""
        with self._answering():
            return str(self._store.get(f"note/{key}"), "utf-8") if self._store.check([f"note/{key}"]) else None

    def await_any(self, keys: Sequence[str], *, timeout_s: float | None = None) -> str | None:
        """Wait for a note of one of these keys and return the first such key."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            for key in keys:
                if self.read(key) is not None:
                    return key
            if deadline_s is not None and time.monotonic() > deadline_s:
                return None
            time.sleep(_LOOK_S)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch's, which has no class of its own for all of them
            raise TransportError(f"the job's store does not answer any more ({str(error).splitlines()[0]})") from error
