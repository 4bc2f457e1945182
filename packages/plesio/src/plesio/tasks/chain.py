"""How a task's network is a chain of layers, for those who cut it into stages (`plesio.grid`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from plesio.core.errors import TaskError


def as_pair(batch: Any) -> tuple[Any, Any]:
    """Split batches that are just the network's input and the loss's other argument."""
    given, wanted = batch
    return given, wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A task's network as layers, one after another: ``loss(layers(model)(x), y)`` is the task's loss of ``(x, y)``.

    Attributes:
        layers: ``layers(model)`` gives the network of ``model``, whose parameters and buffers it shares. Each layer is
            called with what the one before hands on, a tensor or a tuple of tensors.
        loss: ``loss(output, y)`` gives the scalar mean loss of a batch.
        split: ``split(batch)`` gives ``(x, y)``: what the first layer is called with, and what the loss is.

    Raises:
        TaskError: A field is no function.
    """

    layers: Callable[[nn.Module], nn.Sequential]
    loss: Callable[[Any, Any], Tensor]
    split: Callable[[Any], tuple[Any, Any]] = as_pair

    def __post_init__(self) -> None:
        for field in ("layers", "loss", "split"):
            if not callable(getattr(self, field)):
                raise TaskError(f"a chain's {field} is of type {type(getattr(self, field)).__name__}; give a function")
