"""The tasks with another optimizer, for the table of sensitivity."""

import functools
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from plesio.tasks.load import load_task
from plesio.tasks.task import Task


def with_optimizer(*, of: str, optimizer: Literal["momentum", "adam"], learning_rate: float, **options: Any) -> Task:
    """Make the task ``of`` with ``options``, and SGD with a momentum of 0.9 or Adam in place of its own optimizer."""
    task = load_task(of, **options)
    return replace(task, build=functools.partial(_build, task, optimizer=optimizer, learning_rate=learning_rate))


def _build(task: Task, seed: int, *, optimizer: str, learning_rate: float) -> tuple[nn.Module, Optimizer]:
    model, _ = task.build(seed)
    if optimizer == "momentum":
        return model, torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    return model, torch.optim.Adam(model.parameters(), lr=learning_rate)
