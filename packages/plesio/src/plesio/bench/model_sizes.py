"""A replica's memory, counted tensor by tensor: it does not depend on the rest of the process."""

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from plesio.advisor import ModelSizes


class _Held:
    """A tensor that the backward pass will ask for."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@dataclass(slots=True)
class SavedTensors:
    """Counts what forward passes keep for their backward passes.

    Attributes:
        peak_bytes: Most at any time; parameters themselves do not count.
    """

    peak_bytes: int = 0
    _now_bytes: int = 0
    _known: set[int] = field(default_factory=set)

    def leave_out(self, model: nn.Module) -> None:
        """Leave out the model's parameters and buffers, which are counted elsewhere."""
        self._known |= {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in this context, and this thread."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held.tensor):
            yield

    def _pack(self, tensor: Tensor) -> _Held:
        held = _Held(tensor)
        if tensor.untyped_storage().data_ptr() not in self._known:
            num_bytes = tensor.numel() * tensor.element_size()
            self._now_bytes += num_bytes
            self.peak_bytes = max(self.peak_bytes, self._now_bytes)
            weakref.finalize(held, self._forget, num_bytes).atexit = False
        return held

    def _forget(self, num_bytes: int) -> None:
        self._now_bytes -= num_bytes


def sizes_of(model: nn.Module, optimizer: Optimizer, saved: SavedTensors) -> ModelSizes:
    """Return the sizes of a replica that has made a step, whose forward pass ``saved`` has counted."""
    return ModelSizes(
        shapes=tuple(tuple(one.shape) for one in model.parameters() if one.requires_grad),
        optimizer_bytes=optimizer_bytes(optimizer),
        activation_bytes=saved.peak_bytes,
        block_bytes=largest_block_bytes(model),
    )


def optimizer_bytes(optimizer: Optimizer) -> int:
    """Count the bytes that the optimizer keeps after a step.

    >>> linear = nn.Linear(3, 1, bias=False)
    >>> adam = torch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9)
    >>> linear(torch.ones(2, 3)).sum().backward(); adam.step(); optimizer_bytes(adam)
    12
    """
    kept = itertools.chain.from_iterable(state.values() for state in optimizer.state.values())
    return sum(one.numel() * one.element_size() for one in kept if isinstance(one, Tensor) and one.ndim > 0)


def largest_block_bytes(model: nn.Module) -> int:
    """Parameters of the largest part that a sharded replica gathers at once: a layer, or an item of a list of them."""
    blocks: list[nn.Module] = []
    for child in model.children():
        blocks += (
            list(child.children()) if isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential) else [child]
        )
    sizes = [sum(one.numel() * one.element_size() for one in block.parameters()) for block in blocks or [model]]
    return max(sizes, default=0)
