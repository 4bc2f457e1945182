"""All dense gradients of a replica as one flat tensor for each dtype, and back; its sparse ones beside them.

A gradient may belong to no step of its own: what was kept back, when nothing else will carry it. An optimizer step with
it would do more than that: its momentum would move the parameters once more, its weight decay and its counters would
count a step that was not made. So only the difference that the gradient makes is applied, to the parameters and to the
optimizer's state z alike:

    z <- z + step(z, gradient) - step(z, 0)

For SGD with learning rate η and momentum this is ``x <- x - ηe, m <- m + e``, as if e had been part of the last step's
gradient, but for that step's own momentum. It takes the memory of two copies of parameters and state while it works.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.runtime.worker.exchange.flat import by_dtype, flat_of, parts_of
from plesio.runtime.worker.exchange.replica import Replica


class FlatGradients:
    """Takes the gradients off a replica, and puts others on.

    A parameter that has no gradient counts as having a gradient of zeros, so that what is exchanged has one length
    whatever a step has used, and gets one like all others. Sparse gradients, which have no length of their own, are
    taken and given as they are (`Replica.sparse` says which); where no module has announced one, it is made dense.
    """

    def __init__(self, replica: Replica) -> None:
        parameters = [p for name, p in replica.parameters.items() if name not in replica.sparse]
        self._sparse = list(replica.sparse.values())
        self._groups = by_dtype(parameters)
        self._unused = set(parameters)
        """Have never had a gradient on this rank."""

    @property
    def shapes(self) -> list[list[torch.Size]]:
        """Shapes of the parameters in each flat tensor, in their order."""
        return [[parameter.shape for parameter in group] for group in self._groups]

    def share_sent(self, compression: Compression) -> float:
        """Return the bytes that a rank contributes under ``compression``, as a share of all; 1 without gradients."""
        num_bits = sum(compression.payload_bits(shapes) for shapes in self.shapes)
        in_full = sum(NO_COMPRESSION.payload_bits(shapes) for shapes in self.shapes)
        return num_bits / in_full if in_full else 1.0

    @torch.no_grad()
    def take(self) -> list[Tensor]:
        """Take the gradients from the replica, which has none afterwards."""
        flats = [
            flat_of([torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in group])
            for group in self._groups
        ]
        for group in self._groups:
            for parameter in group:
                if parameter.grad is not None:
                    self._unused.discard(parameter)
                parameter.grad = None
        return flats

    @torch.no_grad()
    def give(self, flats: Sequence[Tensor]) -> None:
        """Make ``flats`` the gradients; they share their memory."""
        for group, flat in zip(self._groups, flats, strict=True):
            for parameter, part in zip(group, parts_of(flat, group), strict=True):
                parameter.grad = part

    def leave_alone(self) -> None:
        """Take the gradient from parameters that are frozen by now or were not used: both stay as they are."""
        for parameter in (parameter for group in self._groups for parameter in group):
            unused = parameter in self._unused and parameter.grad is not None and not parameter.grad.any()
            if unused or not parameter.requires_grad:
                parameter.grad = None

    @torch.no_grad()
    def take_sparse(self) -> list[Tensor]:
        """Take the sparse gradients from the replica, which has none of them afterwards."""
        taken = [_rows(parameter) for parameter in self._sparse]
        for parameter in self._sparse:
            parameter.grad = None
        return taken

    def give_sparse(self, gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self._sparse, gradients, strict=True):
            parameter.grad = gradient

    @torch.no_grad()
    def zeros(self) -> list[Tensor]:
        return [torch.zeros_like(flat_of(group)) for group in self._groups]


def _rows(parameter: Tensor) -> Tensor:
    """Return the gradient of a parameter whose rows are looked up; without one, a gradient of no row."""
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return gradient if gradient.is_sparse else gradient.to_sparse(1)  # a weight that is used otherwise too has it dense


def apply_late(replica: Replica, gradients: FlatGradients, flats: Sequence[Tensor]) -> None:
    """Apply the gradient in ``flats``, as `FlatGradients` has it; the replica has no gradient afterwards."""
    optimizer = replica.optimizer
    before = _tensors(replica)
    # some optimizers keep counts there
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    kept = [tensor.detach().clone() for tensor in before]
    numbers = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    gradients.give(gradients.zeros())
    replica.stepper.step()
    without = [tensor.detach().clone() for tensor in before]
    with torch.no_grad():
        for tensor, old in zip(before, kept, strict=True):
            tensor.copy_(old)
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


def _set_options(optimizer: torch.optim.Optimizer, options: Sequence[dict[str, Any]]) -> None:
    for group, values in zip(optimizer.param_groups, options, strict=True):
        group.update(values)
