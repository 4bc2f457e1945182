"""Reports of processes to each other, as files in a checkpoint's folder, when their parts of it are on the disk."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from plesio.core.errors import DataError, PlesioError
from plesio.protocol.figures import Report
from plesio.runtime.checkpoints.folder import Folder, HashedFile, WrittenFile
from plesio.runtime.worker.island import Island

AWAIT_S = 600.0
"""How long the leading worker waits for what the others write."""
FAILED_AWAIT_S = 2.0
"""The same for a run that has failed: live workers have written by then, or are slow, and the last checkpoint stays."""
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker, or one of the ranks that are a worker together.

    >>> str(Seat(3)), str(Seat(3, rank=1, size=2))
    ('3', '3.1')
    """

    worker: int
    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, worker: int, island: Island | None) -> "Seat":
        return cls(worker) if island is None else cls(worker, island.rank, island.size)

    @property
    def others(self) -> list["Seat"]:
        """The ranks that the first one of an island waits for."""
        return [Seat(self.worker, rank, self.size) for rank in range(1, self.size)]

    @property
    def described(self) -> str:
        return f"rank {self.rank} of worker {self.worker}" if self.rank else f"worker {self.worker}"

    def __str__(self) -> str:
        return str(self.worker) if self.rank == 0 else f"{self.worker}.{self.rank}"


class FilePlace(msgspec.Struct, frozen=True, array_like=True):
    """Place in a file of a value, or of a box of a tensor.

    Attributes:
        begins: First index of the box, by dimension; None for a value.
    """

    name: str
    file: str
    offset: int
    num_bytes: int
    begins: tuple[int, ...] | None = None
    sizes: tuple[int, ...] = ()


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process's report about its part of a checkpoint.

    Attributes:
        ranks: The number of its worker's; the first one's report tells of the others.
        report: Its totals by then, where they go into the state of server 0.
    """

    files: dict[str, WrittenFile] = msgspec.field(default_factory=dict)
    ranks: int = 1
    places: tuple[FilePlace, ...] = ()
    report: Report | None = None
    error: str | None = None


def _path(part: Path, seat: Seat) -> Path:
    return part / f"report-{seat}.json"


def could_not_be_written(folder: Folder, error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError | PlesioError):
        cause = cause.__cause__ or cause.__context__  # torch's writer has an error of its own for a full disk
    reason = f"{type(error).__name__}: {error}" if cause is None else str(cause)
    return f"a checkpoint could not be written to {folder.path}: {' '.join(reason.split())}"


def write_report(part: Path, seat: Seat, report: PartReport) -> None:
    """Leave a report; it is on the disk when this returns."""
    unfinished = part / f"report-{seat}.part"
    with HashedFile(unfinished) as file:
        file.write(msgspec.json.encode(report))
    unfinished.rename(_path(part, seat))


def await_reports(
    part: Path, seats: Sequence[Seat], *, patience_s: Callable[[], float], lost: Collection[int] = ()
) -> dict[Seat, PartReport]:
    """Wait for the reports of all these processes, and of the other ranks of theirs; return them, and remove them.

    Args:
        part: The checkpoint's folder.
        seats: The processes.
        patience_s: Seconds to wait for the missing reports, counted anew whenever this number changes.
        lost: Workers that are known to be gone; it may grow meanwhile.

    Raises:
        DataError: One could not write its part, was lost, or has left no report for too long.
    """
    patience, deadline_s = 0.0, 0.0
    reports: dict[Seat, PartReport] = {}
    awaited, waiting = list(seats), list(seats)
    while waiting:
        there = [seat for seat in waiting if _path(part, seat).exists()]
        reports |= {seat: msgspec.json.decode(_path(part, seat).read_bytes(), type=PartReport) for seat in there}
        firsts = [replace(seat, size=reports[seat].ranks) for seat in there if seat.rank == 0]
        more = [other for first in firsts for other in first.others]
        awaited += more
        waiting = [seat for seat in waiting if seat not in there] + more
        if patience != (patience := patience_s()):
            deadline_s = time.monotonic() + patience
        if time.monotonic() > deadline_s or all(seat.worker in lost for seat in waiting):
            break
        time.sleep(_LOOK_S)
    for seat in awaited:
        if seat not in reports and seat.worker in lost:
            raise DataError(f"{seat.described} was lost before it had written its part")
        if seat not in reports:
            raise DataError(f"{seat.described} has not written its part")
        if reports[seat].error is not None:
            raise DataError(f"{seat.described} could not write its part: {reports[seat].error}")
        _path(part, seat).unlink()
    return reports
