"""Checkpoints of a grid, with micro-batches in flight, taken while it runs.

A checkpoint is of one tick: every worker's after the same number of micro-batches. Workers get there at different times
and nobody waits: each copies what it has, takes off its links what the others had sent by then, and goes on; a thread
writes. What is on its way at a tick is known. Activations are not: stage k has read that of micro-batch n when it has
been given n. Of gradients there are as many as the stage behind has gone backward with and this one has not, and of a
mixing each neighbour's weights, if it has begun and not ended.

Where they are due by time, the first worker says after which tick, so far ahead that all have heard of it by then
(`plesio.runtime.grid.formation`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from plesio.core.errors import ConfigError
from plesio.policies.grid import GridSetting
from plesio.runtime.checkpoints import worker
from plesio.runtime.checkpoints.beginning import find
from plesio.runtime.checkpoints.folder import Manifest
from plesio.runtime.checkpoints.setting import CheckpointSetting, parse_every
from plesio.runtime.checkpoints.worker import random_states
from plesio.runtime.checkpoints.writing import CheckpointPart, Writer
from plesio.runtime.grid.feed import Feed
from plesio.runtime.grid.records import GridRecords
from plesio.runtime.grid.regrouping import Composed


@dataclass(slots=True, kw_only=True)
class GridSaver:
    """Takes one worker's part of checkpoints.

    Attributes:
        taken_s: When the last one was taken, or the training began.
        asked: One is to be taken after the next tick; all workers ask at the same place.
    """

    setting: CheckpointSetting
    taken_s: float
    writer: Writer
    asked: bool = False

    def after_tick(self, composed: Composed, records: GridRecords, feed: Feed) -> None:
        """Take a checkpoint if one is due; on the worker that leads, announce the next that is due by time."""
        tick, news, now_s = composed.worker.machine.given, composed.worker.news, records.training.elapsed_s()
        seconds, steps = parse_every(self.setting.every)
        formation = records.collector.formation
        due = tick in news.saves or (steps is not None and tick % _whole(steps, formation.setting) == 0)
        if self.asked and tick == _whole(tick, formation.setting):
            self.asked, due = False, True
        announced = news.save_at is not None and news.save_at > tick  # and not taken yet
        if records.collector.collects and seconds is not None and now_s - self.taken_s >= seconds and not announced:
            self.taken_s = now_s
            news.save(formation.agreed(tick))
        if due:
            self._take(values_of(composed, records, feed), records, tick=tick)

    def _take(self, values: dict[str, Any], records: GridRecords, *, tick: int) -> None:
        """Write a checkpoint behind the training; all workers that are there do."""
        grid, there = records.collector.formation.setting, tuple(records.collector.there)
        manifest = Manifest(
            policy=grid.spec,
            stage=grid.spec,
            clock=tick,
            samples=records.tally.samples,
            elapsed_s=values["training_s"],
            num_workers=len(there),
            workers=there,
            layout="",
            seed=records.run.info.seed,
        )
        self.writer.lost.update(records.collector.known.difference(there))  # they are not waited for
        self.writer.write(
            CheckpointPart(clock=tick, workers=there, own=values, finish=lambda folder, reports: manifest)
        )


def _whole(tick: int, grid: GridSetting) -> int:
    """Return the first tick from this one on after which no window of a synchronous schedule is open."""
    window = grid.micro_batches if grid.flushes else 1
    return -(-tick // window) * window


def values_of(composed: Composed, records: GridRecords, feed: Feed) -> dict[str, Any]:
    return {
        **composed.worker.state(),
        "ends": list(composed.network.ends),
        "random": random_states(),
        "feed": feed.state.to_values(),
        **records.values(),
    }


def found(setting: CheckpointSetting, *, grid: GridSetting, seed: int, rank: int) -> dict[str, Any] | None:
    """Return what this worker goes on from; None to begin afresh.

    Raises:
        ConfigError: The checkpoint is of another grid, or another order of samples, or of fewer workers.
        DataError: There are checkpoints, and none is whole.
    """
    latest = find(setting, policy=grid.spec, seed=seed, kind="grid")
    if latest is None:
        return None
    path, manifest = latest
    if len(manifest.workers) != grid.num_workers:
        raise ConfigError(f"{path} is of a moment when a group was lost; use an earlier one, or resume=no")
    return worker.read(path / worker.name_of(sorted(manifest.workers)[rank]))


def whole_network(path: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Read the network of a grid's checkpoint: the mean over the groups, as an ordinary ``state_dict``.

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
