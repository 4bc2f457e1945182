"""One rank under torch.distributed.pipelining, at work on the network of `networks`."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from networks import Shape, loss, optimizer, take_precedence
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from plesio.runtime.worker.exchange.group import TorchGroup

SINGLE: Mapping[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
"""One stage a device."""
MULTI: Mapping[str, Any] = {"interleaved": ScheduleInterleaved1F1B, "zbv": ScheduleZBVZeroBubble}
"""Two."""


def devices_of(schedule: str, stages: int) -> list[int]:
    if schedule in SINGLE:
        return list(range(stages))
    return [*range(stages), *(reversed(range(stages)) if schedule == "zbv" else range(stages))]


def run_torch(group: TorchGroup, *, shape: Shape, schedule: str, micro_batches: int, steps: int) -> dict[str, Any]:
    """Make so many steps of so many micro-batches each.

    Returns:
        When each micro-batch's step ended (``marks``): all of a step at once.
    """
    devices = devices_of(schedule, shape.stages)
    parts = shape.parts(per_stage=len(devices) // shape.stages, devices=devices)
    own = [number for number, device in enumerate(devices) if device == group.rank]
    take_precedence(paced=shape.stage_s > 0)
    x, y = shape.batches(micro_batches)
    stages = [
        PipelineStage(
            parts[number],
            number,
            len(parts),
            torch.device("cpu"),
            input_args=x[: shape.batch] if number == 0 else shape.handed_on(last=False),
            output_args=shape.handed_on(last=number == len(parts) - 1),
            group=group.process_group,
        )
        for number in own
    ]
    weights = [weight for number in own for weight in parts[number].parameters()]
    stepper = optimizer(weights)
    if schedule in SINGLE:
        runner = SINGLE[schedule](stages[0], micro_batches, loss_fn=loss)
    else:
        runner = MULTI[schedule](stages, micro_batches, loss_fn=loss)
    holds_first, holds_last = 0 in own, len(parts) - 1 in own
    marks = []
    for _ in range(steps):
        given = [x] if holds_first else []
        runner.step(*given, **({"target": y} if holds_last else {}), return_outputs=False)
        stepper.step()
        stepper.zero_grad()
        marks += [time.monotonic()] * micro_batches
    return {"marks": marks}
