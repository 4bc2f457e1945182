"""A task that takes as long as another one in the virtual world, and trains nothing.

It has the other's parameters and data, so as many steps, samples and bytes; its gradients are zero. Under BSP and local
SGD what is trained does not depend on how long anything takes, so such a policy is trained once and timed in every
scenario with this (`scenarios`).
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from plesio.tasks.load import load_task
from plesio.tasks.task import Task

__all__ = ["stand_in"]


def stand_in(*, of: str, **options: Any) -> Task:
    """Make the stand-in of the task ``of``, made with ``options``."""
    return replace(load_task(of, **options), loss=_nothing, metric=lambda model: 0.0)


def _nothing(model: nn.Module, batch: Any) -> Tensor:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return torch.zeros((), requires_grad=True)
