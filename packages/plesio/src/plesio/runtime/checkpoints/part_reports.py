"""Reports of workers to each other, as files in a checkpoint's folder, when their parts of it are on the disk."""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from plesio.core.errors import DataError, PlesioError
from plesio.protocol.figures import Report
from plesio.runtime.checkpoints.folder import Folder, HashedFile, WrittenFile

__all__ = [
    "AWAIT_S",
    "FAILED_AWAIT_S",
    "FilePlace",
    "PartReport",
    "await_reports",
    "could_not_be_written",
    "write_report",
]

AWAIT_S = 600.0
"""How long the leading worker waits for what the others write."""
FAILED_AWAIT_S = 2.0
"""The same for a run that has failed: live workers have written by then, or are slow, and the last checkpoint stays."""
_LOOK_S = 0.02


class FilePlace(msgspec.Struct, frozen=True, array_like=True):
    """Place in a file of a value, or of a box of a tensor.

    Attributes:
        name: Name of the tensor or value.
        offset: First byte in the file.
        begins: First index of the box, by dimension; None for a value.
        sizes: Shape of the box.
    """

    name: str
    file: str
    offset: int
    num_bytes: int
    begins: tuple[int, ...] | None = None
    sizes: tuple[int, ...] = ()


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's report about its part of a checkpoint.

    Attributes:
        files: Those that it has written.
        places: What of them is where.
        report: Its totals by then, where they go into the state of server 0.
        error: Why it has not written its part.
    """

    files: dict[str, WrittenFile] = msgspec.field(default_factory=dict)
    places: tuple[FilePlace, ...] = ()
    report: Report | None = None
    error: str | None = None


def _path(part: Path, rank: int) -> Path:
    return part / f"report-{rank}.json"


def could_not_be_written(folder: Folder, error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError | PlesioError):
        cause = cause.__cause__ or cause.__context__  # torch's writer has an error of its own for a full disk
    reason = f"{type(error).__name__}: {error}" if cause is None else str(cause)
    return f"a checkpoint could not be written to {folder.path}: {' '.join(reason.split())}"


def write_report(part: Path, rank: int, report: PartReport) -> None:
    """Leave a report; it is on the disk when this returns."""
    unfinished = part / f"report-{rank}.part"
    with HashedFile(unfinished) as file:
        file.write(msgspec.json.encode(report))
    unfinished.rename(_path(part, rank))


def await_reports(
    part: Path, ranks: Sequence[int], *, patience_s: Callable[[], float], lost: Collection[int] = ()
) -> dict[int, PartReport]:
    """Wait for the reports of all these workers, return them, and remove them.

    Args:
        part: The checkpoint's folder.
        ranks: The workers.
        patience_s: Seconds to wait for the missing reports, counted anew whenever this number changes.
        lost: Workers that are known to be gone; it may grow meanwhile.

    Raises:
        DataError: One could not write its part, was lost, or has left no report for too long.
    """
    patience, deadline_s = 0.0, 0.0
    reports: dict[int, PartReport] = {}
    waiting = list(ranks)
    while waiting:
        there = [rank for rank in waiting if _path(part, rank).exists()]
        reports |= {rank: msgspec.json.decode(_path(part, rank).read_bytes(), type=PartReport) for rank in there}
        waiting = [rank for rank in waiting if rank not in there]
        if patience != (patience := patience_s()):
            deadline_s = time.monotonic() + patience
        if time.monotonic() > deadline_s or all(rank in lost for rank in waiting):
            break
        time.sleep(_LOOK_S)
    for rank in ranks:
        if rank not in reports and rank in lost:
            raise DataError(f"worker {rank} was lost before it had written its part")
        if rank not in reports:
            raise DataError(f"worker {rank} has not written its part")
        if reports[rank].error is not None:
            raise DataError(f"worker {rank} could not write its part: {reports[rank].error}")
        _path(part, rank).unlink()
    return reports
