"""Looks ahead on a schedule: when it would next change the rates, found by stepping a copy of it.

Only schedulers of torch are stepped, as one of the user's may do more than compute a rate.
"""

import copy
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

_MOST = 1_000_000
"""Steps to look ahead, which take a few seconds."""


def first_change(scheduler: LRScheduler, *, steps: int) -> int | None:
    """Return after how many steps more the rates would be others; None if not within so many.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    >>> first_change(scheduler, steps=3), first_change(scheduler, steps=2), scheduler.last_epoch
    (3, None, 0)
    """
    groups = [_without_parameters(group) for group in scheduler.optimizer.param_groups]
    optimizer = SimpleNamespace(param_groups=groups, step=scheduler.optimizer.step, _opt_called=True)
    if (ahead := _copied(scheduler, optimizer)) is None:
        return None
    begun = [float(group["lr"]) for group in groups]
    try:
        with warnings.catch_warnings(action="ignore"):
            for made in range(1, min(steps, _MOST) + 1):
                ahead.step()
                if [float(group["lr"]) for group in groups] != begun:
                    return made
    except Exception:  # a function of the user's may be defined up to here only
        return None
    return None


def _without_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a group's options, also those in tensors, which a scheduler fills in place."""
    options = {key: value for key, value in group.items() if key != "params"}
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in options.items()}


def _copied(scheduler: LRScheduler, optimizer: SimpleNamespace) -> Any:
    """Copy a scheduler of torch, with its parts, for an optimizer of its own; None if it is another's."""
    if type(scheduler).__module__ != LRScheduler.__module__:
        return None
    copied: Any = copy.copy(scheduler)
    copied.optimizer = optimizer
    if parts := vars(copied).get("_schedulers"):
        copied._schedulers = [_copied(part, optimizer) for part in parts]
        return None if None in copied._schedulers else copied
    return copied
