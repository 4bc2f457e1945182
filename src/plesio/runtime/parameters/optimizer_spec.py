"""An optimizer in words: what a worker says of its own, and a server builds the like of."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from plesio.core.errors import ExchangeError
from plesio.protocol.bulk import OptimizerSpec

__all__ = ["SUPPORTED_OPTIMIZERS", "group_options", "optimizer_spec", "runs_on_servers"]

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

_NUMBERS = (bool, int, float)


def runs_on_servers(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the servers can run this class."""
    return SUPPORTED_OPTIMIZERS.get(type(optimizer).__name__) is type(optimizer)


def optimizer_spec(optimizer: torch.optim.Optimizer) -> OptimizerSpec:
    """Describe ``optimizer`` so that a server can build its like.

    Raises:
        ExchangeError: The servers cannot run this class.
    """
    name = type(optimizer).__name__
    if not runs_on_servers(optimizer):
        raise ExchangeError(
            f"the store's servers cannot run {name} on gradients; they can run {', '.join(SUPPORTED_OPTIMIZERS)}. "
            "Use one of these, or push deltas (policy option update=delta), which works with any optimizer"
        )
    return OptimizerSpec(name=name, groups=group_options(optimizer))


def group_options(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], ...]:
    """The options of each parameter group that are numbers, tuples of numbers or None."""
    return tuple(
        {key: _plain(value) for key, value in group.items() if _is_option(key, value)}
        for group in optimizer.param_groups
    )


def _is_option(key: str, value: object) -> bool:
    # `fused` and `foreach` choose an implementation, `initial_lr` belongs to schedulers: not the server's business
    if key in ("params", "param_names", "fused", "foreach", "capturable", "initial_lr"):
        return False
    return value is None or isinstance(value, (*_NUMBERS, tuple, list, torch.Tensor))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else list(value) if isinstance(value, tuple) else value
