"""The names of the connections between workers and servers."""


def worker_identity(rank: int) -> str:
    return f"worker-{rank}"


def heartbeat_identity(rank: int) -> str:
    return f"heartbeat-{rank}"


def server_identity(index: int) -> str:
    return f"server-{index}"


def observer_identity(number: int) -> str:
    return f"observer-{number}"


def part_identity(process: int) -> str:
    """Return the name of a rank of an island that does not lead it, by its number among the job's processes."""
    return f"part-{process}"


def names_of(number: int) -> tuple[bytes, ...]:
    """Return all connections that may have this number.

    >>> names_of(3)
    (b'worker-3', b'heartbeat-3', b'server-3', b'observer-3', b'part-3')
    """
    return tuple(b"%s-%d" % (role, number) for role in (b"worker", b"heartbeat", b"server", b"observer", b"part"))


def worker_of(peer: bytes) -> int | None:
    """Return the rank behind a peer, if it is a worker.

    >>> worker_of(b"worker-3"), worker_of(b"heartbeat-3"), worker_of(b"server-1")
    (3, 3, None)
    """
    role, _, number = peer.decode(errors="replace").partition("-")
    return int(number) if role in ("worker", "heartbeat") and number.isdigit() else None
