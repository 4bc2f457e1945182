"""The part of a tensor that this rank holds: of a `DTensor` its local one, else all of it."""

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from plesio.core.errors import TaskError
from plesio.runtime.parameters.blocks import TensorBlock

__all__ = ["block_of", "local_part", "placed_like", "whole_tensor"]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of ``tensor`` that is here, sharing its memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def whole_tensor(like: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor that is placed as ``like``, of which ``part`` is here; all ranks that share it call it."""
    if not isinstance(like, DTensor):
        return part
    mesh, placements = like.device_mesh, like.placements
    on_device = part.to(like.device)
    return DTensor.from_local(on_device, mesh, placements, shape=like.shape, stride=like.stride()).full_tensor()


def placed_like(whole: torch.Tensor, like: DTensor) -> DTensor:
    """Return ``whole``, which this process has all of, placed as ``like``: a copy of the part that belongs here."""
    mesh, placements = like.device_mesh, like.placements
    sizes, begins = compute_local_shape_and_global_offset(like.shape, mesh, placements)
    own = whole[tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))]
    part = own.to(like.device, copy=True, memory_format=torch.contiguous_format)
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def block_of(tensor: torch.Tensor, *, name: str) -> TensorBlock:
    """Return the part of ``tensor`` that this rank holds.

    Raises:
        TaskError: It cannot be exchanged: a part of a sum, or of dimensions that do not lie next to each other.
    """
    if not isinstance(tensor, DTensor):
        return TensorBlock(width=1, row=0, num_rows=tensor.numel(), column=0, num_columns=1)
    placements = tensor.placements
    block = None
    if all(type(one) is Shard or one.is_replicate() for one in placements):
        sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)
        if tuple(sizes) == tuple(local_part(tensor).shape):
            block = TensorBlock.of_box(tensor.shape, offsets=offsets, sizes=sizes)
    cut = [one.dim for one in placements if not one.is_replicate() and hasattr(one, "dim")]
    if block is None and len(set(cut)) < len(cut):
        raise TaskError(
            f'"{name}" is cut twice along one dimension, as by FSDP2 over a column-wise layer, and islands exchange no '
            "such parts; use one of the two there, or FSDP2 over a row-wise layer"
        )
    if block is None:
        raise TaskError(
            f'"{name}" is placed as {", ".join(map(str, placements))}, of which islands exchange no parts; place it as '
            "Replicate, or as Shard of one dimension, or of the first and one more"
        )
    return block
