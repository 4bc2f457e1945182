"""Takes checkpoints: copies where all stand, writes behind training, commits when every worker has written its part.

    every worker    copies its share of the tensors and what is its own    (training stands still for that)
                    writes them, flushes, and says what it has written     (a thread)
    the leading     waits for what all say, writes what is common, and commits by the manifest

Workers agree by files in the checkpoint's folder alone, which they all see anyhow. One that is lost before it has said
what it has written leaves a checkpoint that is never committed; the one before stays the latest.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from msgspec.structs import replace

from plesio.core.errors import PlesioError
from plesio.protocol.figures import Report
from plesio.protocol.to_worker import Books
from plesio.runtime.checkpoints import reading, tensors, worker
from plesio.runtime.checkpoints.claim import Claim
from plesio.runtime.checkpoints.folder import Folder, HashedFile, Manifest, OptimizerRecord, seal
from plesio.runtime.checkpoints.said import AWAIT_S, FAILED_AWAIT_S, Said, could_not_be_written, heard_from_all, say
from plesio.runtime.checkpoints.trained_with import check_plain
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.registered import Registered, Stateful
from plesio.runtime.worker.standstill import Standstill

__all__ = ["CheckpointSaver"]

NICENESS = 5
"""Of the thread that writes."""
CLOSING_AWAIT_S, CLOSING_TIMES = 10.0, 5.0
"""At the run's end others may take this much longer to write, and so many times as long, as this worker."""


@dataclass(slots=True, kw_only=True)
class CheckpointSaver:
    """Of one worker in one run.

    Args:
        folder: Where checkpoints go.
        keep: How many are kept.
        replica: What is trained.
        rank: This worker.
        policy: The run's, as it was asked for.
        seed: Of the order of samples.
        say: Told, in a line, of a checkpoint that could not be written.
        claim: This job's hold on the folder.
    """

    folder: Folder
    keep: int
    replica: Replica
    rank: int
    policy: str
    seed: int
    say: Callable[[str], None]
    claim: Claim
    registered: Registered = field(default_factory=Registered)
    """Objects of the user's, saved with the rest."""
    optimizers: tuple[OptimizerRecord, ...] = ()
    """The optimizers of the run."""
    report: Callable[[], Report]
    """Tells this worker's totals so far."""
    patience_s: float = AWAIT_S
    """How long others are waited for that have not written their parts."""
    lost: set[int] = field(default_factory=set)
    """Workers that will never write their parts."""
    reads_back: bool = True
    """True if the next checkpoint is read back once it is written; the first of a run is."""
    _session: Callable[[], dict[str, Any]] = dict
    _pending: "_Pending | None" = None
    _last: "_Writing | None" = None

    def save(self, stand: Standstill, *, books: Callable[[], Books]) -> None:
        """A checkpoint is to be taken here; see `plesio.runtime.worker.standstill.Saver`."""
        self._pending = _Pending(stand, books() if self.rank == stand.workers[0] else None)

    def take(self) -> None:
        """Take the checkpoint that is to be taken, if there is one: copy all, and write it behind training.

        Called between two steps, when the program has done all that belongs to the one before (stepped its scheduler)
        and has drawn nothing for the next.
        """
        if self._pending is None:
            return
        (stand, told), self._pending = self._pending, None
        self._compare_registered()
        if self._last is not None:
            self._last.thread.join()  # else copies would come faster than the disk takes them
        job = _Writing(self, stand, books=told)
        try:
            job.copy()
        except Exception as error:  # the program's own objects are asked for their states
            job.failure = error
        self._last = job
        job.thread.start()

    def adds(self, session: Callable[[], dict[str, Any]]) -> None:
        """The session adds this to each checkpoint: plain values."""
        self._session = session

    def register(self, name: str, one: Stateful) -> None:
        """Save ``one`` with the rest from now on; it goes on from its state in the checkpoint, if there is one."""
        self.registered.add(name, one)

    def go_on(self) -> None:
        """Have what is registered go on from the checkpoint, whatever has been done to it since."""
        self.registered.go_on()

    def _compare_registered(self) -> None:
        """Tell what the checkpoint that the run goes on from has and the program has not, and the other way round."""
        if self.registered.before is None:
            return
        before, now = self.registered.before.keys(), self.registered.objects.keys()
        for name in sorted(before - now):
            self.say(f'the checkpoint has a state of "{name}", which the program has not registered: it is left out')
        for name in sorted(now - before):
            self.say(f'the checkpoint has no state of "{name}", which began anew')

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

    def close(self, *, failed: bool = False) -> None:
        """Return when the last checkpoint has been written, or has failed to be, and let go of the folder.

        Args:
            failed: The run has: others may never write their parts, and are not waited for long.
        """
        if not failed:
            self._compare_registered()
        if self._last is not None:
            self._last.written.wait()
            self.patience_s = FAILED_AWAIT_S if failed else CLOSING_AWAIT_S + CLOSING_TIMES * self._last.took_s
            self._last.thread.join()
            self._last = None
        self.claim.close()

    def failed(self, error: Exception) -> None:
        """Say that a checkpoint could not be written; the run goes on, and the one before is the latest."""
        self.say(could_not_be_written(self.folder, error))


class _Pending(NamedTuple):
    stand: Standstill
    books: Books | None
    """Where this worker leads."""


def _plain(stand: Standstill) -> dict[str, Any]:
    """What the manifest has not of it."""
    return {
        "policy": stand.policy,
        "next_review": stand.next_review,
        "next_clock": stand.next_clock,
        "shares": list(stand.shares),
        "keep": stand.keep,
        "own": stand.own,
        "own_optimizer": stand.own_optimizer,
    }


@dataclass(slots=True)
class _Writing:
    """One worker's part of one checkpoint: copied where all stand, and written by a thread."""

    saver: CheckpointSaver
    stand: Standstill
    books: Books | None
    """Where this worker leads."""
    failure: Exception | None = None
    """Why this worker's part is not written."""
    share: tensors.Share | None = None
    own: dict[str, Any] = field(default_factory=dict)
    part: Path | None = None
    """Its folder, once it is there."""
    has_heard: bool = False
    """True once all others have reported their parts, or one has reported that it could not write its own."""
    written: threading.Event = field(default_factory=threading.Event)
    """This worker's part is, or cannot be."""
    took_s: float = 0.0
    """How long that took."""
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.run, name="checkpoint", daemon=True)

    def copy(self) -> None:
        """Take what is to be written out of what trains."""
        saver, stand = self.saver, self.stand
        check_plain(saver.replica)
        self.own = {
            "stand": _plain(stand),
            "random": worker.random_states(),
            "registered": saver.registered.states(),
            "session": saver._session(),
            "report": msgspec.to_builtins(saver.report()),
            **worker.own_state(saver.replica, optimizer=stand.own_optimizer),
        }
        # where workers step by themselves, the optimizer's state that is common to all is the leading one's
        alone = stand.own_optimizer
        if self.books is not None or not alone:
            number, shares = (0, 1) if alone else (stand.workers.index(saver.rank), len(stand.workers))
            self.share = tensors.Share(number, tensors.state_of(saver.replica), num_shares=shares)

    def run(self) -> None:
        """Write, and commit where this worker leads; what trains goes first."""
        try:
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)  # on Linux 0 is this thread alone
            self._write_part()
            if self.books is not None:
                self._commit(self.books)
            self.saver.reads_back = False
        except Exception as error:  # whatever it is, the run goes on, and its user is told
            self.saver.failed(error)
            self._give_up(error)
        finally:
            self.share, self.own = None, {}  # copies of tensors, no longer needed

    def _write_part(self) -> None:
        began_s = time.monotonic()
        try:
            self._write()
        finally:
            self.took_s = time.monotonic() - began_s
            self.written.set()

    def _write(self) -> None:
        """This worker's files."""
        saver = self.saver
        saver.claim.confirm(leads=self.books is not None)
        self.part = saver.folder.begin(self.stand.clock)
        if self.failure is not None:
            raise self.failure
        name = worker.name_of(saver.rank)
        said = Said(files={name: worker.write(self.part / name, self.own)}, report=Report(**self.own["report"]))
        if saver.reads_back:
            worker.read(self.part / name)
        if self.share is not None:
            files, places = self.share.write(self.part)
            said = replace(said, files=said.files | files, places=places)
        say(self.part, saver.rank, said)

    def _give_up(self, error: Exception) -> None:
        """Tell who leads; that worker deletes what there is, when no other writes to it any more."""
        if self.part is None:
            return
        with contextlib.suppress(OSError, PlesioError, msgspec.DecodeError):
            if self.books is None:
                say(self.part, self.saver.rank, Said(error=str(error)))
            elif not self.has_heard:
                self._hear(self.stand.workers[1:])
        if self.books is not None:
            self.saver.folder.give_up(self.stand.clock)

    def _hear(self, ranks: Sequence[int]) -> dict[int, Said]:
        assert self.part is not None, "it has been begun"
        self.has_heard = True
        return heard_from_all(self.part, ranks, patience_s=lambda: self.saver.patience_s, lost=self.saver.lost)

    def _commit(self, books: Books) -> None:
        saver, part = self.saver, self.part
        said = self._hear(self.stand.workers)
        assert self.share is not None, "who leads has a share"
        assert part is not None, "it has been begun"
        places = {name: place for told in said.values() for name, place in told.places.items()}
        contents = self.share.finish(part, places)
        if saver.reads_back:
            reading.check(part)
        records = json.loads(books.text)
        # what a worker has done by here it may not have reported to the server yet
        records["ledger"]["reports"] |= {str(rank): msgspec.to_builtins(one.report) for rank, one in said.items()}
        with HashedFile(part / "books.json") as file:
            file.write(json.dumps(records).encode())
        files = {name: one for told in said.values() for name, one in told.files.items()}
        files |= {"books.json": file.written, ".metadata": contents}
        stand = self.stand
        seal(
            part,
            Manifest(
                policy=saver.policy,
                stage=stand.policy,
                clock=stand.clock,
                samples=stand.samples,
                elapsed_s=books.elapsed_s,
                num_workers=len(stand.workers),
                workers=stand.workers,
                layout=saver.replica.digest(),
                seed=saver.seed,
                optimizers=saver.optimizers,
                plan=stand.plan,
                figures=stand.figures,
                remainder=stand.remainder,
                created_unix_s=time.time(),
                versions={"torch": str(torch.__version__), "plesio": version("plesio")},
                files=dict(sorted(files.items())),
            ),
        )
        saver.folder.keep(saver.keep)
