"""Many small tensors as one flat tensor of each dtype, and back: one collective in place of one for each of them."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group the tensors by dtype, in an order that all ranks have."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def flat_of(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def parts_of(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Cut ``flat`` into the shapes of the tensors, sharing its memory."""
    sizes = [tensor.numel() for tensor in tensors]
    return [part.view_as(tensor) for part, tensor in zip(torch.split(flat, sizes), tensors, strict=True)]


@torch.no_grad()
def write_parts(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor, part in zip(tensors, parts_of(flat, tensors), strict=True):
        tensor.copy_(part)
