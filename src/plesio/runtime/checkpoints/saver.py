"""Takes checkpoints: copies where all stand, writes behind training, commits when every worker has written its part.

    every worker    copies its share of the tensors and what is its own    (training stands still for that)
                    writes them, flushes, and says what it has written     (a thread)
    the leading     waits for what all say, writes what is common, and commits by the manifest

Workers agree by files in the checkpoint's folder alone, which they all see anyhow. One that is lost before it has said
what it has written leaves a checkpoint that is never committed; the one before stays the latest.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from plesio.core.errors import ConfigError, DataError
from plesio.core.plain import own_numbers
from plesio.protocol.figures import Report
from plesio.protocol.to_worker import Books
from plesio.runtime.checkpoints import tensors, worker
from plesio.runtime.checkpoints.folder import Folder, Manifest, flush, seal, written
from plesio.runtime.checkpoints.said import Said, heard_from_all, say
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.keeper import Stateful
from plesio.runtime.worker.standstill import Standstill

__all__ = ["CheckpointSaver"]

_log = logging.getLogger(__name__)

NICENESS = 5
"""Of the thread that writes."""


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
    """

    folder: Folder
    keep: int
    replica: Replica
    rank: int
    policy: str
    seed: int
    say: Callable[[str], None]
    registered: dict[str, Stateful] = field(default_factory=dict)
    """Objects of the user's, saved with the rest."""
    registered_before: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The states of these in the checkpoint that the run goes on from."""
    report: Callable[[], Report]
    """Tells this worker's totals so far."""
    run_failed: threading.Event = field(default_factory=threading.Event)
    lost: set[int] = field(default_factory=set)
    """Workers that will never write their parts."""
    _session: Callable[[], dict[str, Any]] = dict
    _pending: "_Pending | None" = None
    _thread: threading.Thread | None = None

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
        self.wait(failed=True)  # who has not written its part of the last one by now is lost
        self.run_failed.clear()
        own = {
            "stand": _plain(stand),
            "random": worker.random_states(),
            "registered": {name: own_numbers(one.state_dict()) for name, one in self.registered.items()},
            "session": self._session(),
            "report": msgspec.to_builtins(self.report()),
            **worker.own_state(self.replica, optimizer=stand.own_optimizer),
        }
        # where workers step by themselves, the optimizer's state that is common to all is the leading one's
        alone = stand.own_optimizer
        share = None
        if told is not None or not alone:
            number, shares = (0, 1) if alone else (stand.workers.index(self.rank), len(stand.workers))
            share = tensors.Share(number, tensors.state_of(self.replica), num_shares=shares)
        part = self.folder.part(stand.clock)
        job = _Writing(self, stand, part, share=share, own=own, books=told)
        self._thread = threading.Thread(target=job.run, name="checkpoint", daemon=True)
        self._thread.start()

    def adds(self, session: Callable[[], dict[str, Any]]) -> None:
        """The session adds this to each checkpoint: plain values."""
        self._session = session

    def register(self, name: str, one: Stateful) -> None:
        """Save ``one`` with the rest from now on; it goes on from its state in the checkpoint, if there is one.

        Raises:
            ConfigError: The name is taken.
        """
        if name in self.registered:
            raise ConfigError(f'two objects are registered as "{name}"; give each a name of its own')
        self.registered[name] = one
        if name in self.registered_before:
            one.load_state_dict(deepcopy(self.registered_before[name]))

    def go_on(self) -> None:
        """Have what is registered go on from the checkpoint, whatever has been done to it since."""
        for name, state in self.registered_before.items():
            if name in self.registered:
                self.registered[name].load_state_dict(deepcopy(state))

    def wait(self, *, failed: bool = False) -> None:
        """Return when the last checkpoint has been written, or has failed to be.

        Args:
            failed: The run has: others may never write their parts, and are not waited for long.
        """
        if self._thread is not None:
            if failed:
                self.run_failed.set()
            self._thread.join()
            self._thread = None

    def failed(self, error: Exception) -> None:
        """Say that a checkpoint could not be written; the run goes on, and the one before is the latest."""
        line = f"a checkpoint could not be written to {self.folder.path}: {error}"
        _log.warning("%s", line)
        self.say(line)


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
    """One worker's part of one checkpoint, on a thread of its own."""

    saver: CheckpointSaver
    stand: Standstill
    part: Path
    share: tensors.Share | None
    own: dict[str, Any]
    books: Books | None
    """Where this worker leads."""

    def run(self) -> None:
        """Write, and commit where this worker leads; what trains goes first."""
        try:
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)  # on Linux 0 is this thread alone
            self._write()
            if self.books is not None:
                self._commit(self.books)
        except (OSError, DataError, RuntimeError) as error:
            self.saver.failed(error)

    def _write(self) -> None:
        rank = self.saver.rank
        self.part.mkdir(parents=True, exist_ok=True)
        name = worker.name_of(rank)
        files = {name: worker.write(self.part / name, self.own)}
        if self.share is not None:
            files |= self.share.write(self.part)
        say(self.part, rank, Said(files=files, report=Report(**self.own["report"])))

    def _commit(self, books: Books) -> None:
        saver = self.saver
        said = heard_from_all(self.part, self.stand.workers, failed=self.saver.run_failed, lost=self.saver.lost)
        assert self.share is not None, "who leads has a share"
        self.share.finish(self.part)
        records = json.loads(books.text)
        # what a worker has done by here it may not have reported to the server yet
        records["ledger"]["reports"] |= {str(rank): msgspec.to_builtins(one.report) for rank, one in said.items()}
        (self.part / "books.json").write_text(json.dumps(records), encoding="utf-8")
        flush(self.part / "books.json")
        files = {name: one for told in said.values() for name, one in told.files.items()}
        for name in ("books.json", ".metadata"):
            files[name] = written(self.part / name)
        stand = self.stand
        seal(
            self.part,
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
                plan=stand.plan,
                figures=stand.figures,
                remainder=stand.remainder,
                created_unix_s=time.time(),
                versions={"torch": str(torch.__version__), "plesio": version("plesio")},
                files=dict(sorted(files.items())),
            ),
        )
        saver.folder.keep(saver.keep)
