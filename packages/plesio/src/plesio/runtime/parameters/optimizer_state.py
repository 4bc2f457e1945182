"""An optimizer's state on its way between a worker and the servers, whose optimizers step slices of the parameters.

Of each parameter an element-wise optimizer keeps tensors of the parameter's own shape (momentum, second moments), which
are cut as the parameter is, and numbers (how many steps it has made), which go with every slice. A state is written as
a *table*, one row for each slice in their order, and the bytes of all tensors that it names, one after the other:

    [[["step", "number", "float32", 12.0], ["exp_avg", "tensor", "float32", 640]], ...]

each entry a key, its kind, its dtype, and its value or the number of its elements.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from plesio.protocol.bulk import Table
from plesio.runtime.parameters.layout import Slice, view_packed, write_slice

Piece = tuple[torch.Tensor, Slice]
"""A parameter, and which of its elements."""
Local = Callable[[torch.Tensor], torch.Tensor]

_NUMBERS = ("step", "eta", "mu", "mu_product")
"""Keys that the supported optimizers keep as tensors of one element, whatever the parameter's shape."""


def read_state(
    optimizer: torch.optim.Optimizer, pieces: Sequence[Piece], *, local: Local = lambda tensor: tensor
) -> tuple[Table, list[torch.Tensor]]:
    """Return the state of some slices: its table, and its tensors, flat.

    ``local`` returns the part of a tensor that is here, of which the slices are.
    """
    table: Table = []
    tensors: list[torch.Tensor] = []
    for parameter, piece in pieces:
        row: list[list[Any]] = []
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, torch.Tensor):
                row.append([key, "value", None, value])
            elif key in _NUMBERS:
                row.append([key, "number", _name(value.dtype), value.item()])
            else:
                part = local(value.detach()).to_dense().reshape(-1)[piece.start : piece.stop]
                row.append([key, "tensor", _name(part.dtype), part.numel()])
                tensors.append(part)
        table.append(row)
    return table, tensors


@torch.no_grad()
def write_state(
    optimizer: torch.optim.Optimizer,
    pieces: Sequence[Piece],
    *,
    table: Table,
    payload: torch.Tensor,
    local: Local = lambda tensor: tensor,
) -> None:
    """Set the state of some slices to what `read_state` gave, its tensors packed into ``payload`` (uint8)."""
    position = 0
    for (parameter, piece), row in zip(pieces, table, strict=True):
        for key, kind, name, value in row:
            state = optimizer.state[parameter]
            if kind == "value":
                state[key] = value
            elif kind == "number":
                state[key] = torch.tensor(value, dtype=dtype_named(name))
            else:
                if not isinstance(state.get(key), torch.Tensor):
                    # of the parameter's own dtype, as the optimizer would make it: servers have wider ones of 16 bits
                    state[key] = torch.zeros_like(parameter)
                num_bytes = value * dtype_named(name).itemsize
                part = view_packed(payload[position : position + num_bytes], dtype_named(name))
                write_slice(local(state[key]), piece, part)
                position += num_bytes


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
