"""What workers and servers say to each other. `Bulk` kinds carry tensors, `Control` kinds carry JSON."""

from enum import IntEnum

__all__ = ["BulkKind", "ControlKind", "heartbeat_identity", "server_identity", "worker_identity", "worker_of"]


class BulkKind(IntEnum):
    """Messages on the data channel."""

    INITIAL = 1
    """Worker to server: the slices' initial values, with their layout and the optimizer."""
    PUSH = 2
    """Worker to server: an update."""
    PULL = 3
    """Worker to server: a request for the parameters, answered when the worker's last update is decided on and it has
    credit for its next step."""
    PULLED = 4
    """Server to worker: the answer."""
    SHARED = 5
    """Worker to server: a request for everything (or a snapshot), answered at once with `PULLED`."""


class ControlKind(IntEnum):
    """Messages on the control channel."""

    JOIN = 1
    """Worker to server 0: take part in a run. Answered with `START` or `FAILED`."""
    START = 2
    FAILED = 3
    HEARTBEAT = 4
    """Worker to server 0, from a thread of its own: alive, and new figures. Answered with `ALIVE`."""
    ALIVE = 5
    LOST = 6
    """Server 0 to every worker: workers that are gone."""
    EXPELLED = 7
    """Server 0 to a worker that was counted lost and still speaks."""
    LEASE = 8
    """Worker to server 0: samples, please. Answered with `BLOCK`."""
    BLOCK = 9
    FINISH = 10
    RELEASE = 11
    NOT_FINITE = 12
    """Worker to server 0: an update that was not finite and was not pushed."""
    REFUSED = 13
    LEAVE = 14
    """Worker to server 0: its training is over. Answered with `LEFT`; for the evaluating worker, when all have left."""
    LEFT = 15
    EVALUATED = 16
    RESULT = 17
    """Anyone to server 0: the run's figures. Answered with `RESULT`."""
    PROGRESS = 18
    """Anyone to server 0: figures for a display. Answered with `PROGRESS`."""
    BYE = 19
    """Worker to server 0: its session is closed. Answered with `BYE`."""
    ARRIVED = 20
    """Server to server 0: its part of an update is in."""
    ORDERS = 21
    """Server 0 to the other servers: what to do to their shards."""
    ENDED = 22
    """Server 0 to the other servers: the run is over. Answered with `ENDED` and what they sent in it."""
    SERVES = 23
    """Server to server 0, once: it is there."""
    REVIEW = 24
    """Worker to server 0, under a policy that adapts: what it saw since its last review. Answered with `STEER`, to all
    workers, when all have sent theirs."""
    STEER = 25
    READY = 26
    """Worker to server 0, under a policy that changes: it stands still between two exchanges. Answered with `READY`,
    when it is known how it goes on."""


def worker_identity(rank: int) -> str:
    """The name of a worker's connections."""
    return f"worker-{rank}"


def heartbeat_identity(rank: int) -> str:
    """The name of the connection of a worker's heartbeat thread."""
    return f"heartbeat-{rank}"


def server_identity(index: int) -> str:
    """The name of a server's connection to server 0."""
    return f"server-{index}"


def worker_of(peer: bytes) -> int | None:
    """The rank behind a peer, if it is a worker.

    >>> worker_of(b"worker-3"), worker_of(b"heartbeat-3"), worker_of(b"server-1")
    (3, 3, None)
    """
    role, _, number = peer.decode(errors="replace").partition("-")
    return int(number) if role in ("worker", "heartbeat") and number.isdigit() else None
