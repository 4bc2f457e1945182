"""One rank of a grid under `plesio.grid`, at work on the network of `networks`."""

import time
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

from networks import Shape, loss, optimizer, take_precedence
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.runtime.worker.exchange.group import TorchGroup


def run_grid(group: TorchGroup, *, shape: Shape, setting: str, micro_batches: int) -> dict[str, Any]:
    """Train on so many micro-batches.

    Returns:
        When each micro-batch's step ended (``marks``), and what the stage reports.
    """
    x, y = shape.batches(micro_batches)
    marks = []
    stages = shape.parts(per_stage=1, devices=range(shape.stages))
    take_precedence(paced=shape.stage_s > 0)
    with redirect_stderr(StringIO()), plesio.grid(stages, optimizer, loss, setting=setting) as grid:
        for inputs, targets in grid.shard(DataLoader(TensorDataset(x, y), batch_size=shape.batch, shuffle=True)):
            grid.step(inputs, targets)
            marks.append(time.monotonic())
        grid.finish()
        worker = grid.report().workers[group.rank]
    return {"marks": marks, "compute_s": worker.compute_s, "wait_s": worker.wait_s}
