"""Applies a gradient that belongs to no step of its own: what was kept back, when nothing else will carry it.

An optimizer step with it would do more than that: its momentum would move the parameters once more, its weight decay
and its counters would count a step that was not made. So only the difference that the gradient makes is applied, to the
parameters and to the optimizer's state z alike:

    z <- z + step(z, gradient) - step(z, 0)

For SGD with learning rate η and momentum this is ``x <- x - ηe, m <- m + e``, as if e had been part of the last step's
gradient, but for that step's own momentum. It takes the memory of two copies of parameters and state while it works.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from plesio.runtime.worker.exchange.flat_gradients import FlatGradients
from plesio.runtime.worker.exchange.replica import Replica

__all__ = ["apply_late"]


def apply_late(replica: Replica, gradients: FlatGradients, flats: Sequence[Tensor]) -> None:
    """Apply the gradient in ``flats``, as `FlatGradients` has it; the replica has no gradient afterwards."""
    optimizer = replica.optimizer
    before, options = _tensors(replica), _options(optimizer)
    kept = [tensor.detach().clone() for tensor in before]
    numbers = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    gradients.give(gradients.zeros())
    replica.stepper.step()
    without = [tensor.detach().clone() for tensor in before]
    _go_back(before, kept)
    gradients.give(flats)
    _set_options(optimizer, options)
    replica.stepper.step()
    _set_options(optimizer, options)
    with torch.no_grad():
        for tensor, old, none in zip(before, kept, without, strict=True):
            tensor.add_(old - none) if tensor.is_floating_point() else tensor.copy_(old)
    for parameter, state in numbers.items():  # tensors are the same objects; plain numbers are as they were
        optimizer.state[parameter].update(state)
    optimizer.zero_grad(set_to_none=True)


def _tensors(replica: Replica) -> list[Tensor]:
    """List the parameters with dense gradients, and the tensors of their state: nothing is kept back of others."""
    state = replica.optimizer.state
    parameters = [p for name, p in replica.parameters.items() if name not in replica.sparse]
    held = [value for p in parameters for value in state.get(p, {}).values() if isinstance(value, Tensor)]
    return [*parameters, *held]


@torch.no_grad()
def _go_back(tensors: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
    for tensor, old in zip(tensors, kept, strict=True):
        tensor.copy_(old)


def _options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each parameter group; some optimizers keep counts there."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _set_options(optimizer: torch.optim.Optimizer, options: Sequence[dict[str, Any]]) -> None:
    for group, values in zip(optimizer.param_groups, options, strict=True):
        group.update(values)
