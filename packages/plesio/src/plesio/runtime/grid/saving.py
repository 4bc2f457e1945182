"""Checkpoints of a grid, with micro-batches in flight, taken while it runs.

A checkpoint is of one tick: every worker's after the same number of micro-batches. Workers get there at different times
and nobody waits: each copies what it has, takes off its links what the others had sent by then, and goes on; a thread
writes. What is on its way at a tick is known. Activations are not: stage k has read that of micro-batch n when it has
been given n. Of gradients there are as many as the stage behind has gone backward with and this one has not, and of a
mixing each neighbour's weights, if it has begun and not ended.

Where they are due by time, the first worker says after which tick, so far ahead that all have heard of it by then
(`plesio.runtime.grid.formation`).
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from plesio.core.errors import ConfigError
from plesio.policies.grid import GridSetting
from plesio.runtime.checkpoints import worker
from plesio.runtime.checkpoints.folder import Manifest
from plesio.runtime.checkpoints.resumed import find
from plesio.runtime.checkpoints.setting import CheckpointSetting, parse_every
from plesio.runtime.checkpoints.writing import Part, Writer
from plesio.runtime.grid.records import Collector

__all__ = ["GridSaver", "found", "whole_network"]


@dataclass(slots=True, kw_only=True)
class GridSaver:
    """Of one worker.

    Attributes:
        setting: What the user has said.
        collector: Knows who is there; who collects says when.
        seed: Of the order of samples.
        taken_s: When the last one was taken, or the training began.
        writer: Writes what is copied.
    """

    setting: CheckpointSetting
    collector: Collector
    seed: int
    taken_s: float
    writer: Writer
    _asked: bool = False

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
        grid, there = self.collector.formation.setting, tuple(self.collector.there)
        manifest = Manifest(
            policy=grid.spec,
            stage=grid.spec,
            clock=tick,
            samples=samples,
            elapsed_s=elapsed_s,
            num_workers=len(there),
            workers=there,
            layout="",
            seed=self.seed,
        )
        self.writer.write(Part(clock=tick, workers=there, own=values, finish=lambda folder, said: manifest))


def found(setting: CheckpointSetting, *, grid: GridSetting, seed: int, rank: int) -> dict[str, Any] | None:
    """What this worker goes on from; None to begin afresh.

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
