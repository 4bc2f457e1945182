"""Writes checkpoints behind training: each worker its part, in a thread, and the first one commits when all have.

    every worker    writes its files, flushes them, and reports what it has written; so does each rank of an island
    the leading     waits for all reports, writes what is common, and commits by the manifest

Workers agree by files in the checkpoint's folder alone, which they all see anyhow. One that is lost before it has
reported leaves a checkpoint that is never committed; the one before stays the latest.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from plesio.core.errors import PlesioError
from plesio.protocol.figures import Report
from plesio.runtime.checkpoints import worker
from plesio.runtime.checkpoints.claim import FolderClaim
from plesio.runtime.checkpoints.folder import Folder, Manifest, seal
from plesio.runtime.checkpoints.part_reports import (
    AWAIT_S,
    FAILED_AWAIT_S,
    PartReport,
    Seat,
    await_reports,
    could_not_be_written,
    write_report,
)
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.runtime.checkpoints.tensors import Share
from plesio.runtime.worker.callbacks import Callbacks, CheckpointWritten

NICENESS = 5
CLOSING_AWAIT_S, CLOSING_TIMES = 10.0, 5.0
"""At the run's end others may take this much longer to write, and so many times as long, as this worker."""

Finish = Callable[[Path, Mapping[Seat, PartReport]], Manifest]
"""Writes what is common into the folder, given the reports of all; returns the manifest of that alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """One process's part of a checkpoint, copied from what trains.

    Attributes:
        workers: Those that write it; the first one leads.
        share: Its share of the tensors that are common to all, if it has one.
        finish: Called on the leading worker, which has one.
    """

    clock: int
    workers: Sequence[int]
    own: dict[str, Any] = field(default_factory=dict)
    report: Report | None = None
    share: Share | None = None
    finish: Finish | None = None
    failure: Exception | None = None


@dataclass(slots=True, kw_only=True)
class Writer:
    """Writes the parts of one process in one run.

    Attributes:
        warn: Told, in a line, of a checkpoint that could not be written.
        reads_back: True if the next checkpoint is read back once it is written; the first of a run is.
    """

    folder: Folder
    keep: int
    seat: Seat
    claim: FolderClaim
    warn: Callable[[str], None]
    callbacks: Callbacks = field(default_factory=Callbacks)
    lost: set[int] = field(default_factory=set)
    patience_s: float = AWAIT_S
    reads_back: bool = True
    _under_way: list["_Writing"] = field(default_factory=list)

    @classmethod
    def of(
        cls, setting: CheckpointSetting, *, seat: Seat, warn: Callable[[str], None], callbacks: Callbacks | None = None
    ) -> "Writer":
        claim, told = FolderClaim(setting.folder, warn=warn), callbacks or Callbacks()
        return cls(folder=Folder(setting.folder), keep=setting.keep, seat=seat, claim=claim, warn=warn, callbacks=told)

    def leads(self, workers: Sequence[int]) -> bool:
        """Tell whether this process commits what these workers write."""
        return self.seat.worker == workers[0] and self.seat.rank == 0

    def take_folder(self) -> None:
        """Take the folder for this job, and clear it of what killed jobs have left.

        Raises:
            ConfigError: Another job has it.
            DataError: Another user has written to it.
        """
        self.claim.take()
        try:
            self.folder.clear()
        except BaseException:
            self.claim.close()
            raise

    def write(self, part: CheckpointPart) -> None:
        """Begin to write a part; checkpoints are committed in the order of these calls."""
        self._under_way = [one for one in self._under_way if one.thread.is_alive()]
        before = self._under_way[-1].thread if self._under_way else None
        self._under_way.append(one := _Writing(self, part, before))
        one.thread.start()

    def wait(self) -> None:
        """Return when all that was begun has been written, or has failed to be."""
        for one in self._under_way:
            one.thread.join()

    def close(self, *, failed: bool = False) -> None:
        """Return when all that was begun has been written, or has failed to be, and let go of the folder.

        Where the run has ``failed``, others may never write their parts, and are not waited for long.
        """
        for one in self._under_way:
            one.written.wait()
            self.patience_s = FAILED_AWAIT_S if failed else CLOSING_AWAIT_S + CLOSING_TIMES * one.took_s
        self.wait()
        self._under_way.clear()
        self.claim.close()


@dataclass(slots=True)
class _Writing:
    """Writes one part."""

    writer: Writer
    part: CheckpointPart | None
    """None once it is done with: copies of tensors are no longer needed."""
    before: threading.Thread | None
    folder: Path | None = None
    has_reports: bool = False
    """True once this worker, which leads, has waited for the others' reports."""
    written: threading.Event = field(default_factory=threading.Event)
    """This worker's part is, or cannot be."""
    took_s: float = 0.0
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.run, name="checkpoint", daemon=True)

    def run(self) -> None:
        """Write, and commit where this worker leads; what trains goes first."""
        part, self.part = self.part, None
        assert part is not None, "a thread runs once"
        leads = self.writer.leads(part.workers)
        try:
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)  # on Linux 0 is this thread alone
            self._write(part, leads=leads)
            if leads:
                self._commit(part)
            self.writer.reads_back = False
        except Exception as error:  # whatever it is, the run goes on, and its user is told
            self.writer.warn(could_not_be_written(self.writer.folder, error))
            self._give_up(part, error, leads=leads)

    def _write(self, part: CheckpointPart, *, leads: bool) -> None:
        began_s, writer = time.monotonic(), self.writer
        try:
            writer.claim.confirm(leads=leads)
            self.folder = folder = writer.folder.begin(part.clock)
            if part.failure is not None:
                raise part.failure
            name = worker.name_of(writer.seat)
            files = {name: worker.write(folder / name, part.own)}
            report = PartReport(files=files, ranks=writer.seat.size, report=part.report)
            if writer.reads_back:
                worker.read(folder / name)
            if part.share is not None:
                files, places = part.share.write(folder)
                report = replace(report, files=report.files | files, places=places)
            write_report(folder, writer.seat, report)
        finally:
            self.took_s = time.monotonic() - began_s
            self.written.set()

    def _give_up(self, part: CheckpointPart, error: Exception, *, leads: bool) -> None:
        """Tell the leading worker; it deletes what there is, when no other writes to it any more."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError, PlesioError, msgspec.DecodeError):
            if not leads:
                write_report(self.folder, self.writer.seat, PartReport(error=str(error)))
            elif not self.has_reports:
                self._await_reports([*map(Seat, part.workers[1:]), *self.writer.seat.others])
        if leads:
            self.writer.folder.give_up(part.clock)

    def _await_reports(self, seats: Sequence[Seat]) -> dict[Seat, PartReport]:
        assert self.folder is not None, "it has been begun"
        self.has_reports = True
        return await_reports(self.folder, seats, patience_s=lambda: self.writer.patience_s, lost=self.writer.lost)

    def _commit(self, part: CheckpointPart) -> None:
        reports = self._await_reports(list(map(Seat, part.workers)))
        assert self.folder is not None, "it has been begun"
        assert part.finish is not None, "this worker leads"
        if self.before is not None:
            self.before.join()
        common = part.finish(self.folder, reports)
        files = common.files | {name: one for report in reports.values() for name, one in report.files.items()}
        versions = {"torch": str(torch.__version__), "plesio": version("plesio")}
        whole = replace(common, files=dict(sorted(files.items())), created_unix_s=time.time(), versions=versions)
        folder = seal(self.folder, whole)
        self.writer.folder.keep(self.writer.keep)
        self.writer.callbacks.later("on_checkpoint", CheckpointWritten(clock=part.clock, folder=folder))
