"""Checkpoints of a grid, with micro-batches in flight, taken while it runs.

A checkpoint is of one tick: every worker's after the same number of micro-batches. Workers get there at different times
and nobody waits: each copies what it has, takes off its links what the others had sent by then, and goes on; a thread
writes. What is on its way at a tick is known. Activations are not: stage k has read that of micro-batch n when it has
been given n. Of gradients there are as many as the stage behind has gone backward with and this one has not, and of a
mixing each neighbour's weights, if it has begun and not ended.

Where they are due by time, the first worker says after which tick, so far ahead that all have heard of it by then
(`plesio.runtime.grid.formation`).
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from plesio.core.errors import ConfigError
from plesio.policies.grid import GridSetting
from plesio.runtime.checkpoints import worker
from plesio.runtime.checkpoints.claim import Claim
from plesio.runtime.checkpoints.folder import Folder, Manifest, Written, faults, read_manifest, seal
from plesio.runtime.checkpoints.said import AWAIT_S, FAILED_AWAIT_S, Said, could_not_be_written, heard_from_all, say
from plesio.runtime.checkpoints.setting import CheckpointSetting, parse_every
from plesio.runtime.grid.records import Collector

__all__ = ["GridSaver", "found", "whole_network"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class GridSaver:
    """Of one worker.

    Attributes:
        setting: What the user has said.
        collector: Knows who is there; who collects says when.
        seed: Of the order of samples.
        taken_s: When the last one was taken, or the training began.
        claim: This job's hold on the folder.
        warn: Told, in a line, of a checkpoint that could not be written.
    """

    setting: CheckpointSetting
    collector: Collector
    seed: int
    taken_s: float
    claim: Claim
    warn: Callable[[str], None]
    _asked: bool = False
    _read_back: bool = False
    """True once a checkpoint has been read back after it was written; the first is."""
    _threads: list[threading.Thread] = field(default_factory=list)
    _failed: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        """Have one taken after the next tick; all workers ask at the same place."""
        self._asked = True

    def announce(self, tick: int, *, save_at: int | None, now_s: float) -> int | None:
        """On the worker that leads, where one is due by time: after which tick it is to be."""
        seconds, _ = parse_every(self.setting.every)
        if not self.collector.collects or seconds is None or now_s - self.taken_s < seconds:
            return None
        if save_at is not None and save_at > tick:  # the last one that was announced is not taken yet
            return None
        self.taken_s = now_s
        return self.collector.formation.agreed(tick)

    def _whole(self, tick: int) -> int:
        """The first tick from here on after which no window of a synchronous schedule is open."""
        grid = self.collector.formation.setting
        window = grid.micro_batches if grid.flushes else 1
        return -(-tick // window) * window

    def due(self, tick: int, *, saves: Collection[int]) -> bool:
        """Whether one is to be taken now, after this tick."""
        _, steps = parse_every(self.setting.every)
        if self._asked and tick == self._whole(tick):
            self._asked = False
            return True
        return tick in saves or (steps is not None and tick % self._whole(steps) == 0)

    def take(self, values: dict[str, Any], *, tick: int, samples: int, elapsed_s: float) -> None:
        """Write a checkpoint behind the training; all workers that are there do."""
        grid, there = self.collector.formation.setting, self.collector.there
        manifest = Manifest(
            policy=grid.spec,
            stage=grid.spec,
            clock=tick,
            samples=samples,
            elapsed_s=elapsed_s,
            num_workers=len(there),
            workers=tuple(there),
            layout="",
            seed=self.seed,
            versions={"torch": str(torch.__version__), "plesio": version("plesio")},
        )
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        before = self._threads[-1] if self._threads else None
        thread = threading.Thread(target=self._write, args=(values, manifest, before), name="checkpoint", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _write(self, values: dict[str, Any], manifest: Manifest, before: threading.Thread | None) -> None:
        folder = Folder(self.setting.folder)
        rank, part = self.collector.rank, None
        leads = rank == manifest.workers[0]
        try:
            self.claim.confirm(leads=leads)
            part = folder.begin(manifest.clock)
            name = worker.name_of(rank)
            said = Said(files={name: worker.write(part / name, values)})
            if not self._read_back:
                worker.read(part / name)
                self._read_back = True
            say(part, rank, said)
            if leads:
                if before is not None:
                    before.join()  # they are committed in their order
                self._commit(folder, part, manifest)
        except Exception as error:  # whatever it is, the grid goes on, and its user is told
            self.warn(could_not_be_written(folder, error))
            if part is not None and leads:
                folder.give_up(manifest.clock)
            elif part is not None:
                with contextlib.suppress(OSError):
                    say(part, rank, Said(error=str(error)))

    def _commit(self, folder: Folder, part: Path, manifest: Manifest) -> None:
        said = heard_from_all(
            part, manifest.workers, patience_s=lambda: FAILED_AWAIT_S if self._failed.is_set() else AWAIT_S
        )
        files: dict[str, Written] = {name: one for told in said.values() for name, one in told.files.items()}
        seal(part, replace(manifest, files=files, created_unix_s=time.time()))
        folder.keep(self.setting.keep)

    def close(self, *, failed: bool = False) -> None:
        """Return when all that was begun is written, or has failed to be, and let go of the folder."""
        if failed:
            self._failed.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self.claim.close()


def found(setting: CheckpointSetting, *, grid: GridSetting, seed: int, rank: int) -> dict[str, Any] | None:
    """What this worker goes on from; None to begin afresh.

    Raises:
        ConfigError: The checkpoint is of another grid, or another order of samples, or of fewer workers.
        DataError: There are checkpoints, and none is whole.
    """
    if setting.resume == "no":
        return None
    if setting.resume == "auto":
        latest = Folder(setting.folder).latest()
        if latest is None:
            return None
        path, manifest, damaged = latest
        for line in damaged:
            _log.warning("left out a damaged checkpoint: %s", line)
    else:
        path = Path(setting.resume)
        manifest = read_manifest(path)
        for fault in faults(path, manifest.files):
            raise ConfigError(f"{path} is damaged: {fault}; resume=auto takes the latest that is whole")
    for what, here, there in (("grid", grid.spec, manifest.policy), ("seed", seed, manifest.seed)):
        if here != there:
            raise ConfigError(
                f"{path} is of a run with {what} {there}, and this one has {here}; "
                "use another folder for it, or resume=no"
            )
    if len(manifest.workers) != grid.num_workers:
        raise ConfigError(f"{path} is of a moment when a group was lost; use an earlier one, or resume=no")
    return worker.read(path / worker.name_of(sorted(manifest.workers)[rank]))


def whole_network(path: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
    """The network in a grid's checkpoint: the mean over the groups, as an ordinary ``state_dict``.

    Raises:
        DataError: It cannot be read.
    """
    grid = GridSetting.parse(manifest.policy)
    groups = sorted({rank // grid.stages for rank in manifest.workers})
    state: dict[str, torch.Tensor] = {}
    for stage in range(grid.stages):
        copies = [
            worker.read(path / worker.name_of(group * grid.stages + stage))["stage"]["layers"] for group in groups
        ]
        for name, first in copies[0].items():
            floating = first.is_floating_point()
            state[name] = torch.stack([copy[name] for copy in copies]).mean(0) if floating else first
    return state
