"""What workers say to each other, by files in a checkpoint's folder, when their parts of it are on the disk."""

import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from plesio.core.errors import DataError
from plesio.protocol.figures import Report
from plesio.runtime.checkpoints.folder import Written, flush

__all__ = ["AWAIT_S", "Said", "heard_from_all", "say"]

AWAIT_S = 600.0
"""How long the leading worker waits for what the others write."""
FAILED_AWAIT_S = 2.0
"""The same where the run has failed: who lives has written by then, or is slow, and the checkpoint before stands."""
_LOOK_S = 0.02


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says: its files, and its totals by then where they go into the run's books."""

    files: dict[str, Written]
    report: Report | None = None


def _path(part: Path, rank: int) -> Path:
    return part / f"said-{rank}.json"


def say(part: Path, rank: int, said: Said) -> None:
    """Say it; on the disk when this returns."""
    unfinished = part / f"said-{rank}.part"
    unfinished.write_bytes(msgspec.json.encode(said))
    flush(unfinished)
    unfinished.rename(_path(part, rank))


def heard_from_all(
    part: Path, ranks: Sequence[int], *, failed: threading.Event, lost: Collection[int] = ()
) -> dict[int, Said]:
    """What all of these workers have said, when they have; their notes are then gone.

    Args:
        part: The checkpoint's folder.
        ranks: The workers.
        failed: Set when the run has failed: others may never write their parts.
        lost: Those known to be lost, to which others are added meanwhile.

    Raises:
        DataError: One is lost, or has not said anything for too long.
    """
    deadline_s, shortened = time.monotonic() + AWAIT_S, False
    said: dict[int, Said] = {}
    for rank in ranks:
        while not _path(part, rank).exists():
            if failed.is_set() and not shortened:
                deadline_s, shortened = time.monotonic() + FAILED_AWAIT_S, True
            if rank in lost and not _path(part, rank).exists():
                raise DataError(f"worker {rank} was lost before it had written its part")
            if time.monotonic() > deadline_s:
                raise DataError(f"worker {rank} has not written its part")
            time.sleep(_LOOK_S)
        said[rank] = msgspec.json.decode(_path(part, rank).read_bytes(), type=Said)
    for rank in ranks:
        _path(part, rank).unlink()
    return said
