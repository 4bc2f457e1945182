"""An optimizer in words: a worker's description, by which a server builds its own."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from plesio.core.errors import ExchangeError
from plesio.protocol.bulk import OptimizerSpec
from plesio.runtime.parameters.optimizers import parts_of

SUPPORTED_OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    optimizer.__name__: optimizer
    for optimizer in (
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
    )
}
"""Optimizers that work element by element, so that a server can run them on its slices."""

_LINEAR = (torch.optim.SGD, torch.optim.ASGD)
"""Optimizers that make a step k times as long of a gradient k times as large."""

_NOT_THE_SERVERS = frozenset({"params", "param_names", "fused", "foreach", "capturable", "initial_lr"})
"""Options that choose an implementation, or belong to schedulers."""


def runs_on_servers(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the servers can run this optimizer: its class and its step must be torch's own."""
    return _why_not(optimizer) is None


def normalises(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the length of a step may not be in proportion to the gradient: True for all that are not known."""
    return not all(type(one) in _LINEAR and _has_torchs_step(one) for one in parts_of(optimizer))


def accumulates(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the optimizer divides by the sum of all gradients so far, and never forgets one."""
    return any(isinstance(one, torch.optim.Adagrad) for one in parts_of(optimizer))


def _why_not(optimizer: torch.optim.Optimizer) -> str | None:
    """Name the part of the optimizer that the servers cannot run, if there is one."""
    for one in parts_of(optimizer):
        name = type(one).__name__
        if SUPPORTED_OPTIMIZERS.get(name) is not type(one):
            return name
        if not _has_torchs_step(one):
            return f"{name} with a step of its own"
    return None


def _has_torchs_step(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer of a class of torch's steps as its class does."""
    own = type(optimizer).step
    step: Any = vars(optimizer).get("step", own)
    if getattr(step, "_wrapped_by_lr_sched", False):  # a scheduler's, which counts the calls
        step = step.__wrapped__
    return step is own


def optimizer_spec(optimizer: torch.optim.Optimizer) -> OptimizerSpec:
    """Describe ``optimizer`` so that a server can build its like; ExchangeError if none can run this class."""
    if (what := _why_not(optimizer)) is not None:
        raise ExchangeError(
            f"the store's servers cannot run {what} on gradients; they can run {', '.join(SUPPORTED_OPTIMIZERS)}. "
            "Use one of these, or push deltas (policy option update=delta), which works with any optimizer"
        )
    names = tuple(type(one).__name__ for one in parts_of(optimizer) for _ in one.param_groups)
    return OptimizerSpec(names=names, groups=group_options(optimizer))


def group_options(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], ...]:
    """Return the options of each parameter group that are numbers, tuples of numbers or None."""
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        options: dict[str, Any] = {}
        for key, value in group.items():
            if key in _NOT_THE_SERVERS:
                continue
            if isinstance(value, torch.Tensor):
                options[key] = value.item()
            elif isinstance(value, tuple):
                options[key] = list(value)
            elif value is None or isinstance(value, bool | int | float | list):
                options[key] = value
        groups.append(options)
    return tuple(groups)
